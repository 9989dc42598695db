"""Parsing of the query of a request that reads a topic: a page of records, or a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, TypeVar

from msgspec import Struct

from sampleapp.errors import Fault, InvalidParameters, shown
from sampleapp.messages.queries import decoded_parameters, parameters_of_get, unknown_parameters
from sampleapp.messages.timestamps import EARLIEST_NUMBER, InvalidTimestamp, parse_timestamp
from sampleapp.model import EARLIEST, FromEnd, FromOffset, FromTime, Start
from sampleapp.records.positions import InvalidPosition, Position, parse_position

MOST_RECORDS: Final = 10_000
"""The greatest limit of a page."""
DEFAULT_LIMIT: Final = 500
LONGEST_WAIT_S: Final = 60
MOST_HEADER_FILTERS: Final = 8
"""The most headers for which each record is searched."""
MOST_PARTITIONS: Final = 4096
"""The most partitions that a request may name. A position has no room for more."""

_GREATEST_PARTITION: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_PARTITIONS: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", re.ASCII)
_COUNTED: Final = re.compile(r"(offset:|-|)([0-9]{1,19})", re.ASCII)
_GREATEST_OFFSET: Final = 2**63 - 1
_OFFSET_OF_TIME: Final = re.compile(r" (?=[0-9]{2}:[0-9]{2}\Z)", re.ASCII)
"""The plus sign of an offset, which a query has turned into a space."""
_LONGEST_SHOWN: Final = 60

_LATEST: Final = FromEnd(0)
_OF_BOTH: Final = (b"from", b"partition", b"key", b"key_hex", b"header")
_OF_PAGES: Final = (*_OF_BOTH, b"limit", b"wait")
_OF_STREAMS: Final = (*_OF_BOTH, b"last_event_id", b"lastEventId")
_WHERE: Final = {
    b"limit": 'It is for pages; this is a stream, since "Accept" asks for text/event-stream',
    b"wait": 'It is for pages; this is a stream, since "Accept" asks for text/event-stream',
    **dict.fromkeys(
        (b"last_event_id", b"lastEventId"),
        'It is for streams; this is a page. Send "Accept: text/event-stream", or use "from"',
    ),
}
"""Why a parameter is rejected that the other representation has."""

T = TypeVar("T")


class PageParameters(Struct, frozen=True, kw_only=True):
    """The parameters of a page."""

    start: Position | Start = EARLIEST
    """Where to begin."""
    partitions: tuple[int, ...] | None = None
    """The only partitions to read, ascending; ``None`` for all."""
    key: bytes | None = None
    """Return only records with this key; ``None`` for all records."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """Return only records with all of these headers, ascending."""
    limit: int = DEFAULT_LIMIT
    """The most records of the page: 1 to `MOST_RECORDS`."""
    wait_s: int = 0
    """Seconds to wait for a first record: 0 to `LONGEST_WAIT_S`."""


class StreamParameters(Struct, frozen=True, kw_only=True):
    """The parameters of a stream."""

    start: Position | Start = _LATEST
    """Where to begin."""
    partitions: tuple[int, ...] | None = None
    """The only partitions to read, ascending; ``None`` for all."""
    key: bytes | None = None
    """Send only records with this key; ``None`` for all records."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """Send only records with all of these headers, ascending."""
    source: str = "from"
    """The name of the parameter or of the header field that `start` is from."""

    @property
    def resumes(self) -> bool:
        """True if `start` is the id of the last event that the client has seen."""
        return self.source != "from" and isinstance(self.start, Position)


def read_page_parameters(query: bytes) -> PageParameters:
    """
    Read the query of a page.

    :param query: as it was sent, without the question mark.
    :raise InvalidParameters: names all faults.
    """
    if not query:
        return PageParameters()
    faults: list[Fault] = []
    values = _values(query, _OF_PAGES, faults)
    parameters = PageParameters(
        start=_read_start(values, faults, EARLIEST),
        partitions=_read(values, b"partition", _partitions, faults, None),
        key=_key(values, faults),
        headers=_headers(query, values, faults),
        limit=_read(values, b"limit", _limit, faults, DEFAULT_LIMIT),
        wait_s=_read(values, b"wait", _wait, faults, 0),
    )
    _check_position(parameters.start, parameters.partitions, "from", faults)
    if faults:
        raise InvalidParameters(faults)
    return parameters


def read_stream_parameters(query: bytes, last_event_ids: Sequence[bytes] = ()) -> StreamParameters:
    """
    Read the query of a stream.

    An empty id of the last event is as none: clients that have seen no id send one.

    :param query: as it was sent, without the question mark.
    :param last_event_ids: the values of all fields ``Last-Event-ID`` of the request. Such an id takes
        precedence over the parameter ``lastEventId``, which polyfills of ``EventSource`` append to the URL
        when they come back, this over ``last_event_id``, and all over ``from``.
    :raise InvalidParameters: names all faults.
    """
    faults: list[Fault] = []
    values = _values(query, _OF_STREAMS, faults)
    start = _read_start(values, faults, _LATEST)
    source = "from"
    for name in (b"last_event_id", b"lastEventId"):
        resumed = _read(values, name, _event_id, faults, None)
        if resumed is not None:
            start, source = resumed, name.decode()
    if len(last_event_ids) > 1:
        faults.append(
            Fault("/Last-Event-ID", f'There are {len(last_event_ids)} fields "Last-Event-ID"; send one.')
        )
    elif last_event_ids:
        value = last_event_ids[0].strip(b" \t")
        resumed = _read({b"Last-Event-ID": value}, b"Last-Event-ID", _event_id, faults, None)
        if resumed is not None:
            start, source = resumed, "Last-Event-ID"
    parameters = StreamParameters(
        start=start,
        partitions=_read(values, b"partition", _partitions, faults, None),
        key=_key(values, faults),
        headers=_headers(query, values, faults),
        source=source,
    )
    _check_position(parameters.start, parameters.partitions, source, faults)
    if faults:
        raise InvalidParameters(faults)
    return parameters


class _Impossible(ValueError):
    """A value of a parameter is impossible. The message is the end of a sentence about it."""


def _values(query: bytes, known: Sequence[bytes], faults: list[Fault]) -> dict[bytes, bytes]:
    """Return the first value of each parameter; add faults for those that repeat or are unknown."""
    values: dict[bytes, bytes] = {}
    counts: dict[bytes, int] = {}
    unknown: dict[bytes, None] = {}
    for name, value in parameters_of_get(query):
        if name in known:
            values.setdefault(name, value)
            counts[name] = counts.get(name, 0) + 1
        else:
            unknown[name] = None
    for name, count in counts.items():
        if count > 1 and name != b"header":
            faults.append(
                Fault(
                    f"/{name.decode()}",
                    f'The parameter "{name.decode()}" is there {count} times; send it once.',
                )
            )
    for name, why in _WHERE.items():
        if name in unknown:
            del unknown[name]
            faults.append(
                Fault(f"/{name.decode()}", f'The parameter "{name.decode()}" means nothing here. {why}.')
            )
    names = ", ".join(f'"{name.decode()}"' for name in known[:-1])
    faults += unknown_parameters(unknown, f'the parameters are {names} and "{known[-1].decode()}"')
    return values


def _read(
    values: dict[bytes, bytes], name: bytes, parse: Callable[[str], T], faults: list[Fault], default: T
) -> T:
    """Parse a value; return the default without one, or if it is impossible, and then add a fault."""
    value = values.get(name)
    if value is None:
        return default
    try:
        return parse(value.decode())
    except UnicodeDecodeError:
        why = "is not UTF-8"
    except (_Impossible, InvalidPosition) as error:
        why = str(error)
    text = name.decode()
    faults.append(Fault(f"/{text}", f'"{text}" {why}.'))
    return default


def _read_start(values: dict[bytes, bytes], faults: list[Fault], default: Start) -> Position | Start:
    start: Position | Start = default
    return _read(values, b"from", _parse_start_of_query, faults, start)


def _parse_start_of_query(text: str) -> Position | Start:
    return parse_start(_OFFSET_OF_TIME.sub("+", text))


def parse_start(text: str) -> Position | Start:
    """
    Parse a start, as in ``from`` of a request and ``--from`` of the command.

    :raise ValueError: it is none; the message says why, as the end of a sentence about it.
    """
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return _LATEST
    if "~" in text:
        return parse_position(text)
    counted = _COUNTED.fullmatch(text)
    if counted is not None and int(counted[2]) <= _GREATEST_OFFSET:
        number = int(counted[2])
        if counted[1]:
            return FromEnd(number) if counted[1] == "-" else FromOffset(number)
        if number >= EARLIEST_NUMBER:
            return FromTime(number)
        # It may be meant as an offset, or as seconds. As milliseconds, it would nearly always be everything.
        raise _Impossible(
            f'is "offset:{number}" for an offset; a time is milliseconds since the epoch in at least 12 '
            f"digits, or a date-time such as 2026-03-01T12:00:00+01:00; {_quoted(text)} is neither"
        )
    try:
        return FromTime(parse_timestamp(text))
    except InvalidTimestamp as error:
        why = str(error) if text[:1].isdigit() else "is none of these"
        raise _Impossible(
            'is "earliest", "latest", "-N" for the last N records of each partition, "offset:N", a time such '
            "as 2026-03-01T12:00:00+01:00, milliseconds since the epoch, or a position from an earlier "
            f"answer; {_quoted(text)} {why}"
        ) from None


def _event_id(text: str) -> Position | Start | None:
    return _parse_start_of_query(text) if text else None


def _partitions(text: str) -> tuple[int, ...]:
    ranges: list[range] = []
    for part in text.split(","):
        match = _PARTITIONS.fullmatch(part)
        if match is None:
            raise _Impossible(
                f'names partitions by their numbers, as in "3" or "0,4-7"; {_quoted(part)} is not one'
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if max(first, last) > _GREATEST_PARTITION:
            raise _Impossible(
                f"has the number {max(first, last)}; partitions are numbered up to {_GREATEST_PARTITION}"
            )
        if last < first:
            raise _Impossible(f"has the range {part}, which ends before it begins; write {last}-{first}")
        ranges.append(range(first, last + 1))
    if sum(map(len, ranges)) > MOST_PARTITIONS:
        raise _Impossible(f"may name up to {MOST_PARTITIONS} partitions")
    return tuple(sorted(set(chain.from_iterable(ranges))))


def _key(values: dict[bytes, bytes], faults: list[Fault]) -> bytes | None:
    if b"key" in values and b"key_hex" in values:
        faults.append(
            Fault("/key_hex", '"key" and "key_hex" are two forms of the same key; send one of them.')
        )
    if b"key" in values:
        return values[b"key"]
    return _read(values, b"key_hex", _from_hex, faults, None)


def _headers(query: bytes, values: dict[bytes, bytes], faults: list[Fault]) -> tuple[tuple[str, bytes], ...]:
    if b"header" not in values:
        return ()
    headers = set()
    for parameter, value in decoded_parameters(query):
        if parameter == b"header":
            name, colon, content = value.partition(b":")
            try:
                headers.add((name.decode(), content))
            except UnicodeDecodeError:
                faults.append(Fault("/header", 'The name in "header" is not UTF-8.'))
            if not colon:
                text = _quoted(value.decode("utf-8", "replace"))
                faults.append(
                    Fault(
                        "/header",
                        f'"header" is a name, a colon and a content, as in "source:shop"; {text} is not.',
                    )
                )
    if len(headers) > MOST_HEADER_FILTERS:
        faults.append(Fault("/header", f'"header" may be there up to {MOST_HEADER_FILTERS} times.'))
    return tuple(sorted(headers))


def _from_hex(text: str) -> bytes | None:
    # bytes.fromhex() takes spaces as well.
    if len(text) % 2 or re.fullmatch(r"[0-9A-Fa-f]*", text, re.ASCII) is None:
        raise _Impossible('has two hexadecimal digits for each byte of the key, as in "6b6579"')
    return bytes.fromhex(text)


def _limit(text: str) -> int:
    return _whole_number(text, 1, MOST_RECORDS)


def _wait(text: str) -> int:
    return _whole_number(text, 0, LONGEST_WAIT_S)


def _whole_number(text: str, least: int, most: int) -> int:
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
        raise _Impossible(f"is a whole number from {least} to {most}; {_quoted(text)} is not")
    return int(text)


def _check_position(
    start: Position | Start, partitions: tuple[int, ...] | None, source: str, faults: list[Fault]
) -> None:
    """Add a fault if the position does not read a partition that is asked for."""
    if partitions is None or not isinstance(start, Position):
        return
    missing = [str(partition) for partition in partitions if partition in start.skipped]
    if missing:
        named = ", ".join(missing[:10]) + (", …" if len(missing) > 10 else "")  # noqa: PLR2004 -- a few are enough
        faults.append(
            Fault(
                f"/{source}",
                f'"partition" asks for partitions that "{source}" does not read, as its "-" say: {named}. '
                "Give a position that has their offsets, or leave them out.",
            )
        )


def _quoted(text: str) -> str:
    return f'"{shown(text, _LONGEST_SHOWN)}"'
