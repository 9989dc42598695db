"""Standard streams that may be closed at the start of the command."""

from __future__ import annotations

import os
import sys

__all__ = ["discard_stdout", "open_standard_streams"]


def open_standard_streams() -> None:
    """
    Replace each closed standard stream.

    Otherwise the next file or socket would get its descriptor, and be written or read by mistake. The
    replacement of stdin cannot be read, and that of stdout cannot be written, so that their use fails as
    expected (EBADF). Output to the replacement of stderr is discarded.
    """
    for descriptor, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        if not _is_open(descriptor):
            # A new file gets the lowest free descriptor: this one, since the lower ones are open.
            os.open(os.devnull, flags)
    # Never closed, like the streams that they replace.
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 -- see above
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 -- see above
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 -- see above


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def discard_stdout() -> None:
    """
    Discard pending output to stdout.

    Otherwise the interpreter would write it again when it ends, and fail or block again.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
