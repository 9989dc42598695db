"""
Authentication of callers by tokens and client certificates.

A token comes as ``Authorization: Bearer``, or as the password of ``Basic``, for clients that can only send a
user name and a password. The user name means nothing: the token alone identifies the caller, as with
``Bearer``, and the names of callers from issuers have a colon, which no user name can have (RFC 7617, section
2).
"""

from __future__ import annotations

import base64
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, Generic, Protocol, TypeVar

from cryptography.x509 import Certificate
from msgspec import Struct

from sampleapp.access.caller import Caller, digest_of
from sampleapp.access.callers_file import Callers
from sampleapp.access.certificate_names import CertificateName, names_in
from sampleapp.access.errors import AmbiguousCredentials, InvalidCredentials, NoCredentials
from sampleapp.access.rates import RateLimiter

# RFC 6750, section 2.1; a scheme has no case (RFC 9110, section 11.1).
_BEARER: Final = re.compile(rb"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
_SCHEME: Final = re.compile(rb"bearer(?: |$)", re.IGNORECASE)
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_BASIC: Final = re.compile(rb"basic(?: +(.*)|$)", re.IGNORECASE | re.DOTALL)
_CONTROL_CHARACTER: Final = re.compile(rb"[\x00-\x1f\x7f]")

_USUAL: Final = re.compile(rb"[Bb]earer (?! )")
"""The spelling of nearly all clients."""

_Key = TypeVar("_Key", bytes, Certificate)

_MOST_CACHED: Final = 10_000
_MOST_CACHED_BYTES: Final = 32 * 1024 * 1024
"""Tokens of up to 3 KiB, as nearly all are, never reach it."""


class TokenVerifier(Protocol):
    """Verifies a kind of token that is not in the callers file."""

    def verify(self, token: bytes, *, now_s: float) -> tuple[Caller, float] | None:
        """
        Verify a token.

        :param now_s: the time, in seconds since the epoch.
        :return: its caller, and the first moment at which it is no longer valid, in seconds since the epoch;
            ``None`` if it is of another kind.
        :raise AccessError: it is of this kind, and is not valid, or cannot be verified now.
        """


class Identity(Struct, frozen=True):
    """An authenticated caller."""

    caller: Caller
    until_s: float
    """The first moment at which the credentials are no longer valid, in seconds since the epoch."""
    limiter: RateLimiter | None
    """Holds the caller to its rates, if it has any."""


class Authenticator:
    """
    Identifies the caller of each request.

    Verified credentials are cached, so that the next request only looks them up. Only valid credentials are
    cached: a client without any cannot fill the cache, or displace the credentials of callers.

    Credentials are looked up by a hash: that of a dictionary, and SHA-256 for tokens. They are not compared
    byte by byte, so the time that a look-up takes does not reveal how much of a guess is right. A guess whose
    hash begins like the hash of a token is not closer to the token. So no comparison needs constant time.
    """

    def __init__(
        self,
        callers: Callers,
        *verifiers: TokenVerifier,
        seconds: Callable[[], float],
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        :param verifiers: for tokens that are not in the callers file.
        :param seconds: the clock for rates: seconds of a clock that is never set.
        :param now: the clock for the end of tokens and certificates: seconds since the epoch.
        """
        self._seconds = seconds
        self._now = now
        self._limiters: dict[str, RateLimiter] = {}
        self._claimed_limiters: dict[str, RateLimiter] = {}
        """Of callers that are not in the file. Issuers can create any number of them."""
        self.rejections: Counter[str] = Counter(requests_per_second=0, bytes_per_second=0)
        """Requests that were rejected since the start, by the name of the rate that they exceeded."""
        self.generation = 0
        """Changes when rights or credentials may have changed, so that earlier identities must be checked."""
        self._tokens: _IdentityCache[bytes] = _IdentityCache()
        self._certificates: _IdentityCache[Certificate] = _IdentityCache()
        self.use(callers, *verifiers)

    def use(self, callers: Callers, *verifiers: TokenVerifier) -> None:
        """
        Replace the callers and verifiers.

        All cached credentials are forgotten. A caller with unchanged rates keeps its present allowance.
        """
        self._callers = callers
        self._verifiers = verifiers
        self.forget()
        for name in self._limiters.keys() - callers.by_name.keys():
            del self._limiters[name]

    def forget(self) -> None:
        """Forget all cached credentials, for example after a key was withdrawn."""
        self.generation += 1
        self._tokens.clear()
        self._certificates.clear()

    def is_current(self, identity: Identity, generation: int) -> bool:
        """
        Return whether an identity is certainly still valid, without looking at its credentials.

        :param generation: `generation` at the time when the caller was identified.
        """
        return generation == self.generation and self._now() < identity.until_s

    def identify(
        self, authorization: Sequence[bytes], certificate: Callable[[], Certificate | None]
    ) -> Identity:
        """
        Identify the caller of a request.

        :param authorization: the values of its ``Authorization`` fields. If there is one, the certificate is
            ignored.
        :param certificate: returns the client's certificate, which was verified with the connection's
            handshake.
        :raise AccessError: there are no credentials, or they are not those of one caller.
        """
        now_s = self._now()
        if not authorization:
            return self._by_certificate(certificate(), now_s)
        if len(authorization) > 1:
            raise AmbiguousCredentials("There is more than one Authorization field; send one.")
        value = authorization[0]
        identity = self._tokens.get(value)
        if identity is None and (basic := _BASIC.fullmatch(value)) is not None:
            # Otherwise, one token could fill the cache, with other user names.
            value = b"Bearer " + _token_in(basic[1] or b"")
            identity = self._tokens.get(value)
        if identity is None or now_s >= identity.until_s:
            self._tokens.discard(value)
            identity = self._by_token(value, now_s)
            # Otherwise, one token could fill the cache, with other spellings of the scheme and the spaces.
            if _USUAL.match(value):
                self._tokens.add(value, identity, size=len(value) + self._size(identity.caller))
        return identity

    def _by_token(self, value: bytes, now_s: float) -> Identity:
        match = _BEARER.fullmatch(value)
        if match is None:
            if _SCHEME.match(value):
                raise InvalidCredentials("After Bearer, there must be one space and then a token.")
            raise NoCredentials(
                "Authorization must be Bearer and a token, or Basic with the token as the password."
            )
        token = match[1]
        known = self._callers.tokens.get(digest_of(token))
        if known is not None:
            caller, until_s = known
            if until_s is None:
                return self._identity(caller, math.inf)
            if now_s >= until_s:
                # Only a caller with the token sees this.
                raise InvalidCredentials("The token is not valid any more; use a newer one.")
            return self._identity(caller, until_s)
        for verifier in self._verifiers:
            verified = verifier.verify(token, now_s=now_s)
            if verified is not None:
                return self._identity(*verified)
        raise InvalidCredentials(_UNKNOWN)

    def _by_certificate(self, certificate: Certificate | None, now_s: float) -> Identity:
        if certificate is None:
            raise NoCredentials(
                "This request needs credentials: send a token, as Authorization: Bearer TOKEN."
            )
        identity = self._certificates.get(certificate)
        if identity is None:
            identity = self._of_certificate(certificate)
            self._certificates.add(certificate, identity, size=_CERTIFICATE_BYTES)
        if now_s >= identity.until_s:
            # It was valid when the connection was opened.
            raise NoCredentials("The client's certificate is not valid any more; use a newer one.")
        return identity

    def _of_certificate(self, certificate: Certificate) -> Identity:
        by_names = self._callers.certificates
        found = {by_names[name].name: by_names[name] for name in _names(certificate) if name in by_names}
        if not found:
            raise NoCredentials("No caller has a name that is in the client's certificate.")
        if len(found) > 1:
            raise AmbiguousCredentials("The client's certificate has the names of several callers.")
        (caller,) = found.values()
        # The certificate is valid through its last second (RFC 5280, section 4.1.2.5).
        return self._identity(caller, certificate.not_valid_after_utc.timestamp() + 1)

    def _identity(self, caller: Caller, until_s: float) -> Identity:
        rates = (caller.requests, caller.bytes)
        if rates == (None, None):
            return Identity(caller, until_s, None)
        limiters = self._limiters if caller.name in self._callers.by_name else self._claimed_limiters
        limiter = limiters.pop(caller.name, None)
        if limiter is None or limiter.rates != rates:
            limiter = RateLimiter(
                requests=caller.requests,
                bytes_=caller.bytes,
                now_s=self._seconds(),
                rejections=self.rejections,
            )
        if limiters is self._claimed_limiters and len(limiters) >= _MOST_CACHED:
            # The limiter of the caller that has sent no new token for the longest time.
            del limiters[next(iter(limiters))]
        limiters[caller.name] = limiter
        return Identity(caller, until_s, limiter)

    def _size(self, caller: Caller) -> int:
        """Estimate the memory of a caller that is not in the file, in bytes; 0 for one that is."""
        if caller.name in self._callers.by_name:
            return 0
        return sum(
            _PATTERN_BYTES + len(each) + _PART_BYTES * each.count("*")
            for each in chain(caller.publish, caller.consume)
        )


_UNKNOWN: Final = "No caller has this token."


def _token_in(basic: bytes) -> bytes:
    """
    Return the password of ``Basic`` (RFC 7617, section 2), which is a token.

    :param basic: what follows the scheme.
    :raise InvalidCredentials: it is not a user name and a password, or the password is not a token.
    """
    with suppress(ValueError):
        pair = base64.b64decode(basic, validate=True)
        token = pair.decode("utf-8").partition(":")[2]
        # No other text may stand for the same pair.
        if token and not _CONTROL_CHARACTER.search(pair) and base64.b64encode(pair) == basic:
            if not _TOKEN.fullmatch(token):
                raise InvalidCredentials(_UNKNOWN)
            return token.encode("ascii")
    raise InvalidCredentials(
        "After Basic, there must be one space and then USER:TOKEN in base64. The token of a caller is the "
        "password; the user name means nothing."
    )


_CERTIFICATE_BYTES: Final = 2048
_PATTERN_BYTES: Final = 150
_PART_BYTES: Final = 60


class _IdentityCache(Generic[_Key]):
    """A cache of verified identities, bounded in number and size. The oldest are removed first."""

    def __init__(self) -> None:
        self._identities: dict[_Key, Identity] = {}
        self._sizes: dict[_Key, int] = {}
        self._total = 0
        self.get: Final[Callable[[_Key], Identity | None]] = self._identities.get

    def add(self, key: _Key, identity: Identity, *, size: int) -> None:
        """
        Add an identity, and remove old ones if there is no room.

        :param size: of the key, and of the patterns that only this identity has, in bytes.
        """
        self.discard(key)
        while self._sizes and (len(self._sizes) >= _MOST_CACHED or self._total + size > _MOST_CACHED_BYTES):
            self.discard(next(iter(self._sizes)))
        self._identities[key] = identity
        self._sizes[key] = size
        self._total += size

    def discard(self, key: _Key) -> None:
        """Remove an identity, if it is there."""
        if key in self._sizes:
            del self._identities[key]
            self._total -= self._sizes.pop(key)

    def clear(self) -> None:
        """Remove all."""
        self._identities.clear()
        self._sizes.clear()
        self._total = 0


def _names(certificate: Certificate) -> Iterator[CertificateName]:
    try:
        yield from names_in(certificate)
    except Exception:  # noqa: BLE001 -- a name that cannot be read is not the name of a caller
        return
