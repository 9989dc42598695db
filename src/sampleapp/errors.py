"""
The exceptions that sampleapp raises on purpose, as one small tree.

A message names the fault and the remedy, in words that may be shown to any caller: never a file
path, a class name or a secret. Errors of publishing have the two facts that a caller needs: whether trying
again may succeed, and whether the record may have been published in spite of the error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Annotated, ClassVar, Final

from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = [
    "CONTROLS",
    "LONGEST_NAME",
    "BrokerIncompatible",
    "BrokerStopped",
    "BrokerUnavailable",
    "BufferFull",
    "Fault",
    "IdempotencyKeyReused",
    "IdempotencyNotEnabled",
    "IdempotencyNotSupported",
    "IllegalTopic",
    "InvalidMessage",
    "InvalidOption",
    "InvalidParameters",
    "InvalidWorkRequest",
    "LeaseLost",
    "MalformedIdempotencyKey",
    "MalformedMessage",
    "MessageError",
    "OutcomeUnknown",
    "PartlyPublished",
    "PartlyRejected",
    "PublishError",
    "PublishTimedOut",
    "ReadingsNotReady",
    "RecordRefused",
    "RecordTooLarge",
    "SampleAppError",
    "SchemaChecksFull",
    "SchemaChecksOfCallerFull",
    "SchemaChecksUnavailable",
    "SchemaMismatch",
    "SchemaTooExpensive",
    "StartUpError",
    "TooManyIdempotencyKeys",
    "TooManyLeases",
    "TopicNotAuthorized",
    "UnknownIds",
    "UnknownPartition",
    "UnknownTopic",
    "WorkError",
    "WorkNotSupported",
    "forget_frames",
    "pointer_token",
    "shown",
    "visible",
]

LONGEST_NAME: Final = 40
"""The maximum length of a name that a message quotes, in characters."""
_MOST_DETAILS = 10
"""The most faults in the message of an `InvalidMessage`; ``faults`` has all of them."""


class SampleAppError(Exception):
    """The root of every error that sampleapp raises on purpose."""


class StartUpError(SampleAppError):
    """
    The service cannot start as it is configured.

    The message is for the operator at the keyboard. So, unlike that of other errors, it names files and
    addresses.
    """


class InvalidOption(StartUpError):
    """An option cannot be understood, or contradicts another one, on every machine."""


class ReadingsNotReady(SampleAppError):
    """The records that were in the readings topic at start-up have not all been read yet."""


class Fault(Struct, frozen=True):
    """One thing that is wrong with a message."""

    pointer: str
    """The place: a JSON Pointer (RFC 6901); the empty string is the whole document."""
    detail: str
    """A sentence that says what is wrong, and what would be right."""
    line: Annotated[
        int | UnsetType,
        Meta(
            description="Of a batch: the number of the line, from 1, as an editor counts: with empty lines.",
            extra_json_schema={"minimum": 1},
        ),
    ] = UNSET


class MessageError(SampleAppError):
    """A request body is not a message that can be published."""


class MalformedMessage(MessageError):
    """The body is not JSON text in UTF-8 (RFC 8259)."""


class InvalidMessage(MessageError):
    """The body is JSON, but not a message."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        """:param faults: all faults, in order; of a large body, perhaps the first only."""
        details = [fault.detail for fault in faults[:_MOST_DETAILS]]
        if len(faults) > _MOST_DETAILS:
            details.append(f"{len(faults) - _MOST_DETAILS} more faults are listed.")
        super().__init__(" ".join(details))
        self.faults = tuple(faults)


class InvalidParameters(InvalidMessage):
    """
    The path, the query or the header fields of a request are not valid for a record.

    The pointer of a fault is the name of a variable of the path, of a parameter, or of a field.
    """


class SchemaMismatch(InvalidMessage):
    """The content of a message does not match the schema of its topic."""


class SchemaTooExpensive(SampleAppError):
    """To check contents by the schemas of their topics takes too long."""


class SchemaChecksUnavailable(SampleAppError):
    """Contents cannot be checked now. Nothing was published."""


class SchemaChecksFull(SampleAppError):
    """Too many contents wait to be checked. Nothing was published."""


class SchemaChecksOfCallerFull(SampleAppError):
    """Too many contents of one caller wait to be checked. Nothing was published."""


class InvalidWorkRequest(InvalidMessage):
    """The body of a worker's request has another form, or names messages that are not in the lease."""


class MalformedIdempotencyKey(SampleAppError):
    """The header field ``Idempotency-Key`` has no key, or more than one."""


class PublishError(SampleAppError):
    """A record was not acknowledged by the broker."""

    retriable: ClassVar[bool]
    """True if publishing the same record again, unchanged, may succeed."""
    possibly_published: ClassVar[bool]
    """True if the record may be in the topic in spite of the error."""


class RecordRefused(PublishError):
    """The broker does not accept this record, now or later."""

    retriable = False
    possibly_published = False


class IllegalTopic(RecordRefused):
    """The broker does not allow a topic of this name."""


