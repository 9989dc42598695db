"""The place of a reader, from the start that its client asked for."""

from __future__ import annotations

import pytest

from sampleapp.errors import InvalidParameters
from sampleapp.model import (
    EARLIEST,
    ConsumerRecord,
    FromEnd,
    GoneRecords,
    OffsetAndEpoch,
    ReadRequest,
    ReadResult,
)
from sampleapp.records.positions import (
    Cursor,
    PositionExpired,
    PositionUnknown,
    TopicReplaced,
    parse_position,
)
from tests.support.faulty_broker import TOPIC


def starts_of(cursor):
    request = cursor.request(limit=7, max_bytes=9)
    return request.starts, request.others


def result(positions, *, offsets=(), partitions=3, **fields):
    records = [
        ConsumerRecord(topic=TOPIC, partition=partition, offset=offset, timestamp_ms=0, key=None, value=None)
        for partition, offset in offsets
    ]
    return ReadResult(
        **{
            "topic_id": "id",
            "records": records,
            "positions": positions,
            "ends": positions,
            "partitions": partitions,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("start", "partitions", "starts", "others"),
    [
        (FromEnd(0), None, {}, FromEnd(0)),
        (FromEnd(0), (1, 4), {1: FromEnd(0), 4: FromEnd(0)}, None),
        (parse_position("id~"), None, {}, EARLIEST),
        (parse_position("id~5..7"), None, {0: 5, 2: 7}, EARLIEST),
        (parse_position("id~5..7"), (0, 1), {0: 5, 1: EARLIEST}, None),
        (parse_position("id~5.-..3"), None, {0: 5, 1: None, 3: 3}, EARLIEST),
    ],
)
def test_it_begins_where_the_client_asked_to(start, partitions, starts, others):
    request = Cursor(TOPIC, start, partitions).request(limit=7, max_bytes=9)
    assert request == ReadRequest(topic=TOPIC, starts=starts, others=others, limit=7, max_bytes=9)


def test_after_a_result_it_goes_on_at_its_positions_and_new_partitions_at_their_first_record():
    cursor = Cursor(TOPIC, FromEnd(0))
    cursor.advance(result({0: 5, 1: 0}))
    assert cursor.topic_id == "id"
    assert starts_of(cursor) == ({0: 5, 1: 0}, EARLIEST)


def test_after_records_that_are_gone_it_goes_on_with_the_first_one_that_is_left():
    cursor = Cursor(TOPIC, parse_position("id~5.6"))
    cursor.advance(result({0: 5, 1: 9}, gone=[GoneRecords(0, 5, 8)]))
    assert starts_of(cursor) == ({0: 8, 1: 9}, EARLIEST)


def test_without_the_partitions_that_a_position_leaves_out_new_ones_are_read():
    cursor = Cursor(TOPIC, parse_position("id~5.-"))
    cursor.advance(result({0: 6}, partitions=3))
    assert starts_of(cursor) == ({0: 6, 1: None}, EARLIEST)


def test_the_offsets_before_a_result_are_those_of_its_first_records_or_those_that_were_known():
    cursor = Cursor(TOPIC, parse_position("id~5"), None)
    found = result({0: 9, 1: 4, 2: 7}, offsets=[(0, 6), (1, 2), (1, 3)])
    assert cursor.before(found) == {0: 5, 1: 2, 2: 7}


def test_a_topic_that_was_made_again_is_read_from_its_first_record():
    cursor = Cursor(TOPIC, parse_position("id~5.-.7"))
    cursor.begin_again(result({0: 0, 1: 0}, partitions=2))
    assert starts_of(cursor) == ({1: None}, EARLIEST)


def test_when_only_the_feed_tells_that_a_topic_was_made_again_the_rest_stays():
    cursor = Cursor(TOPIC, parse_position("_~5.-.7"))
    cursor.begin_again()
    assert (cursor.topic_id, starts_of(cursor)) == ("_", ({1: None}, EARLIEST))


@pytest.mark.parametrize(
    ("position", "found", "error"),
    [
        ("id~5.0", result({0: 5, 1: 0}), None),
        ("id~5.-.-", result({0: 5}), None),
        ("other~", result({0: 0}), TopicReplaced),
        ("other~9.0.0.0", result({}), TopicReplaced),
        ("id~9.0.0.0", result({}), PositionUnknown),
        ("id~9.0.0.-", result({}), PositionUnknown),
        ("id~9", result({0: 9}, beyond={0: 5}), PositionUnknown),
        ("id~9e3", result({0: 9}, beyond={0: OffsetAndEpoch(5, 2)}), PositionUnknown),
        ("id~3", result({0: 3}, gone=[GoneRecords(0, 3, 5)]), PositionExpired),
    ],
)
def test_a_result_that_does_not_continue_the_place_is_rejected_and_it_stays(position, found, error):
    cursor = Cursor(TOPIC, parse_position(position))
    before = starts_of(cursor)
    if error is None:
        cursor.require_all(found)
        assert cursor.problem(found) is None
    else:
        with pytest.raises(error):
            cursor.require_all(found)
        # A stream goes on behind records that are gone.
        assert (cursor.problem(found) is None) == (error is PositionExpired)
    assert starts_of(cursor) == before


def test_the_first_result_tells_the_topic():
    cursor = Cursor(TOPIC, EARLIEST)
    assert cursor.problem(result({0: 0}, topic_id="any")) is None
    cursor.advance(result({0: 0}))
    assert isinstance(cursor.problem(result({0: 0}, topic_id="any")), TopicReplaced)


def test_at_most_five_partitions_that_end_before_the_position_are_named():
    cursor = Cursor(TOPIC, parse_position("id~" + ".".join("9" * 7)))
    positions = dict.fromkeys(range(7), 9)
    problem = cursor.problem(result(positions, partitions=7, beyond=dict.fromkeys(range(7), 5)))
    assert "partition 4 ends at 5, and the position is 9, and 2 more." in str(problem)


@pytest.mark.parametrize(
    ("start", "partitions", "resume"),
    [("id~3.4", None, "id~5.4.0"), ("id~3.4.-", None, "id~5.4.-"), ("id~3.4.2", (0, 2), "id~5.-.2")],
)
def test_after_records_that_are_gone_the_position_to_resume_at_has_all_partitions_that_are_read(
    start, partitions, resume
):
    cursor = Cursor(TOPIC, parse_position(start), partitions)
    read = {0: 3, 1: 4, 2: 0} | dict(cursor.offsets)
    if partitions is not None:
        del read[1]
    elif cursor.skipped:
        del read[2]
    with pytest.raises(PositionExpired) as rejected:
        cursor.require_all(result(read, gone=[GoneRecords(0, 3, 5)]))
    assert rejected.value.resume == resume


def test_a_position_that_skips_every_partition_is_rejected():
    cursor = Cursor(TOPIC, parse_position("id~-.-"))
    cursor.require_partition(result({2: 0}, partitions=3))
    with pytest.raises(InvalidParameters, match="none of the 2 partitions"):
        cursor.require_partition(result({}, partitions=2))


def test_a_position_that_is_too_long_is_rejected():
    cursor = Cursor(TOPIC, EARLIEST)
    cursor.advance(result(dict.fromkeys(range(2500), 0), partitions=2500))
    with pytest.raises(InvalidParameters, match="longer than 4096"):
        cursor.position_text()
