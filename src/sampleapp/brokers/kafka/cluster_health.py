"""Reachability of the cluster: probes, the state for `health`, and the addresses that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed, ask_one_of
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason, address
from sampleapp.brokers.shared.health import WRITING, HealthTracker
from sampleapp.concurrency.failures import LogLimit
from sampleapp.concurrency.rates import Backoff
from sampleapp.concurrency.waiting import Pause

UNREACHABLE_AFTER_S: Final = 5.0
"""The time without reaching a broker after which the cluster counts as unreachable, in seconds."""

_RETRY: Final = Backoff(first_s=0.2, max_s=1.0)
_SOON_S: Final = 0.2
"""Minimum time between two probes, in seconds: connections often fail several at a time."""
_SILENT: Final = FailureReason(
    sentence=f"No broker of the cluster has answered for {UNREACHABLE_AFTER_S:g} s: check that the brokers "
    "run, and the network to them.",
    public="Kafka does not answer.",
    lasting=False,
)


def _do_nothing() -> None:
    """Ignore the event."""


class ClusterListener(Protocol):
    """Is notified when the cluster becomes unreachable or is reached."""

    def cluster_unreachable(self, reason: FailureReason) -> None:
        """
        Handle that no broker has been reached for `UNREACHABLE_AFTER_S`. Called once, until one is reached.

        :param reason: the last known reason.
        """

    def cluster_reached(self) -> None:
        """Handle that a broker was reached, with new metadata. Called after each successful probe."""


class ClusterHealth:
    """
    Probes the cluster, and keeps the part `WRITING` of the health tracker.

    A probe loads metadata, and connects to a broker at the address that it advertises. There is a probe at
    regular intervals; at once when a connection was lost, as after a request that was not answered in time;
    and, while probes fail, repeatedly, and as soon as another component has connected. The time until the
    cluster counts as unreachable begins with a probe, so that a cluster that is frozen, or behind a firewall
    that drops packets, is noticed although no connection is refused. During a probe, answers to other
    requests extend this time: a broker answers the requests of one connection in order, so that a probe may
    have to wait behind records whose followers are slow.

    It is a `sampleapp.brokers.kafka.cluster_client.ConnectionListener`, for all clients of the cluster.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        health_tracker: HealthTracker,
        interval_s: float,
        clock: IReactorTime,
        changed: Callable[[], None] = _do_nothing,
    ) -> None:
        """
        :param health_tracker: this object sets its part `WRITING`, from `start` on.
        :param interval_s: the regular interval of probes, in seconds.
        :param changed: called when a connection was lost, and a broker may have restarted; and when other
            brokers lead partitions.
        """
        self._changed = changed
        self._health_tracker = health_tracker
        self._interval_s = interval_s
        self._clock = clock
        self._pause = Pause(clock)
        self._is_running = False
        self._is_probing = False
        self._probe_again = False
        self._probed_at_s = 0.0
        self._waking: IDelayedCall | None = None
        self._failed_probes = 0
        self._was_reached = False
        self._is_unreachable = False
        self._answered_s: float | None = None
        """When any request was last answered, in seconds of the reactor's clock."""
        self._deadline: IDelayedCall | None = None
        """Fires when the cluster becomes unreachable; cancelled when a broker is reached."""
        self._last_failure: FailureReason | None = None
        self._failing: dict[tuple[str, int], str] = {}
        """The addresses at which connections fail, each with the reason."""
        self._limit = LogLimit(clock)

    def start(self, *, client: ClusterClient, listener: ClusterListener) -> None:
        """
        Begin to probe.

        :param client: loads the metadata, and connects.
        :param listener: is notified of the results.
        """
        self._is_running = True
        Deferred.fromCoroutine(self._probe_until_stopped(client, listener)).addErrback(
            lambda failure: self._log.failure("Watching the cluster failed", failure=failure)
        )

    def stop(self) -> None:
        """Stop probing."""
        self._is_running = False
        self._cancel_deadline()
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._pause.end()

    def connected(self, host: str, port: int) -> None:
        """See `ConnectionListener.connected`."""
        failed_before = self._failing.pop((host, port), None) is not None
        if self._limit.forget((host, port)):
            self._log.info("Connected to the Kafka broker at {address} again.", address=address(host, port))
        if failed_before or self._failed_probes:
            self._probe_soon()

    def responded(self, host: str, port: int) -> None:  # noqa: ARG002 -- the address does not matter
        """See `ConnectionListener.responded`."""
        self._answered_s = self._clock.seconds()

    def failed(self, host: str, port: int, reason: FailureReason) -> None:
        """See `ConnectionListener.failed`."""
        is_new = self._failing.get((host, port)) != reason.sentence
        self._failing[host, port] = reason.sentence
        self._last_failure = reason
        if is_new:
            # It logs the reason.
            self._probe_soon()

    def lost(self, host: str, port: int) -> None:  # noqa: ARG002 -- the address does not matter
        """See `ConnectionListener.lost`."""
        self._changed()
        # While probes fail, a lost connection is the result of the last one.
        if not self._failed_probes:
            self._probe_soon()

    def leaders_changed(self) -> None:
        """See `ConnectionListener.leaders_changed`."""
        self._changed()

    def _probe_soon(self) -> None:
        if self._is_probing:
            self._probe_again = True
        elif self._is_running and self._waking is None:
            # In another turn of the reactor: the connection may still be calling other listeners.
            due_s = self._probed_at_s + _SOON_S - self._clock.seconds()
            self._waking = self._clock.callLater(max(due_s, 0.0), self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._pause.wake()

    async def _probe_until_stopped(self, client: ClusterClient, listener: ClusterListener) -> None:
        while self._is_running:
            self._is_probing = True
            self._probe_again = False
            try:
                await self._probe(client, listener)
            except Exception:  # noqa: BLE001 -- any fault; the next probe may succeed
                self._log.failure("Probing the cluster failed")
                self._failed_probes += 1
            self._is_probing = False
            self._probed_at_s = self._clock.seconds()
            await self._pause.sleep(self._delay_s())

    async def _probe(self, client: ClusterClient, listener: ClusterListener) -> None:
        self._start_deadline(listener)
        try:
            await _reach(client, clock=self._clock)
        except RequestFailed as error:
            self._probe_failed(error.reason)
        else:
            self._probe_succeeded(client, listener)

    def _delay_s(self) -> float:
        if self._failed_probes:
            return _RETRY.delay_s(self._failed_probes)
        return _SOON_S if self._probe_again else self._interval_s

    def _start_deadline(self, listener: ClusterListener) -> None:
        if self._deadline is None and not self._is_unreachable:
            self._deadline = self._clock.callLater(UNREACHABLE_AFTER_S, self._set_unreachable, listener)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _set_unreachable(self, listener: ClusterListener) -> None:
        self._deadline = None
        if self._answered_s is not None and not self._failed_probes:
            left_s = self._answered_s + UNREACHABLE_AFTER_S - self._clock.seconds()
            if left_s > 0:
                self._deadline = self._clock.callLater(left_s, self._set_unreachable, listener)
                return
        self._is_unreachable = True
        reason = self._last_failure or _SILENT
        self._health_tracker.mark_failed(WRITING, reason.sentence, public_reason=reason.public)
        listener.cluster_unreachable(reason)

    def _probe_failed(self, reason: FailureReason) -> None:
        self._failed_probes += 1
        self._last_failure = reason
        if self._is_running:
            self._health_tracker.mark_failed(WRITING, reason.sentence, public_reason=reason.public)
            self._log_failing_addresses(logged=reason.sentence)

    def _probe_succeeded(self, client: ClusterClient, listener: ClusterListener) -> None:
        self._failed_probes = 0
        self._last_failure = None
        self._is_unreachable = False
        self._cancel_deadline()
        if not self._is_running:
            return
        if not self._was_reached:
            self._was_reached = True
            self._log.info("Kafka was reached; brokers: {count}", count=len(client.node_ids()))
        self._health_tracker.mark_healthy(WRITING)
        self._log_failing_addresses(logged="")
        listener.cluster_reached()

    def _log_failing_addresses(self, *, logged: str) -> None:
        """Log the reasons why connections fail, except one that is logged already."""
        for failing, sentence in self._failing.items():
            if sentence not in logged and self._limit.is_news(failing, sentence):
                self._log.warn("No connection to a Kafka broker; trying again: {reason}", reason=sentence)


async def _reach(client: ClusterClient, *, clock: IReactorTime) -> None:
    """
    Load metadata, and connect to one of the brokers at the address that it advertises, as publishing will.

    The address that metadata came from may be another one: the operator configures it, and brokers advertise
    their own (``advertised.listeners``).

    :raise RequestFailed: no metadata, or no connection.
    """
    await client.load_metadata(())
    nodes = client.node_ids()
    if not nodes or any(client.is_connected(node_id) for node_id in nodes):
        return
    try:
        # Without waiting for a broker that is frozen or behind a firewall: the others may answer.
        await ask_one_of(nodes, ask=client.when_connected, clock=clock)
    except RequestFailed as error:
        raise RequestFailed(_advertised(error.reason), sent=False) from error


def _advertised(reason: FailureReason) -> FailureReason:
    return FailureReason(
        sentence=f"None of the addresses that the brokers advertise can be used: {reason.sentence} "
        "Check advertised.listeners of the brokers.",
        public=reason.public,
        lasting=reason.lasting,
        incompatible=reason.incompatible,
    )
