"""
What counting costs: on the path of a request, for each batch of records, and when Prometheus asks.

In one process, without HTTP. What a request costs with all around it, benchmarks/run.py says.

    python benchmarks/metrics.py
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from itertools import repeat
from statistics import median
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.measures import BYTES, RECORDS, SECONDS, Distribution, KafkaMeasures, Waiting
from sampleapp.metrics import Families, MetricsPage, RequestCounts
from sampleapp.model import RecordMetadata
from sampleapp.readings.follower import ReadingsFollower
from sampleapp.web import Exchange, HTTPServer, Request, Response, response_to_failure
from sampleapp.web.errors import problem_response
from sampleapp.web.server import Peer
from sampleapp.web.server.head import Head, parse_head

__all__ = ["measure_metrics"]

CALLS = 200_000
ROUNDS = 7
ROUTES = ("/", "/messages", "/topics/{topic}", "/metrics", "/live", "/ready", "/openapi.json", "")
STATUSES = (200, 304, 400, 401, 403, 404, 413, 422, 429, 503, 504)
APIS = ("ApiVersions", "Fetch", "InitProducerId", "ListOffsets", "Metadata", "Produce")


def measure_metrics() -> None:
    print("\nCPU µs a call, above that of a call that does nothing")
    counts = RequestCounts(seconds=time.time)
    post, get = _head("POST", "/messages"), _head("GET", "/")
    record = RecordMetadata(topic="readings", partition=0, offset=1)
    for name, route, head, answer in (
        ("POST, 200", "/messages", post, Response(HTTPStatus.OK, record=record, record_bytes=100)),
        ("GET, 200", "/", get, Response(HTTPStatus.OK)),
        ("POST, 503", "/messages", post, Response(HTTPStatus.SERVICE_UNAVAILABLE, problem="buffer-full")),
    ):
        exchange = Exchange(Peer(None), b"1", time.time(), head, route)
        _print(name, _us(counts.responded, exchange, answer) - _us(_nothing, exchange, answer))
    distribution = Distribution(SECONDS)
    _print("a value of a batch", _us(distribution.add, 0.004) - _us(_nothing, 0.004))

    print("\nOne scrape, in ms (at once: the longest that nothing else was served)")
    for topics, connections, brokers in ((1, 10, 1), (100, 1_000, 12), (100, 10_000, 100)):
        clock = _Turns()
        page = _page(topics, connections, brokers, clock)
        print(f"  {topics:,} topics, {connections:,} connections, {brokers} brokers of Kafka")
        for accept in (b"text/plain", b"application/openmetrics-text"):
            totals, longest, lines = [], [], 0
            for _ in range(20):
                answers: list[Response] = []
                turns = clock.taken_by(partial(page.answer, accept), answers)
                totals.append(sum(turns))
                longest.append(max(turns))
                lines = sum(not each.startswith(b"#") for each in answers[0].parts[0].splitlines())
            times = f"{median(totals):8.1f}, at once {median(longest):6.1f}"
            print(f"    {accept.decode():30} {lines:6,} lines {times}")


def _nothing(*_: object) -> None:
    pass


def _us(function: Callable[..., object], *arguments: object) -> float:
    return 1e6 * _seconds(function, arguments, CALLS)


def _seconds(function: Callable[..., object], arguments: tuple[object, ...], calls: int) -> float:
    rounds = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in repeat(None, calls):
            function(*arguments)
        rounds.append((time.process_time() - began_s) / calls)
    return median(rounds)


def _print(name: str, value: float) -> None:
    print(f"  {name:75}{value:8.2f}")


def _head(method: str, path: str) -> Head:
    return parse_head(f"{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())


class _Turns:
    """The time of the machine, and turns that are taken one by one."""

    seconds = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self._due: list[Callable[[], object]] = []

    def callLater(self, _delay: float, what: Callable[..., object], *arguments: object) -> None:  # noqa: N802
        self._due.append(partial(what, *arguments))

    def taken_by(self, work: Callable[[], Deferred[Response]], answers: list[Response]) -> list[float]:
        """Return how long each turn took, in ms."""
        self._due.append(lambda: work().addCallback(answers.append))
        taken = []
        while self._due:
            began_s = time.perf_counter()
            self._due.pop()()
            taken.append(1e3 * (time.perf_counter() - began_s))
        return taken


class _Kafka(MemoryBroker):
    """Tells what a Kafka broker would."""

    def __init__(self, brokers: int) -> None:
        super().__init__(clock=Clock())
        self._sent = Counter({(api, node): 1 for api in APIS for node in range(brokers)})

    def measures(self) -> KafkaMeasures:
        return KafkaMeasures(
            waiting=Waiting(records=1, bytes=1, limit_bytes=1),
            requests=self._sent,
            retries=0,
            batch_records=Distribution(RECORDS),
            batch_bytes=Distribution(BYTES),
            throttled_s=0.0,
            acknowledgement_s=Distribution(SECONDS),
        )


def _page(topics: int, connections: int, brokers: int, turns: _Turns) -> MetricsPage:
    clock = Clock()
    counts = RequestCounts(seconds=clock.seconds)
    for route in ROUTES:
        for status in STATUSES[: 1 if topics == 1 else None]:
            exchange = Exchange(Peer(None), b"1", 0.0, _head("POST", "/x"), route)
            counts.responded(exchange, Response(HTTPStatus(status)))
    for number in range(topics):
        record = RecordMetadata(topic=f"topic-{number}", partition=0, offset=1)
        exchange = Exchange(Peer(None), b"1", 0.0, _head("POST", "/messages"), "/messages")
        counts.responded(exchange, Response(HTTPStatus.OK, record=record))
    server = HTTPServer(_reject, reject=problem_response, response_to=response_to_failure, reactor=clock)
    for _ in range(connections):
        connection = server.buildProtocol(None)
        server.add_connection(cast("Any", connection), is_rejected=False)
    broker = _Kafka(brokers)
    page = MetricsPage(clock=cast("Any", turns))
    follower = ReadingsFollower(broker=broker, topic="readings", clock=clock)
    page.show(Families(requests=counts, server=server, broker=broker, follower=follower))
    return page


def _reject(_: Request) -> Response:
    return Response(HTTPStatus.NOT_FOUND)


if __name__ == "__main__":
    measure_metrics()
