"""
The formats of a line of the access log: caller, request and answer.

Text from clients is escaped, so that it cannot end a field or a line. Queries are left out, since they hold
the keys of records.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from sampleapp.web import Batch, Exchange, Response, StreamEnd

__all__ = ["combined_line", "json_access_line"]

# As Apache escapes: anything but printable ASCII, quotation marks, and the backslash itself.
_SPECIAL: Final = re.compile(r'[^ -~]|["\\]')
_SPECIAL_OR_BLANK: Final = re.compile(r'[^!-~]|["\\]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def combined_line(
    exchange: Exchange, response: Response, elapsed_s: float, ended_s: float, end: StreamEnd | None = None
) -> str:
    """
    Write a line in Apache's format "combined", with more fields after it.

    :param elapsed_s: seconds from the head of the request to the response, or to the end of a stream.
    :param ended_s: the time of the response or the end, in seconds since the epoch.
    :param end: of a response that was sent in chunks.
    """
    head, record = exchange.head, response.record
    started_s = ended_s - elapsed_s
    length = response.length if end is None else end.bytes_sent
    if head is None:
        request, referer, agent = "-", "-", "-"
    else:
        request = f"{head.method.decode('latin-1')} {_quoted(head.path)} HTTP/1.{1 if head.is_1_1 else 0}"
        values = head.fields.joined
        referer, agent = _without_query(values(b"referer")), _quoted(values(b"user-agent"))
        if head.method == b"HEAD":
            length = 0
    caller = _word(exchange.caller.encode("utf-8", "backslashreplace"))
    if record is not None:
        where = f"{record.topic} {record.partition} {record.offset} 1"
    elif (replayed := response.replayed) is not None:
        where = f"{replayed.topic} {replayed.partition} {replayed.offset} 0"
    else:
        topic, records = _of_batch(response.batch)
        where = f"{topic or '-'} - - {'-' if records is None else records}"
    ended_by = "-" if end is None else end.reason
    return (
        f"{exchange.peer.host or '-'} - {caller} {_apache_time(int(started_s))} "
        f'"{request}" {int(response.status)} {length or "-"} "{referer}" "{agent}" '
        f"{_word(exchange.request_id)} {elapsed_s:.6f} {exchange.route or '-'} {where} {ended_by}\n"
    )


class _Line(Struct, omit_defaults=True, gc=False):
    """One request as JSON; missing values are left out."""

    time: str
    status: int
    bytes: int
    seconds: float
    request_id: str
    client: str = ""
    caller: str = ""
    method: str = ""
    path: str = ""
    route: str = ""
    protocol: str = ""
    topic: str = ""
    partition: int | None = None
    offset: int | None = None
    records: int | None = None
    referer: str = ""
    user_agent: str = ""
    ended_by: str = ""


_encode = msgspec.json.Encoder().encode


def json_access_line(
    exchange: Exchange, response: Response, elapsed_s: float, ended_s: float, end: StreamEnd | None = None
) -> str:
    """
    Write a line of JSON.

    :param elapsed_s: seconds from the head of the request to the response, or to the end of a stream.
    :param ended_s: the time of the response or the end, in seconds since the epoch.
    :param end: of a response that was sent in chunks.
    """
    head, record = exchange.head, response.record
    started_s = ended_s - elapsed_s
    whole_s = int(started_s)
    line = _Line(
        f"{_rfc3339_time(whole_s)}.{int((started_s - whole_s) * 1000):03d}Z",
        int(response.status),
        response.length,
        round(elapsed_s, 6),
        exchange.request_id.decode("latin-1"),
        exchange.peer.host,
        _with_utf8_form(exchange.caller),
    )
    line.route = exchange.route
    if end is not None:
        line.bytes, line.ended_by = end.bytes_sent, end.reason
    if head is not None:
        line.method = head.method.decode("latin-1")
        line.path = head.path.decode("latin-1")
        line.protocol = "HTTP/1.1" if head.is_1_1 else "HTTP/1.0"
        referer, agent = head.fields.joined(b"referer"), head.fields.joined(b"user-agent")
        if referer is not None:
            line.referer = referer.partition(b"?")[0].decode("ascii", "backslashreplace")
        if agent is not None:
            line.user_agent = agent.decode("ascii", "backslashreplace")
        if head.method == b"HEAD":
            line.bytes = 0
    if record is not None:
        line.topic, line.partition, line.offset = record.topic, record.partition, record.offset
        line.records = 1
    elif (replayed := response.replayed) is not None:
        line.topic, line.partition, line.offset = replayed.topic, replayed.partition, replayed.offset
        line.records = 0
    else:
        line.topic, line.records = _of_batch(response.batch)
    return _encode(line).decode("utf-8") + "\n"


def _of_batch(batch: Batch | None) -> tuple[str, int | None]:
    """Return the topic, if there is only one, and the number of published records."""
    if batch is None:
        return "", None
    return batch.published[0].topic if len(batch.published) == 1 else "", batch.records


def _quoted(value: bytes | None) -> str:
    """Escape a value for use between quotation marks."""
    if value is None:
        return "-"
    text = value.decode("latin-1")
    return text if _SPECIAL.search(text) is None else _SPECIAL.sub(_escape, text)


def _without_query(url: bytes | None) -> str:
    return "-" if url is None else _quoted(url.partition(b"?")[0])


def _word(value: bytes) -> str:
    """Escape a value for use without quotation marks."""
    if not value:
        return "-"
    text = value.decode("latin-1")
    return text if _SPECIAL_OR_BLANK.search(text) is None else _SPECIAL_OR_BLANK.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT.get(character) or f"\\x{ord(character):02x}"


def _with_utf8_form(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


@lru_cache(maxsize=4)
def _apache_time(seconds: int) -> str:
    when = time.gmtime(seconds)
    # strftime("%b") would follow the locale.
    return time.strftime(f"[%d/{_MONTHS[when.tm_mon - 1]}/%Y:%H:%M:%S +0000]", when)


@lru_cache(maxsize=4)
def _rfc3339_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
