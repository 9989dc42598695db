"""
The brokers that sampleapp can stand in front of, one file or folder each.

Which one is in use is said by a URL. A broker's module is imported only when it is asked for, so that a
process does not load the libraries of the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sampleapp.interfaces import IBroker

__all__ = ["BrokerURLError", "check_readable", "from_url"]

_RIGHT = (
    "use kafka://HOST:PORT, sqlite:PATH (for example sqlite:sampleapp.sqlite3), or memory: (keeps nothing)"
)


class BrokerURLError(ValueError):
    """A broker's URL is not one that is known. The message says what would be right."""


def from_url(url: str, *, reactor: Any) -> IBroker:
    """
    Make the broker that a URL names. Nothing is opened or contacted yet.

    :param url: ``kafka://HOST:PORT[,HOST:PORT]…[?option=value&…]``, or ``kafka+tls://…``; ``sqlite:PATH``,
        where the path may be relative to the current directory; or ``memory:``.
    :param reactor: provides `IReactorTime`, `IReactorFromThreads` and, for Kafka, what TCP endpoints ask
        for; there is no type for all of these at once.
    :raise BrokerURLError: for anything else. What stands after the scheme is never repeated in the
        message, because a password may stand there.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise BrokerURLError(f"A broker's URL begins with a scheme and a colon: {_RIGHT}.")
    scheme = scheme.lower()
    if scheme == "sqlite":
        return _sqlite(rest, reactor=reactor)
    if scheme == "memory":
        if rest:
            raise BrokerURLError("The memory broker takes no address or options: use memory: alone.")
        from sampleapp.brokers.memory import MemoryBroker

        return MemoryBroker(clock=reactor)
    if scheme in {"kafka", "kafka+tls"}:
        return _kafka(url, reactor=reactor)
    raise BrokerURLError(f"The scheme of this broker's URL is not known; {_RIGHT}.")


def check_readable(url: str) -> None:
    """
    Refuse a URL from which nothing can be read, because what it names would only be made by using it.

    :param url: as for `from_url`, which finds every other mistake.
    :raise BrokerURLError: a file that is missing, or the memory of another process.
    """
    scheme, _, rest = url.partition(":")
    # A service makes its file when it starts. A reader wants the one that is there, or has mistyped its path.
    if scheme.lower() == "sqlite" and rest and "\0" not in rest and not Path(rest).exists():
        raise BrokerURLError(
            f"there is no file {rest!r}. It is made by the service, in the directory where that was started, "
            "or wherever its own --broker says."
        )
    if scheme.lower() == "memory":
        raise BrokerURLError("what a memory broker keeps can be read only in the service itself.")


def _kafka(url: str, *, reactor: Any) -> IBroker:
    from sampleapp.brokers.kafka import config
    from sampleapp.brokers.kafka.broker import KafkaBroker

    try:
        parsed = config.parse(url)
    except ValueError as error:
        raise BrokerURLError(str(error)) from None
    return KafkaBroker(parsed, reactor=reactor)


def _sqlite(path: str, *, reactor: Any) -> IBroker:
    if not path:
        raise BrokerURLError("The path of the file is missing: use sqlite:PATH.")
    if "\0" in path:
        raise BrokerURLError("The path of the file contains a NUL character: use sqlite:PATH without one.")
    if path.startswith("//"):
        # Two readings are in use, an authority and SQLAlchemy's relative path: better not to choose.
        raise BrokerURLError("After sqlite: comes the path itself, without //: use sqlite:PATH.")
    if path == ":memory:":
        raise BrokerURLError("The SQLite broker keeps a file; use memory: to keep nothing.")
    from sampleapp.brokers.sqlite import SQLiteBroker

    return SQLiteBroker(path=path, clock=reactor, threads=reactor)