class RecordTooLarge(RecordRefused):
    """The record is larger than the broker, or the topic, allows."""


class TopicNotAuthorized(RecordRefused):
    """This service, or its caller, does not have the necessary right for the topic."""


class IdempotencyKeyReused(RecordRefused):
    """Another record was published with the same idempotency key."""


class IdempotencyNotEnabled(RecordRefused):
    """The topic takes no idempotency keys: not enabled, its records are kept too briefly, or not readable."""


class IdempotencyNotSupported(RecordRefused):
    """The broker does not recognise a record that is sent again."""


class UnknownTopic(PublishError):
    """The topic does not exist, and the broker does not create it by itself."""

    retriable = False
    possibly_published = False


class UnknownPartition(PublishError):
    """The topic has no partition of this number."""

    retriable = False
    possibly_published = False


class BufferFull(PublishError):
    """Too many records wait for the broker; this one was not accepted."""

    retriable = True
    possibly_published = False


class TooManyIdempotencyKeys(PublishError):
    """More records with an idempotency key than the operator's rate allows; none was accepted."""

    retriable = True
    possibly_published = False

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        """:param retry_after_s: the time after which the same records are accepted, in seconds."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BrokerUnavailable(PublishError):
    """The broker is not available now. Nothing was sent, or it was rolled back."""

    retriable = True
    possibly_published = False


class BrokerStopped(PublishError):
    """The service is stopping. Nothing was sent."""

    retriable = True
    possibly_published = False


class BrokerIncompatible(PublishError):
    """
    The broker does not support a protocol version that this service needs; the record was never sent.

    The record itself is valid: it can succeed when an operator has changed the broker, or the service.
    """

    retriable = True
    possibly_published = False


class OutcomeUnknown(PublishError):
    """The request was sent, and it is not known whether the broker has carried it out."""

    retriable = True
    possibly_published = True


class PublishTimedOut(OutcomeUnknown):
    """The record was sent, and the broker did not answer in time."""


class PartlyPublished(SampleAppError):
    """Some messages of a batch are not published, or not for certain. Some of these may be tried again."""


class PartlyRejected(PartlyPublished):
    """Some messages of a batch are published. All others were rejected for good."""


class WorkError(SampleAppError):
    """Messages were not given to a worker, or not acknowledged."""


class LeaseLost(WorkError):
    """
    The lease has ended: its time is over, it was acknowledged or replaced, or the broker has ended it.

    Its messages that were not accepted or rejected are given to workers again.
    """

    def __init__(self, message: str, *, done: Collection[tuple[int, int]] = ()) -> None:
        """:param done: the messages whose verdicts stand all the same, by partition and offset."""
        super().__init__(message)
        self.done = frozenset(done)


class UnknownIds(WorkError):
    """A lease does not have the messages that a worker names. Nothing was acknowledged, and it goes on."""

    def __init__(self, ids: Collection[tuple[int, int]]) -> None:
        """:param ids: those that are not in the lease, by partition and offset; at least one."""
        super().__init__("The lease does not have all of these messages; name only messages that it has.")
        self.ids = frozenset(ids)


class TooManyLeases(WorkError):
    """This instance has as many leases as it may (``--max-leases``). Nothing was done."""

    def __init__(self, limit: int) -> None:
        """:param limit: the most leases."""
        super().__init__(
            f"Workers have {limit} leases of this instance, or wait for one: the maximum. Nothing was done. "
            "Send the request again later, or to another instance."
        )


class WorkNotSupported(WorkError):
    """The broker cannot give messages to workers. The message says which broker could."""


def forget_frames(error: BaseException | None) -> None:
    """
    Drop the tracebacks of an error that was answered, and of those before it.

    Their frames hold all that a request has read, and the error itself: a cycle, which stays until the
    garbage collector finds it.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def shown(text: str, most: int = LONGEST_NAME) -> str:
    """
    Return the beginning of a caller's text for a message, with replacements for unprintable characters.

    :param most: the number of characters after which it is cut.
    """
    short = text if len(text) <= most else f"{text[:most]}\N{HORIZONTAL ELLIPSIS}"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in short)


CONTROLS: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""
For a set of a regular expression: C0 and C1 controls and DEL (ECMA-48), line and paragraph separators, lone
surrogates, and controls for the direction of text (UAX #9, section 2), which can make "evil.txt" look like
"txt.live".
"""
_CONTROL: Final = re.compile(f"[{CONTROLS}]")


def visible(text: str, *, keeping: str = "\n\t") -> str:
    r"""
    Replace control characters by escapes, such as ``\x1b`` or ``\u202e``.

    :param text: any text, perhaps from an attacker.
    :param keeping: those that stay; none for a sentence that must be one line.
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keeping else ascii(found[0])[1:-1], text)


def pointer_token(name: str) -> str:
    """Encode the name of a member for a JSON Pointer (RFC 6901, section 3)."""
    return name.replace("~", "~0").replace("/", "~1")
