"""The three standard streams, which whoever starts the command may have closed."""

from __future__ import annotations

import os
import sys

__all__ = ["discard_stdout", "open_standard_streams"]


def open_standard_streams() -> None:
    """
    Put something in the place of each standard stream that is closed.

    Otherwise the next file or socket to be opened would get its number, and be written to or read from
    by mistake. What replaces stdin cannot be read, and what replaces stdout cannot be written, so that
    their use fails as it should (EBADF); what is said on stderr goes nowhere.
    """
    for descriptor, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        if not _is_open(descriptor):
            # The lowest free number is what a file gets, and those below are in use.
            os.open(os.devnull, flags)
    # For good, as are those that they replace.
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
    Let what is still to be written to stdout go nowhere.

    The interpreter writes it once more when it ends, and would complain, or wait, once more.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
