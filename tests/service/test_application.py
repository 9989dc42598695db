"""The order in which the whole starts and stops, whatever goes wrong on the way."""

from __future__ import annotations

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.testing import MemoryReactorClock
from zope.interface import implementer

from sampleapp.errors import BrokerStopped
from sampleapp.interfaces import ISubscription, IWorkBroker
from sampleapp.readings.follower import ReadingsFollower
from sampleapp.service.application import Readiness, SampleAppService
from sampleapp.service.assembly import build
from sampleapp.service.config import Config
from sampleapp.service.listener import Listener
from sampleapp.service.reloads import Reloads
from tests.support.in_memory import Connection, InMemoryService, ManualBroker, request_bytes
from tests.support.logs import logged_lines
from tests.support.secrets import secret
from tests.support.threads import ReactorWithThreads

MESSAGE = b'{"topic":"t","content":"c"}'
POST = request_bytes("POST", "/messages", [(b"Content-Type", b"application/json")], MESSAGE)


@implementer(ISubscription)
class EndlessFollowing:
    """A reading that does not come back from the disk."""

    def stop(self):
        return Deferred()

    def unavailable_reason(self):
        return None


@implementer(IWorkBroker)
class LoggingBroker(ManualBroker):
    """A broker that fails what it has when it is stopped, and writes down what it is told."""

    leases = given_up = 0

    def __init__(self, events):
        super().__init__()
        self._events = events
        self.work = self

    def start(self):
        self._events.append("broker starts")

    def follow(self, *, topic, observer):
        self._events.append(f"follows {topic}")
        return EndlessFollowing()

    def stop(self, *, deadline_s):
        self._events.append(f"broker stops within {deadline_s:g} s")
        for waiting in self.waiting:
            waiting.errback(BrokerStopped("The service is stopping."))
        return succeed(None)


class Port:
    def __init__(self, events, *, address=None, stopping=None):
        self._events = events
        self._address = address or IPv4Address("TCP", "127.0.0.1", 8080)
        self._stopping = stopping

    def getHost(self):
        return self._address

    def stopListening(self):
        self._events.append("port closes")
        return self._stopping


class Endpoint:
    def __init__(self, events, outcome):
        self._events = events
        self._outcome = outcome

    def listen(self, factory):
        self._events.append("port opens")
        return self._outcome


class Setup:
    def __init__(self, *, drain_timeout_s=10.0, drain_delay_s=0.0, stopping=None):
        self.events = []
        self.web = InMemoryService(broker=LoggingBroker(self.events))
        endpoint = Endpoint(self.events, succeed(Port(self.events, stopping=stopping)))
        follower = ReadingsFollower(broker=self.web.broker, topic="readings", clock=self.web.clock)
        readiness = Readiness(broker=self.web.broker, follower=follower)
        self.service = SampleAppService(
            config=Config(drain_timeout_s=drain_timeout_s, drain_delay_s=drain_delay_s),
            broker=self.web.broker,
            follower=follower,
            web=self.web.service.web,
            listeners=[Listener(endpoint=endpoint, description="tcp:8080")],
            reloads=Reloads(self.web.clock, run=maybeDeferred),
            readiness=readiness,
            clock=self.web.clock,
        )
        self.service.startService()
        self.stopped = []

    def stop(self):
        self.service.stopService().addCallback(lambda _: self.stopped.append(True))


def test_the_port_is_open_before_the_broker_starts_and_closed_before_it_stops():
    setup = Setup()
    setup.stop()
    assert setup.events == [
        "port opens",
        "broker starts",
        "follows readings",
        "port closes",
        "broker stops within 10 s",
    ]
    assert setup.stopped


def test_before_it_stops_it_serves_on_for_the_drain_delay_but_says_that_it_is_not_ready():
    setup = Setup(drain_delay_s=5, drain_timeout_s=10)
    assert "The service is stopping." not in setup.service.reasons()
    setup.stop()
    assert setup.service.reasons()[0] == "The service is stopping."
    setup.web.clock.advance(4.9)
    assert "port closes" not in setup.events
    connection = setup.web.connect()
    connection.send(POST)
    setup.web.broker.acknowledge()
    (response,) = connection.responses(["POST"])
    assert response.status == 200
    assert response.headers[b"connection"] == b"keep-alive"
    setup.web.clock.advance(0.1)
    assert setup.events[-1] == "port closes"
    setup.web.clock.advance(1)
    connection.settle()
    # The time for what is in flight begins when the ports close.
    assert setup.events[-1] == "broker stops within 9 s"
    assert setup.stopped


