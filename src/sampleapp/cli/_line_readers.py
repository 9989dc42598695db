"""The messages that the lines of a file stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sampleapp.cli._lines import MAX_LINE_BYTES, Line
from sampleapp.cli._options import date_time, from_base64
from sampleapp.client import Message
from sampleapp.errors import MessageError
from sampleapp.messages.json_text import require_json
from sampleapp.messages.parsing import parse_message
from sampleapp.messages.timestamps import (
    EARLIEST_NUMBER,
    LATEST_NUMBER,
    InvalidTimestamp,
    parse_timestamp,
)
from sampleapp.model import FINGERPRINT_HEADER, is_legal_topic


class Template(Struct, frozen=True, kw_only=True):
    """The members that the messages of one command share; see `sampleapp.client.Message`."""

    topic: str
    key: str | bytes | None = None
    headers: dict[str, str] | None = None
    timestamp: datetime | None = None


_T = TypeVar("_T")

_NO_TIMESTAMP: Final = -1
"""Of records of Kafka 0.9 and older."""


class Tombstone(Struct, frozen=True, kw_only=True):
    """A key to delete."""

    topic: str
    key: str | bytes


Request: TypeAlias = "tuple[Sequence[Line], Sequence[Message] | Tombstone]"
"""Lines for one request, with what they stand for: messages, or one line for a tombstone."""

_Fail: TypeAlias = Callable[[int, str], None]
"""Reports a line that cannot be published: its number, and the reason."""


class LineReader(Protocol):
    """Converts lines to messages."""

    shared: frozenset[str]
    """The members of a message that are the same for all lines."""

    def requests(self, lines: Sequence[Line], fail: _Fail) -> Iterator[Request]:
        """
        Convert lines, and report those that cannot be published.

        :return: the other lines, for one request after the other.
        """


class ContentReader:
    """Each line is the content of a message. All other members are the same."""

    shared = frozenset({"topic", "key", "key_base64", "headers", "timestamp"})

    def __init__(self, template: Template, *, is_base64: bool = False) -> None:
        """:param is_base64: each line is base64 of the content."""
        self._template = template
        self._is_base64 = is_base64

    def requests(self, lines: Sequence[Line], fail: _Fail) -> Iterator[Request]:
        """See `LineReader`."""
        template = self._template
        topic, key, headers, timestamp = template.topic, template.key, template.headers, template.timestamp
        readable, contents = self._contents(lines, fail)
        if readable:
            yield (
                readable,
                [
                    Message(topic=topic, content=content, key=key, headers=headers, timestamp=timestamp)
                    for content in contents
                ],
            )

    def _contents(self, lines: Sequence[Line], fail: _Fail) -> tuple[Sequence[Line], Sequence[str | bytes]]:
        if not self._is_base64 and None not in (contents := [line.content for line in lines]):
            try:
                # Decoding all at once is many times faster. No other character in UTF-8 has a line feed.
                return lines, b"\n".join(contents).decode("utf-8").split("\n")  # type: ignore[arg-type]  # see above
            except UnicodeDecodeError:
                pass
        found = list(_converted(lines, self._content, fail))
        return [line for line, _ in found], [content for _, content in found]

    def _content(self, line: bytes) -> str | bytes:
        text = line.decode("utf-8")
        return from_base64(text) if self._is_base64 else text


class _Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record, or a message, as the service encodes it. In ``…_base64``, msgspec decodes base64."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    timestamp: int | float | str | UnsetType = UNSET
    key: str | UnsetType | None = UNSET
    key_base64: bytes | UnsetType | None = UNSET
    content: str | UnsetType | None = UNSET
    content_base64: bytes | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_base64: list[tuple[str, bytes | None]] | UnsetType = UNSET


_decode: Final = msgspec.json.Decoder(_Line).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode

# In JSON, a quotation mark inside of a string has a backslash before it, so these are members.
_PLACE: Final = re.compile(
    rb',\s*"(?:partition|offset)"\s*:\s*-?\d+|"(?:partition|offset)"\s*:\s*-?\d+\s*,', re.ASCII
)
_NULL: Final = re.compile(rb'("content"\s*:\s*)null')
_MILLISECONDS: Final = re.compile(rb'("timestamp"\s*:\s*)-?\d+(?=\s*[,}])', re.ASCII)
_FIRST_MEMBER: Final = re.compile(rb'\s*\{(?=\s*")')


def _cannot_repeat(text: bytes, line: _Line) -> bool:
    """
    Check that no member or header is there twice, of which `_decode` takes the last one.

    :return: True if the text has nothing else than the members, as the lines of the service.
    """
    members = _decode_members(text)
    return _encode(members) == text and _encode(line.headers or {}) == bytes(members.get("headers", b"{}"))


class MessageReader:
    """Each line is a message, or a record as ``sampleapp consume`` prints it."""

    def __init__(self, *, topic: str | None = None) -> None:
        """:param topic: gets all messages; ``None`` for the topic in each line."""
        self.shared = frozenset[str]() if topic is None else frozenset({"topic"})
        self._topic = topic

    def requests(self, lines: Sequence[Line], fail: _Fail) -> Iterator[Request]:
        """See `LineReader`. A topic that is rejected does not concern the lines of another topic."""
        by_topic: dict[str, list[tuple[Line, Message | Tombstone]]] = {}
        # Empty lines are nothing, as in a request.
        filled = [line for line in lines if line.content not in (b"", b"\r")]
        for line, message in _converted(filled, self._message, fail):
            by_topic.setdefault(message.topic, []).append((line, message))
        for found in by_topic.values():
            some: list[Line] = []
            messages: list[Message] = []
            for line, message in found:
                if not isinstance(message, Tombstone):
                    some.append(line)
                    messages.append(message)
                    continue
                # In the order of the lines, since a message before it may have the same key.
                if some:
                    yield some, messages
                some, messages = [], []
                yield [line], message
            if some:
                yield some, messages

    def _message(self, text: bytes) -> Message | Tombstone:
        line = self._line(text)
        topic = self._topic or line.topic or ""
        key = line.key if isinstance(line.key, str) else line.key_base64
        key = None if key is UNSET else key
        content = line.content if line.content_base64 is UNSET else line.content_base64
        if content is UNSET:
            raise ValueError("not a message")
        headers = _headers(line)
        if content is None:
            if key is None or headers:
                raise ValueError(
                    "its content is null, which the service can publish only with a key and without headers"
                )
            return Tombstone(topic=topic, key=key)
        return Message(
            topic=topic, content=content, key=key, headers=headers or None, timestamp=_time(line.timestamp)
        )

    def _line(self, text: bytes) -> _Line:
        """:raise MessageError: it is not a message; the service's error."""
        try:
            line = _decode(text)
            is_valid = (
                (is_legal_topic(line.topic) if line.topic else self._topic is not None)
                and not (isinstance(line.key, str) and isinstance(line.key_base64, bytes))
                and (line.content is UNSET) is not (line.content_base64 is UNSET)
                and not isinstance(line.timestamp, float)
                and _cannot_repeat(text, line)
            )
        except (msgspec.DecodeError, UnicodeDecodeError):
            line, is_valid = _Line(), False
        if not is_valid:
            require_json(text, source="line")
            parse_message(self._as_message(text), source="line")
        return line

    def _as_message(self, text: bytes) -> bytes:
        """Replace the members that the service does not take."""
        text = _NULL.sub(rb'\1""', _PLACE.sub(b"", text))
        text = _MILLISECONDS.sub(rb"\g<1>%d" % EARLIEST_NUMBER, text)
        if self._topic is None or b'"topic"' in text:
            return text
        return _FIRST_MEMBER.sub(rb'{"topic":"%b",' % self._topic.encode(), text, count=1)


