"""
What systemd does for a service, without systemd: it listens to it, and hands sockets over.

    with NotifySocket(tmp_path) as systemd:
        LiveService(environment={"NOTIFY_SOCKET": systemd.address}, ...)
        systemd.wait_for("READY=1")
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

__all__ = ["NotifySocket", "with_sockets"]

DEADLINE_S = 20.0


class NotifySocket:
    """The end of systemd of sd_notify(3): a Unix socket for datagrams."""

    def __init__(self, directory: Path, *, is_abstract: bool = False) -> None:
        self.address = (
            f"@sampleapp-{os.getpid()}-{directory.name}" if is_abstract else str(directory / "notify")
        )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.address[1:] if is_abstract else self.address)
        self.messages: list[list[str]] = []
        """All that has come, each as its assignments."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Be gone: whoever sends to it is rejected."""
        self._socket.close()

    def receive(self, deadline_s: float = DEADLINE_S) -> list[str]:
        """The next message."""
        self._socket.settimeout(deadline_s)
        message = self._socket.recv(4096).decode().split("\n")
        self.messages.append(message)
        return message

    def falls_silent(self, *, silence_s: float = 1.0) -> bool:
        """Whether nothing comes for a while, before the deadline."""
        until = time.monotonic() + DEADLINE_S
        try:
            while time.monotonic() < until:
                self.receive(silence_s)
        except TimeoutError:
            return True
        return False

    def wait_for(self, beginning: str, *, count: int = 1) -> list[str]:
        """
        Take messages until some begin so.

        :return: the last one.
        """
        until = time.monotonic() + DEADLINE_S
        while True:
            message = self.receive(max(until - time.monotonic(), 0.01))
            if message[0].startswith(beginning):
                count -= 1
                if count == 0:
                    return message


def with_sockets(sockets: Mapping[str, socket.socket], command: Sequence[str]) -> tuple[str, ...]:
    """
    Make a command that has sockets as systemd hands them over: by their names, as descriptors from 3 on.

    The process sets them up itself, as systemd does between its fork and the program. It has to be started
    with the sockets as open files.
    """
    code = (
        "import fcntl, os, sys; "
        # Out of the way of those that are to be.
        "numbers = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 50) for each in sys.argv[1].split(',')]; "
        "[os.dup2(number, 3 + index) for index, number in enumerate(numbers)]; "
        "os.environ.update("
        "LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(numbers)), LISTEN_FDNAMES=sys.argv[2]); "
        "os.execv(sys.argv[3], sys.argv[3:])"
    )
    numbers = ",".join(str(each.fileno()) for each in sockets.values())
    return (sys.executable, "-c", code, numbers, ":".join(sockets), *command)
