"""Checks before Twisted makes its own endpoint ``ssl:``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from sampleapp.tls.certificates import READABLE_KEY, Certificates, is_for_all_to_read, require_unwritable

__all__ = ["check_ssl_endpoint"]

_log: Final = Logger()


def check_ssl_endpoint(argument: Callable[[str], str | None]) -> None:
    """
    Check the files of an ``ssl:`` endpoint, and log that they are not reloaded.

    Twisted's messages about them do not name the file, and it asks a terminal for the password of an
    encrypted key.

    :param argument: the value of an argument of the endpoint by its name, if it is given.
    :raise StartUpError: a file cannot be used.
    """
    private_key = argument("privateKey") or "server.pem"
    certificate = argument("certKey") or private_key
    chain = argument("extraCertChain")
    require_unwritable([private_key, certificate, *([chain] if chain else ())])
    Certificates.read(private_key=private_key, certificate=certificate, extra_chain=chain)
    if is_for_all_to_read(private_key):
        _log.warn(READABLE_KEY, path=private_key)
    _log.info(
        "The endpoint ssl:{port} does not reload its certificate: restart the service when it is renewed, or "
        "use https: instead of ssl:, which reloads it.",
        port=argument("port"),
    )
