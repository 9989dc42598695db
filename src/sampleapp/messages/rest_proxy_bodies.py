"""
Parsing of produce requests, as clients of Confluent REST Proxy's API v2 send them.

A compiled decoder reads the whole body in one step, and creates no objects for keys and values. Only a body
that it rejects is read again, to name the faults. Records are created in slices, between which the reactor
serves other connections.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Generator, Iterator
from enum import Enum
from itertools import islice
from typing import Annotated, Final, Generic, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from sampleapp.errors import Fault, InvalidMessage, MalformedMessage, shown
from sampleapp.messages.parsing import RecordHeaders
from sampleapp.model import Record

LOOKED_AT: Final = 1024 * 1024
"""Bytes of a body in which `is_envelope` looks for members that an envelope does not have: up to 5 ms."""

_RECORDS_LOOKED_AT: Final = 10_000

MOST_RECORDS: Final = 20_000
"""The most records of one request: the decoder reads these in 5 ms, and a million tiny ones in 60."""

MOST_COMMAS: Final = 250_000
"""
The most commas of one request, and so of its values and members.

The decoder reads these in 8 ms, and the two million that have room in 4 MiB in up to 17.
"""

MOST_ESCAPES: Final = 140_000
"""
The most backslashes of one request with base64, and so of its line breaks.

Lines with so many are decoded in up to 8 ms. In 4 MiB there is room for 65,000 line breaks of two escapes,
one after each 64 digits.
"""

_SMALL: Final = 64 * 1024
"""A body of up to this many bytes is read in one step, and all its faults are named."""
_RECORDS_AT_ONCE: Final = 1000
"""Records that are created in one step: up to a millisecond or two, with keys and values in base64."""
_MOST_FAULTS: Final = 100
_LONGEST_REASON: Final = 120
_HIGHEST_PARTITION: Final = 2**31 - 1
_SCHEMA_MEMBERS: Final = ("key_schema", "key_schema_id", "value_schema", "value_schema_id")
_CUT_OFF: Final = "truncated"
"""A word in the decoder's message about a body that ends too early."""
_TOO_MANY_COMMAS: Final = (
    f"The body has more than {MOST_COMMAS} commas, which is the most for one request; send several requests."
)
_TOO_MANY_ESCAPES: Final = (
    f"The body has more than {MOST_ESCAPES} backslashes, which is the most for one request with base64; send "
    "base64 without line breaks, or several requests."
)
_MEMBERS_OF_RECORD: Final = 'a record has "value", "key" and "partition" only'
_WRONG_PARTITION: Final = f'has a "partition" that is not an integer from 0 to {_HIGHEST_PARTITION}, or null'
_WHITE_SPACE: Final = (b" ", b"\n", b"\t", b"\r")
_NULL: Final = b"null"
_ABSENT: Final = Raw(_NULL)

_T = TypeVar("_T")
# A whole number may be written with a fraction, as 842.0: JSON Schema and Jackson take it for an integer.
_Partition: TypeAlias = (
    Annotated[int, Meta(ge=0, le=_HIGHEST_PARTITION)]
    | Annotated[float, Meta(ge=0, le=_HIGHEST_PARTITION, multiple_of=1)]
    | None
)


class EmbeddedFormat(Enum):
    """The format of the keys and values of a request."""

    BINARY = "binary"
    """Strings of base64 (RFC 4648, section 4). A record has the decoded bytes."""
    JSON = "json"
    """Any JSON. A record has its text as the caller wrote it, without the white space between tokens."""


class Unserializable(InvalidMessage):
    """The form of the request is right, but some of its keys or values are not in the format."""


class _TooManyRecords(Exception):
    """A body has more than `MOST_RECORDS`."""


class _Record(Struct, forbid_unknown_fields=True, gc=False):
    key: Raw = _ABSENT
    value: Raw = _ABSENT
    partition: _Partition | UnsetType = UNSET


class _CountedRecord(_Record, gc=False):
    """A record that counts itself, and stops the decoder when there are too many."""

    def __post_init__(self) -> None:
        _Count.left -= 1
        if _Count.left < 0:
            raise _TooManyRecords


