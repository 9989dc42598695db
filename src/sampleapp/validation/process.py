"""The process that checks contents, as the service sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IReactorProcess
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from sampleapp.validation.frames import Frames, Reply, Request, decode_reply, frame

# Without the working directory in sys.path (-P), where a file could have the name of a module.
_ARGUMENTS: Final = ("-P", "-m", "sampleapp.validation.worker")
_STDOUT: Final = 1
_SHOWN: Final = 2000


OnEnd: TypeAlias = "Callable[[WorkerProcess, str | None], None]"
"""Called with the reason for the end of a process; ``None`` if it was killed here."""


class WorkerProcess(ProcessProtocol):
    """One process, from its start until its end."""

    transport: Any

    def __init__(self, on_reply: Callable[[Reply], None], on_end: OnEnd) -> None:
        """
        :param on_reply: called for each message from the process, until it is killed.
        :param on_end: called when it has ended.
        """
        self._on_reply = on_reply
        self._on_end = on_end
        self._frames = Frames()
        self._errors = b""
        self._is_killed = False

    @classmethod
    def start(
        cls, reactor: IReactorProcess, on_reply: Callable[[Reply], None], on_end: OnEnd
    ) -> WorkerProcess:
        """
        Start a process.

        :raise OSError: the system has no room for one.
        """
        process = cls(on_reply, on_end)
        reactor.spawnProcess(
            process,
            sys.executable,
            [sys.executable, *_ARGUMENTS],
            env=None,
            childFDs={0: "w", _STDOUT: "r", 2: "r"},
        )
        return process

    def send(self, request: Request) -> None:
        """Send a message to the process."""
        self.transport.write(frame(request))

    def kill(self) -> None:
        """End the process: it has nothing to lose."""
        self._is_killed = True
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")

    def childDataReceived(self, childFD: int, data: bytes) -> None:  # noqa: N802, N803 -- Twisted's names
        """Take messages, and keep the last part of the error output."""
        if childFD == _STDOUT:
            for message in self._frames.receive(data):
                if not self._is_killed:
                    self._on_reply(decode_reply(message))
        else:
            self._errors = (self._errors + data)[-_SHOWN:]

    def processEnded(self, reason: Failure) -> None:  # noqa: N802 -- Twisted's name
        """Tell the owner."""
        said = self._errors.decode("utf-8", "replace").strip()
        self._on_end(self, None if self._is_killed else f"{reason.getErrorMessage()} {said}".strip())
