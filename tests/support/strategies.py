"""All Hypothesis strategies, each restriction with its reason."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from hypothesis import strategies as st

from sampleapp.model import MEDIA_TYPES
from tests.support.readings import reading_record

# A string with a lone surrogate has no UTF-8 form, so it is no text at all here.
texts = st.text(st.characters(exclude_categories=["Cs"]))

ids = texts

# JSON has no form for the others.
finite_numbers = st.floats(allow_nan=False, allow_infinity=False)

collections = st.dictionaries(ids, finite_numbers, max_size=20)

topics = st.text(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", min_size=1, max_size=249
).filter(lambda topic: topic not in (".", ".."))

keys = st.none() | texts

# Few names, so that they repeat; "AP8=" is not text.
header_pairs = st.lists(
    st.tuples(texts | st.sampled_from(["a", "b"]), st.sampled_from(["", "YQ==", "AP8=", None])), max_size=3
)

# A number of 12 to 14 digits is a time in milliseconds; any other is rejected, as one of another unit.
numbers_of_time = st.integers(10**11, 10**14 - 1)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite_numbers | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=6,
)


CONTROL_CHARACTERS = bytes((*range(9), *range(10, 32), 127))
"""Octets that no value of a header field has (RFC 9110, section 5.5)."""

field_bytes = st.binary(max_size=60).map(lambda value: value.translate(None, CONTROL_CHARACTERS))


@st.composite
def logs_of_readings(draw, *, keys_stay):
    """
    The records of a topic: a list for each partition, in the order of offsets.

    Few ids, so that each is removed and comes back; few timestamps, so that many are equal and some go back.

    :param keys_stay: whether all records of a key are in one partition.
    """
    partitions = st.integers(0, 2)
    of_keys = {key: draw(partitions) for key in _READING_KEYS}
    log = [[], [], []]
    for key, value, timestamp_ms in draw(st.lists(_reading_records, max_size=30)):
        partition = of_keys[key] if keys_stay else draw(partitions)
        offset = len(log[partition])
        log[partition].append(
            reading_record(key, value, partition=partition, offset=offset, timestamp_ms=timestamp_ms)
        )
    return log


_READING_KEYS = (b"a", b"b", b"c", b"d")
_reading_records = st.tuples(
    st.sampled_from(_READING_KEYS),
    st.sampled_from([b"1", b"2", b"3", None, b"warm"]),
    # -1 is the timestamp of a record that has none, in Kafka's oldest format.
    st.integers(-1, 6),
)


# With blocks of two or three readings on average, every fifth of these ends one: so that there are many, and
# some are as long as they may be.
_NAMES = [f"{n}" for n in range(1000)]
_BLOCK_KEYS = [
    *[name for name in _NAMES if crc32(name.encode()) % 2 and crc32(name.encode()) % 3][:40],
    *[name for name in _NAMES if crc32(name.encode()) % 6 == 0][:10],
    # Some of these weigh as much as a block.
    *[f"{n:0{length}}" for length in (70, 140) for n in range(4)],
]
_block_changes = st.tuples(
    st.sampled_from(_BLOCK_KEYS), st.sampled_from([b"1", b"2", None, None]), st.integers(0, 99)
)


@st.composite
def histories_of_readings(draw):
    """
    The records of a topic in the order in which they are read; each key is in one of three partitions.

    First all readings come, in any order, most of them in the middle; then some change, go, or come back.
    """
    timestamps = draw(st.permutations(range(len(_BLOCK_KEYS))))
    first = [(name, b"1", timestamps[n]) for n, name in enumerate(draw(st.permutations(_BLOCK_KEYS)))]
    some = first[: draw(st.integers(0, len(first)))]
    offsets = [0, 0, 0]
    records = []
    for name, value, timestamp_ms in some + draw(st.lists(_block_changes, max_size=60)):
        partition = int(name) % len(offsets)
        offset = offsets[partition]
        offsets[partition] += 1
        records.append(
            reading_record(
                name.encode(), value, partition=partition, offset=offset, timestamp_ms=timestamp_ms
            )
        )
    return records


@st.composite
def interleavings(draw, log):
    """All records of a log, in an order that keeps that of each partition."""
    partitions = draw(st.permutations([n for n, records in enumerate(log) for _ in records]))
    records = [iter(each) for each in log]
    return [next(records[partition]) for partition in partitions]


def _any_case(name: str) -> st.SearchStrategy[str]:
    return st.lists(st.booleans(), min_size=len(name), max_size=len(name)).map(
        lambda uppers: "".join(
            letter.upper() if upper else letter.lower() for letter, upper in zip(name, uppers, strict=True)
        )
    )


_spaces = st.sampled_from(["", "", " ", "\t", "  "])
# How a weight is written, and its thousandths.
_weights = st.sampled_from(
    [
        *[(text, 0) for text in ("0", "0.", "0.0", "0.00", "0.000")],
        *[("0.001", 1), ("0.1", 100), ("0.25", 250), ("0.5", 500), ("0.50", 500), ("0.999", 999)],
        *[(text, 1000) for text in ("1", "1.", "1.0", "1.000")],
    ]
)
_names = st.sampled_from(
    [
        *[*MEDIA_TYPES.values(), MEDIA_TYPES[2], "application/*", "*/*"],
        *["text/html", "text/*", "application/vnd.sampleApp.v3+json", "application/xml"],
    ]
)
_other_parameters = st.sampled_from(
    ["charset=utf-8", "version=2", 'title="a, b;q=0"', r'title="say \"hi\""', "Q2=0", "qq=0", "flag", ""]
)

_parameter_lists = st.lists(_other_parameters, max_size=2)


class AcceptElement(NamedTuple):
    """One element of an ``Accept`` header: what it means, and how it is written."""

    name: str
    thousandths: int
    text: str


@st.composite
def _accept_elements(draw):
    name = draw(_names)
    parts = [draw(_any_case(name))]
    parts += [f"{draw(_spaces)};{draw(_spaces)}{parameter}" for parameter in draw(_parameter_lists)]
    thousandths = 1000
    if draw(st.booleans()):
        text, thousandths = draw(_weights)
        parts.append(f"{draw(_spaces)};{draw(_spaces)}{draw(st.sampled_from('qQ'))}={text}")
    return AcceptElement(name.lower(), thousandths, "".join([draw(_spaces), *parts, draw(_spaces)]))


accept_elements = st.lists(_accept_elements(), max_size=5)
"""Headers that RFC 9110 allows, made mostly of what matters to the choice."""

accept_like = st.lists(
    st.sampled_from(
        [
            b"application/vnd.sampleApp.v2+json",
            b"application/json",
            b"*/*",
            b"application/*",
            b",",
            b";",
            b"q=",
            b"0.5",
            b"1",
            b" ",
            b"=",
            b'"',
            b"\\",
            b"/",
            b"*",
            b"\xff",
            b"q",
        ]
    ),
    max_size=10,
).map(b"".join)
"""Headers out of the right pieces in any order, most of which the grammar does not allow."""
