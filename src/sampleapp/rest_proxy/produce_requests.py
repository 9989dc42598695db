"""
From the body of a produce request to records, or to everything that is wrong with it.

A body of many megabytes would keep a decoder busy for too long at once. So the records are read in slices,
each of them a list of whole records, and others may have their turn in between. Where a record ends is
guessed, by what nearly always stands between two of them. A wrong guess ends inside of a string, or of an
array or object of the record; then the slice is no JSON, and the decoder notices. As for a single message, a
strict decoder reads first, and only what it refuses is read again, slowly, to name the faults.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Generator, Iterable, Iterator
from enum import Enum
from typing import Annotated, Any, Final, NoReturn, TypeVar

import msgspec
from msgspec import Meta, Struct

from sampleapp.errors import Fault, InvalidMessage, MalformedMessage
from sampleapp.json_members import emptied, end_of_value, first_members, is_intricate
from sampleapp.model import Record
from sampleapp.rest_proxy.json_in_steps import write_in_steps
from sampleapp.rest_proxy.json_text import (
    Members,
    Number,
    NumberTooLarge,
    encode_plain,
    encode_with_escapes,
    write,
    written_double,
)

__all__ = ["EmbeddedFormat", "Unserializable", "read_records"]

SLICE_BYTES: Final = 24 * 1024
"""So many bytes are read at once: about a fifth of a millisecond, and not ten, whatever they are."""

_SLOW_SLICE_BYTES: Final = 4 * 1024
"""The same where something is odd, and reading takes many times as long."""

_LONGEST_SLICE: Final = 2
"""How many times as long as it should be a slice is at most."""

_LONG_SLICE: Final = 28 * 1024
"""Any shorter one is read at once, whatever is in it."""

_LONG_RECORD: Final = 8 * 1024
"""Where something is odd, a record that is longer is read in steps of its own."""

_MOST_TOKENS: Final = 60_000
_MOST_ODD: Final = 4000
"""So many doubles, and so many escapes, are read at once: each takes 1 to 3 microseconds."""

_MOST_FAULTS: Final = 100
_MOST_MEMBERS: Final = 1000
"""With more, it is not told which of them are wrong, which would take long."""
_LONGEST_NAME: Final = 40
_LONGEST_TOKEN: Final = 12
"""Of what a decoder refuses where it begins if it is cut off, but for strings: ``\\ud83d\\ude00``."""
_HIGHEST_PARTITION: Final = 2**31 - 1
_SCHEMA_MEMBERS: Final = ("key_schema", "key_schema_id", "value_schema", "value_schema_id")
_REQUEST_MEMBERS: Final = 1 + len(_SCHEMA_MEMBERS)

_WS = rb"[ \t\n\r]*"
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_SCHEMA_MEMBER = rb'"(?:key|value)_schema(?:_id)?"%b:%b(?:%b|-?[0-9]+|null)%b' % (_WS, _WS, _STRING, _WS)
_HEAD = re.compile(
    rb'%b\{%b(?:%b,%b)*"records"%b:%b\[%b' % (_WS, _WS, _SCHEMA_MEMBER, _WS, _WS, _WS, _WS), re.DOTALL
)
_TAIL = re.compile(rb"\]%b(?:,%b%b)*\}%b\Z" % (_WS, _WS, _SCHEMA_MEMBER, _WS), re.DOTALL)
_BETWEEN_RECORDS = re.compile(rb'\}%b,%b(?=\{%b"(?:value|key|partition)")' % (_WS, _WS, _WS))
_COMMA = re.compile(rb"%b(,?)%b" % (_WS, _WS))
_COMMA_OF_TEXT = re.compile(_COMMA.pattern.decode("ascii"))
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

_AS_NUMBERS: Final = bytes.maketrans(b"0123456789.eE", b"0" * 10 + b"...")
_IN_DOUBLES: Final = b"0."
_BEYOND_BMP: Final = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
"""The first bytes in UTF-8 of what is a pair of escapes."""
_LONG_INTEGER: Final = b"0" * 200
"""To decode integers takes a time that grows with the square of their length."""
_CUT_OFF: Final = "truncated"
"""What the decoder calls that."""
_NULL: Final = b"null"
_RECORD_MEMBERS: Final = '"value", "key" and "partition"'

_T = TypeVar("_T")
_Partition = Annotated[int, Meta(ge=0, le=_HIGHEST_PARTITION)]


class EmbeddedFormat(Enum):
    """What the keys and values of a request are."""

    BINARY = "binary"
    """Strings of base64 (RFC 4648, section 4): the bytes that they stand for."""
    JSON = "json"
    """Any JSON: its compact text, see `sampleapp.rest_proxy.json_text`."""


class Unserializable(InvalidMessage):
    """The form of the request is right, but some of its keys or values cannot be made into bytes."""


class _JSONRecord(Struct, forbid_unknown_fields=True, gc=False):
    key: Any = None
    value: Any = None
    partition: _Partition | None = None


class _BinaryRecord(Struct, forbid_unknown_fields=True, gc=False):
    key: bytes | None = None
    value: bytes | None = None
    partition: _Partition | None = None


_decode_json = msgspec.json.Decoder(list[_JSONRecord], float_hook=written_double).decode
_decode_binary = msgspec.json.Decoder(list[_BinaryRecord]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_REFUSALS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_records(
    body: bytes,
    embedded: EmbeddedFormat,
    *,
    topic: str,
    partition: int | None,
    timestamp_ms: int,
    headers: tuple[tuple[str, bytes], ...] = (),
    max_record: int | None = None,
    slice_bytes: int = SLICE_BYTES,
) -> Iterator[list[Record]]:
    """
    Read the records of a produce request, some at once.

    The schemas of the request are not looked at, as in REST Proxy: no record of these formats has one.

    :param body: ``{"records": [{"key": …, "value": …, "partition": …}, …]}`` in UTF-8. Members of a record
        that are null are as if they were not there.
    :param embedded: what its keys and values are.
    :param partition: where the records go that name no partition themselves.
    :param timestamp_ms: when they were made.
    :param max_record: the greatest length of the JSON text of a record, in bytes; any by default.
    :param slice_bytes: about how many bytes are read at once.
    :return: the records in order, also none at a time where reading takes long. As long as it is not at its
        end, something may still be wrong.
    :raise MalformedMessage: the body is not JSON.
    :raise InvalidMessage: it is, but not such a request; names what is wrong, up to a hundred times.
    :raise Unserializable: as above, if all that is wrong is in the keys and values.
    """
    found = _find_list(body)
    if found is None:
        _refuse_too_many_members(body)
        # To look through a body of many megabytes once more takes long.
        yield []
        found = _find_list_slowly(body)
    body, position, end = found
    if position == end:
        raise InvalidMessage([Fault("/records", '"records" is empty; a request has at least one record.')])
    reader = _Reader(embedded, topic, partition, timestamp_ms, headers)
    most = len(body) if max_record is None else max_record
    size = slice_bytes
    while position < end:
        records = None
        guess = _guess_cut(body, position, end, size)
        if guess is not None and guess[0] - position <= most:
            cut, position_after = guess
            piece = body[position:cut]
            if not reader.takes_long(piece):
                records = reader.read(piece)
            elif size > _SLOW_SLICE_BYTES:
                size //= 2
                continue
        if records is None:
            # The guess was wrong, or something in the slice is.
            size = min(size, _SLOW_SLICE_BYTES)
            long_record = _find_long_record(body, position, end, most=most, number=reader.count)
            if long_record is not None:
                yield []
                cut, position_after = long_record
                records = yield from _meanwhile(reader.read_long(body[position:cut]))
            else:
                cut, position_after = _find_cut(body, position, end, size, most=most, first=reader.count)
                piece = body[position:cut]
                records = reader.read(piece)
                if records is None:
                    records = reader.read_slowly(piece)
        yield records
        position = position_after
        size = min(2 * size, slice_bytes)
    reader.finish()


def _find_list(body: bytes) -> tuple[bytes, int, int] | None:
    """
    Find the list of records where it nearly always is.

    :return: a body, the position of the first byte after the opening bracket, and that of the closing one.
    """
    head = _HEAD.match(body)
    if head is not None:
        position = head.end()
        if body.endswith(b"]}"):
            return body, position, max(position, len(body) - 2)
        tail = _TAIL.search(body, max(position, len(body) - SLICE_BYTES))
        if tail is not None:
            return body, position, tail.start()
    return None


def _refuse_too_many_members(body: bytes) -> None:
    """:raise InvalidMessage: a request has more members than can be named in a moment."""
    try:
        count = len(first_members(body, most=_MOST_MEMBERS + 1))
    except (msgspec.DecodeError, RecursionError, LookupError, ValueError):
        # It may be no JSON, or no object.
        return
    if count > _MOST_MEMBERS:
        too_many = f"There are more than {_MOST_MEMBERS} members; a request has {_REQUEST_MEMBERS} at most."
        raise InvalidMessage([Fault("", too_many)])


def _find_list_slowly(body: bytes) -> tuple[bytes, int, int]:
    """
    Find the list of records, wherever it is.

    :return: as `_find_list`.
    :raise MessageError: there is none.
    """
    try:
        members = _decode_members(body)
    except msgspec.ValidationError as error:
        raise InvalidMessage(
            [Fault("", 'A request is a JSON object such as {"records": [{"value": "x"}]}.')]
        ) from error
    except _REFUSALS as error:
        raise _not_json(error, _reason(error) if body.strip() else "it is empty") from error
    faults = [
        Fault(
            f"/{_shown(name)}",
            f'"{_shown(name)}" is not a member of a request; it has "records", and may have '
            '"key_schema", "key_schema_id", "value_schema" and "value_schema_id".',
        )
        for name in members
        if name != "records" and name not in _SCHEMA_MEMBERS
    ]
    records = bytes(members.get("records", b""))
    if not records:
        faults.insert(0, Fault("/records", '"records" is missing; a request has to have it.'))
    elif not records.startswith(b"["):
        faults.insert(0, Fault("/records", '"records" has to be an array.'))
    if faults:
        raise InvalidMessage(faults[:_MOST_FAULTS])
    inside = records[1:-1].strip(b" \t\n\r")
    return inside, 0, len(inside)


def _guess_cut(body: bytes, position: int, end: int, slice_bytes: int) -> tuple[int, int] | None:
    """
    Return where a slice may end, and where the next one begins then.

    :return: ``None`` if that cannot be told: the slice would be several times as long.
    """
    if end - position <= slice_bytes:
        return end, end
    stop = min(end, position + _LONGEST_SLICE * slice_bytes)
    between = _BETWEEN_RECORDS.search(body, position + slice_bytes, stop)
    if between is not None:
        return between.start() + 1, between.end()
    return (end, end) if stop == end else None


def _find_cut(
    body: bytes, position: int, end: int, slice_bytes: int, *, most: int, first: int
) -> tuple[int, int]:
    """
    Return where a slice ends, and where the next one begins, by reading every record of it.

    :param most: the greatest length of a record.
    :param first: the number of the first record.
    :raise MalformedMessage: what is there is not JSON.
    :raise InvalidMessage: a record is longer than that.
    """
    # A record of the greatest length, and the comma after it, are in this.
    largest = slice_bytes + most
    size = min(2 * slice_bytes, largest)
    while True:
        stop = min(end, position + size)
        # What matters here is ASCII, and in this encoding positions are those of bytes.
        text = body[position:stop].decode("latin-1")
        try:
            found = _cut_of(text, slice_bytes, most=most, is_all=stop == end, first=first)
        except RecursionError as error:
            raise _not_json(error, "") from error
        if found is not None:
            return position + found[0], position + found[1]
        if size == largest:
            raise _too_long(first, most)
        size = min(2 * size, largest)


def _cut_of(text: str, slice_bytes: int, *, most: int, is_all: bool, first: int) -> tuple[int, int] | None:
    """
    Find the end of a slice, and the beginning of the next one.

    :param is_all: whether nothing follows the text; otherwise it may end anywhere.
    :return: ``None`` if there is not as much as one record in it.
    """
    found = None
    position, number = 0, first
    while True:
        try:
            _, cut = _SKIPPER.raw_decode(text, position)
        except json.JSONDecodeError as error:
            if not is_all and _may_be_cut_off(error):
                return found
            raise _not_json(error, f"{error.msg} in records[{number}]") from error
        if cut - position > most:
            raise _too_long(number, most)
        comma = _COMMA_OF_TEXT.match(text, cut)
        following = cut if comma is None else comma.end()
        has_comma = comma is not None and bool(comma[1])
        if following == len(text) and not is_all:
            return found
        if following == len(text) and not has_comma:
            return cut, following
        if following == len(text) or not has_comma:
            raise _not_json(None, f"no record, or no comma, comes after records[{number}]")
        found = cut, following
        if cut >= slice_bytes:
            return found
        position = following
        number += 1


def _find_long_record(
    body: bytes, position: int, end: int, *, most: int, number: int
) -> tuple[int, int] | None:
    """
    Return where a long record ends, and where the next one begins.

    :param most: the greatest length of a record.
    :return: ``None`` if it is not so long, or not JSON of which more can be told.
    :raise MalformedMessage: what is there is not JSON.
    :raise InvalidMessage: the record is longer than that.
    """
    if _is_short_record(body, position, end):
        return None
    # With the comma after a record of the greatest length.
    stop = min(end, position + most + 1)
    try:
        after = end_of_value(body, position, stop)
        # What is skipped is not decoded, so this is.
        body[position:after].decode()
    except _REFUSALS as error:
        if not is_intricate(body[position:stop]):
            return None
        if stop < end and _CUT_OFF in str(error):
            raise _too_long(number, most) from error
        raise _not_json(error, f"{_reason(error)} in records[{number}]") from error
    cut = position + len(body[position:after].rstrip())
    if cut - position > most:
        raise _too_long(number, most)
    if cut - position <= _LONG_RECORD:
        return None
    comma = _COMMA.match(body, cut, end)
    following = cut if comma is None else comma.end()
    has_comma = comma is not None and bool(comma[1])
    if has_comma is (following == end):
        raise _not_json(None, f"no record, or no comma, comes after records[{number}]")
    return cut, following


def _is_short_record(body: bytes, position: int, end: int) -> bool:
    stop = min(end, position + _LONG_RECORD + 1)
    try:
        return end_of_value(body, position, stop) < stop
    except (msgspec.DecodeError, RecursionError):
        return False


def _meanwhile(steps: Generator[None, None, _T]) -> Generator[list[Record], None, _T]:
    """Give no records at each step."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: _T = done.value
            return value
        yield []


