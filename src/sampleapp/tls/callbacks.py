"""Whether OpenSSL may call back, without which no connection with TLS comes about."""

from __future__ import annotations

from OpenSSL import SSL

from sampleapp.errors import StartUpError

__all__ = ["require_callbacks"]


def require_callbacks() -> None:
    """
    Find out now whether OpenSSL may call back, for which pyOpenSSL makes code at run time.

    Otherwise each connection would fail.

    :raise StartUpError: it may not.
    """
    try:
        SSL.Context(SSL.TLS_METHOD).set_info_callback(lambda *_: None)
    except MemoryError as error:
        raise StartUpError(
            "TLS cannot be used in a process that may not make memory executable: under systemd, set "
            "MemoryDenyWriteExecute=no."
        ) from error
