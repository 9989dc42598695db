"""
One measurement of one producer, alone in its process: prints one line of JSON.

A number of messages of 100 bytes is kept outstanding: for each that is answered the next one is sent. With
1000 that shows how much a producer can do, with 64 how long each of as many callers waits. The messages go
out with acks=all, and the CPU time is that of all threads of the process.

    python benchmarks/kafka_producer.py ENGINE BOOTSTRAP [--messages N] [--outstanding N] [--keyed]

own      the broker of sampleapp, as the service uses it
afkak    afkak's own Producer
bridged  librdkafka, with a Deferred for each message
raw      librdkafka with nothing but a loop around it: what a producer for Python can reach at most
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import confluent_kafka
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import react
from twisted.python.failure import Failure

TOPIC = "bench"
VALUE = os.urandom(100)
KEYS = [random.randbytes(16) for _ in range(10_000)]
WARM_UP = 2000

NextKey = Callable[[], bytes | None]


class Own:
    """As the service publishes, the record's time included."""

    def __init__(self, *, bootstrap: str, keyed: bool, reactor: Any) -> None:  # noqa: ARG002 -- as the others
        from sampleapp.brokers import from_url
        from sampleapp.model import Record

        self._broker = from_url(f"kafka://{bootstrap}", reactor=reactor)
        self._broker.check()
        self._broker.start()
        self._record = Record
        self._clock = reactor

    def publish(self, key: bytes | None) -> Deferred[Any]:
        timestamp_ms = int(self._clock.seconds() * 1000)
        return self._broker.publish(
            self._record(topic=TOPIC, key=key, value=VALUE, timestamp_ms=timestamp_ms)
        )

    async def stop(self) -> None:
        await self._broker.stop(deadline_s=5)


class Afkak:
    """Without its timer: what waits is sent when the request before is answered."""

    def __init__(self, *, bootstrap: str, keyed: bool, reactor: Any) -> None:
        from afkak import KafkaClient, Producer
        from afkak.partitioner import HashedPartitioner, RoundRobinPartitioner

        self._client = KafkaClient(bootstrap, reactor=reactor, clientId="bench", timeout=20_000)
        partitioner = HashedPartitioner if keyed else RoundRobinPartitioner
        self._producer = Producer(self._client, partitioner_class=partitioner, req_acks=-1, ack_timeout=5000)

    def publish(self, key: bytes | None) -> Deferred[Any]:
        return self._producer.send_messages(TOPIC, key, [VALUE])

    async def stop(self) -> None:
        self._producer.stop()
        await self._client.close()


