"""Observers that fail do not stop a broker."""

from __future__ import annotations

import pytest

from sampleapp.brokers.shared.following import deliver, deliver_batch, tell_caught_up
from sampleapp.model import ConsumerRecord
from sampleapp_testing import BatchRecorder, Recorder

RECORD = ConsumerRecord(
    topic="t", partition=3, offset=7, timestamp_ms=0, key=None, value=b"secret", headers=()
)


def failing(*_):
    raise ZeroDivisionError("on purpose")


def test_an_observer_is_told():
    recorder = Recorder()
    deliver(recorder, RECORD)
    tell_caught_up(recorder, topic="t")
    assert recorder.records == [RECORD]
    assert recorder.caught_up_at == [1]


@pytest.mark.parametrize(
    "tell",
    [
        lambda observer: deliver(observer, RECORD),
        lambda observer: deliver_batch(observer, [RECORD]),
        lambda observer: tell_caught_up(observer, topic="t"),
    ],
    ids=["record", "batch", "caught up"],
)
def test_what_an_observer_raises_is_logged(tell, no_failure_is_lost):
    tell(BatchRecorder(on_record=failing, on_batch=failing, on_caught_up=failing))
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()


def test_what_ends_the_process_is_not_kept_from_it():
    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deliver(Recorder(on_record=interrupted), RECORD)
