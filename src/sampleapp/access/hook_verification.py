"""
Hooks: their secrets, and the verification of their requests.

The header of a request is verified first, and its body when it is there. Each secret is in a file of its own,
and has not the form of another credential: with a public key as the secret, everyone who knows the key could
sign.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key
from cryptography.x509 import load_der_x509_certificate
from msgspec import Struct
from msgspec.structs import replace

from sampleapp.access.caller import PREFIX
from sampleapp.access.callers_file_tables import Mistake
from sampleapp.access.callers_file_tables import Path as TOMLPath
from sampleapp.access.errors import InvalidSignature, RateExceeded
from sampleapp.access.hooks import Hook
from sampleapp.access.rates import BodyCharge, RateLimiter
from sampleapp.access.signatures import REJECTIONS, Claim, HookKey, Scheme, SignatureRejected, SignedFields
from sampleapp.files import read_file

_KINDS: Final = {
    # Standard Webhooks 1.0.
    rb"whsk_": "the private key of a sender; write its public key (whpk_) there instead",
    rb".whpk_": "a public key (whpk_) with other text in front of it",
    rb"-----BEGIN ": "a key or a certificate in PEM",
    rb"(?:ssh-|ecdsa-sha2-|sk-ssh-|sk-ecdsa-)\S+ AAAA": "a key of SSH",
    # Its form on the wire in base64: the length and the name of the algorithm come first (RFC 4253).
    rb"\A\s*AAAA(?:[CE]3NzaC1|B3NzaC1)": "a key of SSH",
    rb"\A\s*eyJ[\w-]*\.[\w-]+\.[\w-]*\Z": "a JSON Web Token",
    re.escape(PREFIX).encode("ascii"): "the token of a caller",
    # Secrets in base64 may have slashes.
    rb"\A\s*(?:file:)?[~\w./-]*/[\w-]+\.(?:env|json|key|pem|secret|token|toml|txt|ya?ml)\Z": "a path",
    rb"\A\s*(?:file:|~)?/+(?:etc|home|run|var)/[\w./-]+\Z": "a path",
}
"""By regular expressions that are searched for."""
_FROM_BASE64URL: Final = bytes.maketrans(b"-_", b"+/")


def other_kind(text: bytes) -> str | None:
    """Return the kind of a text that is not the secret of a webhook; ``None`` if it can be one."""
    for pattern, kind in _KINDS.items():
        if re.search(pattern, text, re.DOTALL):
            return kind
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if isinstance(msgspec.json.decode(text), dict | list):
            return "JSON, such as a JSON Web Key"
    plain = text.translate(_FROM_BASE64URL).rstrip(b"=")
    for decode, digits in ((base64.b64decode, plain + b"=" * (-len(plain) % 4)), (binascii.unhexlify, text)):
        with suppress(ValueError):
            if _is_der(decode(digits)):
                return "a key or a certificate in DER"
    return None


def _is_der(data: bytes) -> bool:
    for load in (load_der_public_key, load_der_x509_certificate):
        with suppress(ValueError, UnsupportedAlgorithm):
            load(data)
            return True
    with suppress(ValueError, UnsupportedAlgorithm):
        # TypeError: it needs a password.
        with suppress(TypeError):
            load_der_private_key(data, None)
        return True
    return False


_MOST_BYTES: Final = 4096
_MOST_PUBLIC_KEYS: Final = 2
"""The old one and the new one of a sender. Each takes 1.5 ms for 1 MiB and signature, also if it is false."""


class HookKeys(tuple[HookKey, ...]):
    """The keys of a hook, each of which is valid. They are not in its ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return their number only."""
        return f"<{len(self)} keys>"


def secret_paths(hooks: Mapping[str, Hook], *, directory: Path) -> list[Path]:
    """
    Return the paths of the files with secrets.

    :param directory: for relative paths.
    """
    return [directory / file for hook in hooks.values() for file in hook.secret_files]


def load_hook_keys(hooks: Mapping[str, Hook], *, directory: Path) -> dict[str, HookKeys]:
    """
    Read the secrets of all hooks.

    :param directory: for relative paths.
    :return: by the names of the hooks.
    :raise Mistake: a file cannot be used. The message has nothing of its content, and not its path, which may
        be a secret that was written there by mistake.
    """
    return {name: _load_keys(hook, directory) for name, hook in hooks.items()}


def _load_keys(hook: Hook, directory: Path) -> HookKeys:
    member = ("hooks", hook.name, "secret_files")
    keys = HookKeys(
        _load(hook, directory / file, (*member, index)) for index, file in enumerate(hook.secret_files)
    )
    if sum(not isinstance(key, bytes) for key in keys) > _MOST_PUBLIC_KEYS:
        raise Mistake(member, f"names more than {_MOST_PUBLIC_KEYS} public keys (whpk_); remove old ones")
    return keys


def _load(hook: Hook, path: Path, member: TOMLPath) -> HookKey:
    try:
        secret = read_file(path).rstrip()
    except OSError as error:
        raise Mistake(member, f"names a file that cannot be read: {error.strerror}") from error
    try:
        _check_text(secret)
        return hook.scheme.key_of(secret)
    except ValueError as error:
        raise Mistake(member, f"names a file that {error}") from None


def _check_text(secret: bytes) -> None:
    """:raise ValueError: it is not the secret of any webhook."""
    if secret.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(
            "begins with a byte order mark, which is not a part of the secret; save it without one"
        )
    if not secret:
        raise ValueError("is empty")
    if len(secret) > _MOST_BYTES:
        raise ValueError(f"has more than {_MOST_BYTES} bytes, so it is not the secret of a webhook")
    kind = other_kind(secret)
    if kind is not None:
        raise ValueError(f"has {kind}, and not the secret of a webhook")
    if b"\n" in secret:
        raise ValueError("has several lines; give each secret a file of its own, in secret_files")
    if not secret.decode("utf-8", "surrogateescape").isprintable():
        raise ValueError("is not text in UTF-8, or has characters that cannot be seen")


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
    So each header is read in the forms of all hooks, the body of a request is taken if its header has one of
    them, and its signatures are tried with as many keys as the hook with the most has.
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
        own = None if hook is None else (hook.scheme, hook.tolerance_s)
        if own is None:
            self.results["", UNKNOWN] += 1
        claims: dict[tuple[Scheme, float], Claim] = {}
        for form in self._forms:
            scheme, tolerance_s = form
            try:
                claims[form] = scheme.claim(fields, now_s=now_s, tolerance_s=tolerance_s)
            except SignatureRejected as rejection:
                if hook is not None and form == own:
                    self._count(hook, rejection.reason)
                    hook = None
        if not claims:
            raise InvalidSignature
        claim = next(iter(claims.values())) if hook is None or own is None else claims[own]
        if len(claims) > 1:
            # Of the schemes whose forms a header may have, one has signatures for public keys.
            claim = replace(claim, ed25519=max([each.ed25519 for each in claims.values()], key=len))
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
