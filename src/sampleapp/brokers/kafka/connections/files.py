"""Reading the small files that a configuration names, with errors that say what to do."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from twisted.logger import Logger

from sampleapp.errors import StartUpError

__all__ = ["read_file"]

_MAX_BYTES: Final = 1024 * 1024

_log = Logger()


def read_file(path: Path, *, option: str, secret: bool) -> bytes:
    """
    Read the file that an option of the broker's URL names.

    :param secret: whether it holds a secret; a file that everybody may read is then worth a warning.
    :raise StartUpError: it cannot be read, or cannot be such a file; the message names it and says why.
    """
    named = f"The file {path}, given with {option}="
    try:
        # Not a device or a pipe, which could be read for ever, and opening would wait for.
        if not path.is_file():
            what = "is not a regular file" if path.exists() else "does not exist"
            raise StartUpError(f"{named}, {what}: give the path of one.")
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StartUpError(f"{named}, cannot be read: {error.strerror}.") from error
    if len(content) > _MAX_BYTES:
        raise StartUpError(f"{named}, has more than {_MAX_BYTES} bytes: it cannot be the right one.")
    if secret and mode & stat.S_IROTH:
        _log.warn(
            "The file {path}, given with {option}=, holds a secret, and every user of this machine may "
            "read it: take that right away (chmod o= {path}).",
            path=str(path),
            option=option,
        )
    return content