def _may_be_cut_off(error: json.JSONDecodeError) -> bool:
    """Whether more of the text might have been right."""
    return error.msg.startswith("Unterminated string") or error.pos >= len(error.doc) - _LONGEST_TOKEN


_SKIPPER: Final = json.JSONDecoder(parse_float=str, parse_int=str, object_pairs_hook=len)


class _Reader:
    """Makes records out of slices, and collects what is wrong with them."""

    def __init__(
        self,
        embedded: EmbeddedFormat,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        headers: tuple[tuple[str, bytes], ...],
    ) -> None:
        self._embedded = embedded
        self._topic = topic
        self._partition = partition
        self._timestamp_ms = timestamp_ms
        self._headers = headers
        self._faults: list[Fault] = []
        self._only_content = True
        self.count = 0
        """Of the records that were read."""

    def read(self, piece: bytes) -> list[Record] | None:
        """Read a slice; ``None`` if it is not one, or something is wrong with it."""
        text = b"[%b]" % piece
        topic, timestamp_ms, headers, partition = (
            self._topic,
            self._timestamp_ms,
            self._headers,
            self._partition,
        )
        try:
            if self._embedded is EmbeddedFormat.BINARY:
                records = [
                    Record(
                        topic=topic,
                        key=each.key,
                        value=each.value,
                        timestamp_ms=timestamp_ms,
                        headers=headers,
                        partition=partition if each.partition is None else each.partition,
                    )
                    for each in _decode_binary(text)
                ]
            else:
                encode = encode_plain if piece.isascii() and b"\\" not in piece else encode_with_escapes
                records = [
                    Record(
                        topic=topic,
                        key=None if each.key is None else encode(each.key),
                        value=None if each.value is None else encode(each.value),
                        timestamp_ms=timestamp_ms,
                        headers=headers,
                        partition=partition if each.partition is None else each.partition,
                    )
                    for each in _decode_json(text)
                ]
        except _REFUSALS:
            return None
        self.count += len(records)
        return records

    def takes_long(self, piece: bytes) -> bool:
        """Whether it may take long to read a slice, and to write its values."""
        # What is no base64 stops the decoder.
        if len(piece) <= _LONG_SLICE or self._embedded is EmbeddedFormat.BINARY:
            return False
        numbers = piece.translate(_AS_NUMBERS)
        return (
            is_intricate(piece, most=_MOST_TOKENS)
            or _LONG_INTEGER in numbers
            or numbers.count(_IN_DOUBLES) > _MOST_ODD
            or (b"\\" in piece and piece.count(rb"\u") > _MOST_ODD)
            or (rb"\u00" in piece and piece.count(b"\\") > _MOST_ODD)
            or (not piece.isascii() and sum(map(piece.count, _BEYOND_BMP)) > _MOST_ODD)
        )

    def read_long(self, text: bytes) -> Generator[None, None, list[Record]]:
        """
        Read one long record, in steps of some milliseconds, and note what is wrong with it.

        :param text: JSON.
        :raise InvalidMessage: more is wrong than can be told.
        """
        records = None if self.takes_long(text) else self.read(text)
        if records is not None:
            return records
        yield
        record = yield from self._read_one_in_steps(text)
        if record is None and len(self._faults) >= _MOST_FAULTS:
            self.finish()
        self.count += 1
        return [] if record is None else [record]

    def read_slowly(self, piece: bytes) -> list[Record]:
        """
        Read a slice that ends with a record, and note what is wrong with its records.

        :raise MalformedMessage: it is not JSON.
        :raise InvalidMessage: more is wrong than can be told.
        """
        try:
            values = _parse(b"[%b]" % piece)
        except UnicodeDecodeError as error:
            raise _not_json(error, "it is not UTF-8") from error
        except json.JSONDecodeError as error:
            raise _not_json(error, error.msg) from error
        except RecursionError as error:
            raise _not_json(error, "") from error
        records = []
        for value in values:
            record = self._read_one(value)
            if record is not None:
                records.append(record)
            elif len(self._faults) >= _MOST_FAULTS:
                self.finish()
            self.count += 1
        return records

    def finish(self) -> None:
        """:raise InvalidMessage: something was wrong."""
        if self._faults:
            raise (Unserializable if self._only_content else InvalidMessage)(self._faults[:_MOST_FAULTS])

    def _read_one(self, value: object) -> Record | None:
        faults = len(self._faults)
        if not isinstance(value, Members):
            self._refuse("", "is not an object")
            return None
        members = dict(value)
        self._refuse_unknown(members)
        key, content = (self._serialize(name, members.get(name)) for name in ("key", "value"))
        partition = self._read_partition(members.get("partition"))
        return self._record(key, content, partition) if len(self._faults) == faults else None

    def _read_one_in_steps(self, text: bytes) -> Generator[None, None, Record | None]:
        faults = len(self._faults)
        if not text.startswith(b"{"):
            self._refuse("", "is not an object")
            return None
        found = first_members(text, most=_MOST_MEMBERS + 1)
        yield
        if len(found) > _MOST_MEMBERS:
            self._refuse("", f"has more than {_MOST_MEMBERS} members; a record has {_RECORD_MEMBERS} only")
            return None
        members = {json.loads(name): value for name, value in found}
        self._refuse_unknown(members)
        key = yield from self._serialize_in_steps("key", members.get("key", _NULL))
        content = yield from self._serialize_in_steps("value", members.get("value", _NULL))
        partition = self._read_partition(_parse(emptied(members.get("partition", _NULL))))
        return self._record(key, content, partition) if len(self._faults) == faults else None

    def _record(self, key: bytes | None, value: bytes | None, partition: int | None) -> Record:
        return Record(
            topic=self._topic,
            key=key,
            value=value,
            timestamp_ms=self._timestamp_ms,
            headers=self._headers,
            partition=partition,
        )

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in ("key", "value", "partition"):
                shown = _shown(name)
                self._refuse(f"/{shown}", f'has a member "{shown}"; a record has {_RECORD_MEMBERS} only')

    def _read_partition(self, value: object) -> int | None:
        if value is None:
            return self._partition
        if (
            isinstance(value, Number)
            and float(value).is_integer()
            and 0 <= float(value) <= _HIGHEST_PARTITION
        ):
            return int(float(value))
        self._refuse(
            "/partition",
            f'has a "partition" that is none; that is an integer from 0 to {_HIGHEST_PARTITION}, or null',
        )
        return None

    def _serialize(self, name: str, value: object) -> bytes | None:
        if value is None:
            return None
        try:
            if self._embedded is EmbeddedFormat.JSON:
                return write(value)
            return _decode_base64(value)
        except RecursionError as error:
            raise _not_json(error, "") from error
        except (ValueError, TypeError) as error:
            self._refuse_content(name, error)
            return None

    def _serialize_in_steps(self, name: str, text: bytes) -> Generator[None, None, bytes | None]:
        if text == _NULL:
            return None
        try:
            if self._embedded is EmbeddedFormat.JSON:
                return (yield from write_in_steps(text))
            return _decode_base64(_parse(emptied(text)))
        except (ValueError, TypeError) as error:
            self._refuse_content(name, error)
            return None

    def _refuse_content(self, name: str, error: Exception) -> None:
        if isinstance(error, NumberTooLarge):
            why = f'has a number in its "{name}" that is too large for a double'
        elif isinstance(error, TypeError):
            why = f'has a "{name}" that is not a string of base64'
        else:
            why = f'has a "{name}" that is not base64 (RFC 4648, section 4)'
        self._refuse(f"/{name}", why, is_content=True)

    def _refuse(self, pointer: str, why: str, *, is_content: bool = False) -> None:
        self._only_content = self._only_content and is_content
        self._faults.append(Fault(f"/records/{self.count}{pointer}", f"records[{self.count}] {why}."))


