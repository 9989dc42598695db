"""
The names in client certificates, and their form in the callers file.

``subject:CN=thermometer,O=Example`` is a whole subject (RFC 4514); ``dns:``, ``email:``, ``uri:`` and ``ip:``
are each one subject alternative name (RFC 5280, section 4.2.1.6). They are compared literally: a name with a
wildcard matches only itself, and the common name is not used as a DNS name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any, Final

from cryptography.x509 import (
    Certificate,
    DNSName,
    ExtensionNotFound,
    IPAddress,
    Name,
    RFC822Name,
    SubjectAlternativeName,
    UniformResourceIdentifier,
)

CertificateName = tuple[str, Any]
"""The kind of name, and the name in a form that can be compared."""


def parse_certificate_name(text: str) -> CertificateName:
    """
    Parse a name in the form of the callers file.

    :raise ValueError: it has another form; the message shows the right one.
    """
    kind, colon, value = text.partition(":")
    parse = _PARSERS.get(kind) if colon else None
    if parse is None:
        raise ValueError(
            'must begin with the kind of name: "subject:CN=thermometer,O=Example", '
            '"dns:thermometer.example", '
            '"email:thermometer@example.org", "uri:spiffe://example.org/thermometer" or "ip:192.0.2.1"'
        )
    return kind, parse(value)


def names_in(certificate: Certificate) -> Iterator[CertificateName]:
    """
    Yield the names of a certificate.

    :raise ValueError: it cannot be read.
    """
    yield "subject", certificate.subject
    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        return
    for name in names:
        if isinstance(name, DNSName):
            yield "dns", name.value.lower()
        elif isinstance(name, RFC822Name):
            yield "email", _email(name.value)
        elif isinstance(name, UniformResourceIdentifier):
            yield "uri", name.value
        elif isinstance(name, IPAddress):
            yield "ip", name.value


def _subject(text: str) -> Name:
    try:
        name = Name.from_rfc4514_string(text)
    except ValueError as error:
        raise ValueError(
            "must have a subject in the form of RFC 4514, such as CN=thermometer,O=Example; "
            "openssl x509 -noout -subject -nameopt RFC2253 shows the subject of a certificate"
        ) from error
    if not list(name):
        raise ValueError("has an empty subject")
    return name


def _dns(text: str) -> str:
    if not text or not text.isascii() or any(c.isspace() for c in text):
        raise ValueError("must have a DNS name after dns:, such as thermometer.example, in ASCII")
    return text.lower()


def _email(text: str) -> str:
    # The domain is case-insensitive, the part before it need not be (RFC 5280, section 7.5).
    local, at, domain = text.rpartition("@")
    return f"{local}{at}{domain.lower()}"


def _parsed_email(text: str) -> str:
    local, _, domain = text.rpartition("@")
    if not local or not domain or not text.isascii():
        raise ValueError("must have an address after email:, such as thermometer@example.org")
    return _email(text)


def _uri(text: str) -> str:
    if ":" not in text or not text.isascii():
        raise ValueError("must have a whole URI after uri:, such as spiffe://example.org/thermometer")
    return text


def _ip(text: str) -> Any:
    try:
        return ip_address(text)
    except ValueError as error:
        raise ValueError("must have an IP address after ip:, such as 192.0.2.1 or 2001:db8::1") from error


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "subject": _subject,
    "dns": _dns,
    "email": _parsed_email,
    "uri": _uri,
    "ip": _ip,
}
