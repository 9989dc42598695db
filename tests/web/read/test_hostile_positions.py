"""Positions and lists of partitions that are wrong or very long, through the whole service."""

from __future__ import annotations

import json
import tracemalloc
from urllib.parse import quote

import pytest

from sampleapp.web.read.registry import StreamKind
from tests.support.event_streams import EventReader
from tests.support.in_memory import request_bytes
from tests.support.record_pages import PATH, PageService
from tests.support.streams import body_of, unchunked

STREAM = (b"Accept", b"text/event-stream")

RECORDS = ["message"] * 6
"""The events of everything that the topic has."""
LONGEST = 4096
GREATEST = 2**63 - 1


def position(count, *, offset="0", topic_id="id0"):
    """A position that names a number of partitions."""
    return f"{topic_id}~" + ".".join([offset] * count)


def ask(query="", *headers):
    """The status, the kind of the problem with its pointers, or the names of the events."""
    service = PageService(partitions=2)
    for _ in range(3):
        service.topic.append(0)
        service.topic.append(1)
    connection = service.connect()
    tracemalloc.start()
    connection.send(request_bytes("GET", PATH + query, headers))
    service.run(0.3)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 2_000_000
    assert service.topic.reads <= 3
    sent = connection.sent
    assert len(sent) < 2 * LONGEST
    status = int(sent[9:12])
    if status >= 400:
        assert service.gateway.streams.numbers[StreamKind.RECORDS].open == 0
        problem = json.loads(sent.partition(b"\r\n\r\n")[2])
        pointers = [fault["pointer"] for fault in problem.get("errors", ())]
        return status, problem["type"].rpartition(":")[2], *pointers
    if STREAM not in headers:
        return (status,)
    reader = EventReader()
    reader.feed(unchunked(body_of(sent))[0])
    return status, *(event.event for event in reader.events)


INVALID = (422, "invalid-parameters")
TOO_LARGE = (431, "blank")
UNKNOWN = (410, "position-unknown")
REPLACED = (410, "topic-replaced")


@pytest.mark.parametrize(
    ("text", "in_query", "as_id"),
    [
        (position(10_000), TOO_LARGE, TOO_LARGE),
        (position(3_000), INVALID, INVALID),
        (position(2_046), UNKNOWN, (200, "reset", *RECORDS)),
        (position(2_045, topic_id="other"), REPLACED, (200, "reset", *RECORDS)),
        (position(200, offset="9" * 18), UNKNOWN, (200, "reset", *RECORDS)),
        (position(2_000, offset="-"), UNKNOWN, INVALID),
        (position(4_093, offset=""), (200,), (200, *RECORDS)),
        (position(4_092, offset="") + "1", UNKNOWN, (200, "reset", *RECORDS)),
        (position(4_094, offset=""), INVALID, INVALID),
        (position(2, topic_id="other"), REPLACED, (200, "reset", *RECORDS)),
        (position(1, offset=str(GREATEST)), UNKNOWN, (200, "reset", *RECORDS)),
        (position(1, offset=str(GREATEST + 1)), INVALID, INVALID),
        (position(1, offset="9" * 20), INVALID, INVALID),
        (position(1, offset="9" * 4000), INVALID, INVALID),
        (position(1, topic_id="x" * 17), INVALID, INVALID),
        (position(1, topic_id=""), INVALID, INVALID),
        ("id0~\N{ARABIC-INDIC DIGIT ONE}", INVALID, INVALID),
        ("id0~-1", INVALID, INVALID),
        ("id0~0~0", INVALID, INVALID),
    ],
    ids=lambda value: f"{value[:20]}({len(value)})" if isinstance(value, str) else "",
)
def test_any_position_gets_a_clear_answer_or_an_event_and_costs_little(text, in_query, as_id):
    def with_pointer(expected, pointer):
        return (*expected, pointer) if expected == INVALID else expected

    query = quote(text, safe="~.-")
    assert ask(f"?from={query}") == with_pointer(in_query, "/from")
    as_stream = in_query if in_query[0] >= 400 else as_id
    assert ask(f"?from={query}", STREAM) == with_pointer(as_stream, "/from")
    assert ask(f"?last_event_id={query}", STREAM) == with_pointer(as_id, "/last_event_id")
    header = b"Last-Event-ID", text.encode()
    assert ask("", STREAM, header) == with_pointer(as_id, "/Last-Event-ID")


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ("0-2147483647", INVALID),
        ("2147483647", (404, "unknown-partition")),
        ("2147483648", INVALID),
        ("9999999999", INVALID),
        ("9" * 4000, INVALID),
        ("0-4095", (404, "unknown-partition")),
        ("0-4096", INVALID),
        (",".join(["0-4095"] * 1000), INVALID),
        (",".join(["0"] * 4096), (200,)),
        (",".join(["0"] * 4097), INVALID),
        ("," * 4000, INVALID),
        ("3-0", INVALID),
        ("-" * 4000, INVALID),
    ],
    ids=lambda value: f"{value[:20]}({len(value)})" if isinstance(value, str) else "",
)
def test_any_list_of_partitions_gets_a_clear_answer_and_costs_little(partitions, expected):
    if expected == INVALID:
        expected = (*expected, "/partition")
    assert ask(f"?partition={partitions}") == expected
    assert ask(f"?partition={partitions}", STREAM) == expected