class _Count:
    left = 0
    """The number of further records that a body may have. Set before it is decoded."""


class _Request(Struct, Generic[_T], forbid_unknown_fields=True):
    records: list[_T]
    # As in REST Proxy, schemas are ignored: no record of these formats has one.
    key_schema: Raw = _ABSENT
    key_schema_id: Raw = _ABSENT
    value_schema: Raw = _ABSENT
    value_schema_id: Raw = _ABSENT


class _RecordOfEnvelope(Struct, forbid_unknown_fields=True, gc=False):
    """A record whose members may have any values. It counts itself as `_CountedRecord` does."""

    key: Raw = _ABSENT
    value: Raw = _ABSENT
    partition: Raw = _ABSENT

    def __post_init__(self) -> None:
        _Count.left -= 1
        if _Count.left < 0:
            raise _TooManyRecords


begins_like_envelope: Final = re.compile(
    rb'(?:\xef\xbb\xbf)?[ \t\r\n]*+\{[ \t\r\n]*+"(?:records|(?:key|value)_schema(?:_id)?)"'
).match
"""Called with a body; `is_envelope` need not be called for most others."""

_decode_envelope: Final = msgspec.json.Decoder(_Request[_RecordOfEnvelope]).decode
_decode: Final = msgspec.json.Decoder(_Request[_Record]).decode
# Counting costs as much as decoding, so it is done only where there may be too many.
_decode_and_count: Final = msgspec.json.Decoder(_Request[_CountedRecord]).decode
_require_json: Final = msgspec.json.Decoder(Raw).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_string: Final = msgspec.json.Decoder(str).decode
_decode_base64: Final[Callable[[bytes | Raw], bytes | None]] = msgspec.json.Decoder(bytes | None).decode
_decode_partition: Final = msgspec.json.Decoder(_Partition).decode


def is_envelope(body: bytes) -> bool:
    """
    Check whether a body of any media type is what only clients of REST Proxy send: records in an envelope.

    That is a JSON object with ``records``, an array of objects that have no members but ``key``, ``value``
    and ``partition``, perhaps with the members for schemas, and nothing else.

    When in doubt, it is true: for a body of more than `LOOKED_AT` bytes, or of 10,000 records, if nothing up
    to there contradicts; for one that is nested too deeply; and for one that may have a lone surrogate, which
    is JSON, but which the decoder rejects.
    """
    if not begins_like_envelope(body):
        return False
    is_whole = len(body) <= LOOKED_AT
    beginning = (body if is_whole else body[:LOOKED_AT]).removeprefix(codecs.BOM_UTF8)
    _Count.left = _RECORDS_LOOKED_AT
    try:
        _decode_envelope(beginning)
    except msgspec.ValidationError:
        return False
    except (_TooManyRecords, RecursionError):
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        # It is not JSON, or it is cut off, or it has a surrogate.
        return not is_whole or rb"\ud" in beginning or rb"\uD" in beginning
    return True


