"""Whether topics can be published to, for who wants to know before anything is."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from sampleapp.errors import PublishError

__all__ = ["TopicCheck"]


class TopicCheck:
    """One `sampleapp.interfaces.IBroker.check_topics`, until the cluster has answered for each topic."""

    __slots__ = ("_errors", "_missing", "deadline_s", "done")

    def __init__(self, *, deadline_s: float) -> None:
        """:param deadline_s: when it has to be answered, in seconds of the reactor's clock."""
        self.deadline_s = deadline_s
        self.done: Deferred[dict[str, PublishError]] = Deferred()
        """Fires with what keeps topics from being published to. Cancelling it stops the waiting only."""
        self._errors: dict[str, PublishError] = {}
        self._missing = 1

    def expect(self) -> None:
        """Wait for one topic more."""
        self._missing += 1

    def begin(self) -> None:
        """Note that all topics were told to `expect`, or answered."""
        self._count_down()

    def refused(self, name: str, error: PublishError) -> None:
        """Note at once why a topic that was not expected cannot be published to."""
        self._errors[name] = error

    def answered(self, name: str, error: PublishError | None) -> None:
        """
        Note the answer for a topic that was expected.

        :param error: why it cannot be published to; ``None`` if it can.
        """
        if error is not None:
            self._errors[name] = type(error)(*error.args)
        self._count_down()

    def _count_down(self) -> None:
        self._missing -= 1
        if not self._missing and not self.done.called:
            self.done.callback(self._errors)
