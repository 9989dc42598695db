"""The place of a reader, from the start that its client asked for."""

from __future__ import annotations

import pytest

from sampleapp.model import EARLIEST, ConsumerRecord, FromEnd, GoneRecords, ReadResult
from sampleapp.records.place import Place
from sampleapp.records.positions import parse_position
from tests.support.topic_simulator import TOPIC


def result(positions, *, offsets=(), gone=(), partitions=3):
    records = [
        ConsumerRecord(topic=TOPIC, partition=partition, offset=offset, timestamp_ms=0, key=None, value=None)
        for partition, offset in offsets
    ]
    return ReadResult(
        topic_id="id",
        records=records,
        positions=positions,
        ends=positions,
        gone=gone,
        partitions=partitions,
    )


@pytest.mark.parametrize(
    ("start", "partitions", "starts", "others"),
    [
        (FromEnd(0), None, {}, FromEnd(0)),
        (FromEnd(0), (1, 4), {1: FromEnd(0), 4: FromEnd(0)}, None),
        (parse_position("id~"), None, {}, EARLIEST),
        (parse_position("id~5..7"), None, {0: 5, 2: 7}, EARLIEST),
        (parse_position("id~5..7"), (0, 1), {0: 5, 1: EARLIEST}, None),
        (parse_position("id~5.-..3"), None, {0: 5, 2: EARLIEST, 3: 3}, None),
    ],
)
def test_it_begins_where_the_client_asked_to(start, partitions, starts, others):
    assert Place(start, partitions).starts() == (starts, others)


def test_after_a_result_it_goes_on_at_its_positions_and_new_partitions_at_their_first_record():
    place = Place(FromEnd(0), None)
    place.advance(result({0: 5, 1: 0}))
    assert place.topic_id == "id"
    assert place.starts() == ({0: 5, 1: 0}, EARLIEST)


def test_after_records_that_are_gone_it_goes_on_with_the_first_one_that_is_left():
    place = Place(parse_position("id~5.6"), None)
    place.advance(result({0: 5, 1: 9}, gone=[GoneRecords(0, 5, 8)]))
    assert place.starts() == ({0: 8, 1: 9}, EARLIEST)


def test_without_the_partitions_that_a_position_leaves_out_new_ones_are_read():
    place = Place(parse_position("id~5.-"), None)
    place.advance(result({0: 6}, partitions=3))
    assert place.starts() == ({0: 6, 2: EARLIEST}, None)


def test_the_offsets_before_a_result_are_those_of_its_first_records_or_those_that_were_known():
    place = Place(parse_position("id~5"), None)
    found = result({0: 9, 1: 4, 2: 7}, offsets=[(0, 6), (1, 2), (1, 3)])
    assert place.before(found) == {0: 5, 1: 2, 2: 7}


def test_a_topic_that_was_made_again_is_read_from_its_first_record():
    place = Place(parse_position("id~5.-.7"), None)
    place.begin_again(result({0: 0, 1: 0}, partitions=2))
    assert place.starts() == ({0: EARLIEST}, None)
