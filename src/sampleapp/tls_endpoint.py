"""
What an endpoint with TLS needs, looked at before it is opened.

OpenSSL's own messages about its files are of no help, and it asks a terminal for passwords.
"""

from __future__ import annotations

import re
from pathlib import Path

from OpenSSL import SSL

from sampleapp.errors import StartUpError

__all__ = ["require_callbacks", "require_pem_files"]

# The grammar of `twisted.internet.endpoints.serverFromString`: a colon ends an argument, a backslash escapes.
_ARGUMENT = re.compile(r":(?:(?P<name>\w+)=)?(?P<value>(?:[^:\\]|\\.)*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_WITHOUT_NAME = ("port", "privateKey", "certKey")
"""The names of arguments that have none, by their place."""

_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")
_ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: *4,ENCRYPTED")
_CERTIFICATE = re.compile(rb"-----BEGIN (?:[A-Z]+ )*CERTIFICATE-----")


def require_pem_files(description: str) -> None:
    """
    Look into the files that an ``ssl:`` endpoint names.

    :param description: the endpoint, in Twisted's language for them.
    :raise StartUpError: one is not what it has to be.
    :raise OSError: one cannot be read.
    """
    arguments = _arguments(description)
    key = arguments.get("privateKey", "server.pem")
    certificate = arguments.get("certKey", key)
    found = Path(key).read_bytes()
    if _ENCRYPTED.search(found):
        raise StartUpError(
            f"--listen {description}: the private key in {key} is encrypted, and there is nobody to ask for "
            "its password. Give one that is not, in a file that only the service's user may read."
        )
    if not _KEY.search(found):
        raise StartUpError(
            f"--listen {description}: there is no private key in {key}. Give privateKey= a PEM file, with a "
            "line such as -----BEGIN PRIVATE KEY-----."
        )
    if not _CERTIFICATE.search(Path(certificate).read_bytes()):
        raise StartUpError(
            f"--listen {description}: there is no certificate in {certificate}. Give certKey= a PEM file, "
            "with a line -----BEGIN CERTIFICATE-----."
        )


def require_callbacks(description: str) -> None:
    """
    Find out now whether OpenSSL may call back, for which pyOpenSSL makes code at run time.

    Otherwise each connection would fail.

    :raise StartUpError: it may not.
    """
    try:
        SSL.Context(SSL.TLS_METHOD).set_info_callback(lambda *_: None)
    except MemoryError as error:
        raise StartUpError(
            f"--listen {description}: TLS cannot be used in a process that may not make memory executable: "
            "under systemd, set MemoryDenyWriteExecute=no."
        ) from error


def _arguments(description: str) -> dict[str, str]:
    names = iter(_WITHOUT_NAME)
    arguments = {}
    for match in _ARGUMENT.finditer(description):
        name = match["name"] or next(names, None)
        if name is not None:
            arguments[name] = _ESCAPED.sub(r"\1", match["value"])
    return arguments
