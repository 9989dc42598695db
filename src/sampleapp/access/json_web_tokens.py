"""
JSON Web Tokens (RFC 7519), signed (RFC 7515), of issuers that the file of callers names.

The algorithm and the key come from the operator's file and the issuer's keys. What the token says of them
only chooses among those: a key, or the place of one, that it brings along is not looked at (RFC 8725,
sections 3.1 and 3.10).
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import jwt
import msgspec
from msgspec import UNSET, Struct, UnsetType

from sampleapp.access.caller import Caller
from sampleapp.access.errors import InvalidCredentials
from sampleapp.access.issuers import Issuer, Subject
from sampleapp.access.jwks import VerificationKey
from sampleapp.access.patterns import TopicPatterns, is_legal_pattern

__all__ = ["LEEWAY_S", "JWTVerifier", "KeySource"]

LEEWAY_S: Final = 30.0
"""By how much the clocks of an issuer and of the service may differ, in seconds (RFC 7519, section 4.1.4)."""

# Without padding (RFC 7515, section 2), and without an empty part, such as the signature of "none".
_TOKEN: Final = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""What a token may say that it is (RFC 9068, section 4): not, for example, the order to log somebody out."""
_LONGEST_SUBJECT: Final = 200
_AS_IT_IS: Final = "@|:/+="
"""What stays in the name of a caller that a token makes, beside what `urllib.parse.quote` leaves."""

_Part = TypeVar("_Part", bound=Struct)


class KeySource(Protocol):
    """Has the keys of one issuer."""

    def find(self, kid: str | None, algorithm: str, *, now_s: float) -> list[VerificationKey]:
        """
        Find the keys that may verify a token.

        :param kid: the key that the token names; ``None`` if it names none.
        :param now_s: the time, in seconds since the epoch.
        :raise IssuerKeysNotKnown: that is not known yet.
        """


class _Header(Struct):
    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: Any = UNSET


class _Claims(Struct):
    iss: str | UnsetType = UNSET


class JWTVerifier:
    """Verifies JSON Web Tokens; see `sampleapp.access.authentication.TokenVerifier`."""

    def __init__(
        self,
        issuers: Mapping[str, Issuer],
        keys: Mapping[str, KeySource],
        *,
        callers: Mapping[str, Caller],
        subjects: Mapping[Subject, Caller],
    ) -> None:
        """
        :param issuers: by their names in the file of callers.
        :param keys: of each of them, by the same names.
        :param callers: that a token may name, by their names.
        :param subjects: the same, by what else a token may call them.
        """
        self._issuers = {issuer.issuer: (issuer, keys[name]) for name, issuer in issuers.items()}
        self._callers = callers
        self._subjects = subjects

    def verify(self, token: bytes, *, now_s: float) -> tuple[Caller, float] | None:
        """
        Look at a token.

        :param now_s: the time, in seconds since the epoch.
        :return: whose it is, and the first moment at which it is not valid any more, in seconds since the
            epoch; ``None`` if it is no JSON Web Token.
        :raise InvalidCredentials: it is not valid, or names nobody.
        :raise IssuerKeysNotKnown: its key is not known yet.
        """
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return None
        header, unverified = _decoded(parts[1], _Header), _decoded(parts[2], _Claims)
        # No extension is known here; one that is critical may not be overlooked (RFC 7515, section 4.1.11).
        if header.crit is not UNSET:
            raise InvalidCredentials("The token has critical extensions (crit), of which none is known here.")
        if header.typ is not None and header.typ.lower() not in _TYPES:
            raise InvalidCredentials("The token is for something else: its typ is neither JWT nor at+jwt.")
        # That decides with which keys it is verified, and so whether it is true.
        issuer, keys = self._issuers.get(str(unverified.iss), (None, None))
        if issuer is None or keys is None:
            raise InvalidCredentials("The token is of no issuer (iss) that is known here.")
        if header.alg not in issuer.algorithms:
            raise InvalidCredentials("The token is signed with an algorithm (alg) that is not taken here.")
        for key in keys.find(header.kid, header.alg, now_s=now_s):
            claims = _verified(token, issuer, key)
            if claims is not None:
                return self._caller(issuer, claims), _until_s(claims, now_s=now_s)
        raise InvalidCredentials("The token is signed with no key of its issuer.")

    def _caller(self, issuer: Issuer, claims: Mapping[str, Any]) -> Caller:
        if issuer.caller_claim is not None:
            name = claims.get(issuer.caller_claim)
            caller = None
            if isinstance(name, str):
                caller = self._subjects.get(Subject(issuer.name, name)) or self._callers.get(name)
            if caller is None:
                raise InvalidCredentials(f"The token names no caller in its claim {issuer.caller_claim}.")
            return caller
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= _LONGEST_SUBJECT:
            raise InvalidCredentials(
                f"The token has to say whose it is: sub, with 1 to {_LONGEST_SUBJECT} characters."
            )
        return Caller(
            # No caller of the file has a colon in its name, so nobody can be taken for one.
            name=f"{issuer.name}:{_printable(subject)}",
            publish=_patterns(claims.get(issuer.publish_claim or ""), issuer),
            read=issuer.read,
            metrics=issuer.metrics,
        )


