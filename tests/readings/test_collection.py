"""The collection of readings and its representations."""

from __future__ import annotations

import json
import math
import struct
from contextlib import suppress
from itertools import islice
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.readings import NotAReading, Readings
from sampleapp.readings.collection import parse_number, parse_numbers
from tests.support import strategies
from tests.support.examples import examples
from tests.support.readings import apply_next, reading_record


def collection_of(values):
    readings = Readings()
    for reading_id, value in values.items():
        apply_next(readings, reading_id.encode(), repr(value).encode())
    return readings


def bits(number):
    assert type(number) is float
    return struct.pack("<d", number)


@given(strategies.collections)
@example({"": -0.0, "\0": 5e-324, '"\\\N{BOM}': 1.7976931348623157e308, "one": 1.0})
def test_both_versions_list_the_same_values_in_the_same_order_bit_for_bit(values):
    readings = collection_of(values)
    version_1 = json.loads(readings.representation(1).body)
    version_2 = json.loads(readings.representation(2).body)

    assert [bits(value) for value in values.values()] == [bits(value) for value in version_1]
    assert [bits(value) for value in values.values()] == [bits(item["value"]) for item in version_2]
    assert list(values) == [item["id"] for item in version_2]
    assert all(list(item) == ["id", "value"] for item in version_2)


@given(strategies.collections)
def test_equal_states_have_equal_tags_and_the_versions_never_share_one(values):
    ours, theirs = collection_of(values), collection_of(values)
    assert ours.representation(1).etag == theirs.representation(1).etag
    assert ours.representation(2).etag == theirs.representation(2).etag
    assert ours.representation(1).etag != ours.representation(2).etag


@given(strategies.collections, strategies.ids, strategies.finite_numbers)
def test_a_tag_changes_exactly_when_the_bytes_do(values, reading_id, value):
    readings = collection_of(values)
    before = [readings.representation(version) for version in (1, 2)]
    apply_next(readings, reading_id.encode(), repr(value).encode())
    after = [readings.representation(version) for version in (1, 2)]
    for old, new in zip(before, after, strict=True):
        assert (old.etag == new.etag) == (old.body == new.body)


def test_a_state_is_encoded_once():
    readings = collection_of({"kitchen": 21.5})
    first = readings.representation(1)
    apply_next(readings, b"kitchen", b" 21.50\n")
    apply_next(readings, b"cellar", None)
    assert readings.representation(1) is first


def test_zero_and_minus_zero_are_different_readings():
    readings = collection_of({"a": 0.0})
    apply_next(readings, b"a", b"-0")
    assert readings.representation(1).body == b"[-0.0]"


def test_a_whole_number_is_sent_as_a_floating_point_number():
    assert collection_of({"a": 19.0}).representation(1).body == b"[19.0]"


def test_an_update_keeps_the_place_and_a_removed_reading_comes_back_last():
    readings = collection_of({"a": 1.0, "b": 2.0})
    apply_next(readings, b"a", b"3")
    assert readings.representation(1).body == b"[3.0,2.0]"
    apply_next(readings, b"a", None)
    assert readings.representation(1).body == b"[2.0]"
    apply_next(readings, b"a", b"4")
    assert readings.representation(1).body == b"[2.0,4.0]"


def test_ids_stand_in_the_order_of_their_first_records_however_these_come_in():
    readings = Readings()
    for key, timestamp_ms, partition, offset in [
        (b"fifth", 7, 1, 4),
        (b"first", 5, 1, 9),
        (b"fourth", 7, 1, 3),
        (b"second", 6, 1, 8),
        (b"third", 7, 0, 5),
        (b"first", 9, 1, 11),
    ]:
        readings.apply(
            reading_record(key, b"1", timestamp_ms=timestamp_ms, partition=partition, offset=offset)
        )
        readings.representation(2)
    assert ids_of(readings) == ["first", "second", "third", "fourth", "fifth"]


_parts_of_numbers = st.text(alphabet="0123456789+-.eE \t\r\n", max_size=6).map(str.encode)
_values = st.one_of(
    st.none(),
    _parts_of_numbers,
    st.floats().map(lambda number: repr(number).encode()),
    st.integers().map(lambda number: b"%d" % number),
    st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: str(number).encode()),
    st.sampled_from([b"", b"-0", b"-0.0", b"1,2", b",", b"1e999", b"1e-999", b"nan", b"0x1", b"1_0", b"[]"]),
)


