"""Encodes the readings in turns of the reactor, once for all that wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import CooperativeTask, Cooperator, TaskStopped
from twisted.python.failure import Failure

from sampleapp.errors import ReadingsNotReady
from sampleapp.negotiation import Version
from sampleapp.readings import Readings, Representation, Snapshot

__all__ = ["ENCODED_AT_ONCE", "SharedEncoding", "cooperator_on"]

ENCODED_AT_ONCE: Final = 4096
"""Readings in one version, in one turn of the reactor: 1 to 3 ms."""


def cooperator_on(clock: IReactorTime) -> Cooperator:
    """Make what lets one of its tasks take one step in each turn of the reactor, whoever is next."""
    return Cooperator(
        terminationPredicateFactory=lambda: lambda: True, scheduler=lambda tick: clock.callLater(0, tick)
    )


class SharedEncoding:
    """
    The encoding of one collection in one version.

    One snapshot is encoded at a time. Whoever comes meanwhile shares it, or, if something has changed since
    it was taken, waits for the next one, which is taken when this one is done. So nobody gets a state that is
    older than the question, and however many ask while readings change, no more than two are to be encoded.
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
        :param cooperator: has turns of the reactor to give; see `cooperator_on`.
        :param at_once: how many readings are encoded in one turn.
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
        Return the collection as it is now, or a Deferred if that takes more than one turn.

        The Deferred fires with the collection as it was at one moment, now or later. It fails with
        `ReadingsNotReady` when this is stopped. To cancel it stops nothing but its own waiting.

        :raise ReadingsNotReady: that takes more than one turn, and this is stopped.
        """
        made = self._readings.made(self._version)
        if made is not None:
            return made
        waiting: Deferred[Representation] = Deferred()
        if self._snapshot is not None:
            is_current = self._readings.is_still(self._snapshot)
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
        """Encode nothing more; whoever waits gets `ReadingsNotReady`, which says the reason."""
        self._stopped_because = reason
        if self._task is not None:
            # Cooperator.stop() would leave out every other task.
            self._task.stop()

    def _work(self, snapshot: Snapshot) -> Iterator[None]:
        while self._served:
            while not snapshot.encode(at_once=self._at_once):
                yield
            representation = snapshot.representation()
            while self._served:
                self._served.pop(0).callback(representation)
                # To send the beginning of a large answer takes a while, too.
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
