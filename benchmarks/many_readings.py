"""
What many readings cost: to keep, to change, to read at the start.

In processes of their own, without HTTP. Below the changes stands what it takes to encode everything.

    python benchmarks/many_readings.py collection 1000000
"""

from __future__ import annotations

import hashlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import psutil

__all__ = ["measure_many_readings"]

HERE = Path(__file__)
KEYS = 100_000
FIRST_MS = 1_700_000_000_000
TURN = 500
"""Records, which is what the brokers deliver in one turn of the reactor."""


class Item(msgspec.Struct, gc=False):
    id: str
    value: float


_ITEMS = {1: float, 2: Item}


def measure_many_readings(*, sizes: list[int], records: int) -> None:
    for size in sizes:
        _run("collection", size)
    for source in ("sqlite", "kafka"):
        _run(source, records)


def _run(part: str, count: int) -> None:
    subprocess.run([sys.executable, str(HERE), part, str(count)], check=True)


def collection(count: int) -> None:
    from sampleapp.readings import Readings

    print(f"\n{count:,} readings (CPU ms)")
    resident = psutil.Process().memory_info().rss
    readings = Readings()
    key_bytes = 0
    turns: list[float] = []
    for first in range(0, count, TURN):
        some = [_record(n, offset=n) for n in range(first, min(first + TURN, count))]
        turns.append(_cpu_ms(lambda some=some: _apply(readings, some)))
        key_bytes += sum(sys.getsizeof(record.key.decode()) for record in some)
    print(f"{'a new reading':44}{1000 * sum(turns) / count:9.2f} µs, longest turn {max(turns):.1f} ms")
    steps = list(_steps(readings.encode(at_once=512 * 1024)))
    print(f"{'encoding all of them beforehand':44}{sum(steps):9.1f} longest step {max(steps):.1f}")
    for version in (1, 2):
        readings.representation(version)
    used = psutil.Process().memory_info().rss - resident - key_bytes
    print(f"{'memory of one, beside its id':44}{used / count:9.0f} bytes")
    changes = {
        "changed": lambda n: _record(random.randrange(count), offset=count + n, value=b"%d" % n),
        "come in the middle": lambda n: _record(
            count + n, offset=n, partition=1, timestamp_ms=FIRST_MS + random.randrange(count)
        ),
        "gone": lambda n: _record(random.randrange(count), offset=2 * count + n, value=None),
    }
    for version in (1, 2):
        readings.representation(version)
        for name, change in changes.items():
            found = []
            for n in range(20):
                readings.apply(change(20 * version + n))
                found.append(_cpu_ms(lambda version=version: readings.representation(version)))
            text = f"version {version}, one has {name}"
            print(f"{text:44}{statistics.median(found):9.2f} longest {max(found):.2f}")
        items = msgspec.json.decode(readings.representation(version).body, type=list[_ITEMS[version]])
        whole = _cpu_ms(lambda items=items: hashlib.blake2b(msgspec.json.encode(items)).digest())
        print(f"{f'version {version}, all encoded anew':44}{whole:9.2f}")


def sqlite(count: int) -> None:
    import sqlite3

    from twisted.internet import reactor

    from sampleapp.brokers.sqlite import SQLiteBroker
    from sampleapp.brokers.sqlite.store import Store
    from sampleapp.errors import ReadingsNotReady
    from sampleapp.model import Record
    from sampleapp.readings.follower import ReadingsFollower

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "records.sqlite3"
        store = Store(path=path, patience_s=5)
        store.append([Record(topic="readings", key=b"x", value=b"1", timestamp_ms=FIRST_MS)])
        store.close()
        with sqlite3.connect(path) as connection:
            connection.executemany(
                "INSERT INTO record SELECT id, ?, ?, ?, ?, NULL FROM topic",
                ((each.offset + 1, each.timestamp_ms, each.key, each.value) for each in _long_topic(count)),
            )
            connection.execute("UPDATE topic SET next_offset = ?", (count + 1,))
        connection.close()
        broker = SQLiteBroker(path=path, clock=reactor, threads=reactor)
        follower = ReadingsFollower(broker=broker, topic="readings", clock=reactor)
        lateness: list[float] = []
        began_s, began_cpu_s = time.perf_counter(), time.process_time()

        def look(due_s: float) -> None:
            lateness.append(1000 * (time.perf_counter() - due_s))
            try:
                follower.representation(1)
            except ReadingsNotReady:
                reactor.callLater(0.005, look, time.perf_counter() + 0.005)
            else:
                taken_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
                print(f"\nStart with {count:,} records of {KEYS:,} keys")
                print(
                    f"{'sqlite':44}{taken_s:9.2f} s, CPU {cpu_s:.2f} s, others waited p99 "
                    f"{statistics.quantiles(lateness, n=100)[98]:.1f} ms"
                )
                broker.stop(deadline_s=1).addBoth(lambda _: reactor.stop())

        def start() -> None:
            broker.start()
            follower.start()
            look(time.perf_counter())

        reactor.callWhenRunning(start)
        reactor.run()


def kafka(count: int) -> None:
    """Without a network: the mock keeps too little for that."""
    from sampleapp.brokers.kafka.batches import encode_batch, read_batches
    from sampleapp.brokers.kafka.batches.compression import Codec
    from sampleapp.model import Record
    from sampleapp.readings import Readings

    readings = Readings()
    cpu_ms = 0.0

    def take(data: bytes, position: int) -> None:
        for page in read_batches(data, topic="readings", partition=0, position=position, aborted=()):
            readings.apply_all(list(page.records))

    topic = _long_topic(count)
    for first in range(0, count, TURN):
        batch = [
            Record(topic="readings", key=each.key, value=each.value, timestamp_ms=each.timestamp_ms)
            for each in islice(topic, TURN)
        ]
        encoded = encode_batch(batch, codec=Codec.LZ4)
        cpu_ms += _cpu_ms(partial(take, first.to_bytes(8, "big") + encoded[8:], first))
    cpu_ms += sum(_steps(readings.encode(at_once=512 * 1024)))
    print(f"{'Kafka, what was fetched (lz4), no network':44}{'':13}CPU {cpu_ms / 1000:.2f} s")


def _long_topic(count: int) -> Iterator[Any]:
    # In an order that is none, as far as memory is concerned.
    return (_record(n * 7919 % KEYS, offset=n, value=b"%.2f" % (n * 31 % 6000 / 100)) for n in range(count))


def _record(
    number: int,
    *,
    offset: int,
    partition: int = 0,
    timestamp_ms: int | None = None,
    value: bytes | None = b"",
) -> Any:
    from sampleapp.model import ConsumerRecord

    return ConsumerRecord(
        topic="readings",
        partition=partition,
        offset=offset,
        timestamp_ms=FIRST_MS + offset if timestamp_ms is None else timestamp_ms,
        key=b"sensor-%07d" % number,
        value=b"%.2f" % (number * 31 % 6000 / 100) if value == b"" else value,
    )


def _apply(readings: Any, records: list[Any]) -> None:
    for record in records:
        readings.apply(record)


def _steps(steps: Iterator[None]) -> Iterator[float]:
    done = False
    while not done:
        began_s = time.process_time()
        done = next(steps, True) is True
        yield 1000 * (time.process_time() - began_s)


def _cpu_ms(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return 1000 * (time.process_time() - began_s)


if __name__ == "__main__":
    {"collection": collection, "sqlite": sqlite, "kafka": kafka}[sys.argv[1]](int(sys.argv[2]))
