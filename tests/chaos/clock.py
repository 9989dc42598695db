"""
twistd with another time of day: ``python -m tests.chaos.clock FILE …``.

The file has the difference in seconds as eight bytes, and may change. Only ``time.time`` differs, as when the
system's time is set: time that only goes forward stays as it is.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path

__all__ = ["set_ahead"]

_FORMAT = struct.Struct("<d")


def set_ahead(path: Path, seconds: float) -> None:
    """Say by how much the clock of a process is ahead from now on."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(_FORMAT.pack(seconds))


def main() -> None:
    """Run twistd with the rest of the arguments."""
    with Path(sys.argv[1]).open("rb") as file:
        ahead = mmap.mmap(file.fileno(), _FORMAT.size, access=mmap.ACCESS_READ)
    true_time = time.time
    time.time = lambda: true_time() + _FORMAT.unpack_from(ahead)[0]
    sys.argv = ["twistd", *sys.argv[2:]]
    # Only now: what is imported keeps the function that it found.
    from twisted.scripts.twistd import run

    run()


if __name__ == "__main__":
    main()
