"""The settings of a client, checked: the service's URL, and the caller's token or certificate."""

from __future__ import annotations

import os
import re
from urllib.parse import quote, urlsplit

from OpenSSL import SSL, crypto

from sampleapp.errors import StartUpError
from sampleapp.outgoing.verified_tls import client_context
from sampleapp.tls import require_callbacks
from sampleapp.tls.certificates import Certificates

# Legal in a path (RFC 3986, section 3.3), and the percent sign, since the path may be encoded already.
PATH_CHARACTERS = "/%:@!$&'()*+,;=~"
_NOT_A_URL = "that is not a URL such as http://127.0.0.1:8080/"
HOST = re.compile(r"[A-Za-z0-9._:-]+")


def parse_base_url(text: str) -> str:
    """
    Parse the URL of a service, as a person writes it.

    :param text: such as ``http://127.0.0.1:8080``; a path, for a service behind a proxy, is kept.
    :return: the URL in ASCII, with a slash at the end, so that names can be appended.
    :raise ValueError: the URL is invalid; the message says what would be valid.
    """
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").encode("idna").decode("ascii")
        port = "" if parts.port is None else f":{parts.port}"
        path = quote(parts.path, safe=PATH_CHARACTERS)
    # UnicodeError, of a host or a path, is a ValueError as well.
    except ValueError:
        # Without the library's message, which may repeat a password.
        raise ValueError(_NOT_A_URL) from None
    if parts.scheme not in {"http", "https"} or not HOST.fullmatch(host):
        raise ValueError(_NOT_A_URL)
    if parts.username is not None or parts.query or parts.fragment:
        why = "that URL must end with its path: no user, query or fragment"
        if parts.username is not None:
            why += ". A token is given as token, --token-file or SAMPLEAPP_TOKEN"
        raise ValueError(why)
    if ":" in host:
        host = f"[{host}]"
    return f"{parts.scheme}://{host}{port}{path.rstrip('/')}/"


# RFC 6750, section 2.1: b64token. A JSON Web Token is one as well.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def check_token(text: str) -> str:
    """
    Return a token as it is.

    :raise ValueError: it is not a token. The message does not repeat it: most of it may be a secret.
    """
    if _TOKEN.fullmatch(text) is None:
        raise ValueError(
            "a token has one or more characters out of A-Z, a-z, 0-9 and -._~+/, perhaps with = at its end"
        )
    return text


def certificate_context(
    certificate: str | os.PathLike[str], key: str | os.PathLike[str] | None
) -> SSL.Context:
    """
    Make settings for connections that present a client certificate.

    :param certificate: a PEM file with the certificate, then its intermediate authorities.
    :param key: a PEM file with the private key; ``None`` if it is in the file of the certificate.
    :raise ValueError: a file cannot be used; the message is a sentence that names it.
    """
    try:
        require_callbacks()
        own = Certificates.read(
            private_key=os.fspath(certificate if key is None else key),
            certificate=os.fspath(certificate),
            key_argument="the client key",
            certificate_argument="the client certificate",
        )
    except StartUpError as error:
        raise ValueError(str(error)) from error
    context = client_context()
    try:
        context.use_certificate(own.chain[0])
        context.use_privatekey(own.key)
        for each in own.chain[1:]:
            context.add_extra_chain_cert(each)
        context.check_privatekey()
    except (SSL.Error, crypto.Error) as error:
        raise ValueError(
            f"OpenSSL rejected the client certificate in {certificate}: it may be too weak for its security "
            "level."
        ) from error
    return context
