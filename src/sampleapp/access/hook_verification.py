"""Verification of the requests of hooks: first of their header, and of their body when it is there."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct
from msgspec.structs import replace

from sampleapp.access.errors import InvalidSignature, RateExceeded
from sampleapp.access.hook_secrets import HookKeys
from sampleapp.access.hooks import Hook
from sampleapp.access.rates import BodyCharge, RateLimiter
from sampleapp.access.signatures import REJECTIONS, Claim, HookKey, SignatureRejected, SignedFields

__all__ = ["RESULTS", "UNKNOWN", "HookVerifier", "SignedRequest"]

UNKNOWN: Final = "unknown"
"""The result of requests to hooks that are not in the file."""
_ACCEPTED: Final = "accepted"
_OVER_RATE: Final = "rate"
RESULTS: Final = (_ACCEPTED, _OVER_RATE, *REJECTIONS)
"""The results of requests to hooks that are in the file."""

_OF_NO_SENDER: Final[tuple[HookKey, ...]] = (
    secrets.token_bytes(32),
    Ed25519PrivateKey.generate().public_key(),
)
"""A secret and a public key that nobody has."""


class SignedRequest(Struct, frozen=True):
    """A request whose signature is not verified yet, since its body is not there."""

    hook: Hook | None
    """``None`` if it is rejected in any case, but only when its body is there."""
    claim: Claim
    keys: HookKeys
    signature_fields: frozenset[bytes]
    """See `HookVerifier.signature_fields`."""


class HookVerifier:
    """
    Verifies the requests of the hooks in the callers file.

    Only verified requests use the rate of a hook, so strangers cannot use it up.

    Until then, nothing depends on the name of the hook: clients without a secret could find out the names.
    So the body of a request is taken if its header has the form of a signature for any hook, and its
    signatures are tried with as many keys as the hook with the most has.
    """

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        keys: Mapping[str, HookKeys],
        *,
        seconds: Callable[[], float],
        now: Callable[[], float] = time.time,
        rate_rejections: Counter[str] | None = None,
    ) -> None:
        """
        :param keys: by the names of the hooks.
        :param seconds: the clock for rates: seconds of a clock that is never set.
        :param now: the clock for the times of requests: seconds since the epoch.
        :param rate_rejections: counts rejected requests by the name of the rate.
        """
        self._seconds = seconds
        self._now = now
        self._rate_rejections = rate_rejections
        self._limiters: dict[str, RateLimiter] = {}
        self.results: dict[tuple[str, str], int] = {("", UNKNOWN): 0}
        """The number of requests since the start, by the name of the hook and one of `RESULTS`."""
        self.use(hooks, keys)

    def use(self, hooks: Mapping[str, Hook], keys: Mapping[str, HookKeys]) -> None:
        """Replace the hooks and their keys. A hook with unchanged rates keeps its present allowance."""
        self._hooks = hooks
        self._keys = keys
        self._forms = {(hook.scheme, hook.tolerance_s): None for hook in hooks.values()}
        counts = [_counts(each) for each in keys.values()] or [(0, 0)]
        self._most_keys = tuple(map(max, zip(*counts, strict=True)))
        self.signature_fields = frozenset(
            name.encode("ascii") for hook in hooks.values() for name in hook.scheme.signature_fields
        )
        """The names of the header fields with signatures, in lower case. They become headers of no record."""
        for name in self._limiters.keys() - hooks.keys():
            del self._limiters[name]
        for name in hooks:
            for result in RESULTS:
                self.results.setdefault((name, result), 0)

    def begin(self, name: str, fields: SignedFields) -> SignedRequest:
        """
        Check the header of a request.

        :param name: of the hook.
        :raise InvalidSignature: the header has no signature for any hook, or each is too old.
        """
        hook, now_s = self._hooks.get(name), self._now()
        claims: list[Claim] = []
        if hook is None:
            self.results["", UNKNOWN] += 1
        else:
            try:
                claims.append(hook.scheme.claim(fields, now_s=now_s, tolerance_s=hook.tolerance_s))
            except SignatureRejected as rejection:
                self._count(hook, rejection.reason)
                hook = None
        if hook is None or self._most_keys[1]:
            for scheme, tolerance_s in self._forms:
                with suppress(SignatureRejected):
                    claims.append(scheme.claim(fields, now_s=now_s, tolerance_s=tolerance_s))
        if not claims:
            raise InvalidSignature
        claim = claims[0]
        if len(claims) > 1:
            # Of the schemes whose forms a header may have, one has signatures for public keys.
            claim = replace(claim, ed25519=max([each.ed25519 for each in claims], key=len))
        keys = HookKeys() if hook is None else self._keys[name]
        return SignedRequest(hook, claim, keys, self.signature_fields)

    def finish(self, request: SignedRequest, body: bytes) -> tuple[Hook, BodyCharge | None]:
        """
        Verify a request whose body is there, and charge it to the rate of its hook.

        :param body: as it was sent.
        :return: the hook, and what charges the body when it is decoded; ``None`` if the hook has no rate.
        :raise InvalidSignature: its signature is wrong.
        :raise RateExceeded: the hook has used up its rate.
        """
        hook = request.hook
        try:
            request.claim.verify(body, request.keys)
        except SignatureRejected as rejection:
            if hook is not None:
                self._count(hook, rejection.reason)
            with suppress(SignatureRejected):
                request.claim.verify(body, self._further_keys(request.keys))
            # One response for all reasons, which does not reveal how close a forged request was.
            raise InvalidSignature from None
        assert hook is not None  # noqa: S101 -- for mypy: without a hook, there are no keys
        limiter = self._limiter(hook)
        charge = None
        if limiter is not None:
            try:
                limiter.admit(len(body), now_s=self._seconds())
            except RateExceeded:
                self._count(hook, _OVER_RATE)
                raise
            charge = BodyCharge(limiter, paid=len(body), seconds=self._seconds)
        self._count(hook, _ACCEPTED)
        return hook, charge

    def _further_keys(self, keys: HookKeys) -> HookKeys:
        """Return keys that no sender has: with them, the rejections of all names take the same work."""
        counts = zip(_OF_NO_SENDER, self._most_keys, _counts(keys), strict=True)
        return HookKeys(key for key, most, count in counts for _ in range(most - count))

    def _count(self, hook: Hook, result: str) -> None:
        self.results[hook.name, result] += 1

    def _limiter(self, hook: Hook) -> RateLimiter | None:
        rates = (hook.caller.requests, hook.caller.bytes)
        if rates == (None, None):
            return None
        limiter = self._limiters.get(hook.name)
        if limiter is None or limiter.rates != rates:
            limiter = self._limiters[hook.name] = RateLimiter(
                requests=hook.caller.requests,
                bytes_=hook.caller.bytes,
                now_s=self._seconds(),
                rejections=self._rate_rejections,
            )
        return limiter


def _counts(keys: HookKeys) -> tuple[int, int]:
    """Return the numbers of secrets and of public keys."""
    of_hmac = sum(isinstance(key, bytes) for key in keys)
    return of_hmac, len(keys) - of_hmac
