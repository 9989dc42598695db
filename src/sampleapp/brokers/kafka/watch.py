"""Watching the cluster: whether it can be reached, since when it cannot, and which addresses fail."""

from __future__ import annotations

from typing import Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.client import ClusterClient, RequestFailed, ask_one_of
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason, address
from sampleapp.brokers.shared.backoff import Backoff
from sampleapp.brokers.shared.condition import WRITING, Condition
from sampleapp.brokers.shared.log_limit import LogLimit
from sampleapp.brokers.shared.pause import Pause

__all__ = ["UNREACHABLE_AFTER_S", "ClusterListener", "Watch"]

UNREACHABLE_AFTER_S: Final = 5.0
"""When no broker was reached for so long, the cluster counts as unreachable, in seconds."""

_RETRY: Final = Backoff(first_s=0.2, max_s=1.0)
_SOON_S: Final = 0.2
"""At least so long after one look the next one comes, whatever happens: there is often more of it."""
_SILENT: Final = FailureReason(
    sentence=f"No broker of the cluster has answered for {UNREACHABLE_AFTER_S:g} s: check that the brokers "
    "run, and the network to them.",
    public="Kafka does not answer.",
    lasting=False,
)


class ClusterListener(Protocol):
    """Is told whether the cluster can be reached."""

    def cluster_unreachable(self, reason: FailureReason) -> None:
        """
        No broker has been reached for `UNREACHABLE_AFTER_S`; said once, until one is.

        :param reason: why, as far as it is known.
        """

    def cluster_reached(self) -> None:
        """A broker was reached, and the metadata is fresh; said after each look that succeeds."""