def _parse(text: bytes) -> Any:
    return json.loads(
        text,
        object_pairs_hook=Members,
        parse_float=Number,
        parse_int=Number,
        parse_constant=_refuse_constant,
    )


def _decode_base64(text: object) -> bytes:
    """
    Decode as ``com.google.common.io.BaseEncoding.base64()`` does: any padding, or none; nothing in between.

    :raise TypeError: it is not a string.
    :raise ValueError: it is not base64.
    """
    if not isinstance(text, str) or isinstance(text, Number):
        raise TypeError
    digits = text.rstrip("=")
    if not digits.isascii() or digits.encode("ascii").translate(None, _BASE64) or len(digits) % 4 == 1:
        raise ValueError(text)
    return b64decode(digits + "=" * (-len(digits) % 4))


def _not_json(error: Exception | None, why: str) -> MalformedMessage:
    if isinstance(error, RecursionError):
        why = "it is nested too deeply"
    elif isinstance(error, UnicodeDecodeError):
        why = "it is not UTF-8"
    return MalformedMessage(f"The body is not JSON{f': {why}' if why else ''}.")


def _too_long(number: int, most: int) -> InvalidMessage:
    return InvalidMessage(
        [
            Fault(
                f"/records/{number}",
                f"records[{number}] has more than {most} bytes, which is the most for one record.",
            )
        ]
    )


def _reason(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ")


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedMessage(f"The body is not JSON: {name} is not a JSON value.")


def _shown(name: str) -> str:
    short = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in short)
