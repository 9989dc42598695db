"""
Everything that can go wrong on purpose, as one small tree of exceptions.

Each says in its message what was wrong and what would be right, in words that may be shown to any
caller: never a file path, a class name or a secret. Errors of publishing carry the two facts that a
caller needs: is it worth trying the same again, and may the record have been published all the same?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

__all__ = [
    "BrokerIncompatible",
    "BrokerStopped",
    "BrokerUnavailable",
    "BufferFull",
    "Fault",
    "IllegalTopic",
    "InvalidMessage",
    "InvalidParameters",
    "MalformedMessage",
    "MessageError",
    "OutcomeUnknown",
    "PartlyPublished",
    "PartlyRefused",
    "PublishError",
    "PublishTimedOut",
    "ReadingsNotReady",
    "RecordRefused",
    "RecordTooLarge",
    "SampleAppError",
    "StartUpError",
    "TopicNotAuthorized",
    "UnknownPartition",
    "UnknownTopic",
]

_MOST_DETAILS = 10
"""So many faults are told in the message of an `InvalidMessage`; all of them are in its ``faults``."""


class SampleAppError(Exception):
    """The root of every error that sampleapp raises on purpose."""


class StartUpError(SampleAppError):
    """
    The service cannot start as it is configured.

    The message is for the operator at the keyboard, and so, unlike the others, names files and addresses.
    """


class ReadingsNotReady(SampleAppError):
    """The records that were in the readings topic at start-up have not all been read yet."""


class Fault(Struct, frozen=True):
    """One thing that is wrong with a message."""

    pointer: str
    """Where: a JSON Pointer (RFC 6901); the empty string is the whole document."""
    detail: str
    """What is wrong, and what would be right."""


class MessageError(SampleAppError):
    """A request body is not a message that can be published."""


class MalformedMessage(MessageError):
    """The body is not JSON text in UTF-8 (RFC 8259)."""


class InvalidMessage(MessageError):
    """The body is JSON, but not a message."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        """:param faults: all that is wrong, not only the first."""
        details = [fault.detail for fault in faults[:_MOST_DETAILS]]
        if len(faults) > _MOST_DETAILS:
            details.append(f"{len(faults) - _MOST_DETAILS} more faults are listed.")
        super().__init__(" ".join(details))
        self.faults = tuple(faults)


class InvalidParameters(InvalidMessage):
    """
    What a request says beside its body does not make a record: the path, the query, or fields of the header.

    A pointer is the name of what is wrong there: of a variable of the path, of a parameter, or of a field.
    """


class PublishError(SampleAppError):
    """A record was not acknowledged by the broker."""

    retriable: ClassVar[bool]
    """Whether publishing the same record again, unchanged, may succeed."""
    possibly_published: ClassVar[bool]
    """Whether the record may be in the topic in spite of the error."""


class RecordRefused(PublishError):
    """The broker will not take this record, now or later."""

    retriable = False
    possibly_published = False


class IllegalTopic(RecordRefused):
    """The broker does not allow a topic of this name."""


class RecordTooLarge(RecordRefused):
    """The record is larger than the broker, or the topic, takes."""


class TopicNotAuthorized(RecordRefused):
    """This service, or its caller, may not publish to the topic."""


class UnknownTopic(PublishError):
    """The topic does not exist, and the broker does not create it by itself."""

    retriable = False
    possibly_published = False


class UnknownPartition(PublishError):
    """The topic has no partition of this number."""

    retriable = False
    possibly_published = False


class BufferFull(PublishError):
    """Too much is already waiting for the broker; nothing of this record was kept."""

    retriable = True
    possibly_published = False


class BrokerUnavailable(PublishError):
    """The broker cannot take records now; this one was never sent, or was rolled back."""

    retriable = True
    possibly_published = False


class BrokerStopped(PublishError):
    """The service is stopping; the record was never sent."""

    retriable = True
    possibly_published = False


class BrokerIncompatible(PublishError):
    """The broker does not speak what this service needs; the record was never sent."""

    retriable = False
    possibly_published = False


class OutcomeUnknown(PublishError):
    """The record was sent, and whether it was stored cannot be known."""

    retriable = True
    possibly_published = True


class PublishTimedOut(OutcomeUnknown):
    """The record was sent, and the broker did not answer in time."""


class PartlyPublished(SampleAppError):
    """Some of many messages are not published, or not for certain. Some of those may be tried again."""


class PartlyRefused(PartlyPublished):
    """Some of many messages are published. All others were refused for good."""
