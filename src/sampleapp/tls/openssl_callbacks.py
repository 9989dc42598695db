"""Check at the start that OpenSSL can call Python, which every TLS connection needs."""

from __future__ import annotations

from OpenSSL import SSL

from sampleapp.errors import StartUpError

__all__ = ["require_callbacks"]


def require_callbacks() -> None:
    """
    Check that OpenSSL can call Python, for which pyOpenSSL generates machine code at run time.

    If it cannot, every connection would fail.

    :raise StartUpError: the process may not make memory executable.
    """
    try:
        SSL.Context(SSL.TLS_METHOD).set_info_callback(lambda *_: None)
    except MemoryError as error:
        raise StartUpError(
            "TLS cannot be used in a process that may not make memory executable: under systemd, set "
            "MemoryDenyWriteExecute=no."
        ) from error
