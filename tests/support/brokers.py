"""What the tests of brokers share: waiting with a deadline, and an observer that remembers."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import deferLater
from zope.interface import implementer

from sampleapp.interfaces import IRecordObserver
from sampleapp.model import Record

DEADLINE_S = 30.0
"""Far beyond what anything takes: it ends a test that would otherwise hang, and measures nothing."""


def record(topic, value=b"v", *, key=None, timestamp_ms=1_700_000_000_000, headers=()):
    return Record(topic=topic, key=key, value=value, timestamp_ms=timestamp_ms, headers=headers)


def content(record):
    """What a record carries, whether it goes in or comes out."""
    return (record.topic, record.timestamp_ms, record.key, record.value, record.headers)


def within(deferred):
    """The same Deferred, which fails instead of never firing."""
    return deferred.addTimeout(DEADLINE_S, reactor)


async def eventually(condition):
    """Let the reactor work until a condition is true."""
    give_up_at_s = reactor.seconds() + DEADLINE_S
    while not condition():
        assert reactor.seconds() < give_up_at_s, "the condition did not become true in time"
        await deferLater(reactor, 0.005)


async def outcomes(deferreds):
    """Every result or exception, in order; nothing is left unhandled."""
    results = await within(DeferredList(deferreds, consumeErrors=True))
    return [result if succeeded else result.value for succeeded, result in results]


async def settled(broker, records):
    """Publish all records at the same time."""
    return await outcomes([broker.publish(each) for each in records])


@implementer(IRecordObserver)
class Recorder:
    """Keeps everything that it is told, in order."""

    def __init__(self, *, on_record=None, on_caught_up=None, on_reset=None):
        self.records = []
        self.caught_up_at = []
        self.reset_at = []
        self._on_record = on_record
        self._on_caught_up = on_caught_up
        self._on_reset = on_reset

    def record_received(self, record):
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)

    def caught_up(self):
        self.caught_up_at.append(len(self.records))
        if self._on_caught_up is not None:
            self._on_caught_up()

    def reset(self):
        self.reset_at.append(len(self.records))
        if self._on_reset is not None:
            self._on_reset()

    async def until(self, count):
        """Wait until that many records have come, and it has caught up."""
        await eventually(lambda: len(self.records) >= count and self.caught_up_at)
        return self.records

    def values(self):
        return [record.value for record in self.records]


async def everything(broker, topic):
    """All records that are in a topic now."""
    recorder = Recorder()
    following = broker.follow(topic=topic, observer=recorder)
    await eventually(lambda: recorder.caught_up_at)
    await within(following.stop())
    return recorder.records


async def turns(count=20):
    """Some turns of the reactor, for what must not happen in them."""
    for _ in range(count):
        await deferLater(reactor, 0)


def chained(deferred):
    """A Deferred of one's own that fires as another does."""
    mine = Deferred()
    deferred.addBoth(lambda result: (mine.callback(result), result)[1])
    return mine
