"""
The brokers behind sampleapp, one file or folder each.

A URL selects the broker. Only its module is imported, so that a process does not load the libraries of the
other brokers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sampleapp.brokers.shared.deliveries import WorkSettings
from sampleapp.brokers.shared.idempotency import IdempotencySettings
from sampleapp.interfaces import IBroker

__all__ = [
    "BrokerURLError",
    "IdempotencySettings",
    "WorkSettings",
    "check_readable",
    "from_url",
    "takes_all_keys",
]

_RIGHT = (
    "use kafka://HOST:PORT, sqlite:PATH (for example sqlite:sampleapp.sqlite3), or memory: (keeps nothing)"
)


class BrokerURLError(ValueError):
    """The URL of a broker is wrong. The message says what is right."""


def from_url(
    url: str,
    *,
    reactor: Any,
    idempotency: IdempotencySettings = IdempotencySettings(),  # noqa: B008 -- it is immutable
    work: WorkSettings = WorkSettings(),  # noqa: B008 -- it is immutable
) -> IBroker:
    """
    Create the broker of a URL, without opening files or connections.

    :param url: ``kafka://HOST:PORT[,HOST:PORT]…[?option=value&…]``, or ``kafka+tls://…``; ``sqlite:PATH``,
        where the path may be relative to the current directory; or ``memory:``.
    :param reactor: provides `IReactorTime`, `IReactorFromThreads` and, for Kafka, the interfaces that TCP
        endpoints need. No single type has all of them.
    :param idempotency: for records that are sent again.
    :param work: for groups of workers.
    :raise BrokerURLError: for any other URL. The message does not repeat the part after the scheme, which may
        have a password.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise BrokerURLError(f"A broker's URL begins with a scheme and a colon: {_RIGHT}.")
    scheme = scheme.lower()
    if scheme == "sqlite":
        return _sqlite(rest, reactor=reactor, idempotency=idempotency, work=work)
    if scheme == "memory":
        if rest:
            raise BrokerURLError("The memory broker takes no address or options: use memory: alone.")
        from sampleapp.brokers.memory import MemoryBroker

        return MemoryBroker(clock=reactor, idempotency=idempotency, work=work)
    if scheme in {"kafka", "kafka+tls"}:
        return _kafka(url, reactor=reactor, idempotency=idempotency, work=work)
    raise BrokerURLError(f"The scheme of this broker's URL is not known: {_RIGHT}.")


def takes_all_keys(url: str) -> bool:
    """
    Return whether records of each topic may have idempotency keys; on Kafka, an operator enables them.

    :param url: as for `from_url`.
    """
    return not url.lower().startswith("kafka")


def check_readable(url: str) -> None:
    """
    Check that there is something to read: not a file that would be created now, or an empty memory.

    :param url: as for `from_url`, which finds all other mistakes.
    :raise BrokerURLError: the file is missing, or the URL is ``memory:``.
    """
    scheme, _, rest = url.partition(":")
    # The service creates its file at the start. A reader needs an existing one: the path may be mistyped.
    if scheme.lower() == "sqlite" and rest and "\0" not in rest and not Path(rest).exists():
        raise BrokerURLError(
            f"there is no file {rest!r}. The service creates it, in the directory where it is started, or at "
            "the path in its own --broker."
        )
    if scheme.lower() == "memory":
        raise BrokerURLError("the records of a memory broker can be read only in the service itself.")


def _kafka(url: str, *, reactor: Any, idempotency: IdempotencySettings, work: WorkSettings) -> IBroker:
    from sampleapp.brokers.kafka import config
    from sampleapp.brokers.kafka.broker import KafkaBroker

    try:
        parsed = config.parse(url)
    except ValueError as error:
        raise BrokerURLError(str(error)) from None
    return KafkaBroker(parsed, reactor=reactor, idempotency=idempotency, work=work)


def _sqlite(path: str, *, reactor: Any, idempotency: IdempotencySettings, work: WorkSettings) -> IBroker:
    if not path:
        raise BrokerURLError("The path of the file is missing: use sqlite:PATH.")
    if "\0" in path:
        raise BrokerURLError("The path of the file contains a NUL character: use sqlite:PATH without one.")
    if path.startswith("//"):
        # Ambiguous: an authority, or a relative path as in SQLAlchemy.
        raise BrokerURLError("After sqlite: comes the path itself, without //: use sqlite:PATH.")
    if path == ":memory:":
        raise BrokerURLError("The SQLite broker keeps a file; use memory: to keep nothing.")
    from sampleapp.brokers.sqlite import SQLiteBroker

    return SQLiteBroker(path=path, clock=reactor, threads=reactor, idempotency=idempotency, work=work)
