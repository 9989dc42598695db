"""
Parsing of a batch of CloudEvents: a JSON array (JSON event format 1.0.2, section 4).

Kafka has no form for a batch, so each event becomes a record as in structured mode, with its text as the
value. The ends of the events are found without decoding them, and a few at a time, so that the caller can
yield to the reactor in between.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from itertools import count
from typing import ClassVar, Final, TypeAlias, TypeVar

from sampleapp.errors import Fault, InvalidMessage, MalformedMessage, MessageError
from sampleapp.messages.cloud_events import read_event_data, read_event_key
from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.messages.json_text import require_json
from sampleapp.messages.lines import MOST_FAULTS, RejectedLine, UncheckedContent
from sampleapp.messages.parsing import RecordHeaders
from sampleapp.model import Record

_T = TypeVar("_T")

_CONTENT_TYPE: Final[RecordHeaders] = (("content-type", b"application/cloudevents+json"),)
_SOURCE: Final = "event"

_BYTES_AT_ONCE: Final = 64 * 1024
_EVENTS_AT_ONCE: Final = 200
_SEARCHED_AT_ONCE: Final = 16 * 1024
"""Bytes in which the end of an event is looked for in one step: up to 3 ms, if all of them are brackets."""
_QUOTES_AT_ONCE: Final = 5000
_SPACES_AT_ONCE: Final = 1024 * 1024

_SPACE: Final = re.compile(rb"[ \t\r\n]{0,%d}" % _SPACES_AT_ONCE)
# A string without its end, an opening bracket, and a closing one have a group each.
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|())|([\[{])|([\]}])', re.DOTALL)
_OPEN_STRING: Final = 1
_OPENING: Final = 2
_CLOSING: Final = 3
_SCALAR: Final = re.compile(rb"[^\s,\[\]{}\"]*")


class EventList:
    """
    The events of a body, with the interface of `sampleapp.messages.lines.MessageLines`.

    The errors in `rejected` have the numbers of events.
    """

    are_lines: ClassVar = False
    nothing: ClassVar = InvalidMessage(
        [
            Fault(
                "", "The body contains no event. A batch of CloudEvents is a JSON array of one event or more."
            )
        ]
    )

    def __init__(
        self,
        body: bytes,
        *,
        topic: str,
        key: bytes | None,
        max_event: int,
        now_ms: int,
        of_request: RecordHeaders = (),
        scope: IdempotencyScope | None = None,
        is_checked: bool = False,
    ) -> None:
        """
        :param topic: of all records.
        :param key: of all records; ``None`` for the ``partitionkey`` of each event.
        :param max_event: the greatest length of an event, in bytes.
        :param now_ms: the timestamp of all records; milliseconds since the epoch.
        :param of_request: more headers of every record, which come with the request.
        :param scope: makes identities of the records; by default they have none.
        :param is_checked: true if the topic has a schema: then contents are collected in `unchecked`.
        """
        self._spans = _spans(body, max_event)
        self._body = body
        self._topic = topic
        self._key = key
        self._now_ms = now_ms
        self._headers = _CONTENT_TYPE + of_request
        self._scope = scope
        self._is_checked = is_checked
        self._is_malformed = False
        self.topics: Collection[str] = (topic,)
        self.count = 0
        self.faults = 0
        self.headers = 0
        self.records: list[Record] = []
        self.unchecked: list[UncheckedContent] = []
        self.rejected: list[RejectedLine] = []

    @property
    def has_identities(self) -> bool:
        """True if the records have identities."""
        return self._scope is not None

    def line_of(self, _number: int) -> None:
        """Return nothing: events are not on lines of their own."""

    def read(self) -> bool:
        """
        Read the next part, for a few milliseconds at most.

        :return: true while there is more to read.
        :raise MalformedMessage: the body is not a JSON array.
        :raise InvalidMessage: an event is too long.
        """
        until = None
        for _ in range(_EVENTS_AT_ONCE):
            span = next(self._spans, _END)
            if span is _PAUSE:
                return True
            if span is _END:
                self._body = b""
                return False
            start, end = span
            if until is None:
                until = start + _BYTES_AT_ONCE
            self._read_event(start, end)
            if end > until:
                break
        return True

    def _read_event(self, start: int, end: int) -> None:
        number = self.count
        self.count += 1
        if self._is_malformed:
            # Nothing else would change the status.
            return
        try:
            record = self._parse(start, end, number)
        except MessageError as error:
            # As a value, without the frames of its traceback.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            self._reject(number, error)
            self._is_malformed = self.faults >= MOST_FAULTS and isinstance(error, MalformedMessage)
        else:
            if record is not None:
                self.records.append(record)

    def reject_content(self, unchecked: UncheckedContent, error: InvalidMessage) -> None:
        """Reject an event whose data do not match the schema of the topic."""
        if self.faults < MOST_FAULTS:
            self._reject(unchecked.number, error)

    def _reject(self, number: int, error: MessageError) -> None:
        self.rejected.append(RejectedLine(number, error))
        self.faults += len(error.faults) if isinstance(error, InvalidMessage) else 1

    def _parse(self, start: int, end: int, number: int) -> Record | None:
        """
        Parse one event.

        :return: ``None`` if the event was only checked to be JSON.
        """
        text = self._body[start:end]
        if self.faults >= MOST_FAULTS:
            require_json(text, source=_SOURCE)
            return None
        partition_key = read_event_key(text, source=_SOURCE)
        if self._is_checked:
            content, at = read_event_data(text)
            self.unchecked.append(UncheckedContent(number, self._topic, content, at))
        key = partition_key if self._key is None else self._key
        return Record(
            topic=self._topic,
            key=key,
            value=text,
            timestamp_ms=self._now_ms,
            headers=self._headers,
            identity=None
            if self._scope is None
            else self._scope.identity(number, topic=self._topic, key=key, value=text, headers=_CONTENT_TYPE),
        )


_PAUSE: Final = (-1, -1)
_END: Final = (-2, -2)


def _spans(body: bytes, most: int) -> Generator[tuple[int, int], None, None]:
    """
    Yield the start and the end of each member of an array, and `_PAUSE` where a step should end.

    :param most: the greatest length of a member, in bytes.
    :raise MalformedMessage: the body is not an array.
    :raise InvalidMessage: a member is longer.
    """
    position = yield from _after_space(body, 0)
    if body[position : position + 1] != b"[":
        raise MalformedMessage("The body is not a JSON array; a batch of CloudEvents is one.")
    position = yield from _after_space(body, position + 1)
    separator = b"]" if body[position : position + 1] == b"]" else b","
    while separator == b",":
        start = position
        end = yield from _end(body, start, start + most)
        if end is None:
            raise _unfinished(body, start, most)
        yield start, end
        position = yield from _after_space(body, end)
        separator = body[position : position + 1]
        if separator == b",":
            position = yield from _after_space(body, position + 1)
    if separator != b"]":
        raise MalformedMessage(f"The body is not JSON: there is no comma or ] at byte {position}.")
    position = yield from _after_space(body, position + 1)
    if position != len(body):
        raise MalformedMessage("The body is not JSON: there is something after the array.")


_Steps: TypeAlias = Generator[tuple[int, int], None, _T]


def _end(body: bytes, start: int, limit: int) -> _Steps[int | None]:
    """
    Return the end of a JSON value, which may not be valid.

    :param limit: the last place where it may end.
    :return: ``None`` if it does not end, or there is none.
    """
    first = body[start : start + 1]
    if first == b'"':
        return (yield from _end_of_string(body, start, limit))
    if first not in (b"{", b"["):
        match = _SCALAR.match(body, start, limit + 1)
        return None if match is None or not start < match.end() <= limit else match.end()
    depth = 0
    position: int | None = start
    while position is not None and position < min(limit, len(body)):
        until = min(position + _SEARCHED_AT_ONCE, limit)
        for token in _TOKEN.finditer(body, position, until):
            kind = token.lastindex
            if kind == _OPENING:
                depth += 1
            elif kind == _CLOSING:
                depth -= 1
                if not depth:
                    if token.end() - start > _SEARCHED_AT_ONCE:
                        # To decode such an event takes a step of its own.
                        yield _PAUSE
                    return token.end()
            elif kind == _OPEN_STRING:
                position = yield from _end_of_string(body, token.start(), limit)
                break
        else:
            position = until
        yield _PAUSE
    return None


def _end_of_string(body: bytes, start: int, limit: int) -> _Steps[int | None]:
    """Return the end of a string as `_end` does."""
    position = start + 1
    for number in count(1):
        quote = body.find(b'"', position, limit)
        if quote < 0:
            return None
        before = body[position:quote]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return quote + 1
        position = quote + 1
        if number % _QUOTES_AT_ONCE == 0:
            yield _PAUSE
    return None


def _unfinished(body: bytes, start: int, most: int) -> MessageError:
    if len(body) - start > most:
        return InvalidMessage([Fault("", f"An event has more than {most} bytes, which is the most for one.")])
    return MalformedMessage("The body is not JSON: the array ends too early, or lacks an event.")


def _after_space(body: bytes, position: int) -> _Steps[int]:
    while (match := _SPACE.match(body, position)) is not None:
        start, position = position, match.end()
        if position - start < _SPACES_AT_ONCE:
            break
        yield _PAUSE
    return position