@given(st.lists(_values.filter(lambda value: value is not None), max_size=5))
@example([b"-0", b"0", b"-0.0"])
@example([b"1,2", b"3"])
@example([b"1", b"2,"])
def test_numbers_that_are_read_at_once_are_those_that_are_read_one_by_one(values):
    numbers = parse_numbers(values)
    if numbers is not None:
        assert [bits(number) for number in numbers] == [bits(parse_number(value)) for value in values]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_numbers_as_json_has_them_are_read_at_once(numbers):
    found = parse_numbers([json.dumps(number).encode() for number in numbers])
    assert [bits(number) for number in found] == [bits(number) for number in numbers]


_any_records = st.builds(
    reading_record,
    st.sampled_from([b"a", b"b", b"c", b"", None, b"\xff", "ü".encode()]),
    _values | st.sampled_from([b"1", b"2", None]),
    partition=st.integers(0, 1),
    offset=st.integers(0, 9),
    timestamp_ms=st.integers(-1, 3),
)


@given(st.lists(st.lists(_any_records, max_size=6), max_size=6), st.booleans())
def test_many_records_at_once_do_what_they_do_one_by_one(batches, look):
    at_once, singly = Readings(), Readings()
    for batch in batches:
        skipped = at_once.apply_all(batch)
        expected = []
        for record in batch:
            try:
                singly.apply(record)
            except NotAReading as reason:
                expected.append((record, str(reason)))
        assert [(record, str(reason)) for record, reason in skipped] == expected
        if look:
            assert at_once.representation(1) == singly.representation(1)
    assert at_once.representation(2) == singly.representation(2)


def ids_of(readings):
    return [item["id"] for item in json.loads(readings.representation(2).body)]


def follow(records, *, look=False):
    """Return what a process serves after it has read the records in this order, with or without requests."""
    readings = Readings()
    for record in records:
        with suppress(NotAReading):
            readings.apply(record)
        if look:
            readings.representation(1)
    return [readings.representation(version) for version in (1, 2)]


def last_values_in_order_of_first_records(log):
    """The contract, for keys that stay in their partition: slowly, and with the whole log at hand."""
    found = {}
    for records in log:
        for record in records:
            if record.value is None:
                found.pop(record.key, None)
            elif record.value != b"warm":
                sort_key = (record.timestamp_ms, record.partition, record.offset)
                found[record.key] = found.get(record.key, (sort_key,))[0], float(record.value)
    return [(key.decode(), value) for key, (_, value) in sorted(found.items(), key=lambda item: item[1][0])]


@given(st.data(), strategies.logs_of_readings(keys_stay=True))
def test_processes_that_follow_one_log_serve_the_same_bytes_however_its_partitions_are_interleaved(data, log):
    one, other = data.draw(strategies.interleavings(log)), data.draw(strategies.interleavings(log))
    served = follow(one, look=True)
    assert served == follow(other)
    items = json.loads(served[1].body)
    assert [(item["id"], item["value"]) for item in items] == last_values_in_order_of_first_records(log)


@given(st.data(), strategies.logs_of_readings(keys_stay=False))
def test_that_is_so_too_when_the_records_of_a_key_are_in_several_partitions(data, log):
    one, other = data.draw(strategies.interleavings(log)), data.draw(strategies.interleavings(log))
    assert follow(one, look=True) == follow(other)


def naive_bodies(items):
    """Both versions, encoded as a whole."""
    objects = [{"id": reading_id, "value": value} for reading_id, value in items]
    return [json.dumps(each, separators=(",", ":")).encode() for each in ([v for _, v in items], objects)]


small_blocks = st.sampled_from([2, 3])


@given(small_blocks, strategies.histories_of_readings())
def test_the_pieces_are_the_whole_text_after_every_change(block_readings, history):
    readings = Readings(block_readings=block_readings)
    for n, record in enumerate(history, 1):
        readings.apply(record)
        expected = naive_bodies(last_values_in_order_of_first_records([history[:n]]))
        found = [readings.representation(version) for version in (1, 2)]
        assert expected == [b"".join(each.parts) for each in found]
        assert expected == [each.body for each in found]
        assert [len(body) for body in expected] == [each.length for each in found]


