"""
From a body with a message on each line to the records that it asks for, or to everything that is wrong.

Lines are read some kilobytes at a time, so that whoever reads them can let others in between. Nearly all are
right, so they are decoded together, which takes a fifth of the time of one after the other. What a decoder
takes without a word (a member that is there twice, a message on two lines, an empty line) shows in how many
bytes, line ends and quotation marks there are. Wherever there is any doubt, lines are read one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from sampleapp.errors import Fault, InvalidMessage, MessageError, SampleAppError
from sampleapp.messages import is_legal_topic, may_have_many_headers, parse_message, require_json
from sampleapp.model import Message, Record
from sampleapp.records import RecordHeaders, record_of
from sampleapp.timestamps import InvalidTimestamp, parse_timestamp

__all__ = ["MOST_FAULTS", "MessageLines", "RefusedLine"]

MOST_FAULTS: Final = 100
"""So many faults of all lines together are named."""

_READ_AT_ONCE: Final = 64 * 1024
"""Bytes that are read together: 0.2 to 1.5 ms, by how long the lines are."""
_LINES_AT_ONCE: Final = 500
"""Lines that are read in one step where they are read one by one."""
_REFUSALS_AT_ONCE: Final = 20
"""Lines that are found wrong in one step: these take longest."""

# The bytes, with the line end, and the quotation marks of a message with nothing in its strings.
_LEAST_LENGTH: Final = len(b'{"topic":"","content":""}\n')
_LEAST_LENGTH_OF_KEY: Final = len(b',"key":""')
_QUOTES: Final = 8
_QUOTES_OF_KEY: Final = 4
_QUOTES_OF_NAME: Final = 2
_QUOTES_OF_STRING: Final = 2

_EMPTY_LINES: Final = re.compile(rb"(?:\r?\n)+")
_LF: Final = 10
_CR: Final = 13

_WHAT: Final = "line"

# How bad a fault is: the worst one decides on the whole.
_NOT_ALLOWED: Final = 1
_INVALID: Final = 2
_MALFORMED: Final = 3

_decode_values = msgspec.json.Decoder(list[Message | None]).decode
# No objects are made of the values, of which there may be ten thousand in one step.
_decode_nothing = msgspec.json.Decoder(list[msgspec.Raw]).decode


_T = TypeVar("_T")


class RefusedLine(Struct, frozen=True):
    """A message that cannot be published."""

    number: int
    """Of the message, from 0."""
    error: SampleAppError
    """What a message alone would be refused with."""


class MessageLines:
    """
    The messages of a body, each on a line of its own.

    A line ends in LF or CRLF; the last one need not end. An empty one is nothing.
    """

    def __init__(
        self,
        body: bytes,
        *,
        max_line: int,
        now_ms: int,
        trace: RecordHeaders = (),
        refuse_topic: Callable[[str], SampleAppError | None] | None = None,
        read_at_once: int = _READ_AT_ONCE,
    ) -> None:
        """
        :param max_line: the greatest length of a message, in bytes.
        :param now_ms: when those messages were made that do not say so; milliseconds since the epoch.
        :param trace: headers of every record; see `sampleapp.records.record_of`.
        :param refuse_topic: says why there may be no message for a topic, if so; by default all may be.
        :param read_at_once: how many bytes are read in one step, about.
        """
        self._body = body
        self._max_line = max_line
        self._now_ms = now_ms
        self._trace = trace
        self._refuse_topic = refuse_topic
        self._read_at_once = read_at_once
        self._position = 0
        self._one_by_one_until = 0
        self._worst = 0
        # One string for all messages of a topic, whose hash is known then.
        self._topics: dict[str, str] = {}
        self.count = 0
        """How many messages were read."""
        self.faults = 0
        """How many things are wrong with them."""
        self.records: list[Record] = []
        """What the messages ask for, in order; without those that are refused."""
        self.refused: list[RefusedLine] = []
        """
        The messages that are wrong, in order.

        When these have `MOST_FAULTS`, only one is added that is wrong in a worse way than those before it.
        """

    @property
    def topics(self) -> Collection[str]:
        """Those of all records."""
        return self._topics.keys()

    @property
    def is_full(self) -> bool:
        """Whether as many faults were found as are ever named."""
        return self.faults >= MOST_FAULTS

    def read(self) -> bool:
        """
        Read on, for a few milliseconds at most.

        :return: whether there is more to be read.
        """
        body, start = self._body, self._position
        if start >= self._one_by_one_until:
            end = body.find(b"\n", start + self._read_at_once - 1) + 1 or len(body)
            is_of_lines = 0 < end - start <= self._read_at_once + self._max_line
            if is_of_lines and self._take(body[start : end - (body[end - 1] == _LF)]):
                self._position = end
            else:
                self._one_by_one_until = end
        if self._position < self._one_by_one_until:
            self._read_one_by_one()
        if self._position < len(body):
            return True
        # As many bytes as there are in the records.
        self._body = b""
        return False

    def _take(self, data: bytes) -> bool:
        """
        Take whole lines together, unless one of them may be wrong.

        :param data: without the end of the last line.
        """
        if len(data) > self._max_line and max(map(len, data.split(b"\n"))) > self._max_line:
            return False
        if self._seeks_only_worst:
            return self._pass_over(data)
        if len(data) > 2 * _READ_AT_ONCE and may_have_many_headers(data, data.count(b'"')):
            return False
        try:
            messages = _decode_messages(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        if messages is None or not all(
            map(self._may_have, dict.fromkeys([message.topic for message in messages]))
        ):
            return False
        keys = [None if (key := message.key) is None else key.encode() for message in messages]
        values = [message.content.encode() for message in messages]
        are_plain = _are_plain(data, messages, keys, values)
        return are_plain is not None and (
            self._add_plain(messages, keys, values) if are_plain else self._add_each(messages)
        )

    def _pass_over(self, data: bytes) -> bool:
        """Take lines of which it only matters whether they are JSON, unless one of them may be none."""
        try:
            # Values that are only looked at are not decoded, so this is.
            data.decode()
            values = _decode_lines(data, _decode_nothing)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if values is None:
            return False
        self.count += len(values)
        return True

    def _may_have(self, topic: str) -> bool:
        """Whether there may be messages for a topic."""
        if topic in self._topics:
            return True
        if not is_legal_topic(topic) or (self._refuse_topic is not None and self._refuse_topic(topic)):
            return False
        self._topics[topic] = topic
        return True

    def _add_plain(self, messages: list[Message], keys: list[bytes | None], values: list[bytes]) -> bool:
        """Add messages that have neither headers nor a timestamp."""
        now_ms, trace, topics = self._now_ms, self._trace, self._topics
        self.records += [
            Record(topic=topics[message.topic], key=key, value=value, timestamp_ms=now_ms, headers=trace)
            for message, key, value in zip(messages, keys, values, strict=True)
        ]
        self.count += len(messages)
        return True

    def _add_each(self, messages: list[Message]) -> bool:
        try:
            records = [self._record(_with_timestamp(message)) for message in messages]
        except InvalidTimestamp:
            return False
        self.records += records
        self.count += len(messages)
        return True

    def _record(self, message: Message) -> Record:
        return record_of(message, now_ms=self._now_ms, trace=self._trace)

    @property
    def _seeks_only_worst(self) -> bool:
        """Whether what is still to be read matters only if it is no JSON, which is worst."""
        return self.is_full and self._worst == _INVALID

    def _read_one_by_one(self) -> None:
        body, until = self._body, self._one_by_one_until
        position = self._position
        most_refused = len(self.refused) + _REFUSALS_AT_ONCE
        for _ in range(_LINES_AT_ONCE):
            if (
                body[position] in (_CR, _LF)
                and (empty := _EMPTY_LINES.match(body, position, until)) is not None
            ):
                position = empty.end()
            else:
                end = body.find(b"\n", position) + 1 or len(body)
                self._read_line(position, end)
                position = end
            if self.is_full and self._worst == _MALFORMED:
                # Nothing that may still come is named, or worse.
                position = len(body)
            if position >= until or len(self.refused) >= most_refused:
                break
        self._position = position

    def _read_line(self, start: int, end: int) -> None:
        number = self.count
        self.count += 1
        try:
            record = self._parse(start, end)
        except SampleAppError as error:
            self._refuse(RefusedLine(number, error))
        else:
            if record is not None:
                self.records.append(record)

    def _parse(self, start: int, end: int) -> Record | None:
        """
        Read one line.

        :return: ``None`` if it only matters that it is JSON, and it is.
        :raise SampleAppError: it is no message that may be published.
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
            require_json(line, what=_WHAT)
            return None
        message = parse_message(line, what=_WHAT)
        topic = message.topic
        if topic not in self._topics:
            refusal = None if self._refuse_topic is None else self._refuse_topic(topic)
            if refusal is not None:
                raise refusal
            self._topics[topic] = topic
        return self._record(message)

    def _refuse(self, refused: RefusedLine) -> None:
        error = refused.error
        severity = _INVALID if isinstance(error, InvalidMessage) else _MALFORMED
        if not isinstance(error, MessageError):
            severity = _NOT_ALLOWED
        if not self.is_full or severity > self._worst:
            self.refused.append(refused)
            self.faults += len(error.faults) if isinstance(error, InvalidMessage) else 1
            self._worst = max(self._worst, severity)


