"""
The service as a process that measures its turns: run by `turns.py`, with the interpreter of an installation.

    python benchmarks/turn_probe.py FILE [options of sampleapp serve]

A turn is the CPU time of the reactor's thread between two calls for events: what every other client waits for
on a machine that is not busy. The longest turn since FILE was last zeroed is in FILE, as a double in seconds.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path

LONGEST = struct.Struct("=d")


def main() -> None:
    from twisted.internet import reactor

    with Path(sys.argv[1]).open("r+b") as file:
        longest = mmap.mmap(file.fileno(), LONGEST.size)
    wait_and_dispatch = reactor.doIteration
    began_s = time.thread_time()

    def do_iteration(delay: float | None) -> None:
        nonlocal began_s
        now_s = time.thread_time()
        if now_s - began_s > LONGEST.unpack(longest)[0]:
            LONGEST.pack_into(longest, 0, now_s - began_s)
        began_s = now_s
        wait_and_dispatch(delay)

    reactor.doIteration = do_iteration

    from sampleapp.service.tap import serve

    serve(sys.argv[2:])


if __name__ == "__main__":
    main()
