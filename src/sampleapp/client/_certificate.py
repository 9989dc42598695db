"""The certificate by which a service knows the client."""

from __future__ import annotations

import os

from OpenSSL import SSL, crypto

from sampleapp.errors import StartUpError
from sampleapp.outgoing.verified_tls import client_context
from sampleapp.tls.certificates import Certificates
from sampleapp.tls.openssl_callbacks import require_callbacks

__all__ = ["certificate_context"]


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