@given(small_blocks, strategies.histories_of_readings())
def test_a_piece_that_no_change_concerns_is_the_same_object_as_before(block_readings, history):
    readings = Readings(block_readings=block_readings)
    before = readings.representation(2).parts
    for record in history:
        readings.apply(record)
        after = readings.representation(2).parts
        # A single piece, with both brackets, is joined again at each call.
        kept = {piece: piece for piece in before} if len(before) > 1 else {}
        assert all(kept.get(piece, piece) is piece for piece in after)
        before = after


def compacted(history):
    """Of each reading that is left, the first record since it was removed, and one with its last value."""
    firsts, lasts = {}, {}
    for record in history:
        if record.value is None:
            firsts.pop(record.key, None)
        else:
            firsts.setdefault(record.key, record)
            lasts[record.key] = record
    return [record for key in firsts for record in (firsts[key], lasts[key])]


@given(small_blocks, st.data(), strategies.histories_of_readings())
def test_whatever_led_to_a_state_its_pieces_and_tags_are_the_same(block_readings, data, history):
    def served(records):
        readings = Readings(block_readings=block_readings)
        for record in records:
            readings.apply(record)
            if data.draw(st.booleans()):
                readings.representation(2)
        return [readings.representation(version) for version in (1, 2)]

    assert served(history) == served(compacted(history))


@given(small_blocks, st.data(), strategies.histories_of_readings())
def test_tags_are_equal_exactly_when_the_texts_with_ids_are(block_readings, data, history):
    representations = []
    for end in (len(history), data.draw(st.integers(0, len(history)))):
        readings = Readings(block_readings=block_readings)
        for record in history[:end]:
            readings.apply(record)
        representations.append(readings.representation(2))
    one, other = representations
    assert (one.etag == other.etag) == (one.body == other.body)


def test_a_tag_is_the_same_in_every_process():
    readings = collection_of({f"sensor-{n}": n / 8 for n in range(3000)})
    assert [len(readings.representation(version).parts) for version in (1, 2)] == [10, 10]
    assert readings.representation(1).etag == '"272bda02b68fe03e15113ffa"'
    assert readings.representation(2).etag == '"3ae064322d0319ea89dcd06f"'


def test_no_piece_holds_more_than_four_times_the_usual_readings_whatever_the_ids():
    readings = Readings(block_readings=10)
    # None of these ids ends a block.
    ids = [name for name in map(str, range(400)) if crc32(name.encode()) % 10]
    for name in [*ids[::2], *ids[1::2]]:
        apply_next(readings, name.encode(), b"1")
    *pieces, end = readings.representation(1).parts
    assert end == b"]"
    assert {40} == {piece.count(b"1.0") for piece in pieces[:-1]}


@given(small_blocks, st.data(), strategies.histories_of_readings())
def test_encoding_beforehand_ends_and_changes_nothing_whatever_happens_in_its_pauses(
    block_readings, data, history
):
    readings = Readings(block_readings=block_readings)
    stop = data.draw(st.integers(0, len(history)))
    for record in history[:stop]:
        readings.apply(record)
    coming = iter(history[stop:])
    for _ in readings.encode(at_once=data.draw(st.integers(1, 10))):
        for record in islice(coming, data.draw(st.integers(0, 5))):
            readings.apply(record)
    for record in coming:
        readings.apply(record)
    expected = naive_bodies(last_values_in_order_of_first_records([history]))
    assert expected == [readings.representation(version).body for version in (1, 2)]


_READ = st.tuples(
    st.just("read"), st.integers(0, 12), st.sampled_from([b"1", b"2", None]), st.integers(0, 12)
)
_TAKE = st.tuples(st.just("take"), st.sampled_from([1, 2]))
_ENCODE = st.tuples(st.just("encode"), st.integers(0, 5), st.integers(1, 5))
_ENCODE_ALL = st.tuples(st.just("represent"), st.sampled_from([1, 2]))


