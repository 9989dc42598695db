"""
Functions that the tests of the SQLite broker run in other processes.

    process, pipe = start(publish, path, topic, name, count)
    result = pipe.recv()

The processes are forked from one that has already imported what they need, but has no reactor, thread or
file of its own yet.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource

# Not the reactor itself, which each process has to make for itself.
import twisted.internet.posixbase  # noqa: F401
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from sampleapp.brokers.sqlite import SQLiteBroker
from sampleapp.errors import StartUpError
from sampleapp.model import ALL, RecordMetadata, ReplayedRecord, Verdicts
from sampleapp_testing import identity
from tests.support.brokers import eventually, record, settled, within

NOBODY = 65534

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def start(work, *arguments):
    """Run one of the functions below; returns the process, and the pipe that its result comes from."""
    ours, theirs = _context.Pipe()
    with theirs:
        process = _context.Process(target=_run, args=(work, arguments, theirs))
        process.start()
    return process, ours


def _run(work, arguments, pipe):
    async def main(reactor):
        pipe.send(await work(reactor, pipe, *arguments))

    react(main)


async def publish(reactor, _, path, topic, name, count):
    """Publish in many small batches, and return the offset of each record."""
    broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
    broker.check()
    broker.start()
    offsets = {}
    for start in range(0, count, 10):
        values = [f"{name}-{n}" for n in range(start, start + 10)]
        found = await settled(broker, [record(topic, value.encode()) for value in values])
        offsets.update({value: metadata.offset for value, metadata in zip(values, found, strict=True)})
    await within(broker.stop(deadline_s=20))
    return offsets


def _identified(name):
    return record("t", bytes(4000), key=name.encode(), identity=identity("t", name))


async def limited(reactor, _, path, size):
    """Publish until the file reaches a limit on its size, and all again after the limit was raised."""
    broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
    broker.start()
    await eventually(lambda: broker.health().ready)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    stored, rejected, unknown, retriable = {}, [], [], True
    for batch in range(200):
        names = [f"{batch}-{n}" for n in range(5)]
        found = await settled(broker, [_identified(name) for name in names])
        for name, end in zip(names, found, strict=True):
            if isinstance(end, RecordMetadata):
                stored[name] = end.offset
            else:
                (unknown if end.possibly_published else rejected).append(name)
                retriable = retriable and end.retriable
        if rejected or unknown:
            break
    health = broker.health()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await eventually(lambda: broker.health().ready)
    after = await within(broker.publish(_identified("after")))
    stored["after"] = after.offset
    again = {}
    for name in [*stored, *rejected, *unknown][::-1]:
        found = await within(broker.publish(_identified(name)))
        again[name] = found.offset
    await within(broker.stop(deadline_s=20))
    return {
        "stored": stored,
        "refused": rejected,
        "unknown": unknown,
        "again": again,
        "retriable": retriable,
        "ready_at_the_limit": health.ready,
        "reasons": health.reasons,
    }


async def publish_identified(reactor, _, path, count):
    """Publish records that another process publishes as well; return each offset, and which are replayed."""
    broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
    broker.start()
    offsets, replayed = {}, set()
    for start in range(0, count, 10):
        names = [f"{n}" for n in range(start, start + 10)]
        sent = [record("t", name.encode(), identity=identity("t", name)) for name in names]
        found = await settled(broker, sent)
        offsets.update({name: metadata.offset for name, metadata in zip(names, found, strict=True)})
        replayed |= {n for n, each in zip(names, found, strict=True) if isinstance(each, ReplayedRecord)}
    await within(broker.stop(deadline_s=20))
    return offsets, replayed


async def check(reactor, _, path):
    """Check as a user other than root, who would ignore permissions."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        SQLiteBroker(path=path, clock=reactor, threads=reactor).check()
    except StartUpError as error:
        return str(error)
    return None


async def serve(reactor, pipe, path, topic):
    """Publish one record for each message in the pipe, and send its outcome back, until a message is None."""
    broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
    broker.start()
    for n in itertools.count():
        if await deferToThread(pipe.recv) is None:
            await within(broker.stop(deadline_s=20))
            return
        [end] = await settled(broker, [record(topic, b"%d" % n)])
        failed = not isinstance(end, RecordMetadata)
        report = {
            "n": n,
            "offset": None if failed else end.offset,
            "error": type(end).__name__ if failed else None,
            "reasons": broker.health().reasons,
        }
        pipe.send(report)


async def work(reactor, _, path, count):
    """Accept messages that another process accepts as well, and return the offsets."""
    broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
    broker.start()
    accepted = []
    while await within(broker.work.backlog("t", "g")) != 0:
        lease = await within(broker.work.pull("t", "g", most=1 + len(accepted) % 4, wait_s=0.5))
        if lease is not None:
            first, *_ = ids = [(0, each.record.offset) for each in lease.messages]
            kept = frozenset(ids[: count % len(ids)]) or frozenset([first])
            await within(broker.work.acknowledge("t", "g", lease.token, Verdicts(accept=kept)))
            accepted += [offset for _, offset in kept]
    await within(broker.stop(deadline_s=20))
    return accepted


async def hold(reactor, pipe, path):
    """Accept, hold and release two messages each, and work on until it is killed."""
    broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
    broker.start()
    await settled(broker, [record("t") for _ in range(6)])
    leases = [await within(broker.work.pull("t", "g", most=2, wait_s=0)) for _ in range(3)]
    await within(broker.work.acknowledge("t", "g", leases[0].token, Verdicts(accept=ALL)))
    await within(broker.work.acknowledge("t", "g", leases[2].token, Verdicts()))
    pipe.send([each.token for each in leases])
    while True:
        await settled(broker, [record("other")])
