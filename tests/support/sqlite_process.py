"""
What the tests of the SQLite broker run in processes of their own; prints one JSON document.

    python -m tests.support.sqlite_process publish PATH TOPIC NAME COUNT
    python -m tests.support.sqlite_process limited PATH BYTES
    python -m tests.support.sqlite_process check PATH

Or, until it is killed, one line for each publish: how it ended.

    python -m tests.support.sqlite_process serve PATH TOPIC
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys

from twisted.internet import reactor
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from sampleapp.brokers.sqlite import SQLiteBroker
from sampleapp.errors import StartUpError
from sampleapp.model import RecordMetadata
from tests.support.brokers import eventually, record, settled, within

NOBODY = 65534


async def publish(path, topic, name, count):
    """Publish in many small batches, and say which record got which offset."""
    broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
    broker.check()
    broker.start()
    offsets = {}
    for start in range(0, int(count), 10):
        values = [f"{name}-{n}" for n in range(start, start + 10)]
        found = await settled(broker, [record(topic, value.encode()) for value in values])
        offsets.update({value: metadata.offset for value, metadata in zip(values, found, strict=True)})
    await within(broker.stop(deadline_s=20))
    return offsets


async def limited(path, size):
    """Publish until the file may not grow any more, then after the limit was raised."""
    broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
    broker.start()
    await eventually(lambda: broker.health().ready)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), hard))
    stored, refused, unknown, retriable = {}, [], [], True
    for batch in range(200):
        names = [f"{batch}-{n}" for n in range(5)]
        found = await settled(broker, [record("t", bytes(4000), key=name.encode()) for name in names])
        for name, end in zip(names, found, strict=True):
            if isinstance(end, RecordMetadata):
                stored[name] = end.offset
            else:
                (unknown if end.possibly_published else refused).append(name)
                retriable = retriable and end.retriable
        if refused or unknown:
            break
    health = broker.health()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await eventually(lambda: broker.health().ready)
    after = await within(broker.publish(record("t", b"v", key=b"after")))
    stored["after"] = after.offset
    await within(broker.stop(deadline_s=20))
    return {
        "stored": stored,
        "refused": refused,
        "unknown": unknown,
        "retriable": retriable,
        "ready_at_the_limit": health.ready,
        "reasons": health.reasons,
    }


async def check(path):
    """Check as somebody who is not root, for whom no permission counts."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        SQLiteBroker(path=path, clock=reactor, threads=reactor).check()
    except StartUpError as error:
        return str(error)
    return None


async def serve(path, topic):
    """Publish one record after another for each line on standard input, and print what became of it."""
    broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
    broker.start()
    for n in itertools.count():
        line = await deferToThread(sys.stdin.readline)
        if line == "stop\n":
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
        print(json.dumps(report), flush=True)  # noqa: T201 -- its way of answering


async def main(_, what, *arguments):
    commands = {"publish": publish, "limited": limited, "check": check, "serve": serve}
    print(json.dumps(await commands[what](*arguments)))  # noqa: T201 -- its way of answering


if __name__ == "__main__":
    react(main, sys.argv[1:])
