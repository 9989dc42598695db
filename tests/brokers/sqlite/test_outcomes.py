"""Whatever is published alone and together, and whichever commits fail: outcomes are what the file shows."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import pytest_twisted
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from sampleapp.brokers.sqlite import writer
from sampleapp.errors import BrokerUnavailable, BufferFull, OutcomeUnknown, PublishError, RecordTooLarge
from sampleapp.model import RecordMetadata
from tests.support.brokers import everything, outcomes, record
from tests.support.examples import examples
from tests.support.faster_time import FasterReactor
from tests.support.sqlite import running

ERRORS = (BrokerUnavailable, BufferFull, OutcomeUnknown, RecordTooLarge)

calls = st.lists(st.integers(0, 30) | st.none(), min_size=1, max_size=12)
"""How many records each call has; ``None`` for a single record that is published by itself."""

failing = st.dictionaries(
    st.integers(0, 8), st.sampled_from(["disk I/O error", "database is locked"]), max_size=3
)
"""Which commits fail, by how many come before them."""


@pytest.fixture
def small_steps(monkeypatch):
    """Some dozens of records are as a hundred thousand otherwise."""
    monkeypatch.setattr(writer, "_SLICE_RECORDS", 3)
    monkeypatch.setattr(writer, "_TRANSACTION_RECORDS", 8)
    monkeypatch.setattr(writer, "_WEIGHED_AT_ONCE", 5)


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=calls, failing=failing, buffer_records=st.sampled_from([10, 40, 10_000]))
@pytest_twisted.ensureDeferred
async def test_each_outcome_is_true(small_steps, own_connection, calls, failing, buffer_records):
    with tempfile.TemporaryDirectory() as directory:
        buffer_bytes = buffer_records * writer.weight(record("t", b"00-00"))
        clock = FasterReactor()
        async with running(Path(directory, "log"), clock=clock, buffer_bytes=buffer_bytes) as broker:
            await outcomes([broker.publish(record("other"))])
            for after, message in failing.items():
                own_connection.fail_next_commit(message, after=after)
            sent, results = [], []
            for number, count in enumerate(calls):
                records = [record("t", b"%02d-%02d" % (number, n)) for n in range(count or 1)]
                sent.append(records if count != 0 else [])
                publish = broker.publish(records[0]) if count is None else broker.publish_many(sent[-1])
                results.append(publish)
            ends = await outcomes(results)
            waiting = broker.measures().waiting
            own_connection.fail_no_more()
            stored = await everything(broker, "t")
    assert (waiting.records, waiting.bytes) == (0, 0)
    assert [each.offset for each in stored] == list(range(len(stored)))
    at = {each.value: each.offset for each in stored}
    assert len(at) == len(stored)
    for records, end in zip(sent, ends, strict=True):
        of_each = end if isinstance(end, list) else [end] * len(records)
        assert len(of_each) == len(records)
        offsets = []
        for each, outcome in zip(records, of_each, strict=True):
            if isinstance(outcome, RecordMetadata):
                assert at[each.value] == outcome.offset
                offsets.append(outcome.offset)
            else:
                assert isinstance(outcome, ERRORS)
                assert outcome.possibly_published or each.value not in at
        assert offsets == sorted(offsets)
        # A call is stored up to a point, and not after it.
        failed = [isinstance(each, PublishError) for each in of_each]
        assert failed == sorted(failed)
    if not failing and buffer_records == 10_000:
        assert not any(isinstance(end, PublishError) for end in ends)
        assert len(stored) == sum(map(len, sent))
