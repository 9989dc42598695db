"""Any exception at any seam of a subscription: it is told, and reading goes on, with each record once."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.consumer import delivery
from sampleapp.brokers.kafka.consumer.fetch_session import FetchSession
from sampleapp.brokers.kafka.consumer.partition import FollowedPartition, Positions
from sampleapp.brokers.shared.health import HealthTracker
from tests.support.examples import examples
from tests.support.kafka_simulator import Cluster, FollowingSetup, SimulatedClient, reason, values

KINDS = [
    RuntimeError("made up"),
    TypeError("made up"),
    KeyError("made up"),
    AssertionError("made up"),
    MemoryError("made up"),
    OSError(5, "Input/output error"),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "made up"),
    CancelledError("made up"),
    RequestFailed(reason(), sent=True),
]
NONSENSE = [None, 7, (), [None], [object()], "t"]

CALLS = {
    "request": SimulatedClient,
    "load_metadata": SimulatedClient,
    "topic_error": SimulatedClient,
    "topic_id": SimulatedClient,
    "partitions_of": SimulatedClient,
    "leader_of": SimulatedClient,
    "update": Positions,
    "start_in": Positions,
    "open_transactions": Positions,
    "next_request": FetchSession,
    "responded": FetchSession,
    "locate": FollowedPartition,
    "note_end": FollowedPartition,
    "begin_delivery": FollowedPartition,
    "clear_failure": FollowedPartition,
    "note_nothing": FollowedPartition,
    "mark_healthy": HealthTracker,
}
ANSWERS = ["request", "load_metadata"]
OBSERVER = ["record_received", "caught_up"]


class Faulty(NamedTuple):
    seam: str
    kind: Exception
    passes: int
    """How often it works before."""
    times: int
    nonsense: object
    """What stands for an answer, at a seam for that."""


class Faults:
    """Raises exceptions at one seam."""

    def __init__(self, monkeypatch):
        self._armed = None
        for name, owner in CALLS.items():
            monkeypatch.setattr(owner, name, self._tapped(name, getattr(owner, name)))
        read_batches = delivery.read_batches
        monkeypatch.setattr(
            delivery, "read_batches", lambda *a, **options: self._pages(read_batches(*a, **options))
        )

    def arm(self, faulty):
        self._armed, self._met, self.raised = faulty, 0, 0

    def disarm(self):
        self._armed = None

    def is_met(self, seam):
        armed = self._armed
        if armed is None or seam != armed.seam:
            return False
        self._met += 1
        is_met = armed.passes < self._met <= armed.passes + armed.times
        self.raised += is_met
        return is_met

    def meet(self, seam):
        if self.is_met(seam):
            # Else it would grow each time.
            raise self._armed.kind.with_traceback(None)

    def _tapped(self, name, original):
        def tapped(*arguments, **options):
            self.meet(name)
            result = original(*arguments, **options)
            if name in ANSWERS:
                result.addCallback(self._responded, name)
            return result

        return tapped

    def _responded(self, answer, name):
        self.meet(f"{name} answered")
        return self._armed.nonsense if self.is_met(f"{name} nonsense") else answer

    def _pages(self, pages):
        self.meet("decode")
        for page in pages:
            yield page
            self.meet("decoded")


faulty = st.builds(
    Faulty,
    seam=st.sampled_from(
        [
            *CALLS,
            *(f"{each} answered" for each in ANSWERS),
            "request nonsense",
            "decode",
            "decoded",
            *OBSERVER,
        ]
    ),
    kind=st.sampled_from(KINDS),
    passes=st.integers(0, 6),
    times=st.sampled_from([1, 2, 5]),
    nonsense=st.sampled_from(NONSENSE),
)


@pytest.fixture
def faults(monkeypatch):
    return Faults(monkeypatch)


@pytest.mark.slow
@examples(
    60, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    faulty=faulty,
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    is_stopped_with_it=st.booleans(),
)
def test_any_exception_is_survived(faults, no_failure_is_lost, faulty, counts, is_stopped_with_it):
    no_failure_is_lost.clear()
    cluster = Cluster(partitions=len(counts))
    for number, (log, count) in enumerate(zip(cluster.logs.values(), counts, strict=True)):
        log.append(*values(count, 100 * number))
    faults.arm(faulty)
    setup = FollowingSetup(
        cluster,
        on_record=lambda _: faults.meet("record_received"),
        on_caught_up=lambda: faults.meet("caught_up"),
    )
    cluster.run(3)
    for log in cluster.logs.values():
        log.append(b"live")
    cluster.run(1)
    if not is_stopped_with_it:
        faults.disarm()
        cluster.run(15)
        for log in cluster.logs.values():
            log.append(b"last")
        cluster.run(5)
        setup.assert_each_exactly_once()
        assert len(setup.recorder.caught_up_at) == 1
        assert setup.unavailable_reason is None
        assert setup.reasons == ()
    setup.stop()
    faults.disarm()
    # Each traceback is there once.
    assert len(no_failure_is_lost) <= faults.raised
    no_failure_is_lost.clear()
