"""
``python -m sampleapp.validation.worker``: the process that checks contents.

It reads requests from its standard input, one after the other, and ends with it. Signals that a terminal or a
service manager sends to all processes of a group are ignored: the service decides when this one ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from sampleapp.errors import Fault
from sampleapp.messages.schemas import MOST_FAULTS, Schema, compile_schemas
from sampleapp.validation.frames import DEADLINE_S, Check, Done, Found, Frames, Load, decode_request, frame

_READ_BYTES: Final = 1024 * 1024
_SLOW_BYTES: Final = 1024
"""The length of a content, in bytes, from which on all faults may take long after the first one is known."""


class Worker:
    """Does requests."""

    def __init__(self, write: Callable[[bytes], object], limit: Callable[[float], object]) -> None:
        """
        :param write: sends bytes to the service.
        :param limit: ends the process after some seconds; not at all after 0.
        """
        self._write = write
        self._limit = limit
        self._frames = Frames()
        self._schemas: dict[int, dict[str, Schema]] = {}

    def receive(self, data: bytes) -> None:
        """Take bytes of requests, and do each that is whole."""
        for message in self._frames.receive(data):
            request = decode_request(message)
            if isinstance(request, Load):
                self._load(request)
            else:
                # The library cannot be interrupted, and the end of the input is not seen while it works. The
                # service ends this process earlier, unless it was killed itself.
                self._limit(2 * DEADLINE_S)
                self._check(request)
                self._limit(0)

    def _load(self, request: Load) -> None:
        for version in request.forgotten:
            self._schemas.pop(version, None)
        self._schemas[request.version] = compile_schemas(request.files, directory="")
        self._write(frame(Done()))

    def _check(self, request: Check) -> None:
        by_topic = self._schemas[request.version]
        found = 0
        unsent = b""
        for number, (topic, content) in enumerate(zip(request.topics, request.contents, strict=True)):
            faults: list[Fault] = []
            for faults in by_topic[topic].faults(content):
                unsent += frame(Found(number, faults))
                if len(content) >= _SLOW_BYTES:
                    # If all faults take too long, the service has the first one.
                    self._write(unsent)
                    unsent = b""
            found += len(faults)
            if found >= MOST_FAULTS:
                break
        self._write(unsent + frame(Done()))


def main() -> None:
    """Do the requests of the standard input until its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # Nothing else may write there.
    output = os.dup(1)
    os.dup2(2, 1)
    worker = Worker(partial(_write_all, output), partial(signal.setitimer, signal.ITIMER_REAL))
    # The pipe is broken once the service has ended.
    with suppress(BrokenPipeError):
        while data := os.read(0, _READ_BYTES):
            worker.receive(data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
