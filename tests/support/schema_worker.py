"""The process that checks contents, in memory: its work is done during the call, or when a test says so."""

from __future__ import annotations

from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.python.failure import Failure

from sampleapp.validation.worker import Worker


class WorkerInMemory:
    """The transport of a process whose program runs in this one."""

    def __init__(self, protocol, *, is_prompt):
        self.protocol = protocol
        self.is_prompt = is_prompt
        self.has_ended = False
        self.requests = []
        self._stops_after_reply = False
        self._worker = Worker(self._reply, lambda seconds: None)
        protocol.makeConnection(self)

    def write(self, data):
        self.requests.append(data)
        if self.is_prompt:
            self.work()

    def work(self):
        """Do the next request, which has come."""
        self._worker.receive(self.requests.pop(0))

    def work_until_first_reply(self):
        """Begin the next request; what the process would say after its first reply is lost."""
        self._stops_after_reply = True
        self.work()

    def _reply(self, data):
        if not self.has_ended:
            self.protocol.childDataReceived(1, data)
        if self._stops_after_reply:
            self._reply = lambda data: None
            self._worker._write = self._reply  # noqa: SLF001 -- as if it were still working

    def signalProcess(self, name):
        if self.has_ended:
            raise ProcessExitedAlready
        assert name == "KILL"
        self.end(9)

    def end(self, signal=None):
        """Let the process end."""
        self.has_ended = True
        reason = ProcessDone(0) if signal is None else ProcessTerminated(signal=signal)
        self.protocol.processEnded(Failure(reason))


class Processes:
    """The processes that a reactor of a test has started."""

    def __init__(self, *, are_prompt=True):
        """:param are_prompt: true if they work during each call; else a test calls `WorkerInMemory.work`."""
        self.are_prompt = are_prompt
        self.started: list[WorkerInMemory] = []

    def spawnProcess(self, protocol, executable, args=(), *, env=None, childFDs=None):  # noqa: N803 -- Twisted's name
        self.started.append(WorkerInMemory(protocol, is_prompt=self.are_prompt))