def _headers(line: _Line) -> dict[str, str] | list[tuple[str, bytes | None]]:
    """Return headers without the fingerprint of an idempotency key, which no message may bring."""
    texts = {name: text for name, text in (line.headers or {}).items() if name != FINGERPRINT_HEADER}
    others = [header for header in line.headers_base64 or () if header[0] != FINGERPRINT_HEADER]
    return [*[(name, text.encode()) for name, text in texts.items()], *others] if others else texts


def _time(written: float | str | UnsetType) -> int | datetime | None:
    """
    Convert a timestamp to one that the service takes.

    :raise InvalidTimestamp: it is not a timestamp.
    """
    if isinstance(written, UnsetType) or written == _NO_TIMESTAMP:
        return None
    if isinstance(written, int | float) and EARLIEST_NUMBER <= written <= LATEST_NUMBER:
        # The service has taken only whole numbers as messages.
        return int(written)
    try:
        # The service takes times of 1970 to 1973, which look like seconds, as date-times only.
        return date_time(parse_timestamp(written) if isinstance(written, str) else int(written))
    except OverflowError as error:
        raise InvalidTimestamp("is after the year 9999, or before the year 1") from error


def _converted(
    lines: Sequence[Line], convert: Callable[[bytes], _T], fail: _Fail
) -> Iterator[tuple[Line, _T]]:
    """Convert lines one by one; report those that cannot be converted."""
    for line in lines:
        if line.content is None:
            fail(line.number, f"longer than {MAX_LINE_BYTES} bytes.")
            continue
        try:
            yield line, convert(line.content)
        except UnicodeDecodeError:
            # Without the position in the line, so that all such lines share one reason.
            fail(line.number, "not UTF-8.")
        except InvalidTimestamp as error:
            fail(line.number, f"its timestamp {error}.")
        except MessageError as error:
            fail(line.number, str(error))
        except ValueError as error:
            fail(line.number, f"{error}.")
