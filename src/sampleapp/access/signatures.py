"""
Signatures of webhooks: the schemes in which senders sign their requests.

All of them are HMAC with SHA-256 over the body as it was sent, and some over an id and a time in front of it.
A signed time limits for how long a recorded request can be replayed.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

__all__ = [
    "ENCODINGS",
    "FIXED_SCHEMES",
    "HMAC",
    "REFUSALS",
    "SCHEMES",
    "Claim",
    "GitHub",
    "HMACScheme",
    "Scheme",
    "SignatureRefused",
    "SignedFields",
    "Slack",
    "StandardWebhooks",
    "Stripe",
]

REFUSALS: Final = ("missing", "malformed", "old", "early", "wrong")
"""
The reasons why a signature is refused.

There is none; it, or its time, does not have the form of the scheme; the request is too old, or from the
future; none of the secrets fits.
"""

ENCODINGS: Final = ("hex", "base64")

_HEX: Final = re.compile(rb"[0-9A-Fa-f]{64}")
# RFC 4648, section 4: 32 bytes have 43 characters and one for padding.
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]{43}=")
_SECONDS: Final = re.compile(rb"[0-9]{1,15}")
# The full stop separates the id from the time, so an id with one could be read in two ways.
_ID: Final = re.compile(rb"[!-\-/-~]{1,256}")
_MOST_SIGNATURES: Final = 50


class SignatureRefused(Exception):
    """The signature of a request is not valid."""

    def __init__(self, reason: str) -> None:
        """:param reason: one of `REFUSALS`."""
        super().__init__(reason)
        self.reason = reason


class SignedFields(Protocol):
    """The header fields of a request."""

    def all(self, name: bytes, /) -> tuple[bytes, ...]:
        """Return the values of all fields of this name, whatever its case."""


class Claim(Struct, frozen=True):
    """The signatures of a request, as its header has them. They are not verified."""

    prefix: bytes
    """The signed bytes in front of the body."""
    signatures: tuple[bytes, ...]
    """Decoded. One of them must be right."""

    def verify(self, body: bytes, keys: Iterable[bytes]) -> None:
        """
        Verify the signatures, in a time that does not depend on them.

        :param body: as it was sent.
        :param keys: one of them must be that of the sender.
        :raise SignatureRefused: no signature is right.
        """
        is_right = False
        for key in keys:
            digest = hmac.new(key, self.prefix, "sha256")
            digest.update(body)
            expected = digest.digest()
            for signature in self.signatures:
                is_right |= hmac.compare_digest(expected, signature)
        if not is_right:
            raise SignatureRefused("wrong")


class Scheme(Protocol):
    """A way to sign requests."""

    @property
    def field(self) -> str:
        """The name of the header field with the signature, in lower case."""

    @property
    def has_time(self) -> bool:
        """True if the time of the request is signed."""

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:
        """
        Find the signatures in a header.

        :param now_s: the time, in seconds since the epoch.
        :param tolerance_s: the greatest difference to the time of the request, in seconds.
        :raise SignatureRefused: there is none, or the time of the request is out of bounds.
        """

    def key_of(self, secret: bytes) -> bytes:
        """
        Return the key of a secret, as the sender shows it.

        :raise ValueError: it is not one; the message does not repeat it.
        """


class _RawSecret:
    def key_of(self, secret: bytes) -> bytes:
        """See `Scheme.key_of`."""
        return secret


class HMACScheme(_RawSecret, Struct, frozen=True):
    """One field with an HMAC of the body."""

    field: str
    encoding: str = "hex"
    """One of `ENCODINGS`."""
    prefix: bytes = b""
    """The beginning of the value, such as ``sha256=``."""

    @property
    def has_time(self) -> bool:
        """See `Scheme.has_time`."""
        return False

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:  # noqa: ARG002 -- see Scheme
        """See `Scheme.claim`."""
        value = _only(fields, self.field)
        if not value.startswith(self.prefix):
            raise SignatureRefused("malformed")
        return Claim(b"", (_decoded(value[len(self.prefix) :], self.encoding),))


class GitHub(HMACScheme, frozen=True):
    """GitHub: ``X-Hub-Signature-256``."""

    field: str = "x-hub-signature-256"
    prefix: bytes = b"sha256="


class Stripe(_RawSecret):
    """Stripe: ``Stripe-Signature`` with a time and one or more signatures, ``t=…,v1=…``."""

    field: Final = "stripe-signature"
    has_time: Final = True

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:
        """See `Scheme.claim`."""
        pairs = [each.partition(b"=") for each in _only(fields, self.field).split(b",")]
        times = [value for name, _, value in pairs if name == b"t"]
        if len(times) != 1:
            raise SignatureRefused("malformed")
        _check_time(times[0], now_s, tolerance_s)
        # "v0" is for test events, and other versions may follow.
        signatures = [value for name, _, value in pairs if name == b"v1"]
        return Claim(times[0] + b".", _those_decoded(signatures, "hex"))


class Slack(_RawSecret):
    """Slack: ``X-Slack-Signature`` with ``X-Slack-Request-Timestamp``."""

    field: Final = "x-slack-signature"
    has_time: Final = True

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:
        """See `Scheme.claim`."""
        version, _, signature = _only(fields, self.field).partition(b"=")
        time = _only(fields, "x-slack-request-timestamp")
        if version != b"v0":
            raise SignatureRefused("malformed")
        _check_time(time, now_s, tolerance_s)
        return Claim(b"v0:%b:" % time, (_decoded(signature, "hex"),))


class StandardWebhooks:
    """Standard Webhooks 1.0: ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``."""

    field: Final = "webhook-signature"
    has_time: Final = True

    _PREFIX: Final = b"whsec_"

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:
        """See `Scheme.claim`."""
        values = _only(fields, self.field)
        id_, time = _only(fields, "webhook-id"), _only(fields, "webhook-timestamp")
        if not _ID.fullmatch(id_):
            raise SignatureRefused("malformed")
        _check_time(time, now_s, tolerance_s)
        pairs = [each.partition(b",") for each in values.split(b" ")]
        # "v1a" is signed with a private key.
        signatures = [value for version, _, value in pairs if version == b"v1"]
        return Claim(b"%b.%b." % (id_, time), _those_decoded(signatures, "base64"))

    def key_of(self, secret: bytes) -> bytes:
        """See `Scheme.key_of`. A secret that begins with ``whsec_`` is in base64."""
        if not secret.startswith(self._PREFIX):
            return secret
        text = secret.removeprefix(self._PREFIX).rstrip(b"=")
        try:
            # Some senders leave out the padding.
            key = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
        except binascii.Error:
            key = b""
        if not key:
            raise ValueError('begins with "whsec_", and is not base64 after it')
        return key


FIXED_SCHEMES: Final[Mapping[str, Scheme]] = {
    "github": GitHub(),
    "stripe": Stripe(),
    "slack": Slack(),
    "standard": StandardWebhooks(),
}
"""The schemes in which everything is fixed, by their names in the callers file."""
HMAC: Final = "hmac"
"""The name of `HMACScheme` in the callers file."""
SCHEMES: Final = (*FIXED_SCHEMES, HMAC)
"""The names of all schemes."""


def _only(fields: SignedFields, name: str) -> bytes:
    values = fields.all(name.encode("ascii"))
    if not values:
        raise SignatureRefused("missing")
    if len(values) > 1:
        raise SignatureRefused("malformed")
    return values[0]


def _check_time(text: bytes, now_s: float, tolerance_s: float) -> None:
    if not _SECONDS.fullmatch(text):
        raise SignatureRefused("malformed")
    age_s = now_s - int(text)
    if age_s > tolerance_s:
        raise SignatureRefused("old")
    if age_s < -tolerance_s:
        raise SignatureRefused("early")


def _decoded(signature: bytes, encoding: str) -> bytes:
    if encoding == "hex":
        if _HEX.fullmatch(signature):
            return binascii.unhexlify(signature)
    elif _BASE64.fullmatch(signature):
        return binascii.a2b_base64(signature)
    raise SignatureRefused("malformed")


def _those_decoded(signatures: Sequence[bytes], encoding: str) -> tuple[bytes, ...]:
    """Decode signatures of which one must be right. A sender that changes its secret sends several."""
    if not 1 <= len(signatures) <= _MOST_SIGNATURES:
        raise SignatureRefused("malformed")
    pattern = _HEX if encoding == "hex" else _BASE64
    decoded = tuple([_decoded(each, encoding) for each in signatures if pattern.fullmatch(each)])
    if not decoded:
        raise SignatureRefused("malformed")
    return decoded
