"""Who calls: from what a request, or its connection, says about that."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from cryptography.x509 import Certificate
from msgspec import Struct

from sampleapp.access.caller import Caller
from sampleapp.access.callers_file import Callers
from sampleapp.access.certificate_names import CertificateName, names_in
from sampleapp.access.errors import AmbiguousCredentials, InvalidCredentials, NoCredentials
from sampleapp.access.rates import RateLimiter
from sampleapp.access.tokens import digest_of

__all__ = ["Authenticator", "Identity", "TokenVerifier"]

# RFC 6750, section 2.1; a scheme has no case (RFC 9110, section 11.1).
_BEARER: Final = re.compile(rb"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
_SCHEME: Final = re.compile(rb"bearer(?: |$)", re.IGNORECASE)

_USUAL: Final = re.compile(rb"[Bb]earer (?! )")
"""As nearly all clients write it."""

_Key = TypeVar("_Key", bytes, Certificate)

_MOST_REMEMBERED: Final = 10_000


class TokenVerifier(Protocol):
    """Knows a further kind of token, beside those in the file of callers."""

    def verify(self, token: bytes, *, now_s: float) -> tuple[Caller, float] | None:
        """
        Look at a token.

        :param now_s: the time, in seconds since the epoch.
        :return: whose it is, and the first moment at which it is not valid any more, in seconds since the
            epoch; ``None`` if it is of another kind.
        :raise AccessError: it is of this kind, and not valid, or not to be judged now.
        """


class Identity(Struct, frozen=True):
    """Somebody who has proved who they are."""

    caller: Caller
    until_s: float
    """The first moment at which the proof is not valid any more, in seconds since the epoch."""
    limiter: RateLimiter | None
    """Holds the caller to its rates, if it has any."""


class Authenticator:
    """
    Finds out who calls.

    What was verified is remembered, so that it is looked up and no more the next time. Only what is valid is
    remembered: nobody who has no credentials can fill the memory, or take the place of those who have.

    Credentials are found by a hash: that of a dictionary, and SHA-256 for tokens. They are not compared byte
    by byte, so how long it takes tells nothing of how much of a guess is right; and a guess whose hash begins
    like that of a token is no closer to the token. So no comparison has to take constant time.
    """

    def __init__(self, callers: Callers, *verifiers: TokenVerifier, seconds: Callable[[], float]) -> None:
        """
        :param verifiers: of further kinds of tokens.
        :param seconds: tells the time, in seconds since the epoch.
        """
        self._seconds = seconds
        self._limiters: dict[str, RateLimiter] = {}
        self.refusals: Counter[str] = Counter(requests_per_second=0, bytes_per_second=0)
        """How many requests were over a rate of their caller, by the name of the rate, since the start."""
        self._tokens: dict[bytes, Identity] = {}
        self._certificates: dict[Certificate, Identity] = {}
        self.use(callers, *verifiers)

    def use(self, callers: Callers, *verifiers: TokenVerifier) -> None:
        """
        Take these callers, and no others, from now on.

        What was verified before is forgotten. A caller whose rates have stayed the same has not got more room
        by that.
        """
        self._callers = callers
        self._verifiers = verifiers
        self.forget()
        before, self._limiters = self._limiters, {}
        for name, limiter in before.items():
            caller = callers.by_name.get(name)
            if caller is not None and limiter.rates == (caller.requests, caller.bytes):
                self._limiters[name] = limiter

    def forget(self) -> None:
        """Verify everybody anew, such as after a key was withdrawn."""
        self._tokens.clear()
        self._certificates.clear()

    def identify(
        self, authorization: Sequence[bytes], certificate: Callable[[], Certificate | None]
    ) -> Identity:
        """
        Find out who makes a request.

        :param authorization: the values of its ``Authorization`` fields. If there is one it decides, whatever
            the certificate says.
        :param certificate: gets that of the client, which was verified when the connection was opened.
        :raise AccessError: nobody who is known.
        """
        now_s = self._seconds()
        if not authorization:
            return self._by_certificate(certificate(), now_s)
        if len(authorization) > 1:
            raise AmbiguousCredentials("There is more than one Authorization field; send one.")
        value = authorization[0]
        identity = self._tokens.get(value)
        if identity is None or now_s >= identity.until_s:
            self._tokens.pop(value, None)
            identity = self._by_token(value, now_s)
            # Else whoever has one token could take all places, by spelling its scheme and spaces anew.
            if _USUAL.match(value):
                _remember(self._tokens, value, identity)
        return identity

    def _by_token(self, value: bytes, now_s: float) -> Identity:
        match = _BEARER.fullmatch(value)
        if match is None:
            if _SCHEME.match(value):
                raise InvalidCredentials("After Bearer, there has to be one space and then a token.")
            raise NoCredentials(
                "The service knows one scheme of Authorization: Bearer, and a token after it."
            )
        token = match[1]
        known = self._callers.tokens.get(digest_of(token))
        if known is not None:
            caller, until_s = known
            if until_s is None:
                return self._identity(caller, math.inf)
            if now_s >= until_s:
                # Who reads this has the token.
                raise InvalidCredentials("The token is not valid any more; use a newer one.")
            return self._identity(caller, until_s)
        for verifier in self._verifiers:
            verified = verifier.verify(token, now_s=now_s)
            if verified is not None:
                return self._identity(*verified)
        raise InvalidCredentials("The token is of no caller.")

    def _by_certificate(self, certificate: Certificate | None, now_s: float) -> Identity:
        if certificate is None:
            raise NoCredentials("This needs credentials: a token, as Authorization: Bearer TOKEN.")
        identity = self._certificates.get(certificate)
        if identity is None:
            identity = self._of_certificate(certificate)
            _remember(self._certificates, certificate, identity)
        if now_s >= identity.until_s:
            # It was valid when the connection was opened.
            raise NoCredentials("The client's certificate is not valid any more; use a newer one.")
        return identity

    def _of_certificate(self, certificate: Certificate) -> Identity:
        by_names = self._callers.certificates
        found = {by_names[name].name: by_names[name] for name in _names(certificate) if name in by_names}
        if not found:
            raise NoCredentials("The client's certificate is of no caller.")
        if len(found) > 1:
            raise AmbiguousCredentials("The client's certificate has the names of several callers.")
        (caller,) = found.values()
        # The last second is a part of it (RFC 5280, section 4.1.2.5).
        return self._identity(caller, certificate.not_valid_after_utc.timestamp() + 1)

    def _identity(self, caller: Caller, until_s: float) -> Identity:
        if caller.requests is None and caller.bytes is None:
            return Identity(caller, until_s, None)
        limiter = self._limiters.get(caller.name)
        if limiter is None:
            limiter = RateLimiter(
                requests=caller.requests,
                bytes_=caller.bytes,
                now_s=self._seconds(),
                refusals=self.refusals,
            )
            self._limiters[caller.name] = limiter
        return Identity(caller, until_s, limiter)


def _remember(identities: dict[_Key, Identity], key: _Key, identity: Identity) -> None:
    """Remember what was verified, in the place of the oldest if there are too many."""
    if len(identities) >= _MOST_REMEMBERED:
        del identities[next(iter(identities))]
    identities[key] = identity


def _names(certificate: Certificate) -> Iterator[CertificateName]:
    try:
        yield from names_in(certificate)
    except Exception:  # noqa: BLE001 -- whatever is in it: what cannot be read is no name of a caller
        return
