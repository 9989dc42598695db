"""
Private keys and certificates, read from PEM files (RFC 7468) and held against one another.

OpenSSL's own messages about its files are of no help, and it asks a terminal for passwords.
"""

from __future__ import annotations

import datetime as dt
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from msgspec import Struct

from sampleapp.errors import StartUpError

__all__ = ["Credentials", "PrivateKey", "is_for_all_to_read", "require_pem_files"]

PrivateKey: TypeAlias = (
    rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
)

_MAX_BYTES: Final = 1024 * 1024
_KEY: Final = re.compile(
    rb"-----BEGIN (?P<label>(?:[A-Z]+ )*PRIVATE KEY)-----.*?-----END (?P=label)-----", re.DOTALL
)
_BEGIN_KEY: Final = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")
_ENCRYPTED: Final = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: *4,ENCRYPTED")
_BEGIN_CERTIFICATE: Final = re.compile(rb"-----BEGIN (?:[A-Z]+ )*CERTIFICATE-----")
_SOON: Final = dt.timedelta(days=14)


class Credentials(Struct, frozen=True):
    """What a server shows to its clients, and whom it trusts to vouch for theirs."""

    key: PrivateKey
    chain: tuple[x509.Certificate, ...]
    """The server's own certificate, and those of the authorities between it and the root."""
    client_authorities: tuple[x509.Certificate, ...]
    named: tuple[tuple[str, x509.Certificate], ...]
    """All certificates, each with the file that it is from."""

    @classmethod
    def read(
        cls,
        *,
        private_key: str,
        certificate: str,
        extra_chain: str | None = None,
        client_ca: str | None = None,
    ) -> Credentials:
        """
        Read them from files.

        :raise StartUpError: a file cannot be read or is not what it has to be, or they do not fit together.
        """
        key = _read_key(private_key)
        own = _read_certificates(certificate, argument="certKey")
        extra = () if extra_chain is None else _read_certificates(extra_chain, argument="extraCertChain")
        if own[0].public_key() != key.public_key():
            raise StartUpError(_mismatch(private_key, key, certificate, own))
        authorities = () if client_ca is None else _read_certificates(client_ca, argument="clientCA")
        for each in authorities:
            if _is_no_authority(each):
                raise StartUpError(
                    f"the certificate of {_name(each)} in {client_ca} is not that of an authority. Give "
                    "clientCA= a PEM file with the certificates of those who sign those of clients."
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

    def ends_soon(self, now: dt.datetime) -> Iterator[str]:
        """
        Tell of each certificate that is not valid now, or in two weeks, in a sentence.

        :param now: the time, with an offset.
        """
        for path, certificate in self.named:
            begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            which = f"The certificate of {_name(certificate)} in {path}"
            if ends <= now:
                yield f"{which} ended at {ends:%Y-%m-%d %H:%M} UTC. Put one that is valid in its place."
            elif begins > now:
                yield f"{which} is not valid before {begins:%Y-%m-%d %H:%M} UTC. Is the clock right?"
            elif ends - now < _SOON:
                yield f"{which} ends at {ends:%Y-%m-%d %H:%M} UTC. Renew it before."


def require_pem_files(*, private_key: str, certificate: str) -> None:
    """
    Look into the files that an ``ssl:`` endpoint names, which Twisted will read.

    :raise StartUpError: one is not what it has to be, or cannot be read.
    """
    _require_key(private_key, _read(private_key))
    _require_certificate(certificate, _read(certificate), argument="certKey")


def is_for_all_to_read(path: str) -> bool:
    """Whether every user of this machine may read a file."""
    try:
        return bool(Path(path).stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def _read(path: str) -> bytes:
    try:
        file = Path(path)
        # Not a pipe, which opening would wait for, or a device, which could be read for ever.
        if file.exists() and not file.is_file():
            raise StartUpError(f"cannot read {path}: it is not a regular file.")
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        # A ValueError is a path with a zero byte.
        reason = error.strerror if isinstance(error, OSError) else error
        raise StartUpError(f"cannot read {path}: {reason}.") from error
    if len(content) > _MAX_BYTES:
        raise StartUpError(f"cannot read {path}: it has more than {_MAX_BYTES} bytes, and is no such file.")
    return content


def _require_key(path: str, content: bytes) -> None:
    if _ENCRYPTED.search(content):
        raise StartUpError(
            f"the private key in {path} is encrypted, and there is nobody to ask for its password. Give one "
            "that is not, in a file that only the service's user may read."
        )
    if not _BEGIN_KEY.search(content):
        raise StartUpError(
            f"there is no private key in {path}. Give privateKey= a PEM file, with a line such as "
            "-----BEGIN PRIVATE KEY-----."
        )


def _require_certificate(path: str, content: bytes, *, argument: str) -> None:
    if not _BEGIN_CERTIFICATE.search(content):
        raise StartUpError(
            f"there is no certificate in {path}. Give {argument}= a PEM file, with a line "
            "-----BEGIN CERTIFICATE-----."
        )


def _read_key(path: str) -> PrivateKey:
    content = _read(path)
    _require_key(path, content)
    # There may be certificates beside it, or the parameters of its curve before it.
    block = _KEY.search(content)
    if block is None:
        raise StartUpError(f"the private key in {path} has no end: the file was cut off.")
    # Nothing is chained here: what is said about a key is as little for a log as the key.
    try:
        key = load_pem_private_key(block[0], password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise StartUpError(f"the private key in {path} cannot be read: it is damaged.") from None
    if not isinstance(key, PrivateKey):
        raise StartUpError(f"the private key in {path} is of a kind that TLS does not use: take RSA or EC.")
    return key


def _read_certificates(path: str, *, argument: str) -> tuple[x509.Certificate, ...]:
    content = _read(path)
    _require_certificate(path, content, argument=argument)
    try:
        certificates = tuple(x509.load_pem_x509_certificates(content))
    except ValueError as error:
        raise StartUpError(f"a certificate in {path} cannot be read: it is damaged.") from error
    if len(certificates) != len(_BEGIN_CERTIFICATE.findall(content)):
        # What has no end is passed over.
        raise StartUpError(f"a certificate in {path} cannot be read: the file was cut off.")
    return certificates


def _mismatch(key_path: str, key: PrivateKey, path: str, certificates: Sequence[x509.Certificate]) -> str:
    public = key.public_key()
    if any(each.public_key() == public for each in certificates[1:]):
        return (
            f"the private key in {key_path} does not belong to the first certificate in {path}, but to "
            "another one there. Put the server's own certificate first."
        )
    return (
        f"the private key in {key_path} does not belong to the certificate in {path}. Give the two that were "
        "made together."
    )


def _is_no_authority(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (x509.ExtensionNotFound, ValueError):
        # Old ones do not say; OpenSSL decides about those.
        return False
    return not constraints.value.ca


def _name(certificate: x509.Certificate) -> str:
    """Return what a certificate calls its holder, for people."""
    try:
        return certificate.subject.rfc4514_string() or "nobody"
    except ValueError:
        return "somebody whose name cannot be read"
