"""
Comparison of this service's clock with the clocks of the Kafka cluster.

A record without a timestamp of its own gets the time of this service, and Kafka's brokers compare it with
their own: they may reject it, and forget producer ids by it. Kafka's protocol has no request for the time.
Two responses have one that was read from a clock just now: of a record in a topic with ``LogAppendTime``, the
broker's; and of DescribeQuorum (KRaft, Kafka 3.3), the active controller's. A broker that rejects the time of
this service is a third sign, without a figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed, ask_one_of
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import DescribeQuorumRequest, Quorum
from sampleapp.concurrency.failures import LogLimit
from sampleapp.concurrency.waiting import Pause

_FIRST_S: Final = 10.0
_INTERVAL_S: Final = 300.0
"""Seconds between two requests for the time."""
_TIMEOUT_S: Final = 5.0
_ASKED: Final = 3
"""Maximum brokers asked after one another, each on a new connection."""
_MOST_S: Final = 60.0
"""The difference from which on there is a warning, in seconds."""
_EARLIEST_MS: Final = 10**12
"""September 2001. Earlier times are none of a clock: librdkafka's mock cluster answers 1234."""
_REJECTED_S: Final = 600.0
"""The time for which a rejected record counts, in seconds."""
_ADVICE: Final = "Synchronise both with NTP: Kafka may reject records, or forget idempotency keys too early."


class ClockCheck:
    """
    Asks for the time of the cluster now and then, and is told of times in other responses.

    It has a client of its own while it asks: a broker forwards DescribeQuorum, and answers the requests of
    one connection in order, so that acknowledgements would wait for the controller.
    """

    _log = Logger()

    def __init__(
        self, *, new_client: Callable[[], ClusterClient], clock: IReactorTime, now: Callable[[], float]
    ) -> None:
        """
        :param new_client: makes a client, which is closed after each answer.
        :param now: returns the time of day, which is compared: seconds since the epoch.
        """
        self._new_client = new_client
        self._clock = clock
        self._now = now
        self._pause = Pause(clock)
        self._limit = LogLimit(clock)
        self._client: ClusterClient | None = None
        self._may_ask = True
        self._rejected_until_s = 0.0
        self.ahead_s: float | None = None
        """The last known difference, in seconds: positive if this service is ahead; ``None`` if not known."""

    @property
    def warning(self) -> str | None:
        """A sentence for operators if the clocks differ by more than a minute; otherwise ``None``."""
        ahead_s = self.ahead_s or 0.0
        if abs(ahead_s) > _MOST_S:
            where = "ahead of" if ahead_s > 0 else "behind"
            return f"The clock of this service is {abs(ahead_s):.0f} s {where} that of Kafka. {_ADVICE}"
        if self._clock.seconds() < self._rejected_until_s:
            return f"Kafka has rejected the time of this service for a record. {_ADVICE}"
        return None

    def start(self) -> None:
        """Begin to ask, some seconds from now."""
        Deferred.fromCoroutine(self._ask_until_stopped()).addErrback(
            lambda failure: self._log.failure("Comparing the clock with Kafka's failed", failure=failure)
        )

    def stop(self) -> Deferred[None]:
        """Stop asking. Fires when the connections are closed."""
        self._may_ask = False
        self._pause.end()
        return self._close()

    def observe(self, time_ms: int) -> None:
        """
        Compare the time of day.

        :param time_ms: a time that was read in the cluster some seconds ago at most; milliseconds since the
            epoch.
        """
        if time_ms >= _EARLIEST_MS:
            self.ahead_s = self._now() - time_ms / 1000
            self._log_warning()

    def rejected(self) -> None:
        """Note that a broker has rejected a record for a time that is this service's own."""
        self._rejected_until_s = self._clock.seconds() + _REJECTED_S
        self._log_warning()

    def _log_warning(self) -> None:
        warning = self.warning
        if warning is None:
            if self._limit.forget(self):
                self._log.info("The clock of this service agrees with that of Kafka again.")
        elif self._limit.is_news(self, "rejected" if abs(self.ahead_s or 0.0) <= _MOST_S else "apart"):
            self._log.warn("{warning}", warning=warning)

    async def _ask_until_stopped(self) -> None:
        await self._pause.sleep(_FIRST_S)
        while self._may_ask:
            try:
                quorum = await self._ask()
            except RequestFailed as error:
                # Without KRaft, the other two signs are left.
                self._may_ask &= not error.reason.incompatible
            else:
                self._may_ask &= quorum.error != ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if quorum.time_ms is not None:
                    self.observe(quorum.time_ms)
            await self._close()
            await self._pause.sleep(_INTERVAL_S)

    async def _ask(self) -> Quorum:
        client = self._client = self._new_client()
        await client.load_metadata(())
        quorum: Quorum = await ask_one_of(
            client.node_ids()[:_ASKED],
            ask=lambda node_id: client.request(node_id, DescribeQuorumRequest(), timeout_s=_TIMEOUT_S),
            clock=self._clock,
        )
        return quorum

    def _close(self) -> Deferred[None]:
        client, self._client = self._client, None
        return succeed(None) if client is None else client.close()
