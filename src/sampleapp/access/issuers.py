"""
The issuers of JSON Web Tokens in the callers file.

::

    [issuers.example]
    issuer = "https://login.example/"
    audience = "sampleapp"
    jwks = "https://login.example/jwks.json"
    algorithms = ["RS256"]
    caller_claim = "sub"
    names_callers = false

    [callers.thermometer]
    subjects = ["example:auth0|123"]

    [issuers.other]
    …
    publish_claim = "kafka_topics"
    consume_claim = "kafka_topics_to_read"
    work_claim = "work_groups"
    read = true
    requests_per_second = 50
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from sampleapp.access.caller import HOOK, is_legal_name
from sampleapp.access.callers_file_tables import IssuerTable, Mistake, Path, convert, require_known
from sampleapp.access.jwks import ALGORITHMS
from sampleapp.concurrency.rates import Rate

_WHOLE_URL: Final = "must be a whole URL, such as https://login.example/jwks.json"
_URL: Final = ("https://", "http://")
_TOPIC_CLAIMS: Final = ("publish_claim", "consume_claim", "work_claim")
_WITH_TOPIC_CLAIMS: Final = (
    "read",
    "metrics",
    "requests_per_second",
    "requests_burst",
    "bytes_per_second",
    "bytes_burst",
    "max_streams",
)


class Issuer(Struct, frozen=True, kw_only=True):
    """An issuer of JSON Web Tokens, and the meaning of its tokens' claims."""

    name: str
    """Its name in the callers file."""
    issuer: str
    """The required value of the claim ``iss``."""
    audience: str
    """The value that the claim ``aud`` must have or contain."""
    jwks: str
    """The location of its keys: a URL, or the path of a file."""
    algorithms: tuple[str, ...] = ALGORITHMS
    """The allowed signature algorithms."""
    caller_claim: str | None = None
    """The claim that identifies a caller in the file by one of its ``subjects``."""
    names_callers: bool = False
    """With ``caller_claim``: true if the claim may also be the name of a caller. For at most one issuer."""
    publish_claim: str | None = None
    """The claim with the topics that its callers may publish to, if there is no ``caller_claim``."""
    consume_claim: str | None = None
    """The claim with the topics that its callers may read, if there is no ``caller_claim``."""
    work_claim: str | None = None
    """The claim with the groups in which its callers may work, if there is no ``caller_claim``."""
    read: bool = False
    """Without ``caller_claim``: the right of its callers to read the readings."""
    metrics: bool = False
    """Without ``caller_claim``: the right of its callers to read metrics."""
    requests: Rate | None = None
    """Without ``caller_claim``: the rate of requests of each caller; unlimited if ``None``."""
    bytes: Rate | None = None
    """Without ``caller_claim``: the rate of bytes of each caller; unlimited if ``None``."""
    max_streams: int | None = None
    """Without ``caller_claim``: the most streams of each caller at once; see `Caller.max_streams`."""

    @property
    def has_url(self) -> bool:
        """True if its keys are at a URL, false if they are in a file."""
        return self.jwks.startswith(_URL)


class Subject(Struct, frozen=True):
    """The identity of a caller in an issuer's tokens."""

    issuer: str
    """The issuer's name in the callers file."""
    value: str
    """The value of the ``caller_claim``."""