def _decode_messages(data: bytes) -> list[Message] | None:
    """As `_decode_lines`, for lines with messages; ``None`` also if a line has a null."""
    values = _decode_lines(data, _decode_values)
    if values is None or {*map(type, values)} != {Message}:
        return None
    return cast("list[Message]", values)


def _decode_lines(data: bytes, decode: Callable[[bytes], list[_T]]) -> list[_T] | None:
    """
    Decode lines as the members of one array.

    `msgspec.json.Decoder.decode_lines` would take two values on a line, or one on two lines.

    :param data: without the end of the last line.
    :return: ``None`` if a line has no value, or several.
    :raise msgspec.DecodeError: a line is not what it has to be.
    :raise UnicodeDecodeError: or not UTF-8.
    """
    # A string has no line end in it, and an object has no place for a null between its members. So each line
    # has a value of its own, and none has two if there are no more values than lines, and a null after each.
    values = decode(b"[%b]" % data.replace(b"\n", b",null,\n"))
    return values[::2] if len(values) == 1 + 2 * data.count(b"\n") else None


def _are_plain(
    data: bytes, messages: list[Message], keys: list[bytes | None], values: list[bytes]
) -> bool | None:
    """
    Whether messages have neither headers nor a timestamp.

    :return: ``None`` if one of them may have a member twice.
    """
    count, with_key = len(messages), len(messages) - keys.count(None)
    # No way to write a message takes less, and only the shortest one as little.
    least = count * _LEAST_LENGTH - 1 + with_key * _LEAST_LENGTH_OF_KEY
    least += sum([len(message.topic) for message in messages]) + sum(map(len, values))
    least += sum([len(key) for key in keys if key is not None])
    if len(data) == least:
        return True
    # With a key that is null there are more of these, too.
    further = _quotes_around_strings(data, messages) - count * _QUOTES - with_key * _QUOTES_OF_KEY
    if further == 0:
        return True
    return False if further == sum(map(_further_quotes, messages)) else None


