"""The simulated socket behaves like a socket, so that tests on it are meaningful."""

from __future__ import annotations

import pytest
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from zope.interface import implementer

from tests.support.simulated_socket import Link, Spinning


@implementer(IHalfCloseableProtocol)
class Recorder(Protocol):
    """Remembers what the transport calls."""

    def connectionMade(self):
        self.calls = []

    def dataReceived(self, data):
        self.calls.append(data)

    def readConnectionLost(self):
        self.calls.append("read lost")

    def writeConnectionLost(self):
        self.calls.append("write lost")

    def connectionLost(self, reason):
        self.calls.append(reason.type.__name__)

    def pauseProducing(self):
        self.calls.append("pause")

    def resumeProducing(self):
        self.calls.append("resume")

    def stopProducing(self):
        self.calls.append("stop")


@pytest.fixture(params=[True, False])
def connect(request):
    def connected(**way):
        link = Link(Factory.forProtocol(Recorder), Clock(), is_known=request.param, **way)
        return link, link.protocol.transport, link.protocol.calls

    return connected


def test_the_protocol_gets_the_segments_as_they_were_sent_and_none_while_it_does_not_read(connect):
    link, transport, calls = connect()
    link.send(b"ab", b"c")
    transport.pauseProducing()
    link.send(b"d", b"e")
    assert calls == [b"ab", b"c"]
    transport.resumeProducing()
    link.turn()
    assert calls == [b"ab", b"c", b"d", b"e"]


def test_the_socket_takes_as_many_bytes_as_the_test_says_at_each_attempt(connect):
    link, transport, _ = connect(takes=[1, 0, 2])
    assert transport.writeSomeData(b"abc") == 1
    assert transport.writeSomeData(b"bc") == 0
    assert transport.writeSomeData(b"bc") == 2
    assert transport.writeSomeData(b"defg") == 4
    assert link.read() == b"abcdefg"


def test_unread_bytes_take_up_room(connect):
    link, transport, _ = connect(room=3)
    transport.write(b"abcdefg")
    link.turn()
    assert bytes(link.socket.unread) == b"abc"
    assert link.read(2) == b"ab"
    assert bytes(link.socket.unread) == b"cde"
    assert link.read_all() == b"abcdefg"


def test_a_pull_producer_is_asked_at_once_and_whenever_everything_is_sent(connect):
    link, transport, calls = connect(room=10)
    transport.registerProducer(link.protocol, streaming=False)
    assert calls == ["resume"]
    transport.write(b"x" * 25)
    link.turn()
    assert calls == ["resume"]
    link.read()
    assert calls == ["resume"]
    link.read()
    assert calls == ["resume", "resume"]
    transport.write(b"x")
    link.turn()
    assert calls == ["resume", "resume", "resume"]


def test_a_push_producer_is_paused_when_much_waits_and_resumed_when_nothing_does(connect):
    link, transport, calls = connect(room=10)
    transport.registerProducer(link.protocol, streaming=True)
    transport.write(b"x" * 65_536)
    assert calls == []
    transport.write(b"x")
    assert calls == ["pause"]
    link.turn()
    link.read()
    assert calls == ["pause"]
    link.read_all()
    assert calls == ["pause", "resume"]


def test_a_connection_is_closed_once_everything_is_sent_and_the_producer_is_gone(connect):
    link, transport, calls = connect(room=2)
    transport.registerProducer(link.protocol, streaming=False)
    transport.write(b"abcd")
    transport.loseConnection()
    link.read_all()
    assert not link.is_lost
    transport.unregisterProducer()
    link.turn()
    assert link.is_lost
    assert link.is_over
    assert calls == ["resume", "resume", "ConnectionDone"]
    assert bytes(link.received) == b"abcd"


def test_either_side_may_close_its_direction(connect):
    link, transport, calls = connect()
    link.send(b"a")
    link.finish()
    assert calls == [b"a", "read lost"]
    transport.write(b"b")
    transport.loseWriteConnection()
    link.turn()
    assert calls == [b"a", "read lost", "write lost"]
    assert link.read_all() == b"b"
    assert link.is_over
    transport.loseConnection()
    assert link.is_lost


def test_a_client_that_goes_away_is_noticed_whether_the_server_reads_or_not(connect):
    for reads in (True, False):
        link, transport, calls = connect()
        if not reads:
            transport.pauseProducing()
        link.send(b"a")
        link.reset()
        assert calls[-1] == "ConnectionLost"
        assert link.is_lost
        transport.write(b"x")


def test_an_aborted_connection_ends_in_the_next_turn_and_takes_nothing_more(connect):
    link, transport, calls = connect(room=1)
    transport.write(b"abc")
    link.turn()
    transport.abortConnection()
    assert calls == []
    link.turn()
    assert calls == ["ConnectionAborted"]
    assert link.read_all() == b"a"


def test_a_reactor_that_would_turn_for_ever_is_noticed(connect):
    link, transport, _ = connect()
    link.protocol.resumeProducing = transport.startWriting
    transport.registerProducer(link.protocol, streaming=False)
    with pytest.raises(Spinning):
        link.turn()