class Watch:
    """
    Looks now and then whether the cluster can be reached, and keeps the condition.

    A look loads metadata, and connects to a broker at the address that it advertises. There is one every so
    often; at once when a connection was lost, as it is when a request was not answered in time; and, while
    none succeeds, again and again, and as soon as somebody's connection comes about. The time until the
    cluster counts as unreachable begins with the first of these signs, so that a cluster that is frozen, or
    behind a firewall that drops everything, is noticed although nothing refuses anything. While a look is
    under way, answers to other requests put that off: a broker answers what comes on one connection in order,
    so that a look may have to wait behind records whose followers are slow.

    It is a `sampleapp.brokers.kafka.client.ConnectionListener`, for all clients of the cluster.
    """

    _log = Logger()

    def __init__(self, *, condition: Condition, interval_s: float, clock: IReactorTime) -> None:
        """
        :param condition: its part `WRITING` is kept by the watch from `start` on.
        :param interval_s: how often to look when nothing happens, in seconds.
        """
        self._condition = condition
        self._interval_s = interval_s
        self._clock = clock
        self._pause = Pause(clock)
        self._is_running = False
        self._is_looking = False
        self._look_again = False
        self._looked_at_s = 0.0
        self._waking: IDelayedCall | None = None
        self._failed_looks = 0
        self._was_reached = False
        self._is_unreachable = False
        self._answered_s: float | None = None
        """When any request was last answered."""
        self._deadline: IDelayedCall | None = None
        """When the cluster is unreachable, unless a broker is reached before."""
        self._last_failure: FailureReason | None = None
        self._failing: dict[tuple[str, int], str] = {}
        """The addresses that connections fail at, and why."""
        self._limit = LogLimit(clock)

    def start(self, *, client: ClusterClient, listener: ClusterListener) -> None:
        """
        Begin to watch.

        :param client: loads the metadata, and connects.
        :param listener: is told what comes of it.
        """
        self._is_running = True
        Deferred.fromCoroutine(self._watch(client, listener)).addErrback(
            lambda failure: self._log.failure("Watching the cluster failed", failure=failure)
        )

    def stop(self) -> None:
        """Watch no more."""
        self._is_running = False
        self._expect_an_answer_no_more()
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._pause.end()

    def connected(self, host: str, port: int) -> None:
        """See `ConnectionListener.connected`."""
        failed_before = self._failing.pop((host, port), None) is not None
        if self._limit.forget((host, port)):
            self._log.info("There is a connection to {address} again.", address=address(host, port))
        if failed_before or self._failed_looks:
            self._look_soon()

    def answered(self, host: str, port: int) -> None:  # noqa: ARG002 -- wherever it was
        """See `ConnectionListener.answered`."""
        self._answered_s = self._clock.seconds()

    def failed(self, host: str, port: int, reason: FailureReason) -> None:
        """See `ConnectionListener.failed`."""
        is_first = (host, port) not in self._failing
        self._failing[host, port] = reason.sentence
        self._last_failure = reason
        if is_first:
            self._look_soon()

    def lost(self, host: str, port: int) -> None:  # noqa: ARG002 -- wherever it was
        """See `ConnectionListener.lost`."""
        # While nothing works it is no news, but what the last attempt came to.
        if not self._failed_looks:
            self._look_soon()

    def _look_soon(self) -> None:
        if self._is_looking:
            self._look_again = True
        elif self._is_running and self._waking is None:
            # In another turn: whoever tells of a connection is not done with it yet.
            due_s = self._looked_at_s + _SOON_S - self._clock.seconds()
            self._waking = self._clock.callLater(max(due_s, 0.0), self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._pause.wake()

    async def _watch(self, client: ClusterClient, listener: ClusterListener) -> None:
        while self._is_running:
            self._is_looking = True
            self._look_again = False
            self._expect_an_answer(listener)
            try:
                await _reach(client, clock=self._clock)
                self._reached(client, listener)
            except RequestFailed as error:
                self._not_reached(error.reason)
            except Exception:  # noqa: BLE001 -- whatever it was, the next look may find out more
                self._log.failure("Looking at the cluster failed")
                self._failed_looks += 1
            self._is_looking = False
            self._looked_at_s = self._clock.seconds()
            await self._pause.sleep(self._delay_s())

    def _delay_s(self) -> float:
        if self._failed_looks:
            return _RETRY.delay_s(self._failed_looks)
        return _SOON_S if self._look_again else self._interval_s

    def _expect_an_answer(self, listener: ClusterListener) -> None:
        if self._deadline is None and not self._is_unreachable:
            self._deadline = self._clock.callLater(UNREACHABLE_AFTER_S, self._unreachable, listener)

    def _expect_an_answer_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _unreachable(self, listener: ClusterListener) -> None:
        self._deadline = None
        if self._answered_s is not None and not self._failed_looks:
            left_s = self._answered_s + UNREACHABLE_AFTER_S - self._clock.seconds()
            if left_s > 0:
                self._deadline = self._clock.callLater(left_s, self._unreachable, listener)
                return
        self._is_unreachable = True
        reason = self._last_failure or _SILENT
        self._condition.bad(WRITING, reason.sentence, obstacle=reason.public)
        listener.cluster_unreachable(reason)

    def _not_reached(self, reason: FailureReason) -> None:
        self._failed_looks += 1
        self._last_failure = reason
        if self._is_running:
            self._condition.bad(WRITING, reason.sentence, obstacle=reason.public)
            self._log_failing_addresses(besides=reason.sentence)

    def _reached(self, client: ClusterClient, listener: ClusterListener) -> None:
        self._failed_looks = 0
        self._last_failure = None
        self._is_unreachable = False
        self._expect_an_answer_no_more()
        if not self._is_running:
            return
        if not self._was_reached:
            self._was_reached = True
            self._log.info("Kafka was reached; brokers: {count}", count=len(client.node_ids()))
        self._condition.good(WRITING)
        self._log_failing_addresses(besides="")
        listener.cluster_reached()

    def _log_failing_addresses(self, *, besides: str) -> None:
        """Log why connections fail, except for what is said already."""
        for failing, sentence in self._failing.items():
            if sentence not in besides and self._limit.is_news(failing, sentence):
                self._log.warn("No connection to a broker: {reason}", reason=sentence)


async def _reach(client: ClusterClient, *, clock: IReactorTime) -> None:
    """
    Load metadata, and connect to one of the brokers at the address that it advertises, as publishing will.

    The address that metadata came from may be another one: what an operator configures is not what brokers
    say of themselves (``advertised.listeners``).

    :raise RequestFailed: that is not possible.
    """
    await client.load_metadata(())
    nodes = client.node_ids()
    if not nodes or any(client.is_connected(node_id) for node_id in nodes):
        return
    try:
        # One that is frozen, or behind a firewall, is not waited for: the others may well be there.
        await ask_one_of(nodes, ask=client.when_connected, clock=clock)
    except RequestFailed as error:
        raise RequestFailed(_advertised(error.reason), sent=False) from error


def _advertised(reason: FailureReason) -> FailureReason:
    return FailureReason(
        sentence=f"The brokers advertise addresses of which none can be used from here: {reason.sentence} "
        "Check advertised.listeners of the brokers.",
        public=reason.public,
        lasting=reason.lasting,
        incompatible=reason.incompatible,
    )
