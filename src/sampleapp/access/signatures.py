"""
Signatures of webhooks: the schemes in which senders sign their requests.

All of them sign the body as it was sent, and some an id and a time in front of it: with HMAC and SHA-256, or,
in Standard Webhooks, also with Ed25519. A signed time limits for how long a recorded request can be replayed.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct

REJECTIONS: Final = ("missing", "malformed", "old", "early", "wrong")
"""
The reasons why a signature is rejected.

There is none; it, or its time, does not have the form of the scheme; the request is too old, or from the
future; none of the secrets fits.
"""

ENCODINGS: Final = ("hex", "base64")

_HEX: Final = re.compile(rb"[0-9A-Fa-f]{64}")
# RFC 4648, section 4: 32 bytes have 43 characters and one for padding.
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]{43}=")
# RFC 8032, section 5.1.6: 64 bytes.
_ED25519: Final = re.compile(rb"[A-Za-z0-9+/]{86}==")
_SECONDS: Final = re.compile(rb"[0-9]{1,15}")
_MILLISECOND_DIGITS: Final = 12
"""From so many digits on, a time is in milliseconds (from 1973 on); in seconds, it would be after 5138."""
# RFC 3339, in UTC.
_DATE_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z")
TIMESTAMP: Final = "{timestamp}"
"""In the form of the signed text: the time of the request, as its header has it."""
BODY: Final = "{body}"
"""In the form of the signed text: the body."""
# The full stop separates the id from the time, so an id with one could be read in two ways.
_ID: Final = re.compile(rb"[!-\-/-~]{1,256}")
_BRANDS: Final = (
    ("webhook-id", "webhook-timestamp", "webhook-signature"),
    ("svix-id", "svix-timestamp", "svix-signature"),
)
_PUBLIC_KEY_BYTES: Final = 32
_MOST_SIGNATURES: Final = 8
"""A sender that changes its secret signs with the old one and the new one."""
_MOST_LISTED: Final = 100
"""Members of a header, with those of other versions. A header has room for 16,000 empty ones."""
_MOST_ED25519: Final = 3
"""Each is another pass over the body for each key, 1.5 ms for 1 MiB, and any client can send them."""

HookKey: TypeAlias = "bytes | Ed25519PublicKey"
"""A secret for HMAC, or a public key."""


class SignatureRejected(Exception):
    """The signature of a request is not valid."""

    def __init__(self, reason: str) -> None:
        """:param reason: one of `REJECTIONS`."""
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
    """HMACs, decoded. One of them, or of `ed25519`, must be right."""
    ed25519: tuple[bytes, ...] = ()
    """Signatures for public keys, decoded."""
    suffix: bytes = b""
    """The signed bytes after the body."""

    def verify(self, body: bytes, keys: Iterable[HookKey]) -> None:
        """
        Verify the signatures. HMACs are compared in a time that does not depend on them.

        :param body: as it was sent.
        :param keys: one of them must be that of the sender.
        :raise SignatureRejected: no signature is right.
        """
        is_right = False
        signed = self.prefix + body + self.suffix if self.ed25519 else b""
        for key in keys:
            if isinstance(key, bytes):
                digest = hmac.new(key, self.prefix, "sha256")
                digest.update(body)
                digest.update(self.suffix)
                expected = digest.digest()
                for signature in self.signatures:
                    is_right |= hmac.compare_digest(expected, signature)
            else:
                is_right |= any(_is_signed(key, each, signed) for each in self.ed25519)
        if not is_right:
            raise SignatureRejected("wrong")


def _is_signed(key: Ed25519PublicKey, signature: bytes, data: bytes) -> bool:
    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


class Scheme(Protocol):
    """A way to sign requests."""

    @property
    def signature_fields(self) -> tuple[str, ...]:
        """The names of the header fields that can have the signature, in lower case."""

    @property
    def has_time(self) -> bool:
        """True if the time of the request is signed."""

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:
        """
        Find the signatures in a header.

        :param now_s: the time, in seconds since the epoch.
        :param tolerance_s: the greatest difference to the time of the request, in seconds.
        :raise SignatureRejected: there is none, or the time of the request is out of bounds.
        """

    def key_of(self, secret: bytes) -> HookKey:
        """
        Return the key of a secret, as the sender shows it.

        :raise ValueError: it is not one of this scheme; the message does not repeat it.
        """


class _RawSecret:
    def key_of(self, secret: bytes) -> bytes:
        """See `Scheme.key_of`."""
        if secret.startswith(b"whpk_"):
            raise ValueError("has a public key (whpk_), with which only the scheme standard verifies")
        return secret


class HMACScheme(_RawSecret, Struct, frozen=True):
    """One field with an HMAC of the body, and perhaps of a time; or several with commas between them."""

    field: str
    encoding: str = "hex"
    """One of `ENCODINGS`."""
    prefix: bytes = b""
    """The beginning of a signature, such as ``sha256=``. What begins otherwise is ignored."""
    signed: str = BODY
    """The form of the signed text, with `BODY` once, and `TIMESTAMP` once if there is a `timestamp_field`."""
    timestamp_field: str | None = None
    """The field with the time of the request, in seconds or milliseconds, or as RFC 3339 has it."""

    @property
    def signature_fields(self) -> tuple[str, ...]:
        """See `Scheme.signature_fields`."""
        return (self.field,)

    @property
    def has_time(self) -> bool:
        """See `Scheme.has_time`."""
        return self.timestamp_field is not None

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:
        """See `Scheme.claim`."""
        each_one = [each.strip(b" \t") for each in _listed(_only(fields, self.field), b",")]
        signatures = [each[len(self.prefix) :] for each in each_one if each.startswith(self.prefix)]
        decoded = _decoded(signatures, _HEX if self.encoding == "hex" else _BASE64)
        if self.timestamp_field is None:
            return Claim(b"", decoded)
        time = _only(fields, self.timestamp_field)
        before, after = self.signed.split(BODY)
        separator = (
            before.partition(TIMESTAMP)[2][:1] if TIMESTAMP in before else after.partition(TIMESTAMP)[0][-1:]
        )
        # Without a separator, digits of a number could be moved from the time to the body, or back.
        may_be_number = separator != "" and not separator.isdigit()
        _check_age(now_s - _seconds_of(time, may_be_number=may_be_number), tolerance_s)
        prefix, suffix = (
            text.encode("ascii").replace(TIMESTAMP.encode("ascii"), time) for text in (before, after)
        )
        return Claim(prefix, decoded, suffix=suffix)


class GitHub(HMACScheme, frozen=True):
    """GitHub: ``X-Hub-Signature-256``."""

    field: str = "x-hub-signature-256"
    prefix: bytes = b"sha256="


class Stripe(_RawSecret):
    """Stripe: ``Stripe-Signature`` with a time and one or more signatures, ``t=…,v1=…``."""

    signature_fields: Final = ("stripe-signature",)
    has_time: Final = True

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:
        """See `Scheme.claim`."""
        pairs = [each.partition(b"=") for each in _listed(_only(fields, "stripe-signature"), b",")]
        times = [value for name, _, value in pairs if name == b"t"]
        if len(times) != 1:
            raise SignatureRejected("malformed")
        _check_time(times[0], now_s, tolerance_s)
        # "v0" is for test events, and other versions may follow.
        signatures = [value for name, _, value in pairs if name == b"v1"]
        return Claim(times[0] + b".", _decoded(signatures, _HEX))


def names_of_field(name: str) -> tuple[str, ...]:
    """
    Return the names that a field has at different senders.

    With the same signature, a delivery of Standard Webhooks can be sent again under the names of Svix.
    """
    return next((names for names in zip(*_BRANDS, strict=True) if name.lower() in names), (name,))


class Slack(_RawSecret):
    """Slack: ``X-Slack-Signature`` with ``X-Slack-Request-Timestamp``."""

    signature_fields: Final = ("x-slack-signature",)
    has_time: Final = True

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:
        """See `Scheme.claim`."""
        version, _, signature = _only(fields, "x-slack-signature").partition(b"=")
        time = _only(fields, "x-slack-request-timestamp")
        if version != b"v0":
            raise SignatureRejected("malformed")
        _check_time(time, now_s, tolerance_s)
        return Claim(b"v0:%b:" % time, _decoded([signature], _HEX))


class StandardWebhooks:
    """
    Standard Webhooks 1.0: ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``.

    Svix sends the same with names that begin with ``svix-``.
    """

    signature_fields: Final = tuple(brand[-1] for brand in _BRANDS)
    has_time: Final = True

    def claim(self, fields: SignedFields, *, now_s: float, tolerance_s: float) -> Claim:
        """See `Scheme.claim`."""
        present = [brand for brand in _BRANDS if any(fields.all(name.encode("ascii")) for name in brand)]
        if len(present) > 1:
            # Otherwise, a request could have an unsigned id besides the signed one.
            raise SignatureRejected("malformed")
        id_, time, values = (_only(fields, name) for name in (present or _BRANDS)[0])
        if not _ID.fullmatch(id_):
            raise SignatureRejected("malformed")
        _check_time(time, now_s, tolerance_s)
        pairs = [each.partition(b",") for each in _listed(values, b" ")]
        macs, ed25519 = (
            [value for version, _, value in pairs if version == wanted] for wanted in (b"v1", b"v1a")
        )
        claim = Claim(
            b"%b.%b." % (id_, time),
            _well_formed(macs, _BASE64),
            _well_formed(ed25519, _ED25519, most=_MOST_ED25519),
        )
        if not (claim.signatures or claim.ed25519):
            raise SignatureRejected("malformed")
        return claim

    def key_of(self, secret: bytes) -> HookKey:
        """See `Scheme.key_of`. After ``whsec_`` and ``whpk_`` comes base64."""
        kind, _, text = secret.partition(b"_")
        if kind == b"whpk":
            key = _decoded_key(text)
            if len(key) != _PUBLIC_KEY_BYTES:
                raise ValueError(
                    f'begins with "whpk_", and is not {_PUBLIC_KEY_BYTES} bytes in base64 after it'
                )
            return Ed25519PublicKey.from_public_bytes(key)
        if kind == b"whsec":
            key = _decoded_key(text)
            if not key:
                raise ValueError('begins with "whsec_", and is not base64 after it')
            return key
        return secret


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
        raise SignatureRejected("missing")
    if len(values) > 1:
        raise SignatureRejected("malformed")
    return values[0]


def _listed(value: bytes, separator: bytes) -> list[bytes]:
    if value.count(separator) >= _MOST_LISTED:
        raise SignatureRejected("malformed")
    return value.split(separator)


def _check_time(text: bytes, now_s: float, tolerance_s: float) -> None:
    if not _SECONDS.fullmatch(text):
        raise SignatureRejected("malformed")
    _check_age(now_s - int(text), tolerance_s)


def _seconds_of(text: bytes, *, may_be_number: bool) -> float:
    """
    Convert a time in seconds or milliseconds since the epoch, or in RFC 3339.

    :raise SignatureRejected: it is neither.
    """
    if _SECONDS.fullmatch(text) and may_be_number:
        return int(text) / (1000 if len(text) >= _MILLISECOND_DIGITS else 1)
    date_time = text.decode("latin-1")
    if _DATE_TIME.fullmatch(date_time):
        with suppress(ValueError):
            return datetime.fromisoformat(date_time).timestamp()
    raise SignatureRejected("malformed")


def _check_age(age_s: float, tolerance_s: float) -> None:
    if age_s > tolerance_s:
        raise SignatureRejected("old")
    if age_s < -tolerance_s:
        raise SignatureRejected("early")


def _decoded(signatures: Sequence[bytes], form: re.Pattern[bytes]) -> tuple[bytes, ...]:
    """Decode signatures of which one must be right."""
    decoded = _well_formed(signatures, form)
    if not decoded:
        raise SignatureRejected("malformed")
    return decoded


def _well_formed(
    signatures: Sequence[bytes], form: re.Pattern[bytes], *, most: int = _MOST_SIGNATURES
) -> tuple[bytes, ...]:
    """Decode the signatures that have a form; a sender may also send others."""
    if len(signatures) > most:
        raise SignatureRejected("malformed")
    decode = binascii.unhexlify if form is _HEX else binascii.a2b_base64
    return tuple([decode(each) for each in signatures if form.fullmatch(each)])


def _decoded_key(text: bytes) -> bytes:
    """Decode a key; empty if it is not base64. Some senders leave out the padding."""
    text = text.rstrip(b"=")
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        return b""