# Long, since each has to meet blocks that wait for a snapshot, and are changed in two ways.
_STEPS = st.lists(st.one_of(*[_READ] * 6, _TAKE, _ENCODE, _ENCODE_ALL), min_size=20, max_size=80)


@examples(300)
@given(small_blocks, _STEPS)
def test_a_snapshot_is_the_state_of_its_moment_whatever_changes_before_it_is_encoded(block_readings, steps):
    """Several of them overlap, and now and then everything is encoded at once."""
    read = [reading_record(b"%d" % n, b"0", offset=n, timestamp_ms=n) for n in range(12)]
    readings = Readings(block_readings=block_readings)
    for record in read:
        readings.apply(record)
    taken = [(readings.snapshot(1), 1, len(read))]
    for name, *arguments in steps:
        if name == "read":
            number, value, timestamp_ms = arguments
            record = reading_record(b"%d" % number, value, offset=len(read), timestamp_ms=timestamp_ms)
            read.append(record)
            readings.apply(record)
        elif name == "take":
            taken.append((readings.snapshot(*arguments), *arguments, len(read)))
        elif name == "encode":
            number, at_once = arguments
            taken[number % len(taken)][0].encode(at_once=at_once)
        else:
            readings.representation(*arguments)
    for snapshot, version, until in taken:
        while not snapshot.encode(at_once=1):
            pass
        alone = Readings(block_readings=block_readings)
        for record in read[:until]:
            alone.apply(record)
        assert snapshot.representation() == alone.representation(version)


def test_a_snapshot_is_so_when_blocks_are_joined_and_then_change():
    readings = Readings(block_readings=2)
    for n in range(12):
        apply_next(readings, b"%d" % n, b"0")
    snapshot = readings.snapshot(1)
    # The first block ends with "4", the second one holds "5" alone.
    apply_next(readings, b"4", None)
    apply_next(readings, b"5", b"1")
    assert json.loads(snapshot.representation().body) == [0.0] * 12


def test_a_snapshot_is_encoded_in_steps_and_kept_for_those_who_ask_for_the_same_state():
    readings = Readings(block_readings=4)
    for n in range(100):
        apply_next(readings, b"%d" % n, b"1")
    snapshot = readings.snapshot(1)
    steps = 1
    while not snapshot.encode(at_once=500):
        steps += 1
    assert 4 <= steps <= 10
    assert readings.encoded_representation(1) is None
    made = snapshot.representation()
    assert readings.encoded_representation(1) is made
    assert readings.representation(1) is made
    apply_next(readings, b"7", b"2")
    assert readings.encoded_representation(1) is None
    assert not readings.is_current(snapshot)


def test_what_a_snapshot_has_encoded_is_not_encoded_again_after_a_change_elsewhere():
    readings = Readings(block_readings=4)
    for n in range(100):
        apply_next(readings, b"%d" % n, b"1")
    snapshot = readings.snapshot(2)
    apply_next(readings, b"7", b"2")
    snapshot.encode(at_once=100_000)
    pairs = zip(snapshot.representation().parts, readings.representation(2).parts, strict=True)
    assert sum(one is not other for one, other in pairs) == 1


def test_what_was_encoded_beforehand_is_not_encoded_again():
    readings = Readings(block_readings=4)
    for n in range(100):
        apply_next(readings, b"%d" % n, b"1")
    assert sum(1 for _ in readings.encode(at_once=500)) > 2
    before = readings.representation(2).parts
    assert sum(1 for _ in readings.encode(at_once=10)) == 0
    assert all(one is other for one, other in zip(before, readings.representation(2).parts, strict=True))


def test_in_one_partition_the_last_record_is_the_latest_whatever_its_timestamp():
    readings = Readings()
    readings.apply(reading_record(b"a", b"1", offset=0, timestamp_ms=200))
    readings.apply(reading_record(b"a", b"2", offset=1, timestamp_ms=100))
    assert readings.representation(1).body == b"[2.0]"


@pytest.mark.parametrize("value", [b"9", None])
def test_an_older_record_of_another_partition_changes_nothing(value):
    readings = Readings()
    readings.apply(reading_record(b"a", b"1", partition=0, timestamp_ms=200))
    readings.apply(reading_record(b"a", value, partition=1, timestamp_ms=100))
    assert readings.representation(1).body == b"[1.0]"


