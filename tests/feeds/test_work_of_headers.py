"""
Streams that filter by headers: the work for records in one step is bounded, and each gets what it asks for.

Comparisons of headers are counted, so that no test depends on the machine.
"""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.feeds.broadcast import WORK_AT_ONCE, Selection, Subscribers
from sampleapp.model import ConsumerRecord
from tests.feeds.test_broadcast import Stream
from tests.support.examples import examples

MOST_FILTERS = 8


class CountedHeader(tuple):
    """A header of a record that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other):
        CountedHeader.compared += 1
        return tuple.__eq__(self, other)

    __hash__ = tuple.__hash__


def header(number):
    return f"h{number}", b"x"


def selection_of(number, filters, headers, partitions):
    """Return one of many different selections, with headers that records have."""
    step = 1 + number // headers
    wanted = {header((number + step * n) % headers) for n in range(filters)}
    partition = number % (partitions + 1)
    return Selection(
        "id",
        key=b"k" if number % 7 == 0 else None,
        headers=tuple(sorted(wanted)),
        skipped=frozenset({partition}) if partition else frozenset(),
    )


@examples(30)
@given(
    streams=st.integers(1, 400),
    filters=st.integers(0, MOST_FILTERS),
    headers=st.integers(MOST_FILTERS, 300),
    records=st.lists(
        st.tuples(st.sampled_from([None, b"k", b"other"]), st.integers(0, 300)), min_size=1, max_size=4
    ),
    partitions=st.sampled_from([0, 1, 300]),
)
@example(streams=400, filters=8, headers=300, records=[(None, 300)], partitions=0)
@example(streams=400, filters=8, headers=300, records=[(b"k", 300)], partitions=300)
@example(streams=400, filters=4, headers=12, records=[(b"k", 12)] * 4, partitions=1)
def test_few_headers_are_compared_in_one_step_however_many_streams_ask_for_many_of_them(
    streams, filters, headers, records, partitions
):
    subscribers = Subscribers(make_event=bytes)
    selections = [selection_of(number, filters, headers, partitions) for number in range(streams)]
    joined = [Stream() for _ in selections]
    for stream, selection in zip(joined, selections, strict=True):
        subscribers.join(stream, {0: 0}, selection)
    taken = [
        ConsumerRecord(
            topic="t",
            partition=0,
            offset=offset,
            timestamp_ms=0,
            key=key,
            value=b"",
            headers=tuple(CountedHeader(header(number)) for number in range(count)),
        )
        for offset, (key, count) in enumerate(records)
    ]
    of_one_record = sum(len(record.headers) for record in taken)
    CountedHeader.compared = 0
    work = subscribers.take(0, taken)
    while True:
        assert CountedHeader.compared <= MOST_FILTERS * (WORK_AT_ONCE + 1) + 2 * of_one_record
        assert work <= WORK_AT_ONCE + 1
        if not subscribers.is_taking:
            break
        CountedHeader.compared = 0
        work = subscribers.take_some()
    while subscribers.is_busy:
        subscribers.pass_on(99)
    for stream, selection in zip(joined, selections, strict=True):
        assert stream.offsets == [
            record.offset
            for record in taken
            if selection.has(0)
            and selection.key in (None, record.key)
            and set(selection.headers) <= set(map(tuple, record.headers))
        ]


def test_who_leaves_or_is_detached_while_records_are_taken_is_before_them():
    subscribers = Subscribers(make_event=bytes)
    joined = [Stream() for _ in range(2 * WORK_AT_ONCE)]
    for number, stream in enumerate(joined):
        subscribers.join(stream, {0: 0}, Selection("id", headers=(("a", b"b"), (f"{number}", b""))))
    headers = (("a", b"b"), *((f"{number}", b"") for number in range(len(joined))))
    record = ConsumerRecord(
        topic="t", partition=0, offset=0, timestamp_ms=0, key=None, value=b"", headers=headers
    )
    subscribers.take(0, [record])
    assert subscribers.is_taking
    subscribers.leave(joined[0])
    subscribers.leave(joined[-1])
    subscribers.retire_all(is_reset=False)
    assert not subscribers.is_taking
    while subscribers.is_busy:
        subscribers.pass_on(99)
    assert {stream.position for stream in joined} == {b"id~0"}
    assert [stream.ends for stream in joined[1:-1]] == [[False]] * (len(joined) - 2)
    assert not subscribers