def read_records(
    body: bytes,
    embedded: EmbeddedFormat,
    *,
    topic: str,
    partition: int | None,
    timestamp_ms: int,
    headers: RecordHeaders = (),
) -> Iterator[list[Record]]:
    """
    Read the records of a produce request, a slice at a time.

    :param body: ``{"records": [{"key": …, "value": …, "partition": …}, …]}`` in UTF-8. A member of a record
        that is null is the same as an absent one.
    :param embedded: the format of its keys and values.
    :param partition: the partition for records that name none.
    :param timestamp_ms: the timestamp of all records.
    :return: the records in order; an empty slice where another step ends. Errors may come after some of the
        records.
    :raise MalformedMessage: the body is not JSON.
    :raise InvalidMessage: the body has too many values or escapes; or it is JSON, but not a produce request.
        Names up to a hundred faults; of a body of more than 64 KiB, the first only.
    :raise Unserializable: only keys and values are wrong. Names up to a hundred faults.
    """
    request = yield from _read_request(body, embedded)
    found = request.records
    schemas = request.key_schema, request.key_schema_id, request.value_schema, request.value_schema_id
    # Of a repeated member, the decoder keeps the last. But each has a colon after its name.
    colons = 1 + sum([1 + bytes(each).count(b":") for each in schemas if each is not _ABSENT])
    faults: list[Fault] = []
    for start in range(0, len(found), _RECORDS_AT_ONCE):
        some = found[start : start + _RECORDS_AT_ONCE]
        if embedded is EmbeddedFormat.JSON:
            contents = [(_text(each.key), _text(each.value)) for each in some]
        else:
            contents = [
                (_base64(faults, n, "key", each.key), _base64(faults, n, "value", each.value))
                for n, each in enumerate(some, start)
            ]
        if len(faults) >= _MOST_FAULTS:
            break
        colons += 3 * len(some) - sum([each.key is _ABSENT for each in some])
        colons -= sum([each.value is _ABSENT for each in some])
        colons -= sum([each.partition is UNSET for each in some])
        if embedded is EmbeddedFormat.JSON:
            colons += b"".join([text for content in contents for text in content if text]).count(b":")
        yield [
            Record(
                topic=topic,
                key=key,
                value=value,
                timestamp_ms=timestamp_ms,
                headers=headers,
                partition=partition
                if each.partition is UNSET or each.partition is None
                else int(each.partition),
            )
            for each, (key, value) in zip(some, contents, strict=True)
        ]
    if faults:
        raise Unserializable(faults[:_MOST_FAULTS])
    if colons != body.count(b":"):
        raise InvalidMessage([Fault("", "A member of the request, or of a record, is there more than once.")])


def _read_request(body: bytes, embedded: EmbeddedFormat) -> Generator[list[Record], None, _Request[_Record]]:
    """
    Decode a request, with an empty slice where another step ends.

    :raise MalformedMessage: the body is not JSON.
    :raise InvalidMessage: the body is not a produce request; see `read_records`.
    """
    is_small = len(body) <= _SMALL
    try:
        # The decoder does not look at the bytes of keys and values.
        body.decode()
        if body.count(b",") > MOST_COMMAS:
            raise InvalidMessage([Fault("", _TOO_MANY_COMMAS)])
        if embedded is EmbeddedFormat.BINARY and body.count(b"\\") > MOST_ESCAPES:
            raise InvalidMessage([Fault("", _TOO_MANY_ESCAPES)])
        if embedded is EmbeddedFormat.JSON and any(each in body for each in _WHITE_SPACE):
            if not is_small:
                yield []
            body = msgspec.json.format(body, indent=-1)
        if not is_small:
            yield []
        try:
            request = _decode_request(body)
        except (msgspec.ValidationError, _TooManyRecords) as error:
            if not is_small:
                yield []
            _require_json(body)
            names_all = is_small and isinstance(error, msgspec.ValidationError)
            # Of a repeated member, only the last is looked at for its faults.
            faults = _name_faults(body, embedded) if names_all else []
            raise InvalidMessage(faults or [_first_fault(error)]) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(body, error) from error
    if not request.records:
        raise InvalidMessage([Fault("/records", '"records" is empty; a request has at least one record.')])
    return request


def _decode_request(body: bytes) -> _Request[_Record]:
    """
    Decode a request.

    :raise _TooManyRecords: the body has more than `MOST_RECORDS`, and may not be JSON.
    :raise msgspec.ValidationError: the body is not a produce request, and may not be JSON.
    :raise msgspec.DecodeError: the body is not JSON.
    """
    if body.count(b"{") <= MOST_RECORDS:
        return _decode(body)
    _Count.left = MOST_RECORDS
    return cast("_Request[_Record]", _decode_and_count(body))


def _text(content: Raw) -> bytes | None:
    return None if content is _ABSENT or (text := bytes(content)) == _NULL else text


