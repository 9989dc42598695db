"""Reads of topics: limits, connections, cancellation, and the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import DEFAULT_MAX_BATCH_BYTES
from sampleapp.brokers.kafka.cluster_client import ClusterClient
from sampleapp.brokers.kafka.consumer.discovery import Topics
from sampleapp.brokers.kafka.consumer.leaders import Leaders, ReadSlots
from sampleapp.brokers.kafka.consumer.page_read import PageRead
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import BrokerStopped, BrokerUnavailable, PublishError
from sampleapp.model import ReadRequest, ReadResult

IDLE_S: Final = 60.0
"""Seconds after the last read until the connections are closed. Kafka closes idle ones after 10 minutes."""
MOST_READS: Final = 16
"""The most reads that ask Kafka, or decode, at the same time."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""The most bytes that all reads together expect to have in memory."""

_R = TypeVar("_R")

_STOPPED: Final = "The service is stopping; nothing was read."


class _Connected:
    """The client of the reader, with its metadata and its requests."""

    def __init__(self, client: ClusterClient, *, clock: IReactorTime) -> None:
        self.client = client
        self.topics = Topics(client=client, clock=clock)
        self.leaders = Leaders(client=client, clock=clock)


class TopicReader:
    """
    Reads records from positions, for any number of callers.

    Its connections are its own: a broker answers the requests of one connection in order, and neither
    publishing nor following must wait behind a large response. They are made for the first read, and closed
    when there was none for a while.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        new_client: Callable[[], ClusterClient],
        clock: IReactorTime,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        most_reads: int = MOST_READS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """
        :param new_client: makes a client, which is closed when it is idle for `IDLE_S`.
        :param max_batch_bytes: maximum size of a batch after decompression; a larger one is reported as gone.
        :param most_reads: maximum number of reads at the same time; the others wait in line.
        :param most_bytes: maximum memory of all reads together, as far as it can be foreseen.
        """
        self._new_client = new_client
        self._clock = clock
        self._max_batch_bytes = max_batch_bytes
        self._slices = TimeSlices(clock)
        self._slots = ReadSlots(most_reads=most_reads, most_bytes=most_bytes)
        self._connected: _Connected | None = None
        self._under_way: set[Deferred[ReadResult]] = set()
        self._idle: IDelayedCall | None = None
        self._is_stopped = False

    def read(self, request: ReadRequest) -> Deferred[ReadResult]:
        """See `sampleapp.interfaces.IBroker.read`."""
        if self._is_stopped:
            return fail(BrokerStopped(_STOPPED))
        if self._connected is None:
            self._connected = _Connected(self._new_client(), clock=self._clock)
        reading = PageRead(
            request,
            topics=self._connected.topics,
            leaders=self._connected.leaders,
            slots=self._slots,
            slices=self._slices,
            clock=self._clock,
            max_batch_bytes=self._max_batch_bytes,
        )
        self._cancel_idle()
        read = Deferred.fromCoroutine(self._run(reading))
        self._under_way.add(read)
        return read.addBoth(self._ended, read)

    def stop(self) -> Deferred[None]:
        """
        Fail all reads with `BrokerStopped`, and close the connections.

        :return: fires when they are closed; never fails.
        """
        self._is_stopped = True
        for each in list(self._under_way):
            each.cancel()
        self._cancel_idle()
        return self._close()

    async def _run(self, reading: PageRead) -> ReadResult:
        try:
            return await reading.run()
        except PublishError:
            raise
        except CancelledError:
            if self._is_stopped:
                raise BrokerStopped(_STOPPED) from None
            raise
        except Exception as error:
            self._log.failure("A bug in the service: reading a topic failed")
            raise BrokerUnavailable("The service has a fault.") from error

    def _ended(self, result: _R, read: Deferred[ReadResult]) -> _R:
        self._under_way.discard(read)
        if not self._under_way and not self._is_stopped and self._idle is None:
            self._idle = self._clock.callLater(IDLE_S, self._close_idle)
        return result

    def _cancel_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.cancel()

    def _close_idle(self) -> None:
        self._idle = None
        self._close()

    def _close(self) -> Deferred[None]:
        connected, self._connected = self._connected, None
        return succeed(None) if connected is None else connected.client.close()
