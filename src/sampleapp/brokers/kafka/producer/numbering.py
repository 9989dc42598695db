"""The producer ids that the numbering of records begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.client import reason_of
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.queue import PartitionQueue, State
from sampleapp.brokers.kafka.producer.sequence import Sequence
from sampleapp.brokers.kafka.protocol import ProducerIdentity

__all__ = ["Numbering"]

_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0


class Numbering:
    """
    Gives each partition what it needs to be idempotent, if it can be.

    All partitions begin with one producer id. One that has lost its place takes another, or the next
    epoch; the others go on as they were.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        is_wanted: bool,
        ask: Callable[[], Deferred[ProducerIdentity]],
        resume: Callable[[PartitionQueue], None],
        clock: IReactorTime,
    ) -> None:
        """
        :param is_wanted: whether to be idempotent.
        :param ask: asks any broker for a new producer id; fails with `RequestFailed`.
        :param resume: is called with each queue that had to wait for one.
        """
        self.is_on = is_wanted
        """Whether a batch whose outcome is unknown may be sent again without becoming two."""
        self._ask = ask
        self._resume = resume
        self._clock = clock
        self._identity: ProducerIdentity | None = None
        self._waiting: dict[PartitionQueue, None] = {}
        self._asking = False
        self._failures = 0
        self._timer: IDelayedCall | None = None
        self._stopped = False

    def number(self, queue: PartitionQueue) -> bool:
        """
        Let a queue begin its numbering.

        :return: whether it may go on now; if not, it is resumed later.
        """
        if not self.is_on:
            return True
        if self._identity is not None:
            queue.sequence = Sequence(producer_id=self._identity.producer_id, epoch=self._identity.epoch)
            return True
        self._waiting[queue] = None
        if not self._asking and self._timer is None:
            self._begin()
        return False

    def renumber(self, queue: PartitionQueue) -> None:
        """The broker does not take a queue's producer id: let it begin with a new one."""
        sequence, queue.sequence = queue.sequence, None
        if (
            sequence is not None
            and self._identity is not None
            and self._identity.producer_id == sequence.producer_id
        ):
            self._identity = None

    def fence(self, queue: PartitionQueue) -> None:
        """It is unknown whether a queue's batch was stored: let the broker refuse it if it still comes."""
        if queue.sequence is not None:
            fenced = queue.sequence.fenced()
            if fenced is None:
                self.renumber(queue)
            else:
                queue.sequence = fenced

    def stop(self) -> None:
        """Ask no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = None
        self._asking = True
        self._ask().addCallbacks(self._answered, self._failed).addErrback(
            lambda failure: self._log.failure("Getting a producer id failed", failure=failure)
        )

    def _answered(self, identity: ProducerIdentity) -> None:
        self._asking = False
        if identity.error == ErrorCode.NONE:
            self._failures = 0
            self._identity = identity
            self._resume_all()
        elif identity.error in (
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            ErrorCode.UNSUPPORTED_VERSION,
        ):
            # Before Kafka 2.8 it takes the right IdempotentWrite on the cluster (KIP-679).
            self._go_without(f"the broker answers {ErrorCode.name_of(identity.error)}")
        else:
            self._try_again()

    def _failed(self, failure: Failure) -> None:
        self._asking = False
        if reason_of(failure).incompatible:
            self._go_without("the broker does not offer it")
        else:
            self._try_again()

    def _try_again(self) -> None:
        if self._stopped:
            return
        self._failures += 1
        delay_s = min(_RETRY_FIRST_S * 2 ** min(self._failures - 1, 10), _RETRY_MAX_S)
        self._timer = self._clock.callLater(delay_s, self._begin)

    def _go_without(self, reason: str) -> None:
        self.is_on = False
        self._log.warn(
            "Idempotence is off: {reason}. A record whose request is not answered is not sent again, "
            "and its caller gets 504.",
            reason=reason,
        )
        self._resume_all()

    def _resume_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for queue in waiting:
            if queue.state is State.PARKED:
                self._resume(queue)
