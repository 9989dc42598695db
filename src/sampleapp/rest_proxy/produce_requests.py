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
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Final, NoReturn

import msgspec
from msgspec import Meta, Struct

from sampleapp.errors import Fault, InvalidMessage, MalformedMessage
from sampleapp.model import Record
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

SLICE_BYTES: Final = 64 * 1024
"""So many bytes are read at once: about half a millisecond."""

_SLOW_SLICE_BYTES: Final = 4 * 1024
"""The same where something is odd, and reading takes many times as long."""

_MOST_FAULTS: Final = 100
_LONGEST_NAME: Final = 40
_LONGEST_TOKEN: Final = 12
"""Of what a decoder refuses where it begins if it is cut off, but for strings: ``\\ud83d\\ude00``."""
_HIGHEST_PARTITION: Final = 2**31 - 1
_SCHEMA_MEMBERS: Final = ("key_schema", "key_schema_id", "value_schema", "value_schema_id")

_WS = rb"[ \t\n\r]*"
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_SCHEMA_MEMBER = rb'"(?:key|value)_schema(?:_id)?"%b:%b(?:%b|-?[0-9]+|null)%b' % (_WS, _WS, _STRING, _WS)
_HEAD = re.compile(
    rb'%b\{%b(?:%b,%b)*"records"%b:%b\[%b' % (_WS, _WS, _SCHEMA_MEMBER, _WS, _WS, _WS, _WS), re.DOTALL
)
_TAIL = re.compile(rb"\]%b(?:,%b%b)*\}%b\Z" % (_WS, _WS, _SCHEMA_MEMBER, _WS), re.DOTALL)
_BETWEEN_RECORDS = re.compile(rb'\}%b,%b(?=\{%b"(?:value|key|partition)")' % (_WS, _WS, _WS))
_COMMA = re.compile(r"[ \t\n\r]*(,?)[ \t\n\r]*")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*")

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
    :return: the records in order. As long as it is not at its end, something may still be wrong.
    :raise MalformedMessage: the body is not JSON.
    :raise InvalidMessage: it is, but not such a request; names what is wrong, up to a hundred times.
    :raise Unserializable: as above, if all that is wrong is in the keys and values.
    """
    body, position, end = _find_list(body)
    if position == end:
        raise InvalidMessage([Fault("/records", '"records" is empty; a request has at least one record.')])
    reader = _Reader(embedded, topic, partition, timestamp_ms, headers)
    most = len(body) if max_record is None else max_record
    size = slice_bytes
    while position < end:
        cut, position_after = _guess_cut(body, position, end, size)
        records = reader.read(body[position:cut]) if cut - position <= most else None
        if records is None:
            # The guess was wrong, or something in the slice is.
            size = min(size, _SLOW_SLICE_BYTES)
            cut, position_after = _find_cut(body, position, end, size, most=most, first=reader.count)
            piece = body[position:cut]
            records = reader.read(piece)
            if records is None:
                records = reader.read_slowly(piece)
        yield records
        position = position_after
        size = min(2 * size, slice_bytes)
    reader.finish()


def _find_list(body: bytes) -> tuple[bytes, int, int]:
    """
    Find the list of records.

    :return: a body, the position of the first byte after the opening bracket, and that of the closing one.
    :raise MessageError: it has none.
    """
    head = _HEAD.match(body)
    if head is not None:
        position = head.end()
        if body.endswith(b"]}"):
            return body, position, max(position, len(body) - 2)
        tail = _TAIL.search(body, max(position, len(body) - SLICE_BYTES))
        if tail is not None:
            return body, position, tail.start()
    return _find_list_slowly(body)


def _find_list_slowly(body: bytes) -> tuple[bytes, int, int]:
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


def _guess_cut(body: bytes, position: int, end: int, slice_bytes: int) -> tuple[int, int]:
    """Return where a slice may end, and where the next one begins then."""
    if end - position > slice_bytes:
        between = _BETWEEN_RECORDS.search(body, position + slice_bytes, end)
        if between is not None:
            return between.start() + 1, between.end()
    return end, end


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
        comma = _COMMA.match(text, cut)
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

    def read_slowly(self, piece: bytes) -> list[Record]:
        """
        Read a slice that ends with a record, and note what is wrong with its records.

        :raise MalformedMessage: it is not JSON.
        :raise InvalidMessage: more is wrong than can be told.
        """
        try:
            values = json.loads(
                b"[%b]" % piece,
                object_pairs_hook=Members,
                parse_float=Number,
                parse_int=Number,
                parse_constant=_refuse_constant,
            )
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
        for name in members:
            if name not in ("key", "value", "partition"):
                self._refuse(
                    f"/{_shown(name)}",
                    f'has a member "{_shown(name)}"; a record has "value", "key" and "partition" only',
                )
        key, content = (self._serialize(name, members.get(name)) for name in ("key", "value"))
        partition = self._read_partition(members.get("partition"))
        if len(self._faults) > faults:
            return None
        return Record(
            topic=self._topic,
            key=key,
            value=content,
            timestamp_ms=self._timestamp_ms,
            headers=self._headers,
            partition=partition,
        )

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
            if isinstance(value, str) and not isinstance(value, Number):
                return _decode_base64(value)
        except NumberTooLarge:
            why = f'has a number in its "{name}" that is too large for a double'
        except RecursionError as error:
            raise _not_json(error, "") from error
        except ValueError:
            why = f'has a "{name}" that is not base64 (RFC 4648, section 4)'
        else:
            why = f'has a "{name}" that is not a string of base64'
        self._refuse(f"/{name}", why, is_content=True)
        return None

    def _refuse(self, pointer: str, why: str, *, is_content: bool = False) -> None:
        self._only_content = self._only_content and is_content
        self._faults.append(Fault(f"/records/{self.count}{pointer}", f"records[{self.count}] {why}."))


def _decode_base64(text: str) -> bytes:
    """
    Decode as ``com.google.common.io.BaseEncoding.base64()`` does: any padding, or none; nothing in between.

    :raise ValueError: it is not base64.
    """
    digits = text.rstrip("=")
    if _BASE64.fullmatch(digits) is None or len(digits) % 4 == 1:
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