class IssuersReader:
    """Reads one issuer after the other, and checks that they do not contradict."""

    def __init__(self) -> None:
        self.by_name: dict[str, Issuer] = {}
        """The issuers that were read."""
        self._names: dict[str, str] = {}
        self._naming: str | None = None

    @property
    def has_naming_issuer(self) -> bool:
        """True if an issuer names callers by their own names, so that they need no other credentials."""
        return self._naming is not None

    def parse_subject(self, text: str) -> Subject:
        """
        Parse an entry of ``subjects``, such as ``login:auth0|123``.

        :raise ValueError: there is no such issuer; the message says what is right.
        """
        issuer, _, value = text.partition(":")
        known = [name for name, found in self.by_name.items() if found.caller_claim is not None]
        if issuer not in known or not value:
            raise ValueError(
                "must begin with the name of an issuer in this file that has a caller_claim, and a colon; "
                f"there is {', '.join(known) or 'none'}"
            )
        return Subject(issuer, value)

    def read(self, name: str, value: Any) -> None:
        """
        Read one issuer.

        :param value: its table.
        :raise Mistake: there is one in it.
        """
        path: Path = ("issuers", name)
        if not is_legal_name(name):
            raise Mistake(
                path, "is not a name for an issuer: that is 1 to 100 characters of A-Z a-z 0-9 . _ - @"
            )
        if name == HOOK:
            raise Mistake(path, f"needs another name: callers whose names begin with {HOOK}: are hooks")
        table = convert(value, IssuerTable, path)
        _check_claims(value, path)
        if table.names_callers:
            self._check_naming(name, table, path)
        _check_place(table.jwks, (*path, "jwks"))
        for member in ("issuer", "audience"):
            if not getattr(table, member):
                raise Mistake((*path, member), "may not be empty")
        other = self._names.setdefault(table.issuer, name)
        if other != name:
            raise Mistake(
                (*path, "issuer"), f"is that of issuers.{other} already; each issuer may be there once"
            )
        self.by_name[name] = Issuer(
            name=name,
            issuer=table.issuer,
            audience=table.audience,
            jwks=table.jwks,
            algorithms=_algorithms(table.algorithms, (*path, "algorithms")),
            caller_claim=table.caller_claim,
            publish_claim=table.publish_claim,
            consume_claim=table.consume_claim,
            work_claim=table.work_claim,
            names_callers=table.names_callers,
            read=table.read,
            metrics=table.metrics,
            requests=table.requests(path),
            bytes=table.bytes(path),
            max_streams=table.streams(path),
        )

    def _check_naming(self, name: str, table: IssuerTable, path: Path) -> None:
        path = (*path, "names_callers")
        if table.caller_claim is None:
            raise Mistake(path, "needs a caller_claim, the claim with the name")
        if self._naming is not None:
            raise Mistake(
                path,
                f"is true for issuers.{self._naming} already; one issuer at most may name callers by their "
                "own names, and callers of the others need subjects",
            )
        self._naming = name


def _check_claims(table: Mapping[str, object], path: Path) -> None:
    topic_claims = [member for member in _TOPIC_CLAIMS if member in table]
    if ("caller_claim" in table) == bool(topic_claims):
        raise Mistake(
            path,
            "needs either caller_claim, the claim that identifies a caller of this file, or some of "
            "publish_claim, consume_claim and work_claim, the claims with the topics and groups",
        )
    if "caller_claim" in table:
        for member in _WITH_TOPIC_CLAIMS:
            if member in table:
                raise Mistake(
                    (*path, member),
                    "goes with publish_claim, consume_claim or work_claim; a caller of this file has rights "
                    "and rates of its own",
                )


def _algorithms(names: Sequence[str] | None, path: Path) -> tuple[str, ...]:
    if names is None:
        return ALGORITHMS
    if not names:
        raise Mistake(path, "must name an algorithm, or be left out")
    for index, name in enumerate(names):
        if name.startswith("HS"):
            raise Mistake(
                (*path, index),
                "is symmetric, so that every verifier of such a token could also make one; "
                f"use one of {', '.join(ALGORITHMS)}",
            )
        require_known(name, ALGORITHMS, (*path, index))
    return tuple(names)


def _check_place(jwks: str, path: Path) -> None:
    """Check the location of the keys: plain HTTP only on this machine, since it can be forged elsewhere."""
    if not jwks.startswith(_URL):
        if "://" in jwks or not jwks:
            raise Mistake(path, "must be a URL that begins with https://, or the path of a file")
        return
    try:
        parts = urlsplit(jwks)
        # The port is only parsed when it is read.
        host = parts.hostname if parts.port != 0 else None
    except ValueError as error:
        raise Mistake(path, _WHOLE_URL) from error
    if not host or not jwks.isascii() or not jwks.isprintable() or " " in jwks:
        raise Mistake(path, _WHOLE_URL)
    if parts.username is not None or parts.fragment:
        raise Mistake(path, "may have no user, password or fragment")
    if parts.scheme != "https" and not _is_loopback(host):
        raise Mistake(
            path,
            "must begin with https://, since a forged answer would allow forged tokens; "
            "http:// is for this machine only",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
