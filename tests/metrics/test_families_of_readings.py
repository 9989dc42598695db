"""The metrics of the readings, while their topic is read."""

from __future__ import annotations

from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import Record
from tests.metrics.service import MeasuredService, of


def of_readings(service):
    counted = service.counted()
    return {
        name: of(counted, f"sampleapp_readings{name}").get(())
        for name in ("", "_complete", "_skipped_records_total", "_lag_records")
    }


def one_turn(clock):
    for call in clock.getDelayedCalls():
        clock.calls.remove(call)
        call.func(*call.args, **call.kw)


def test_readings_are_shown_with_what_is_left_to_be_read():
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    service = MeasuredService(broker=broker)

    def publish(key, value):
        broker.publish(Record(topic="readings", key=key, value=value, timestamp_ms=0))

    for number in range(600):
        publish(b"%d" % (number % 7), b"1.5")
    # The follower has not started.
    assert of_readings(service) == {
        "": 0,
        "_complete": 0,
        "_skipped_records_total": 0,
        "_lag_records": None,
    }
    service.follower.start()
    assert of_readings(service)["_lag_records"] is None
    one_turn(clock)
    assert of_readings(service)["_lag_records"] == 100
    clock.advance(0)
    service.clock.advance(0)
    publish(b"1", b"no number")
    clock.advance(0)
    assert of_readings(service) == {"": 7, "_complete": 1, "_skipped_records_total": 1, "_lag_records": 0}
    service.follower.stop()


def test_the_broker_is_ready_or_not():
    broker = MemoryBroker(clock=Clock())
    service = MeasuredService(broker=broker, starts=False)
    ready = []
    for step in (lambda: None, broker.start, lambda: broker.stop(deadline_s=1)):
        step()
        ready.append(of(service.counted(), "sampleapp_broker_ready")[()])
    assert ready == [0, 1, 0]
