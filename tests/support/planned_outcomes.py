"""A broker that does with each record what a test has planned for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st
from twisted.internet.defer import fail, succeed
from twisted.internet.task import Clock

from sampleapp import errors
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.errors import PublishError

ERRORS = tuple(
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, PublishError) and each is not PublishError
)
"""Each way in which a publish may fail."""


class Plan(NamedTuple):
    """What becomes of one record."""

    error: type[PublishError] | None
    """What its publisher is told; ``None`` is where the record is."""
    is_stored: bool
    """Whether it is in its topic afterwards: always without an error, perhaps if it may be published."""


STORED = Plan(None, is_stored=True)


def all_plans() -> list[Plan]:
    """Every plan that a broker which keeps its promises can have for a record."""
    rejected = [Plan(each, is_stored=False) for each in ERRORS]
    unknown = [Plan(each, is_stored=True) for each in ERRORS if each.possibly_published]
    return [STORED, *rejected, *unknown]


# Half of them stored: with any error as likely as success, hardly a batch would have many that are.
plans = st.just(STORED) | st.sampled_from(all_plans())


class PlannedBroker(MemoryBroker):
    """
    A memory broker whose outcomes are planned: the first for the first record that is published, and so on.

    Beyond the plans every record is stored. ``records(topic)`` tells what is in a topic.
    """

    def __init__(
        self,
        outcomes: Sequence[Plan] = (),
        *,
        together: type[PublishError] | None = None,
        topics: dict[str, type[PublishError]] | None = None,
        clock=None,
    ):
        """
        :param outcomes: one for each record, whether it is published alone or with others.
        :param together: what many records at once are rejected with, all of them, and none is published.
        :param topics: those that cannot be published to, and why, for `check_topics`. A record for one of
            them is stored all the same if it is published, so that a test sees that it was.
        """
        super().__init__(clock=Clock() if clock is None else clock)
        self.published = []
        """Every record that was to be published, in order."""
        self.checked = []
        """The topics of each call of `check_topics`, sorted."""
        self.may_create = []
        """Whether each call of `check_topics` may create them."""
        self.identified = []
        """Whether each call of `check_topics` is for records with an identity."""
        self.batches = []
        """How many records each call of `publish_many` had."""
        self._outcomes = list(outcomes)
        self._together = together
        self._topics_rejected = topics or {}

    def publish(self, record):
        outcome = self._publish(record)
        return fail(outcome) if isinstance(outcome, PublishError) else succeed(outcome)

    def publish_many(self, records):
        self.batches.append(len(records))
        if self._together is not None:
            return fail(self._together("All of them were rejected."))
        return succeed([self._publish(each) for each in records])

    def check_topics(self, topics, *, create=True, identified=False):
        self.checked.append(sorted(topics))
        self.may_create.append(create)
        self.identified.append(identified)
        rejected = self._topics_rejected
        return succeed({each: rejected[each]("As planned.") for each in topics if each in rejected})

    def _publish(self, record):
        number = len(self.published)
        self.published.append(record)
        plan = self._outcomes[number] if number < len(self._outcomes) else STORED
        stored = super().publish(record).addErrback(lambda failure: failure.value) if plan.is_stored else None
        return stored.result if plan.error is None else plan.error("As planned.")
