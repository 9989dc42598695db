"""The contract, as somebody uses it who has installed sampleapp and written a broker elsewhere."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree as ET

BROKERS = '''
from twisted.internet.defer import fail, succeed
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import Health, RecordMetadata


class Right(MemoryBroker):
    """A broker of somebody else's."""


class CountsFromOne(MemoryBroker):
    def publish(self, record):
        return super().publish(record).addCallback(
            lambda found: RecordMetadata(topic=found.topic, partition=0, offset=found.offset + 1)
        )


class LosesKeys(MemoryBroker):
    def publish(self, record):
        return super().publish(type(record)(topic=record.topic, key=None, value=record.value,
            timestamp_ms=record.timestamp_ms, headers=record.headers))


class IsAlwaysReady(MemoryBroker):
    def health(self):
        return Health(ready=True)


class RaisesItsOwnErrors(MemoryBroker):
    def publish(self, record):
        return fail(RuntimeError("closed")) if self._stopped else super().publish(record)


class IsDeaf(MemoryBroker):
    def follow(self, *, topic, observer, **options):
        observer.caught_up()
        return super().follow(topic=topic, observer=observer, **options)
'''

TESTS = """
from contextlib import contextmanager

import theirs
from sampleapp.testing import BrokerContract
from twisted.internet import reactor
"""

TEST = """

class Test{name}(BrokerContract):
    one_partition = True
    first_offset = 0

    @contextmanager
    def new_broker(self):
        yield theirs.{name}(clock=reactor)
"""

BROKEN = {
    "CountsFromOne": "test_concurrent_publishes_get_offsets_of_their_own_without_gaps",
    "LosesKeys": "test_records_with_the_same_topic_and_key_keep_the_order_of_the_calls",
    "IsAlwaysReady": "test_it_becomes_ready_once_started_and_is_not_ready_once_stopped",
    "RaisesItsOwnErrors": "test_after_stop_it_refuses_records",
    "IsDeaf": "test_nothing_is_delivered_before_follow_has_returned",
}


def test_a_right_broker_passes_and_one_that_breaks_a_promise_fails_the_test_of_that_promise(tmp_path):
    (tmp_path / "theirs.py").write_text(BROKERS)
    tests = TESTS + "".join(TEST.format(name=name) for name in ("Right", *BROKEN))
    (tmp_path / "test_theirs.py").write_text(tests)
    report = tmp_path / "report.xml"
    options = ["-q", "-c", "/dev/null", "--rootdir", str(tmp_path), f"--junitxml={report}"]
    chosen = ["TestRight", *(f"Test{name}::{test}" for name, test in BROKEN.items())]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"test_theirs.py::{each}" for each in chosen)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    cases = list(ET.parse(report).iter("testcase"))
    assert len(cases) > 25 + len(BROKEN), done.stdout
    failed = {case.get("classname").rpartition(".Test")[2]: case.get("name") for case in cases if list(case)}
    assert failed == BROKEN, done.stdout


def test_the_service_does_not_import_what_only_tests_need():
    program = (
        "import sys, sampleapp, sampleapp.service, sampleapp.tap, sampleapp.cli; "
        "sys.exit(bool({'pytest', 'pytest_twisted', 'hypothesis'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
