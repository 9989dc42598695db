"""Certificates for tests: an authority, and what it signs, as PEM files in a directory."""

from __future__ import annotations

import datetime as dt
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.secrets import secret_key

DAY = dt.timedelta(days=1)


class Issued(NamedTuple):
    """The files of one certificate."""

    certificate: Path
    """It, and after it those of the authorities between it and the root."""
    key: Path
    """PKCS#8, not encrypted."""


class Authority:
    """
    A certificate authority. Its own certificate is in ``certificate``.

    With a parent it is an intermediate one, whose certificate follows each that it issues.
    """

    def __init__(self, directory, name="ca", *, parent=None, end=2 * DAY):
        self.directory = Path(directory)
        self.name = name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = _subject(name)
        signer, issuer = (self.key, self.subject) if parent is None else (parent.key, parent.subject)
        self._certificate = (
            _builder(self.subject, issuer, self.key, signer, start=-2 * DAY, end=end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(signer, hashes.SHA256())
        )
        self.chain = () if parent is None else (self._certificate, *parent.chain)
        self.certificate = self.directory / f"{name}.pem"
        self.certificate.write_bytes(_pem(self._certificate))

    def server(
        self,
        name="server",
        *,
        dns=("localhost",),
        ip=("127.0.0.1",),
        uri=(),
        start=-DAY,
        end=DAY,
        key=None,
    ):
        """A server's certificate for host names and addresses; valid from and until, as seen from now."""
        names = [
            *map(x509.DNSName, dns),
            *(x509.IPAddress(ip_address(each)) for each in ip),
            *map(x509.UniformResourceIdentifier, uri),
        ]
        return self._issue(
            name, names=names, usage=ExtendedKeyUsageOID.SERVER_AUTH, start=start, end=end, key=key
        )

    def expired(self, name="expired", **names):
        """A server's certificate that was valid until a moment ago."""
        return self.server(name, end=-dt.timedelta(minutes=1), **names)

    def client(self, name="client", *, start=-DAY, end=DAY, key=None):
        """A client's certificate for a common name, and for a key if there is one already."""
        return self._issue(
            name, names=(), usage=ExtendedKeyUsageOID.CLIENT_AUTH, start=start, end=end, key=key
        )

    def _issue(self, name, *, names, usage, start, end, key=None):
        key = ec.generate_private_key(ec.SECP256R1()) if key is None else key
        builder = (
            _builder(_subject(name), self.subject, key, self.key, start=start, end=end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        issued = Issued(
            self.directory / f"{name}.pem",
            self.directory / f"{name}.key",
        )
        issued.certificate.write_bytes(b"".join(map(_pem, (certificate, *self.chain))))
        issued.key.write_bytes(key_pem(key))
        issued.key.chmod(0o600)
        return issued


def self_signed(directory, name="localhost"):
    """A server's certificate that its own key has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    certificate = (
        _builder(subject, subject, key, key, start=-DAY, end=DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    issued = Issued(Path(directory) / "self-signed.pem", Path(directory) / "self-signed.key")
    issued.certificate.write_bytes(_pem(certificate))
    issued.key.write_bytes(key_pem(key))
    return issued


def key_pem(key, *, form=serialization.PrivateFormat.PKCS8, password=None):
    """A private key in PEM, encrypted if there is a password."""
    encryption = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    )
    return secret_key(key.private_bytes(serialization.Encoding.PEM, form, encryption))


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


def _subject(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject, issuer, key, signer, *, start, end):
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start)
        .not_valid_after(now + end)
        # RFC 5280, sections 4.2.1.1 and 4.2.1.2; Python 3.13 rejects a certificate that has neither.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )


def _usage(*, signs_certificates):
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
