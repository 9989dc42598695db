"""
The issuers of JSON Web Tokens that the file of callers names.

::

    [issuers.example]
    issuer = "https://login.example/"
    audience = "sampleapp"
    jwks = "https://login.example/jwks.json"
    algorithms = ["RS256"]
    caller_claim = "sub"

    [callers.thermometer]
    subjects = ["example:auth0|123"]

    [issuers.other]
    …
    publish_claim = "kafka_topics"
    read = true
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from sampleapp.access.caller import is_legal_name
from sampleapp.access.jwks import ALGORITHMS
from sampleapp.access.members import Members

__all__ = ["Issuer", "IssuersReader", "Subject"]

_EXAMPLE: Final = "https://login.example/"
_URL: Final = ("https://", "http://")


class Issuer(Struct, frozen=True, kw_only=True):
    """Who makes JSON Web Tokens, and what those that are valid say."""

    name: str
    """In the file of callers."""
    issuer: str
    """What the claim ``iss`` has to be."""
    audience: str
    """What the claim ``aud`` has to be, or to have in it."""
    jwks: str
    """Where its keys are: a URL, or the path of a file."""
    algorithms: tuple[str, ...] = ALGORITHMS
    """Those with which its tokens may be signed."""
    caller_claim: str | None = None
    """The claim that names a caller of the file: by what its ``subjects`` have, or else by its own name."""
    publish_claim: str | None = None
    """The claim that says to which topics one may publish, if there is no ``caller_claim``."""
    read: bool = False
    """With ``publish_claim``: whether one may read the readings."""
    metrics: bool = False
    """With ``publish_claim``: whether one may see metrics."""

    @property
    def has_url(self) -> bool:
        """Whether its keys are at a URL, not in a file."""
        return self.jwks.startswith(_URL)


class Subject(Struct, frozen=True):
    """Somebody, as an issuer's tokens name them."""

    issuer: str
    """Its name in the file of callers."""
    value: str
    """What is in the ``caller_claim``."""


class IssuersReader:
    """Reads one issuer after the other, and knows what the ones before have."""

    def __init__(self) -> None:
        self.by_name: dict[str, Issuer] = {}
        """Those that have no mistake."""
        self._names: dict[str, str] = {}

    @property
    def name_callers(self) -> bool:
        """Whether a token may name a caller, who then needs no other credentials."""
        return any(issuer.caller_claim is not None for issuer in self.by_name.values())

    def parse_subject(self, text: str) -> Subject:
        """
        Read whom an issuer's tokens name, as a caller in the file has it: ``login:auth0|123``.

        :raise ValueError: there is no such issuer; says what would be right.
        """
        issuer, _, value = text.partition(":")
        known = [name for name, found in self.by_name.items() if found.caller_claim is not None]
        if issuer not in known or not value:
            raise ValueError(
                "has to begin with the name of an issuer in this file that has a caller_claim, and a colon; "
                f"there is {', '.join(known) or 'none'}"
            )
        return Subject(issuer, value)

    def read(self, name: str, members: Members) -> None:
        """Read one, whose table this is."""
        if not is_legal_name(name):
            members.fault("is no name for an issuer: that is 1 to 100 characters of A-Z a-z 0-9 . _ - @")
        issuer = members.required_string("issuer", _EXAMPLE)
        audience = members.required_string("audience", "sampleapp")
        jwks = members.required_string("jwks", f"{_EXAMPLE}jwks.json")
        algorithms = _algorithms(members)
        caller_claim, publish_claim = members.string("caller_claim"), members.string("publish_claim")
        read, metrics = members.boolean("read"), members.boolean("metrics")
        members.end()
        _check_claims(members)
        if jwks is not None:
            _check_place(jwks, members)
        for what, value in [("issuer", issuer), ("audience", audience)]:
            if value == "":
                members.fault("may not be empty", what)
        if issuer is None or audience is None or jwks is None:
            return
        if issuer in self._names:
            members.fault(f"is that of issuers.{self._names[issuer]} already; each stands once", "issuer")
        self._names.setdefault(issuer, name)
        self.by_name[name] = Issuer(
            name=name,
            issuer=issuer,
            audience=audience,
            jwks=jwks,
            algorithms=algorithms,
            caller_claim=caller_claim,
            publish_claim=publish_claim,
            read=read,
            metrics=metrics,
        )


def _check_claims(members: Members) -> None:
    if members.has("caller_claim") == members.has("publish_claim"):
        members.fault(
            "needs one of caller_claim, the claim that names a caller of this file, and publish_claim, the "
            "claim with the topics"
        )
    elif members.has("caller_claim"):
        for what in ("read", "metrics"):
            if members.has(what):
                members.fault("goes with publish_claim; a caller of this file has rights of its own", what)


def _algorithms(members: Members) -> tuple[str, ...]:
    known = []
    for place, name in members.strings("algorithms"):
        if name in ALGORITHMS:
            known.append(name)
        elif name.startswith("HS"):
            members.fault(
                "is symmetric: whoever can verify such a token can make one; "
                f"there are {', '.join(ALGORITHMS)}",
                "algorithms",
                place,
            )
        else:
            members.fault(f"is not known here; there are {', '.join(ALGORITHMS)}", "algorithms", place)
    if members.has("algorithms") and not known:
        members.fault("has to name an algorithm, or to be left out", "algorithms")
    return tuple(known) or ALGORITHMS


def _check_place(jwks: str, members: Members) -> None:
    """Look at where the keys are. Over plain HTTP, anybody on the way could give keys of their own."""
    if not jwks.startswith(_URL):
        if "://" in jwks or not jwks:
            members.fault("has to be a URL that begins with https://, or the path of a file", "jwks")
        return
    try:
        parts = urlsplit(jwks)
        # It is only looked at when it is asked for.
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        members.fault(f"has to be a whole URL, such as {_EXAMPLE}jwks.json", "jwks")
        return
    if not host or not jwks.isascii() or any(character <= " " for character in jwks):
        members.fault(f"has to be a whole URL, such as {_EXAMPLE}jwks.json", "jwks")
    elif parts.username is not None or parts.fragment:
        members.fault("may have no user, password or fragment", "jwks")
    elif parts.scheme != "https" and not _is_loopback(host):
        members.fault(
            "has to begin with https://, since whoever could change the answer could make tokens; "
            "http:// is for this machine only",
            "jwks",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
