"""Checking topics before anything is published to them."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from sampleapp.errors import PublishError

__all__ = ["TopicCheck"]


class TopicCheck:
    """One `sampleapp.interfaces.IBroker.check_topics`, until the partitions of its topics are known."""

    __slots__ = ("_errors", "_missing", "deadline_s", "done")

    def __init__(self, *, deadline_s: float) -> None:
        """:param deadline_s: the time by which it must be answered, in seconds of the reactor's clock."""
        self.deadline_s = deadline_s
        self.done: Deferred[dict[str, PublishError]] = Deferred()
        """Fires with the error of each topic that cannot be used. Cancelling it stops only the waiting."""
        self._errors: dict[str, PublishError] = {}
        self._missing = 1

    def expect(self) -> None:
        """Wait for the result of another topic."""
        self._missing += 1

    def begin(self) -> None:
        """Note that `expect` was called for all topics to wait for: fire as soon as all have results."""
        self._count_down()

    def add_error(self, name: str, error: PublishError) -> None:
        """Add the error of a topic that `expect` was not called for."""
        self._errors[name] = error

    def set_result(self, name: str, error: PublishError | None) -> None:
        """
        Set the result of a topic that `expect` was called for.

        :param error: the reason why it cannot be published to; ``None`` if it can.
        """
        if error is not None:
            self._errors[name] = type(error)(*error.args)
        self._count_down()

    def _count_down(self) -> None:
        self._missing -= 1
        if not self._missing and not self.done.called:
            self.done.callback(self._errors)