def _base64(faults: list[Fault], number: int, name: str, content: Raw) -> bytes | None:
    """
    Decode base64 with padding (RFC 4648, section 4). Line breaks may be between groups of four digits.

    REST Proxy takes line breaks, too, since Jackson decodes in the manner of MIME (RFC 2045, section 6.8).

    :param faults: gets a fault if the content is neither base64 nor null.
    """
    try:
        return _decode_base64(content)
    except msgspec.DecodeError:
        # Perhaps there are line breaks, or another escape than msgspec's decoder of base64 knows.
        text = bytes(content)
    if not text.startswith(b'"'):
        faults.append(_fault(number, f"/{name}", f'has a "{name}" that is not a string of base64'))
        return None
    if b"\\" in text:
        lines = _decode_string(text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        try:
            if not any(length % 4 for length in set(map(len, lines))):
                return msgspec.convert("".join(lines), bytes)
        except msgspec.ValidationError:
            pass
    wrong = f'has a "{name}" that is not base64 with padding (RFC 4648, section 4)'
    faults.append(_fault(number, f"/{name}", wrong))
    return None


def _name_faults(body: bytes, embedded: EmbeddedFormat) -> list[Fault]:
    """Name all faults of a request, up to a hundred."""
    try:
        members = _decode_members(body)
    except msgspec.ValidationError:
        return [Fault("", 'A request is a JSON object such as {"records": [{"value": "x"}]}.')]
    faults = [
        Fault(
            f"/{shown(name)}",
            f'"{shown(name)}" is not a member of a request; it has "records", and may have '
            '"key_schema", "key_schema_id", "value_schema" and "value_schema_id".',
        )
        for name in members
        if name != "records" and name not in _SCHEMA_MEMBERS
    ]
    records = bytes(members.get("records", b""))
    if not records:
        faults.insert(0, Fault("/records", '"records" is missing; a request must have it.'))
    elif not records.startswith(b"["):
        faults.insert(0, Fault("/records", '"records" must be an array.'))
    else:
        faults += islice(_record_faults(records, embedded), _MOST_FAULTS)
    return faults[:_MOST_FAULTS]


def _record_faults(records: bytes, embedded: EmbeddedFormat) -> Iterator[Fault]:
    for number, record in enumerate(_decode_list(records)):
        try:
            members = _decode_members(record)
        except msgspec.ValidationError:
            yield _fault(number, "", "is not an object")
            continue
        for name, value in members.items():
            if name == "partition":
                try:
                    _decode_partition(value)
                except msgspec.ValidationError:
                    yield _fault(number, "/partition", _WRONG_PARTITION)
            elif name not in ("key", "value"):
                yield _fault(number, f"/{shown(name)}", f'has a member "{shown(name)}"; {_MEMBERS_OF_RECORD}')
            elif embedded is EmbeddedFormat.BINARY:
                faults: list[Fault] = []
                _base64(faults, number, name, value)
                yield from faults


def _fault(number: int, pointer: str, why: str) -> Fault:
    return Fault(f"/records/{number}{pointer}", f"records[{number}] {why}.")


def _first_fault(error: msgspec.ValidationError | _TooManyRecords) -> Fault:
    """Name a fault in the words of the decoder, such as ``Expected `array`, got `int` - at `$.records` ``."""
    if isinstance(error, _TooManyRecords):
        return Fault("/records", f'"records" has more than {MOST_RECORDS} records.')
    reason, _, place = str(error).rpartition(" - at `$.")
    path, reason = (place.rstrip("`"), reason) if reason else ("", place)
    pointer = "".join(f"/{each}" for each in re.findall(r"\w+", path[:_LONGEST_REASON]))
    return Fault(pointer, f"{shown(path) or 'The request'}: {shown(reason, _LONGEST_REASON)}.")


def _not_json(body: bytes, error: Exception) -> MalformedMessage:
    if isinstance(error, RecursionError):
        why = "it is nested too deeply"
    elif isinstance(error, UnicodeDecodeError):
        why = "it is not UTF-8"
    elif not body.strip():
        why = "it is empty"
    elif _CUT_OFF in str(error):
        # The decoder says the same of half a pair of surrogates shortly before the end.
        why = "it ends too early" + (", or with a lone surrogate" if rb"\u" in body[-12:] else "")
    else:
        why = str(error).removeprefix("JSON is malformed: ")
    return MalformedMessage(f"The body is not JSON: {why}.")
