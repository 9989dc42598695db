"""Verification of the requests of hooks: first of their header, and of their body when it is there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from msgspec import Struct

from sampleapp.access.errors import InvalidSignature, RateExceeded
from sampleapp.access.hook_secrets import HookKeys
from sampleapp.access.hooks import Hook
from sampleapp.access.rates import BodyCharge, RateLimiter
from sampleapp.access.signatures import REFUSALS, Claim, SignatureRefused, SignedFields

__all__ = ["RESULTS", "UNKNOWN", "HookVerifier", "SignedRequest"]

UNKNOWN: Final = "unknown"
"""The result of requests to hooks that are not in the file."""
_ACCEPTED: Final = "accepted"
_OVER_RATE: Final = "rate"
RESULTS: Final = (_ACCEPTED, _OVER_RATE, *REFUSALS)
"""The results of requests to hooks that are in the file."""


class SignedRequest(Struct, frozen=True):
    """A request whose signature is not verified yet, since its body is not there."""

    hook: Hook
    claim: Claim
    keys: HookKeys
    limiter: RateLimiter | None
    signature_fields: frozenset[bytes]
    """See `HookVerifier.signature_fields`."""


class HookVerifier:
    """
    Verifies the requests of the hooks in the callers file.

    Only verified requests use the rate of a hook, so strangers cannot use it up.
    """

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        keys: Mapping[str, HookKeys],
        *,
        seconds: Callable[[], float],
        now: Callable[[], float] = time.time,
        rate_refusals: Counter[str] | None = None,
    ) -> None:
        """
        :param keys: by the names of the hooks.
        :param seconds: the clock for rates: seconds of a clock that is never set.
        :param now: the clock for the times of requests: seconds since the epoch.
        :param rate_refusals: counts refused requests by the name of the rate.
        """
        self._seconds = seconds
        self._now = now
        self._rate_refusals = rate_refusals
        self._limiters: dict[str, RateLimiter] = {}
        self.results: dict[tuple[str, str], int] = {("", UNKNOWN): 0}
        """The number of requests since the start, by the name of the hook and one of `RESULTS`."""
        self.use(hooks, keys)

    def use(self, hooks: Mapping[str, Hook], keys: Mapping[str, HookKeys]) -> None:
        """Replace the hooks and their keys. A hook with unchanged rates keeps its present allowance."""
        self._hooks = hooks
        self._keys = keys
        self.signature_fields = frozenset(hook.scheme.field.encode("ascii") for hook in hooks.values())
        """The names of the header fields with signatures, in lower case. They become headers of no record."""
        for name in self._limiters.keys() - hooks.keys():
            del self._limiters[name]
        for name in hooks:
            for result in RESULTS:
                self.results.setdefault((name, result), 0)

    def begin(self, name: str, fields: SignedFields, length: int | None) -> SignedRequest:
        """
        Check the header of a request.

        :param name: of the hook.
        :param length: of the body, in bytes; ``None`` if it is not known.
        :raise InvalidSignature: there is no such hook, or the header has no signature, or it is too old.
        :raise RateExceeded: the hook has used up its rate.
        """
        hook = self._hooks.get(name)
        if hook is None:
            self.results["", UNKNOWN] += 1
            raise InvalidSignature
        try:
            claim = hook.scheme.claim(fields, now_s=self._now(), tolerance_s=hook.tolerance_s)
        except SignatureRefused as refusal:
            self._refuse(hook, refusal)
        limiter = self._limiter(hook)
        if limiter is not None:
            try:
                limiter.require(length, now_s=self._seconds())
            except RateExceeded:
                self._count(hook, _OVER_RATE)
                raise
        return SignedRequest(hook, claim, self._keys[name], limiter, self.signature_fields)

    def finish(self, request: SignedRequest, body: bytes) -> BodyCharge | None:
        """
        Verify a request whose body is there, and charge it to the rate of its hook.

        :param body: as it was sent.
        :return: charges what the body needs more when it is decoded; ``None`` if the hook has no rate.
        :raise InvalidSignature: its signature is wrong.
        :raise RateExceeded: the hook has used up its rate.
        """
        hook, limiter = request.hook, request.limiter
        try:
            request.claim.verify(body, request.keys)
        except SignatureRefused as refusal:
            self._refuse(hook, refusal)
        charge = None
        if limiter is not None:
            try:
                limiter.admit(len(body), now_s=self._seconds())
            except RateExceeded:
                self._count(hook, _OVER_RATE)
                raise
            charge = BodyCharge(limiter, paid=len(body), seconds=self._seconds)
        self._count(hook, _ACCEPTED)
        return charge

    def _refuse(self, hook: Hook, refusal: SignatureRefused) -> NoReturn:
        self._count(hook, refusal.reason)
        # One answer for all reasons, which does not reveal how close a forged request was.
        raise InvalidSignature from None

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
                refusals=self._rate_refusals,
            )
        return limiter