def _decoded(part: bytes, shape: type[_Part]) -> _Part:
    """Read a part of a token that is not verified yet."""
    try:
        data = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
        return msgspec.json.decode(data, type=shape)
    # In older versions of msgspec, its errors are no ValueError.
    except (msgspec.DecodeError, ValueError, RecursionError):
        # What a part is not, is not said in the library's words, which may repeat the part.
        raise InvalidCredentials("The token looks like a JSON Web Token, and is none.") from None


def _verified(token: bytes, issuer: Issuer, key: VerificationKey) -> Mapping[str, Any] | None:
    """
    Return the claims of a token, whose times are still to be looked at.

    :return: ``None`` if the key has not signed it.
    :raise InvalidCredentials: it was signed, but not for this service.
    """
    algorithms = [name for name in key.algorithms if name in issuer.algorithms]
    try:
        claims: Mapping[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=algorithms,
            audience=issuer.audience,
            issuer=issuer.issuer,
            options={
                "require": ["exp", "iss", "aud"],
                "enforce_minimum_key_length": True,
                # By the service's own clock, below.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_jti": False,
            },
        )
    except jwt.InvalidSignatureError:
        return None
    except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError):
        raise InvalidCredentials(
            "The token is for another audience (aud), or lacks one of the claims iss, aud and exp."
        ) from None
    except (jwt.PyJWTError, ValueError):
        # As above: the library may repeat what it does not like.
        raise InvalidCredentials("The token looks like a JSON Web Token, and is none.") from None
    return claims


def _until_s(claims: Mapping[str, Any], *, now_s: float) -> float:
    """
    Return the first moment at which a token is not valid any more, in seconds since the epoch.

    :raise InvalidCredentials: it is over, or has not begun (RFC 7519, sections 4.1.4 and 4.1.5).
    """
    until_s = _time_s(claims, "exp") + LEEWAY_S
    if now_s >= until_s:
        raise InvalidCredentials("The token is not valid any more (exp); use a newer one.")
    if "nbf" in claims and now_s < _time_s(claims, "nbf") - LEEWAY_S:
        raise InvalidCredentials("The token is not valid yet (nbf).")
    return until_s


def _time_s(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    try:
        seconds = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidCredentials(f"The token has to have a number of seconds as {name}.")
    return seconds


def _patterns(value: object, issuer: Issuer) -> TopicPatterns:
    """Read the topics that a claim grants; what fits none is left out, since it may be for others."""
    if value is None:
        return TopicPatterns()
    words = value.split(" ") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidCredentials(
            f"The token has to have an array of strings, or a string with spaces, as {issuer.publish_claim}."
        )
    return TopicPatterns(word for word in words if is_legal_pattern(word))


def _printable(subject: str) -> str:
    """Make of any text, each of another, one that can stand in a line of a log."""
    return quote(subject.encode("utf-8", "surrogatepass"), safe=_AS_IT_IS)