def _with_timestamp(message: Message) -> Message:
    """:raise InvalidTimestamp: it has one that is none."""
    written = message.timestamp
    if written is UNSET:
        return message
    timestamp_ms = parse_timestamp(written)
    return message if timestamp_ms is written else replace(message, timestamp=timestamp_ms)


def _quotes_around_strings(data: bytes, messages: list[Message]) -> int:
    """
    Count the quotation marks that are around strings.

    :return: too few, if that cannot be told.
    """
    quotes = data.count(b'"')
    if b"\\" not in data:
        return quotes
    if b"\\\\" not in data:
        return quotes - data.count(b'\\"')
    if b"\\u0022" in data:
        return 0
    strings = [message.content for message in messages]
    strings += [message.key for message in messages if message.key is not None]
    for message in messages:
        if message.headers is not UNSET:
            strings += message.headers
            strings += message.headers.values()
    return quotes - sum([string.count('"') for string in strings])


def _further_quotes(message: Message) -> int:
    """Count those that a message has for what few messages have."""
    quotes = 0
    if message.headers is not UNSET:
        quotes += _QUOTES_OF_NAME + (_QUOTES_OF_NAME + _QUOTES_OF_STRING) * len(message.headers)
    if message.timestamp is not UNSET:
        quotes += _QUOTES_OF_NAME + (_QUOTES_OF_STRING if isinstance(message.timestamp, str) else 0)
    return quotes