class Bridged:
    """Its delivery reports come in a thread of their own, which hands them to the reactor in bunches."""

    def __init__(self, *, bootstrap: str, keyed: bool, reactor: Any) -> None:  # noqa: ARG002 -- as the others
        self._producer = _librdkafka(bootstrap)
        self._reactor = reactor
        self._delivered: list[tuple[Deferred[Any], Any, int, int]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def publish(self, key: bytes | None) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()

        def delivered(error: Any, message: Any) -> None:
            self._delivered.append((answer, error, message.partition(), message.offset()))

        self._producer.produce(TOPIC, VALUE, key, on_delivery=delivered)
        return answer

    def _poll(self) -> None:
        while not self._stopping:
            if self._producer.poll(0.1):
                delivered, self._delivered = self._delivered, []
                self._reactor.callFromThread(self._response, delivered)

    def _response(self, delivered: list[tuple[Deferred[Any], Any, int, int]]) -> None:
        for answer, error, partition, offset in delivered:
            if error is None:
                answer.callback((partition, offset))
            else:
                answer.errback(confluent_kafka.KafkaException(error))

    async def stop(self) -> None:
        self._stopping = True


class Load:
    """Keeps messages outstanding at a producer that has a Deferred for each."""

    def __init__(self, publish: Callable[[bytes | None], Deferred[Any]], next_key: NextKey) -> None:
        self._publish = publish
        self._next_key = next_key
        self._to_send = self._to_answer = 0
        self._latencies_s: list[float] = []
        self._end: Deferred[list[float]] = Deferred()

    def run(self, *, messages: int, outstanding: int) -> Deferred[list[float]]:
        self._to_send = self._to_answer = messages
        self._latencies_s = []
        self._end = Deferred()
        for _ in range(outstanding):
            self._send()
        return self._end

    def _send(self) -> None:
        self._to_send -= 1
        sent_s = time.perf_counter()
        self._publish(self._next_key()).addCallbacks(self._responded, self._failed, callbackArgs=(sent_s,))

    def _responded(self, _: object, sent_s: float) -> None:
        self._latencies_s.append(time.perf_counter() - sent_s)
        self._to_answer -= 1
        if self._to_send:
            self._send()
        elif not self._to_answer:
            self._end.callback(self._latencies_s)

    def _failed(self, failure: Failure) -> None:
        # Nothing is measured where anything fails.
        if not self._end.called:
            self._end.errback(failure)


class Figures:
    """Counts from now on."""

    def __init__(self) -> None:
        # As the service has it when it has started.
        gc.collect()
        gc.freeze()
        self._began_s, self._cpu_began_s = time.perf_counter(), time.process_time()

    def show(self, latencies_s: list[float]) -> None:
        took_s, cpu_s = time.perf_counter() - self._began_s, time.process_time() - self._cpu_began_s
        latencies_s.sort()
        count = len(latencies_s)
        result = {
            "requests_per_s": count / took_s,
            "cpu_us": 1e6 * cpu_s / count,
            "p50_ms": 1000 * latencies_s[count // 2],
            "p99_ms": 1000 * latencies_s[count * 99 // 100],
        }
        print(json.dumps(result), flush=True)


def _librdkafka(bootstrap: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 0,
            # As ours and the Java client's.
            "partitioner": "murmur2_random",
        }
    )
    producer.list_topics(TOPIC, timeout=10)
    return producer


async def measure_deferreds(reactor: Any, engine: type[Own | Afkak | Bridged], options: Any) -> None:
    producer = engine(bootstrap=options.bootstrap, keyed=options.keyed, reactor=reactor)
    load = Load(producer.publish, _keys(options))
    await load.run(messages=WARM_UP, outstanding=options.outstanding)
    figures = Figures()
    figures.show(await load.run(messages=options.messages, outstanding=options.outstanding))
    await producer.stop()


def measure_raw(options: Any) -> None:
    producer, next_key = _librdkafka(options.bootstrap), _keys(options)

    def run(messages: int) -> list[float]:
        latencies_s: list[float] = []
        sent = 0
        while len(latencies_s) < messages:
            while sent < messages and sent - len(latencies_s) < options.outstanding:
                sent += 1

                def delivered(_error: object, _message: object, sent_s: float = time.perf_counter()) -> None:
                    latencies_s.append(time.perf_counter() - sent_s)

                producer.produce(TOPIC, VALUE, next_key(), on_delivery=delivered)
            producer.poll(0.1)
        return latencies_s

    run(WARM_UP)
    figures = Figures()
    figures.show(run(options.messages))


def _keys(options: Any) -> NextKey:
    return itertools.cycle(KEYS if options.keyed else [None]).__next__


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    engines = {"own": Own, "afkak": Afkak, "bridged": Bridged}
    parser.add_argument("engine", choices=[*engines, "raw"])
    parser.add_argument("bootstrap", help="HOST:PORT[,…] of the brokers; the topic is called bench")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--outstanding", type=int, default=1000)
    parser.add_argument("--keyed", action="store_true", help="with keys of 16 bytes, 10,000 of them")
    options = parser.parse_args()
    # afkak imports, and calls, what is deprecated since it was released.
    warnings.simplefilter("ignore", DeprecationWarning)
    if options.engine == "raw":
        measure_raw(options)
    else:
        engine = engines[options.engine]
        react(lambda reactor: ensureDeferred(measure_deferreds(reactor, engine, options)))


if __name__ == "__main__":
    main()
