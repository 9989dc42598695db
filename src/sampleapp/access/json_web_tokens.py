"""
Verification of signed (RFC 7515) JSON Web Tokens (RFC 7519) from the issuers in the callers file.

The allowed algorithms come from the callers file, and the keys from the issuer. The token's header only
selects among them: a key, or the URL of a key, in the token is ignored (RFC 8725, sections 3.1 and 3.10).
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import jwt
import msgspec
from msgspec import UNSET, Struct, UnsetType

from sampleapp.access.caller import Caller, TopicPatterns, is_legal_group_pattern, is_legal_pattern
from sampleapp.access.errors import InvalidCredentials
from sampleapp.access.issuers import Issuer, Subject
from sampleapp.access.jwks import VerificationKey

LEEWAY_S: Final = 30.0
"""The allowed difference between the clocks of issuer and service, in seconds (RFC 7519, section 4.1.4)."""
MOST_PATTERNS: Final = 100
"""Maximum topics, groups and patterns in one claim of a token. All of them are cached."""

# Without padding (RFC 7515, section 2), and without an empty part, such as the signature of "none".
_TOKEN: Final = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""The allowed types of tokens (RFC 9068, section 4). A logout token, for example, is rejected."""
_LONGEST_SUBJECT: Final = 200
_AS_IT_IS: Final = "@|:/+="
"""Characters that are not escaped in a caller's name, besides those that `urllib.parse.quote` keeps."""

_Part = TypeVar("_Part", bound=Struct)


class KeySource(Protocol):
    """The keys of one issuer."""

    def find(self, kid: str | None, algorithm: str, *, now_s: float) -> list[VerificationKey]:
        """
        Find the keys that may verify a token.

        :param kid: the key that the token names; ``None`` if it names none.
        :param now_s: the time, in seconds since the epoch.
        :raise InvalidCredentials: the issuer has no such key.
        :raise IssuerKeysNotKnown: it is not known yet whether the issuer has such a key.
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
        :param issuers: by their names in the callers file.
        :param keys: of each issuer, by the same names.
        :param callers: by their names, for issuers with ``names_callers``.
        :param subjects: the callers by their identities in tokens.
        """
        self._issuers = {issuer.issuer: (issuer, keys[name]) for name, issuer in issuers.items()}
        self._callers = callers
        self._subjects = subjects

    def verify(self, token: bytes, *, now_s: float) -> tuple[Caller, float] | None:
        """
        Verify a token.

        :param now_s: the time, in seconds since the epoch.
        :return: its caller, and the first moment at which it is no longer valid, in seconds since the epoch;
            ``None`` if it does not have the form of a JSON Web Token.
        :raise InvalidCredentials: it is not valid, or identifies no caller.
        :raise IssuerKeysNotKnown: its key is not known yet.
        """
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return None
        header, unverified = _decoded(parts[1], _Header), _decoded(parts[2], _Claims)
        # No extension is supported, and a critical one must not be ignored (RFC 7515, section 4.1.11).
        if header.crit is not UNSET:
            raise InvalidCredentials(
                "The token has critical extensions (crit), which are not supported here."
            )
        if header.typ is not None and header.typ.lower() not in _TYPES:
            raise InvalidCredentials("The token has another purpose: its typ is neither JWT nor at+jwt.")
        # The unverified claim only selects the keys. It is checked with the signature.
        issuer, keys = self._issuers.get(str(unverified.iss), (None, None))
        if issuer is None or keys is None:
            raise InvalidCredentials("The issuer (iss) of the token is not known here.")
        if header.alg not in issuer.algorithms:
            raise InvalidCredentials("The token is signed with an algorithm (alg) that is not allowed here.")
        for key in keys.find(header.kid, header.alg, now_s=now_s):
            claims = _verified(token, issuer, key)
            if claims is not None:
                return self._caller(issuer, claims), _until_s(claims, now_s=now_s)
        raise InvalidCredentials("The signature of the token is not by a key of its issuer.")

    def _caller(self, issuer: Issuer, claims: Mapping[str, Any]) -> Caller:
        if issuer.caller_claim is not None:
            name = claims.get(issuer.caller_claim)
            caller = None
            if isinstance(name, str):
                caller = self._subjects.get(Subject(issuer.name, name))
                # Many issuers let their users choose the value of a claim, even the name of another caller.
                if caller is None and issuer.names_callers:
                    caller = self._callers.get(name)
            if caller is None:
                raise InvalidCredentials(f"The token names no caller in its claim {issuer.caller_claim}.")
            return caller
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= _LONGEST_SUBJECT:
            raise InvalidCredentials(
                f"The token must have the claim sub, with 1 to {_LONGEST_SUBJECT} characters."
            )
        return Caller(
            # Callers in the file have no colon in their names, so that the names cannot collide.
            name=f"{issuer.name}:{_printable(subject)}",
            publish=_patterns(claims, issuer.publish_claim),
            consume=_patterns(claims, issuer.consume_claim),
            work=_patterns(claims, issuer.work_claim, is_legal_group_pattern),
            read=issuer.read,
            metrics=issuer.metrics,
            requests=issuer.requests,
            bytes=issuer.bytes,
            max_streams=issuer.max_streams,
        )


def _decoded(part: bytes, shape: type[_Part]) -> _Part:
    """Decode a part of a token that is not verified yet."""
    try:
        data = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
        return msgspec.json.decode(data, type=shape)
    # In older versions of msgspec, its errors are not ValueErrors.
    except (msgspec.DecodeError, ValueError, RecursionError):
        # Without the library's message, which may repeat the part.
        raise InvalidCredentials("The token looks like a JSON Web Token, and is not a valid one.") from None


def _verified(token: bytes, issuer: Issuer, key: VerificationKey) -> Mapping[str, Any] | None:
    """
    Return the claims of a token, except that ``exp`` and ``nbf`` are not checked yet.

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
        # Without the library's message, which may repeat a part of the token.
        raise InvalidCredentials("The token looks like a JSON Web Token, and is not a valid one.") from None
    return claims


def _until_s(claims: Mapping[str, Any], *, now_s: float) -> float:
    """
    Return the first moment at which a token is no longer valid, in seconds since the epoch.

    :raise InvalidCredentials: it has expired, or is not valid yet (RFC 7519, sections 4.1.4 and 4.1.5).
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
        raise InvalidCredentials(f"The claim {name} of the token must be a number of seconds.")
    return seconds


def _patterns(
    claims: Mapping[str, Any], claim: str | None, is_legal: Callable[[str], bool] = is_legal_pattern
) -> TopicPatterns:
    """Return the topics, or groups, that a claim grants. Words that match none may be for other services."""
    value = None if claim is None else claims.get(claim)
    if value is None:
        return TopicPatterns()
    words = value.split(" ") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidCredentials(
            f"The claim {claim} of the token must be an array of strings, or a string of "
            "words with spaces between them."
        )
    patterns = dict.fromkeys(word for word in words if is_legal(word))
    if len(patterns) > MOST_PATTERNS:
        raise InvalidCredentials(
            f"The token has more than {MOST_PATTERNS} names and patterns in its claim {claim}; use fewer, or "
            "a pattern that covers several."
        )
    return TopicPatterns(patterns)


def _printable(subject: str) -> str:
    """Escape a text reversibly, so that it is safe in a line of a log."""
    return quote(subject.encode("utf-8", "surrogatepass"), safe=_AS_IT_IS)
