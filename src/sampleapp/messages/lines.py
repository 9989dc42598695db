"""
Parsing of a body with one message on each line.

A body is read some kilobytes at a time, so that the caller can yield to the reactor in between. Nearly all
lines are valid, so they are decoded together, which takes a fifth of the time of decoding each. If one of
them may be wrong (a repeated member, a message on two lines, an empty line), they are read one by one.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import ClassVar, Final, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sampleapp.errors import Fault, InvalidMessage, MessageError, SampleAppError
from sampleapp.messages.faults import has_too_many_strings
from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.messages.json_text import require_json
from sampleapp.messages.parsing import (
    RecordHeaders,
    content_pointer,
    has_escaped_colon,
    is_consistent,
    may_repeat_a_member,
    parse_message,
    record_of,
    with_milliseconds,
)
from sampleapp.messages.timestamps import InvalidTimestamp
from sampleapp.model import Message, Record, is_legal_topic

MOST_FAULTS: Final = 100
"""The most faults that are named, of all lines together."""

MOST_TOPICS: Final = 1000
"""The most topics of all messages together: a batch must not create topics by the hundred thousand."""

_READ_AT_ONCE: Final = 64 * 1024
"""Bytes that are decoded together: 0.2 to 1.5 ms, depending on how long the lines are."""
_IDENTITIES_AT_ONCE: Final = 8 * 1024
"""
Like `_READ_AT_ONCE`, if records have identities: for a short line, this takes most.
"""
_PASSED_OVER_AT_ONCE: Final = 16 * 1024
"""Like `_READ_AT_ONCE`, for lines that are only checked to be JSON: 8,000 of one byte take 2 ms."""
_LINES_AT_ONCE: Final = 100
"""The most lines of one step that are read one by one: up to 40 µs each."""
_REJECTIONS_AT_ONCE: Final = 20
"""The most lines that are rejected in one step: these take longest."""
_REJECTED_BYTES: Final = 16 * 1024
"""The length of a step, in bytes, after which a line that is rejected ends it."""

_TOO_MANY_TOPICS: Final = Fault(
    "/topic",
    f"The messages before this one name {MOST_TOPICS} other topics, which is the most for one request; send "
    "several requests.",
)

_EMPTY_LINES: Final = re.compile(rb"(?:\r?\n)+")
_LF: Final = 10
_CR: Final = 13

_SOURCE: Final = "line"

# Severity of a fault: the worst one decides the status of the whole.
_NOT_ALLOWED: Final = 1
_INVALID: Final = 2
_MALFORMED: Final = 3

_decode_values: Final = msgspec.json.Decoder(list[Message | None]).decode
# Creates no objects for the values, of which one step may have ten thousand.
_skip_values: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


_T = TypeVar("_T")


class RejectedLine(Struct, frozen=True):
    """A message that cannot be published."""

    number: int
    """The number of the message, from 0; empty lines do not count."""
    error: SampleAppError
    """The error of the message if it were sent alone."""
    line: int | None = None
    """The number of the line, from 1, as an editor counts: with empty lines. ``None`` if it has none."""


class UncheckedContent(Struct, frozen=True, gc=False):
    """The content of a message, which must match the schema of its topic."""

    number: int
    """The number of the message, from 0."""
    topic: str
    content: bytes
    at: str
    """The pointer to it in its message."""


class MessageLines:
    """
    The messages of a body, each on a line of its own.

    A line ends in LF or CRLF; the last line may have no end. Empty lines are ignored.
    """

    are_lines: ClassVar = True
    """False for messages that are not on lines of their own."""
    nothing: ClassVar = InvalidMessage(
        [
            Fault(
                "",
                "The body contains no message. Each message is one line, such as "
                '{"topic":"t","content":"21.5"}.',
            )
        ]
    )
    """The error of a body without a message."""

    def __init__(
        self,
        body: bytes,
        *,
        max_line: int,
        now_ms: int,
        of_request: RecordHeaders = (),
        reject_topic: Callable[[str], SampleAppError | None] | None = None,
        scope: IdempotencyScope | None = None,
        checked_topics: Collection[str] = (),
        read_at_once: int = _READ_AT_ONCE,
    ) -> None:
        """
        :param max_line: the greatest length of a message, in bytes.
        :param now_ms: the timestamp for messages without one; milliseconds since the epoch.
        :param of_request: headers of every record; see `sampleapp.messages.parsing.record_of`.
        :param reject_topic: returns an error for a topic that messages may not be published to; by default
            all topics are allowed.
        :param scope: makes identities of the records; by default they have none.
        :param checked_topics: whose contents are collected in `unchecked`.
        :param read_at_once: the approximate number of bytes that one step reads.
        """
        self._body = body
        self._max_line = max_line
        self._now_ms = now_ms
        self._of_request = of_request
        self._reject_topic = reject_topic
        self._scope = scope
        self._checked_topics = checked_topics
        self._read_at_once = read_at_once if scope is None else min(read_at_once, _IDENTITIES_AT_ONCE)
        self._position = 0
        self._one_by_one_until = 0
        self._worst = 0
        # One string for all messages of a topic: its hash is computed once.
        self._topics: dict[str, str] = {}
        self.count = 0
        """The number of messages that were read."""
        # Of each run of empty lines: the messages before it, and the empty lines up to its end.
        self._messages_before = array("Q")
        self._empty_lines = array("Q")
        self.faults = 0
        """The number of faults in these messages."""
        self.headers = 0
        """The number of headers of the records, without those that all of them share."""
        self.records: list[Record] = []
        """The records of the valid messages, in order."""
        self.unchecked: list[UncheckedContent] = []
        """The contents that are not yet checked by the schemas of their topics."""
        self.rejected: list[RejectedLine] = []
        """
        The messages that cannot be published, in order.

        After `MOST_FAULTS` faults, a message is added only if its fault is worse than all before it.
        """

    @property
    def topics(self) -> Collection[str]:
        """The topics of all records."""
        return self._topics.keys()

    @property
    def has_identities(self) -> bool:
        """True if the records have identities."""
        return self._scope is not None

    @property
    def is_full(self) -> bool:
        """True when `MOST_FAULTS` were found."""
        return self.faults >= MOST_FAULTS

    def line_of(self, number: int) -> int:
        """
        Return the number of the line of a message, from 1, as an editor counts: with empty lines.

        :param number: of the message, from 0.
        """
        return number + 1 + self._empty_before(number)

    def _empty_before(self, number: int) -> int:
        runs = bisect_right(self._messages_before, number)
        return self._empty_lines[runs - 1] if runs else 0

    def read(self) -> bool:
        """
        Read the next part, for a few milliseconds at most.

        :return: true while there is more to read.
        """
        body, start = self._body, self._position
        if start >= self._one_by_one_until:
            at_once = _PASSED_OVER_AT_ONCE if self._seeks_only_worst else self._read_at_once
            end = body.find(b"\n", start + at_once - 1) + 1 or len(body)
            is_of_lines = 0 < end - start <= at_once + self._max_line
            if is_of_lines and self._take(body[start : end - (body[end - 1] == _LF)]):
                self._position = end
            else:
                self._one_by_one_until = end
        if self._position < self._one_by_one_until:
            self._read_one_by_one()
        if self._position < len(body):
            return True
        # The records hold copies of all that is needed. Free the memory.
        self._body = b""
        return False

    def _take(self, data: bytes) -> bool:
        """
        Take whole lines together, unless one of them may be wrong.

        :param data: the lines, without the end of the last one.
        :return: true if they were taken.
        """
        # For one long line this gains nothing, and a wrong one would be decoded twice in this step.
        is_long_line = len(data) > _READ_AT_ONCE and b"\n" not in data
        if is_long_line or (len(data) > self._max_line and max(map(len, data.split(b"\n"))) > self._max_line):
            return False
        if self._seeks_only_worst:
            return self._pass_over(data)
        try:
            messages = _decode_messages(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        if messages is None or not all(
            map(self._is_allowed, dict.fromkeys([message.topic for message in messages]))
        ):
            return False
        first, added = self.count, len(self.records)
        is_plain = self._scope is None and _are_plain(messages) and self._add_plain(data, messages)
        if not is_plain and not self._add_each(data, messages):
            return False
        if self._checked_topics:
            for number, message, record in zip(count(first), messages, self.records[added:], strict=False):
                self._collect(number, message, record)
        return True

    def _collect(self, number: int, message: Message, record: Record) -> None:
        """Collect the content of a message, if it must be checked."""
        if record.value is not None and record.topic in self._checked_topics:
            at = content_pointer(message)
            self.unchecked.append(UncheckedContent(number, record.topic, record.value, at))

    def reject_content(self, unchecked: UncheckedContent, error: InvalidMessage) -> None:
        """Reject a message whose content does not match the schema of its topic."""
        number = unchecked.number
        self._reject(RejectedLine(number, error, line=self.line_of(number)))

    def _pass_over(self, data: bytes) -> bool:
        """Take lines if they are JSON: nothing else matters for them any more."""
        try:
            # The decoder does not look at the bytes of strings that it skips.
            data.decode()
            values = _decode_lines(data, _skip_values)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        # An array on two lines and a line with two values would have the right count together.
        if values is None or b"\n" in b"".join(values):
            return False
        self.count += len(values)
        return True

    def _is_allowed(self, topic: str) -> bool:
        """Check whether messages may be published to a topic, and remember it."""
        if topic in self._topics:
            return True
        if not is_legal_topic(topic) or self._rejection_of_new(topic) is not None:
            return False
        self._topics[topic] = topic
        return True

    def _rejection_of_new(self, topic: str) -> SampleAppError | None:
        """Return the error for a topic that no message before has named."""
        if len(self._topics) >= MOST_TOPICS:
            return InvalidMessage([_TOO_MANY_TOPICS])
        return None if self._reject_topic is None else self._reject_topic(topic)

    def _add_plain(self, data: bytes, messages: list[Message]) -> bool:
        """Add messages of a topic, a content and a key only, unless a member may be repeated."""
        keys = [message.key for message in messages]
        maybe_contents = [message.content for message in messages]
        if UNSET in maybe_contents:
            return False
        contents = cast("list[str]", maybe_contents)
        # As may_repeat_a_member does it, in a third of the time. A member with base64 is one colon more.
        inside = data.count(b":") - 3 * len(messages) + keys.count(UNSET)
        if inside and (inside != _count_colons([*contents, *keys]) or has_escaped_colon(data)):
            return False
        now_ms, of_request, topics = self._now_ms, self._of_request, self._topics
        self.records += [
            Record(
                topic=topics[message.topic],
                key=key.encode() if isinstance(key, str) else None,
                value=content.encode(),
                timestamp_ms=now_ms,
                headers=of_request,
            )
            for message, key, content in zip(messages, keys, contents, strict=True)
        ]
        self.count += len(messages)
        return True

    def _add_each(self, data: bytes, messages: list[Message]) -> bool:
        """Add messages of any kind, unless a member may be repeated, or a message is wrong."""
        if not all(map(is_consistent, messages)) or may_repeat_a_member(data, messages):
            return False
        try:
            records = [
                self._record(with_milliseconds(message), number)
                for number, message in enumerate(messages, self.count)
            ]
        except (InvalidTimestamp, InvalidMessage):
            return False
        self.records += records
        self.headers += sum([len(record.headers) for record in records])
        self.count += len(messages)
        return True

    def _record(self, message: Message, number: int) -> Record:
        if self._scope is None:
            return record_of(message, now_ms=self._now_ms, of_request=self._of_request)
        return self._scope.record_of(message, number, now_ms=self._now_ms, of_request=self._of_request)

    @property
    def _seeks_only_worst(self) -> bool:
        """True when a further fault is named only if it is the worst kind: a line that is not JSON."""
        return self.is_full and self._worst == _INVALID

    def _read_one_by_one(self) -> None:
        body, until = self._body, self._one_by_one_until
        position = self._position
        rejected = len(self.rejected)
        for _ in range(_LINES_AT_ONCE):
            if (
                body[position] in (_CR, _LF)
                and (empty := _EMPTY_LINES.match(body, position, until)) is not None
            ):
                self._empty_lines.append(self._empty_before(self.count) + empty[0].count(b"\n"))
                self._messages_before.append(self.count)
                position = empty.end()
            else:
                end = body.find(b"\n", position) + 1 or len(body)
                self._read_line(position, end)
                position = end
            if self.is_full and self._worst == _MALFORMED:
                # No further fault would be named or change the status.
                position = len(body)
            is_long = position - self._position > _REJECTED_BYTES
            most = 1 if is_long else _REJECTIONS_AT_ONCE
            if position >= until or len(self.rejected) >= rejected + most:
                break
        self._position = position

    def _read_line(self, start: int, end: int) -> None:
        number = self.count
        self.count += 1
        try:
            record = self._parse(start, end, number)
        except SampleAppError as error:
            # The error is kept as a value. Its traceback would keep the frames, and the body, in memory.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            self._reject(RejectedLine(number, error, line=self.line_of(number)))
        else:
            if record is not None:
                self.records.append(record)
                self.headers += len(record.headers)

    def _parse(self, start: int, end: int, number: int) -> Record | None:
        """
        Parse one line.

        :return: ``None`` if the line was only checked to be JSON.
        :raise SampleAppError: the line is not a message, or its topic is not allowed.
        """
        body = self._body
        if body[end - 1] == _LF:
            end -= 2 if end - 2 >= start and body[end - 2] == _CR else 1
        if end - start > self._max_line:
            raise InvalidMessage(
                [
                    Fault(
                        "", f"The line has more than {self._max_line} bytes, which is the most for a message."
                    )
                ]
            )
        line = body[start:end]
        if self._seeks_only_worst:
            require_json(line, source=_SOURCE)
            return None
        message = parse_message(line, source=_SOURCE)
        topic = message.topic
        if topic not in self._topics:
            rejection = self._rejection_of_new(topic)
            if rejection is not None:
                raise rejection
            self._topics[topic] = topic
        record = self._record(message, number)
        if self._checked_topics:
            self._collect(number, message, record)
        return record

    def _reject(self, rejected: RejectedLine) -> None:
        error = rejected.error
        severity = _INVALID if isinstance(error, InvalidMessage) else _MALFORMED
        if not isinstance(error, MessageError):
            severity = _NOT_ALLOWED
        if not self.is_full or severity > self._worst:
            self.rejected.append(rejected)
            self.faults += len(error.faults) if isinstance(error, InvalidMessage) else 1
            self._worst = max(self._worst, severity)


def _decode_messages(data: bytes) -> list[Message] | None:
    """Decode lines as messages, as `_decode_lines` does; ``None`` also where it would take too long."""
    if len(data) > 2 * _READ_AT_ONCE and has_too_many_strings(data):
        return None
    values = _decode_lines(data, _decode_values)
    if values is None or {*map(type, values)} != {Message}:
        return None
    return cast("list[Message]", values)


def _are_plain(messages: list[Message]) -> bool:
    """Return true if no message has headers or a timestamp."""
    headers = [message.headers for message in messages]
    timestamps = [message.timestamp for message in messages]
    return headers.count(UNSET) == timestamps.count(UNSET) == len(messages)


def _decode_lines(data: bytes, decode: Callable[[bytes], list[_T]]) -> list[_T] | None:
    """
    Decode lines as the members of one array.

    `msgspec.json.Decoder.decode_lines` would accept two values on a line, or one value on two lines.

    :param data: the lines, without the end of the last one.
    :return: ``None`` if a line has no value, or several.
    :raise msgspec.DecodeError: a line is not JSON, or of a wrong type.
    :raise UnicodeDecodeError: a line is not UTF-8.
    """
    # Put a null after each line. JSON does not allow a line end in a string, or a null between the members of
    # an object. So, except in arrays, each line has a value of its own; and only one, if there are exactly as
    # many values as lines and nulls.
    values = decode(b"[%b]" % data.replace(b"\n", b",null,\n"))
    return values[::2] if len(values) == 1 + 2 * data.count(b"\n") else None


def _count_colons(strings: Iterable[str | UnsetType | None]) -> int:
    return "".join([each for each in strings if each]).count(":")