def test_an_older_record_of_another_partition_does_not_bring_a_removed_reading_back():
    readings = Readings()
    readings.apply(reading_record(b"a", None, partition=0, timestamp_ms=200))
    readings.apply(reading_record(b"a", b"1", partition=1, timestamp_ms=100))
    assert readings.representation(1).body == b"[]"
    readings.apply(reading_record(b"a", b"2", partition=1, timestamp_ms=300))
    assert readings.representation(1).body == b"[2.0]"


def test_an_id_of_several_partitions_has_the_place_of_its_earliest_record():
    readings = Readings()
    readings.apply(reading_record(b"b", b"2", partition=0, timestamp_ms=200))
    readings.apply(reading_record(b"a", b"3", partition=1, timestamp_ms=300))
    readings.apply(reading_record(b"a", b"1", partition=2, timestamp_ms=100))
    assert readings.representation(2).body == b'[{"id":"a","value":3.0},{"id":"b","value":2.0}]'


def test_what_is_remembered_of_removed_ids_is_bounded():
    readings = Readings()
    for n in range(20_001):
        readings.apply(reading_record(b"%d" % n, None, partition=0, offset=n, timestamp_ms=200))
    for key in (b"1", b"0"):
        readings.apply(reading_record(key, key, partition=1, timestamp_ms=100))
    assert ids_of(readings) == ["0"]


def test_ids_that_come_and_go_leave_the_others_in_their_order():
    readings = Readings()
    for n in range(100):
        readings.apply(reading_record(b"%d" % n, b"1", offset=2 * n, timestamp_ms=100 - n))
        if n % 10:
            readings.apply(reading_record(b"%d" % n, None, offset=2 * n + 1, timestamp_ms=100 - n))
    assert ids_of(readings) == ["90", "80", "70", "60", "50", "40", "30", "20", "10", "0"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"21.5", 21.5),
        (b"-3", -3.0),
        (b"+1e3", 1000.0),
        (b".5", 0.5),
        (b"5.", 5.0),
        (b" 7\r\n", 7.0),
        (b"1E-2", 0.01),
    ],
)
def test_a_number_may_be_written_as_people_and_programs_do(text, number):
    readings = Readings()
    apply_next(readings, b"a", text)
    assert json.loads(readings.representation(1).body) == [number]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"nan",
        b"NaN",
        b"inf",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"1_000",
        b"0x10",
        b"21,5",
        b"21.5 C",
        b"1 2",
        "\N{ARABIC-INDIC DIGIT ONE}".encode(),
        b"\xff",
        b"1\0",
        b"e5",
        b".",
        b"true",
        b'"1"',
    ],
)
def test_what_is_no_finite_number_never_becomes_a_reading(text):
    readings = collection_of({"a": 1.0})
    with pytest.raises(NotAReading, match="value"):
        apply_next(readings, b"a", text)
    assert readings.representation(1).body == b"[1.0]"


@pytest.mark.parametrize(("key", "why"), [(None, "no key"), (b"\xff", "not UTF-8")])
def test_a_record_without_a_usable_key_is_no_reading(key, why):
    readings = Readings()
    for value in (b"1", None):
        with pytest.raises(NotAReading, match=why):
            apply_next(readings, key, value)
    assert len(readings) == 0


@given(strategies.finite_numbers)
def test_every_finite_number_survives_as_text(number):
    readings = collection_of({"a": number})
    (value,) = json.loads(readings.representation(1).body)
    assert math.copysign(1, value) == math.copysign(1, number)
    assert value == number


def test_a_snapshot_that_is_dropped_unencoded_keeps_no_old_readings():
    readings = collection_of({"a": 1.0, "b": 2.0})
    for number in range(100):
        readings.snapshot(2)
        apply_next(readings, b"a", b"%d" % number)
    (block,) = readings._blocks._blocks  # noqa: SLF001 -- nothing else tells what is kept
    assert len(block.past) <= 1
    assert readings.representation(2).body == b'[{"id":"a","value":99.0},{"id":"b","value":2.0}]'
