"""
Private keys and certificates, read from PEM files (RFC 7468) and checked against each other.

OpenSSL's own messages about its files do not help, and it asks a terminal for passwords.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from msgspec import Struct

from sampleapp.errors import StartUpError
from sampleapp.files import changeable_by_all, is_readable_by_all

PrivateKey: TypeAlias = (
    rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
)

READABLE_KEY: Final = (
    "The file {path}, given with privateKey=, holds a secret, and every user of this machine may "
    "read it: remove that permission (chmod o= {path})."
)
"""Logged for a file for which `is_for_all_to_read` is true."""

_MAX_BYTES: Final = 1024 * 1024
_KEY: Final = re.compile(
    rb"-----BEGIN (?P<label>(?:[A-Z]+ )*PRIVATE KEY)-----.*?-----END (?P=label)-----", re.DOTALL
)
_BEGIN_KEY: Final = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")
_ENCRYPTED: Final = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: *4,ENCRYPTED")
_BEGIN_CERTIFICATE: Final = re.compile(rb"-----BEGIN (?:[A-Z]+ )*CERTIFICATE-----")
_SOON: Final = dt.timedelta(days=14)


class Certificates(Struct, frozen=True):
    """A private key with its certificates, and the authorities of other certificates."""

    key: PrivateKey
    chain: tuple[x509.Certificate, ...]
    """The certificate of the key, then the intermediate authorities."""
    client_authorities: tuple[x509.Certificate, ...]
    named: tuple[tuple[str, x509.Certificate], ...]
    """All certificates, each with the path of its file."""

    @classmethod
    def read(
        cls,
        *,
        private_key: str,
        certificate: str,
        extra_chain: str | None = None,
        client_ca: str | None = None,
        key_argument: str = "privateKey=",
        certificate_argument: str = "certKey=",
    ) -> Certificates:
        """
        Read them from files.

        :param key_argument: the argument that names the file of the key, for messages.
        :param certificate_argument: the argument that names the file of the certificate, for messages.
        :raise StartUpError: a file cannot be read or is invalid, or the key and the certificate do not match.
        """
        key = _read_key(private_key, argument=key_argument)
        own = _read_certificates(certificate, argument=certificate_argument)
        extra = () if extra_chain is None else _read_certificates(extra_chain, argument="extraCertChain=")
        if own[0].public_key() != key.public_key():
            raise StartUpError(_mismatch(private_key, key, certificate, own))
        authorities = () if client_ca is None else _read_certificates(client_ca, argument="clientCA=")
        for each in authorities:
            if not _may_be_authority(each):
                raise StartUpError(
                    f"the certificate of {_name(each)} in {client_ca} is not that of an authority. Give "
                    "clientCA= a PEM file with the authorities that sign the certificates of clients."
                )
        return cls(
            key=key,
            chain=(*own, *extra),
            client_authorities=authorities,
            named=(
                *((certificate, each) for each in own),
                *((extra_chain or "", each) for each in extra),
                *((client_ca or "", each) for each in authorities),
            ),
        )

    def expiry_warnings(self, now: dt.datetime) -> Iterator[str]:
        """
        Yield a sentence for each certificate that is not valid now, or not in two weeks.

        :param now: the time, with an offset.
        """
        for path, certificate in self.named:
            begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            which = f"The certificate of {_name(certificate)} in {path}"
            if ends <= now:
                yield f"{which} expired at {ends:%Y-%m-%d %H:%M} UTC. Replace it with a valid one."
            elif begins > now:
                yield f"{which} is not valid before {begins:%Y-%m-%d %H:%M} UTC. Check this machine's clock."
            elif ends - now < _SOON:
                yield f"{which} expires at {ends:%Y-%m-%d %H:%M} UTC. Renew it before that."


def require_unwritable(paths: Sequence[str]) -> None:
    """
    Check that not every user of this machine may change one of the files.

    :raise StartUpError: every user may change a file.
    """
    for path in paths:
        # Reading it will fail next, with a better message.
        with suppress(OSError, ValueError):
            fault = changeable_by_all(path, Path(path).stat().st_mode)
            if fault is not None:
                raise StartUpError(f"cannot use {path}: {fault}.")


def is_for_all_to_read(path: str) -> bool:
    """Return whether every user of this machine may read a file."""
    return is_readable_by_all(_mode(path))


def _mode(path: str) -> int:
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):
        # Reading it will fail next, with a better message.
        return 0


def _read(path: str) -> bytes:
    try:
        file = Path(path)
        # Opening a pipe would block, and a device may never end.
        if file.exists() and not file.is_file():
            raise StartUpError(f"cannot read {path}: it is not a regular file.")
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        # A ValueError is a path with a zero byte.
        reason = error.strerror if isinstance(error, OSError) else error
        raise StartUpError(f"cannot read {path}: {reason}.") from error
    if len(content) > _MAX_BYTES:
        raise StartUpError(f"cannot read {path}: it is larger than {_MAX_BYTES} bytes.")
    return content


def _require_key(path: str, content: bytes, *, argument: str) -> None:
    if _ENCRYPTED.search(content):
        raise StartUpError(
            f"the private key in {path} is encrypted, and there is nobody to ask for a password. Give a key "
            "that is not encrypted, in a file that only its user may read."
        )
    if not _BEGIN_KEY.search(content):
        raise StartUpError(
            f"there is no private key in {path}. Give {argument} a PEM file with a line such as "
            "-----BEGIN PRIVATE KEY-----."
        )


def _require_certificate(path: str, content: bytes, *, argument: str) -> None:
    if not _BEGIN_CERTIFICATE.search(content):
        raise StartUpError(
            f"there is no certificate in {path}. Give {argument} a PEM file with a line "
            "-----BEGIN CERTIFICATE-----."
        )


def _read_key(path: str, *, argument: str) -> PrivateKey:
    content = _read(path)
    _require_key(path, content, argument=argument)
    # The file may also have certificates, or the parameters of the curve before the key.
    block = _KEY.search(content)
    if block is None:
        raise StartUpError(f"the private key in {path} has no end: the file was cut off.")
    # Not chained: neither a key nor an error about it belongs in a log.
    try:
        key = load_pem_private_key(block[0], password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise StartUpError(f"the private key in {path} cannot be read: it is damaged.") from None
    if not isinstance(key, PrivateKey):
        raise StartUpError(
            f"the private key in {path} has a type that TLS does not use: give an RSA or EC key."
        )
    return key


def _read_certificates(path: str, *, argument: str) -> tuple[x509.Certificate, ...]:
    content = _read(path)
    _require_certificate(path, content, argument=argument)
    try:
        certificates = tuple(x509.load_pem_x509_certificates(content))
    except ValueError as error:
        raise StartUpError(f"a certificate in {path} cannot be read: it is damaged.") from error
    if len(certificates) != len(_BEGIN_CERTIFICATE.findall(content)):
        # The parser skips a certificate without an end.
        raise StartUpError(f"a certificate in {path} cannot be read: the file was cut off.")
    return certificates


def _mismatch(key_path: str, key: PrivateKey, path: str, certificates: Sequence[x509.Certificate]) -> str:
    public = key.public_key()
    if any(each.public_key() == public for each in certificates[1:]):
        return (
            f"the private key in {key_path} does not belong to the first certificate in {path}, but to "
            "another one there. Put the certificate of this key first."
        )
    return (
        f"the private key in {key_path} does not belong to the certificate in {path}. Give a "
        "certificate and its own key."
    )


def _may_be_authority(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (x509.ExtensionNotFound, ValueError):
        # Old certificates lack the extension; OpenSSL decides about those.
        return True
    return constraints.value.ca


def _name(certificate: x509.Certificate) -> str:
    """Return the name of a certificate's holder, for messages."""
    try:
        return certificate.subject.rfc4514_string() or "an unnamed holder"
    except ValueError:
        return "a holder with an unreadable name"
