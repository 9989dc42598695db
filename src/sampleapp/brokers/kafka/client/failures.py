"""How a request to a broker fails: one type, with what those who made the request have to know."""

from __future__ import annotations

from twisted.python.failure import Failure

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason

__all__ = ["RequestFailed", "reason_of"]


class RequestFailed(Exception):
    """A request has no answer, and will have none."""

    def __init__(self, reason: FailureReason, *, sent: bool) -> None:
        """
        :param reason: why.
        :param sent: whether any of its bytes may have reached the broker.
        """
        super().__init__(reason.sentence)
        self.reason = reason
        self.sent = sent


def reason_of(failure: Failure) -> FailureReason:
    """
    Why a request has failed.

    :raise TypeError: the failure is about something else, which is a fault of ours.
    """
    if isinstance(failure.value, RequestFailed):
        return failure.value.reason
    raise TypeError(f"not a failed request: {failure.value!r}") from failure.value
