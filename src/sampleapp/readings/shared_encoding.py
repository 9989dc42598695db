"""Cooperative encoding of the readings: in several turns of the reactor, once for all requests that wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.task import CooperativeTask, Cooperator, TaskStopped
from twisted.python.failure import Failure

from sampleapp.errors import ReadingsNotReady
from sampleapp.model import Version
from sampleapp.readings import Readings, Representation, Snapshot

__all__ = ["ENCODED_AT_ONCE", "SharedEncoding"]

ENCODED_AT_ONCE: Final = 4096
"""Readings that are encoded in one turn of the reactor: 1 to 3 ms."""


class SharedEncoding:
    """
    The encoding of one collection in one version.

    One snapshot is encoded at a time. A request that arrives during this time shares it. If a reading has
    changed since the snapshot was taken, the request waits for the next one, which is taken when this one is
    encoded. So no request gets a state that is older than itself, and at most two snapshots have requests
    waiting, however many requests arrive while readings change.
    """

    def __init__(
        self,
        readings: Readings,
        version: Version,
        *,
        cooperator: Cooperator,
        at_once: int = ENCODED_AT_ONCE,
    ) -> None:
        """
        :param cooperator: see `sampleapp.concurrency.cooperator.cooperator_on`.
        :param at_once: the number of readings to encode in one turn of the reactor.
        """
        self._readings = readings
        self._version = version
        self._cooperator = cooperator
        self._at_once = at_once
        self._snapshot: Snapshot | None = None
        self._task: CooperativeTask[Iterator[None]] | None = None
        self._stopped_because = ""
        # For the snapshot that is being encoded, and for the one after it.
        self._served: list[Deferred[Representation]] = []
        self._waiting: list[Deferred[Representation]] = []

    def representation(self) -> Representation | Deferred[Representation]:
        """
        Return the current collection, or a Deferred if encoding takes more than one turn of the reactor.

        The Deferred fires with the collection as it was at one moment, now or later. It fails with
        `ReadingsNotReady` when `stop` is called. Cancelling it stops the waiting only.

        :raise ReadingsNotReady: encoding takes more than one turn, and `stop` was called.
        """
        made = self._readings.encoded_representation(self._version)
        if made is not None:
            return made
        waiting: Deferred[Representation] = Deferred()
        if self._snapshot is not None:
            is_current = self._readings.is_current(self._snapshot)
            (self._served if is_current else self._waiting).append(waiting)
            return waiting
        snapshot = self._readings.snapshot(self._version)
        if snapshot.encode(at_once=self._at_once):
            return snapshot.representation()
        if self._stopped_because:
            raise ReadingsNotReady(self._stopped_because)
        self._snapshot = snapshot
        self._served.append(waiting)
        self._task = self._cooperator.cooperate(self._work(snapshot))
        self._task.whenDone().addErrback(self._fail)
        return waiting

    def stop(self, reason: str) -> None:
        """Stop encoding; requests that wait fail with `ReadingsNotReady`, which says the reason."""
        self._stopped_because = reason
        if self._task is not None:
            # Cooperator.stop() would stop the tasks of other encodings, too.
            self._task.stop()

    def _work(self, snapshot: Snapshot) -> Iterator[None]:
        while self._served:
            while not snapshot.encode(at_once=self._at_once):
                yield
            representation = snapshot.representation()
            while self._served:
                self._served.pop(0).callback(representation)
                # Sending the beginning of a large response takes some milliseconds, too.
                yield
            self._served, self._waiting = self._waiting, []
            if self._served:
                self._snapshot = snapshot = self._readings.snapshot(self._version)
        self._snapshot = self._task = None

    def _fail(self, failure: Failure) -> None:
        if failure.check(TaskStopped):
            failure = Failure(ReadingsNotReady(self._stopped_because))
        failed = [*self._served, *self._waiting]
        self._served, self._waiting, self._snapshot = [], [], None
        self._task = None
        for waiting in failed:
            waiting.errback(failure)