def test_ports_stay_open_for_workers_until_their_leases_are_answered():
    setup = Setup()
    setup.web.broker.leases = 1
    setup.stop()
    setup.web.clock.pump([0.5] * 6)
    assert "port closes" not in setup.events
    setup.web.broker.leases = 0
    setup.web.clock.advance(0.5)
    assert setup.events[-2:] == ["port closes", "broker stops within 6.5 s"]
    assert setup.stopped


def test_ports_stay_open_for_workers_for_half_of_the_drain():
    setup = Setup()
    setup.web.broker.leases = 1
    setup.stop()
    setup.web.clock.pump([0.5] * 9)
    assert "port closes" not in setup.events
    setup.web.clock.advance(0.5)
    assert setup.events[-2:] == ["port closes", "broker stops within 5 s"]


def test_the_broker_outlives_the_last_request():
    setup = Setup()
    connection = setup.web.connect()
    connection.send(POST)
    setup.stop()
    setup.web.clock.advance(4)
    assert setup.events[-1] == "port closes"
    setup.web.broker.acknowledge()
    connection.settle()
    assert setup.events[-1] == "broker stops within 6 s"
    assert setup.stopped
    (response,) = connection.responses(["POST"])
    assert response.status == 200


def test_within_the_deadline_requests_are_answered_by_the_end_of_the_broker_and_then_cut():
    setup = Setup(drain_timeout_s=3)
    running, reading = setup.web.connect(), Connection(setup.web.site)
    running.send(POST)
    reading.send(POST[:-3])
    setup.stop()
    setup.web.clock.advance(1.9)
    assert setup.events[-1] == "port closes"
    # The broker's time is a part of the whole.
    setup.web.clock.advance(0.1)
    assert setup.events[-1] == "broker stops within 1 s"
    running.settle()
    (response,) = running.responses(["POST"])
    assert response.status == 503
    assert not setup.stopped
    setup.web.clock.advance(1)
    assert reading.transport.aborted
    assert setup.stopped


def test_a_short_drain_is_halved_between_requests_and_the_broker():
    setup = Setup(drain_timeout_s=0.5)
    connection = Connection(setup.web.site)
    connection.send(POST[:-3])
    setup.stop()
    setup.web.clock.advance(0.25)
    assert setup.events[-1] == "broker stops within 0.25 s"
    setup.web.clock.advance(1)
    assert setup.stopped


def test_a_broker_that_does_not_stop_does_not_keep_the_service_from_ending(monkeypatch):
    setup = Setup(drain_timeout_s=3)
    monkeypatch.setattr(setup.web.broker, "stop", lambda **_: Deferred())
    with logged_lines() as lines:
        setup.stop()
        setup.web.clock.advance(8.9)
        assert not setup.stopped
        setup.web.clock.advance(0.1)
    assert setup.stopped
    assert lines[-1] == "The broker did not stop in time; ending without it."


def test_a_port_that_cannot_be_closed_does_not_keep_the_broker_from_being_stopped(no_failure_is_lost):
    setup = Setup(stopping=fail(OSError("Bad file descriptor")))
    setup.stop()
    assert setup.events[-1] == "broker stops within 10 s"
    assert setup.stopped
    (failure,) = no_failure_is_lost
    assert failure.check(OSError)
    no_failure_is_lost.clear()


def test_the_password_for_the_broker_is_read_again_and_what_is_no_password_changes_nothing(tmp_path):
    credentials = tmp_path / "credentials"
    credentials.write_text(f"username=somebody\npassword={secret('s3cr3t-Xyzzy', 'a password')}\n")
    credentials.chmod(0o600)
    url = f"kafka+tls://127.0.0.1:1?sasl=SCRAM-SHA-512&credentials={credentials}"
    reactor = ReactorWithThreads()
    service = build(Config(broker=url), reactor=reactor)
    with logged_lines() as lines:
        reloading = service.reload()
        reactor.threads.do_one()
        assert reloading.result
        credentials.write_text("s3cr3t-Xyzzy\n")
        reloading = service.reload()
        reactor.threads.do_one()
        assert not reloading.result
    read, rejected = lines
    assert read == "Reloaded the broker's certificates and credentials."
    assert f"the previous version stays in use: The file {credentials}, given with credentials=," in rejected
    assert "s3cr3t" not in rejected


def test_a_broker_without_files_has_nothing_to_read_again():
    for broker in ("kafka://127.0.0.1:1", "memory:"):
        with logged_lines() as lines:
            assert build(Config(broker=broker), reactor=MemoryReactorClock()).reload().result
        assert lines == []
