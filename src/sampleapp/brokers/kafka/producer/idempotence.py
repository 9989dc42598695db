"""Producer ids, by which brokers recognise a batch that they have already stored (KIP-98)."""

from __future__ import annotations

from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed, ask_one_of
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.partition_queue import PartitionQueue
from sampleapp.brokers.kafka.protocol import InitProducerIdRequest, ProducerIdentity
from sampleapp.concurrency.rates import Backoff
from sampleapp.concurrency.waiting import Pause, Waiters

_BACKOFF: Final = Backoff(first_s=0.1, max_s=1.0)
_TIMEOUT_S: Final = 5.0
_NOT_GRANTED: Final = (
    # Before Kafka 2.8, a producer id requires the right IdempotentWrite on the cluster (KIP-679).
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
)


class ProducerIds:
    """
    Gets producer ids from the cluster, and assigns them to queues.

    All queues begin with the same id. A queue that cannot go on with its sequence numbers takes another id,
    or the next epoch; the other queues keep theirs.
    """

    _log = Logger()

    def __init__(self, *, client: ClusterClient, is_wanted: bool, clock: IReactorTime) -> None:
        """:param is_wanted: ``False`` to publish without idempotence."""
        self._client = client
        self._clock = clock
        self._is_on = is_wanted
        self._identity: ProducerIdentity | None = None
        self._waiters: Waiters[None] = Waiters()
        self._is_loading = False
        self._pause = Pause(clock)
        self._stopped = False

    def assign_to(self, queue: PartitionQueue) -> bool:
        """
        Assign the producer id to a queue that needs one.

        :return: ``False`` if there is none yet: call `load` first. ``True`` if the queue may be sent from.
        """
        if not self._is_on or not queue.needs_producer_id:
            return True
        if self._identity is None:
            return False
        queue.assign_producer_id(producer_id=self._identity.producer_id, epoch=self._identity.epoch)
        return True

    def retire(self, producer_id: int | None) -> None:
        """Assign this producer id to no further queue."""
        if self._identity is not None and self._identity.producer_id == producer_id:
            self._identity = None

    def load(self) -> Deferred[None]:
        """
        Get a producer id from any broker.

        :return: fires with ``None`` when there is one, or when idempotence is off. Never fails.
        """
        waiter = self._waiters.wait()
        if not self._is_loading:
            self._is_loading = True
            Deferred.fromCoroutine(self._load()).addErrback(
                lambda failure: self._log.failure("Getting a producer id failed", failure=failure)
            )
        return waiter

    def stop(self) -> None:
        """Send no more requests."""
        self._stopped = True
        self._pause.end()

    async def _load(self) -> None:
        failures = 0
        while not self._stopped and not await self._is_settled():
            failures += 1
            await self._pause.sleep(_BACKOFF.delay_s(failures))
        self._is_loading = False
        self._waiters.succeed(None)

    async def _is_settled(self) -> bool:
        try:
            identity = await self._ask()
            if identity.error == ErrorCode.NONE:
                self._identity = identity
                return True
            if identity.error in _NOT_GRANTED:
                self._go_without(f"the broker answers {ErrorCode.name_of(identity.error)}")
        except RequestFailed as error:
            if error.reason.incompatible:
                self._go_without("the broker does not offer it")
        except Exception:  # noqa: BLE001 -- any fault: queues wait for it, and another attempt may succeed
            self._log.failure("Getting a producer id failed")
        return not self._is_on

    async def _ask(self) -> ProducerIdentity:
        client = self._client
        if not client.node_ids():
            await client.load_metadata(())
        identity: ProducerIdentity = await ask_one_of(
            # Any broker can assign producer ids; one that is connected answers sooner.
            sorted(client.node_ids(), key=lambda node_id: not client.is_connected(node_id)),
            ask=lambda node_id: client.request(node_id, InitProducerIdRequest(), timeout_s=_TIMEOUT_S),
            clock=self._clock,
        )
        return identity

    def _go_without(self, reason: str) -> None:
        self._is_on = False
        self._log.warn(
            "Idempotence is off: {reason}. If a request is not answered, its records are not sent again, "
            "and their callers get 504.",
            reason=reason,
        )
