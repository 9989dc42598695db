"""Reading of files that may be changed or replaced while the service runs."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from sampleapp.file_permissions import changeable_by_all

__all__ = ["MAX_BYTES", "read_file"]

MAX_BYTES: Final = 4 * 1024 * 1024
"""A larger file would take so long to parse that callers would notice."""


def read_file(path: Path) -> bytes:
    """
    Read a regular file as a whole.

    :raise OSError: it cannot be read, is not regular, has more than `MAX_BYTES`, or every user of this
        machine may change it, who could grant themselves rights.
    """
    # Without O_NONBLOCK, opening a pipe waits until a program writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "It is not a regular file", str(path))
        fault = changeable_by_all(path, mode)
        if fault is not None:
            raise OSError(errno.EPERM, f"{fault[0].upper()}{fault[1:]}", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"It has more than {MAX_BYTES} bytes", str(path))
    return content
