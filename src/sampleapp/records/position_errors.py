"""Errors of positions from which a topic cannot be read on."""

from __future__ import annotations

from collections.abc import Sequence

from sampleapp.errors import SampleAppError
from sampleapp.model import GoneRecords

__all__ = ["PositionError", "PositionExpired", "PositionUnknown", "TopicReplaced"]

_MOST_NAMED = 5
"""The most partitions in the message of a `PositionExpired`; ``gone`` has all of them."""


class PositionError(SampleAppError):
    """A topic cannot be read on from a position."""


class PositionExpired(PositionError):
    """Records after the position are gone: the topic's retention has removed them."""

    def __init__(self, gone: Sequence[GoneRecords], *, resume: str) -> None:
        """
        :param gone: what is missing, at least one.
        :param resume: the position after the missing records, as text.
        """
        named = ", ".join(
            f"partition {each.partition} from {each.asked} up to {each.earliest}"
            for each in gone[:_MOST_NAMED]
        )
        if len(gone) > _MOST_NAMED:
            named += f" and {len(gone) - _MOST_NAMED} more"
        super().__init__(
            f"Records after the position are no longer in the topic: {named} (not included). "
            f'To read what is left, go on with "from={resume}".'
        )
        self.gone = tuple(gone)
        self.resume = resume


class TopicReplaced(PositionError):
    """The topic was deleted and created again, or the position belongs to another topic."""

    def __init__(self, topic: str, *, expected: str, topic_id: str) -> None:
        """
        :param topic: its name.
        :param expected: the id in the position.
        :param topic_id: the id of the topic.
        """
        super().__init__(
            f"The position belongs to a topic with the id {expected}, but {topic} has the id {topic_id}. It "
            "was deleted and created again, or the position is that of another topic. Begin again, with "
            '"from=earliest" or "from=latest".'
        )
        self.topic_id = topic_id


class PositionUnknown(PositionError):
    """The log has not the position: that of another cluster, or of a log that was cut."""

    def __init__(self, topic: str, why: str) -> None:
        """
        :param topic: its name.
        :param why: a sentence without its full stop.
        """
        super().__init__(
            f"The position is not in the log of the topic {topic}: {why}. It is that of another cluster, or "
            'the topic has lost records. Begin again, with "from=earliest" or "from=latest".'
        )
