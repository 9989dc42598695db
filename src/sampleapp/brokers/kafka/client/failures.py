"""How a request to a broker fails: one type, with what those who made the request have to know."""

from __future__ import annotations

from twisted.python.failure import Failure

from sampleapp.brokers.kafka.connections.trouble import Trouble

__all__ = ["RequestFailed", "trouble_of"]


class RequestFailed(Exception):
    """A request has no answer, and will have none."""

    def __init__(self, trouble: Trouble, *, sent: bool) -> None:
        """
        :param trouble: why.
        :param sent: whether any of its bytes may have reached the broker.
        """
        super().__init__(trouble.sentence)
        self.trouble = trouble
        self.sent = sent


def trouble_of(failure: Failure) -> Trouble:
    """
    Why a request has failed.

    :raise TypeError: the failure is about something else, which is a fault of ours.
    """
    if isinstance(failure.value, RequestFailed):
        return failure.value.trouble
    raise TypeError(f"not a failed request: {failure.value!r}") from failure.value
