"""
The names of all metrics, and where their values are.

They follow https://prometheus.io/docs/practices/naming/: base units, which a name ends with, and ``_total``
for what only grows.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sampleapp import __version__
from sampleapp.follower import ReadingsFollower
from sampleapp.interfaces import IBroker, IMeasured
from sampleapp.measures import SECONDS, Distribution, KafkaMeasures, Measures, SQLiteMeasures
from sampleapp.metrics.requests import RequestCounts
from sampleapp.web import HTTPServer

__all__ = ["Families"]

_BOOTSTRAP: Final = "bootstrap"
"""In place of a node id: an address of the configuration, before it was known whose it is."""


class Families(Collector):
    """Everything that the service itself counts, as it is when asked for."""

    def __init__(
        self,
        *,
        requests: RequestCounts,
        server: HTTPServer,
        admin: HTTPServer | None = None,
        broker: IBroker,
        follower: ReadingsFollower,
        rate_refusals: Mapping[str, int] | None = None,
    ) -> None:
        """
        :param server: the one that callers reach.
        :param admin: the one that is for operators only, if there is one.
        :param broker: tells more of itself if it provides `IMeasured`.
        :param rate_refusals: how many requests were over a rate of their caller, by the name of the rate.
        """
        self._requests = requests
        self._server = server
        self._admin = admin
        self._broker = broker
        self._follower = follower
        self._rate_refusals: Mapping[str, int] = {} if rate_refusals is None else rate_refusals
        self._build = {
            "version": __version__,
            "python": platform.python_version(),
            "twisted": version("twisted"),
        }

    def collect(self) -> Iterator[Metric]:
        """Return all metrics, with their values of now."""
        yield InfoMetricFamily("sampleapp_build", "The versions of what is running.", value=self._build)
        yield from _of_requests(self._requests)
        yield from _of_server(self._server)
        yield _counter(
            "sampleapp_refusals",
            "Requests and connections that were refused or ended, by the limit that they were over.",
            {**self._server.refusals, **self._rate_refusals},
            label="limit",
        )
        yield from _of_admin(self._admin)
        yield from _of_readings(self._follower)
        yield GaugeMetricFamily(
            "sampleapp_broker_ready",
            "Whether a record would be expected to be accepted now: 1 or 0.",
            value=self._broker.health().ready,
        )
        if IMeasured.providedBy(self._broker):
            yield from _of_broker(self._broker.measures())


def _of_requests(requests: RequestCounts) -> Iterator[Metric]:
    answers = CounterMetricFamily(
        "sampleapp_http_requests",
        "Requests that were answered, by the route's path, the method and the status.",
        labels=("route", "method", "status"),
    )
    by_route: dict[str, Distribution] = {}
    for route, method, status, durations in requests.answers():
        answers.add_metric((route, method, str(status)), sum(durations.counts))
        total = by_route.setdefault(route, Distribution(SECONDS))
        total.counts = [sum(pair) for pair in zip(total.counts, durations.counts, strict=True)]
        total.total += durations.total
    yield answers
    yield _histogram(
        "sampleapp_http_request_duration_seconds",
        "Time from when a request's header was there until its answer, by the route's path.",
        by_route,
        label="route",
    )
    yield _counter(
        "sampleapp_problems",
        "Answers that told of a problem, by its kind.",
        requests.problems,
        label="kind",
    )
    yield _counter(
        "sampleapp_published_records",
        "Records that were published, by topic; all topics after the first hundred are other.",
        {topic: published.records for topic, published in requests.published.items()},
        label="topic",
    )
    yield _counter(
        "sampleapp_published_bytes",
        "Bytes of the keys and values that were published, by topic; all after the first hundred are other.",
        {topic: published.bytes for topic, published in requests.published.items()},
        label="topic",
    )
    yield CounterMetricFamily(
        "sampleapp_batches", "Requests that may have several records.", value=requests.batches
    )
    yield CounterMetricFamily(
        "sampleapp_batch_refused_records",
        "Records of such requests that were wrong, or that were not published for certain.",
        value=requests.refused_in_batches,
    )


def _of_server(server: HTTPServer) -> Iterator[Metric]:
    states = server.connections_by_state()
    yield _gauge(
        "sampleapp_connections", "Connections of clients, by what they are at.", states, label="state"
    )
    yield GaugeMetricFamily(
        "sampleapp_connections_limit",
        "How many connections may be open at once.",
        value=server.limits.max_connections,
    )
    yield GaugeMetricFamily(
        "sampleapp_http_requests_in_flight",
        "Requests whose header is there, and which are not answered to the end.",
        value=sum(states[state] for state in ("body", "waiting", "answering")),
    )
    yield GaugeMetricFamily(
        "sampleapp_http_requests_waiting",
        "Requests that wait for the broker, or for readings to be encoded.",
        value=server.waiting,
    )
    yield GaugeMetricFamily(
        "sampleapp_http_requests_waiting_limit",
        "How many requests may wait before more are refused.",
        value=server.limits.max_waiting,
    )


def _of_admin(server: HTTPServer | None) -> Iterator[Metric]:
    # Apart from those of callers: it has limits of its own, and there are no callers.
    yield _gauge(
        "sampleapp_admin_connections",
        "Connections to the endpoint for operators (--admin), by what they are at.",
        {} if server is None else server.connections_by_state(),
        label="state",
    )
    yield _counter(
        "sampleapp_admin_refusals",
        "Requests and connections there that were refused or ended, by the limit that they were over.",
        {} if server is None else server.refusals,
        label="limit",
    )


def _of_readings(follower: ReadingsFollower) -> Iterator[Metric]:
    yield GaugeMetricFamily("sampleapp_readings", "Readings in the collection.", value=follower.count)
    yield GaugeMetricFamily(
        "sampleapp_readings_complete",
        "Whether all that was in the readings topic at the start has been read: 1 or 0.",
        value=follower.is_complete,
    )
    yield CounterMetricFamily(
        "sampleapp_readings_skipped_records",
        "Records of the readings topic that were no readings.",
        value=follower.skipped,
    )
    lag = GaugeMetricFamily(
        "sampleapp_readings_lag_records",
        "Records of the readings topic that are still to be read; none while that is not known.",
    )
    if follower.lag is not None:
        lag.add_metric((), follower.lag)
    yield lag


def _of_broker(measures: Measures) -> Iterator[Metric]:
    waiting = measures.waiting
    yield GaugeMetricFamily(
        "sampleapp_broker_waiting_records",
        "Records that the broker has accepted and not answered.",
        value=waiting.records,
    )
    yield GaugeMetricFamily(
        "sampleapp_broker_waiting_bytes", "What those take of the limit.", value=waiting.bytes
    )
    if waiting.limit_bytes is not None:
        yield GaugeMetricFamily(
            "sampleapp_broker_waiting_limit_bytes",
            "How much may wait before more is refused.",
            value=waiting.limit_bytes,
        )
    if isinstance(measures, KafkaMeasures):
        yield from _of_kafka(measures)
    elif isinstance(measures, SQLiteMeasures):
        yield from _of_sqlite(measures)


def _of_kafka(measures: KafkaMeasures) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "sampleapp_kafka_requests",
        "Requests to Kafka, by API and the broker's node id (bootstrap while that is not known).",
        labels=("api", "broker"),
    )
    by_labels: dict[tuple[str, str], int] = {}
    for (api, node_id), count in measures.requests.items():
        labels = (api, str(node_id) if node_id >= 0 else _BOOTSTRAP)
        by_labels[labels] = by_labels.get(labels, 0) + count
    for labels, count in by_labels.items():
        requests.add_metric(labels, count)
    yield requests
    yield CounterMetricFamily(
        "sampleapp_kafka_batch_retries",
        "Batches that were sent again because an attempt had failed.",
        value=measures.retries,
    )
    yield _single_histogram(
        "sampleapp_kafka_batch_records", "Records of each batch that was sent.", measures.batch_records
    )
    yield _single_histogram(
        "sampleapp_kafka_batch_bytes",
        "Bytes of each batch that was sent, compressed as it was.",
        measures.batch_bytes,
    )
    yield _single_histogram(
        "sampleapp_kafka_acknowledgement_seconds",
        "Time from when records were sent until all in-sync replicas had them.",
        measures.acknowledgement_s,
    )
    yield CounterMetricFamily(
        "sampleapp_kafka_throttled_seconds",
        "How long brokers have asked the service to pause, because of a quota.",
        value=measures.throttled_s,
    )


def _of_sqlite(measures: SQLiteMeasures) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "sampleapp_sqlite_commits",
        "Transactions with records that were committed.",
        value=sum(measures.commit_records.counts),
    )
    yield CounterMetricFamily(
        "sampleapp_sqlite_failed_commits",
        "Transactions with records that were not committed, or not for certain.",
        value=measures.failed_commits,
    )
    yield _single_histogram(
        "sampleapp_sqlite_commit_records", "Records of each commit.", measures.commit_records
    )
    yield _single_histogram(
        "sampleapp_sqlite_commit_duration_seconds",
        "Time from when records were handed over until they were on the disk.",
        measures.commit_s,
    )
    yield GaugeMetricFamily(
        "sampleapp_sqlite_file_bytes", "Size of the file with the records.", value=measures.file_bytes
    )
    yield GaugeMetricFamily(
        "sampleapp_sqlite_wal_bytes", "Size of its write-ahead log.", value=measures.wal_bytes
    )


def _counter(name: str, documentation: str, values: Mapping[str, int], *, label: str) -> Metric:
    family = CounterMetricFamily(name, documentation, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family


def _gauge(name: str, documentation: str, values: Mapping[str, int], *, label: str) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family


def _histogram(
    name: str, documentation: str, distributions: Mapping[str, Distribution], *, label: str
) -> Metric:
    family = HistogramMetricFamily(name, documentation, labels=(label,))
    for value, distribution in distributions.items():
        family.add_metric((value,), _buckets(distribution), distribution.total)
    return family


def _single_histogram(name: str, documentation: str, distribution: Distribution) -> Metric:
    family = HistogramMetricFamily(name, documentation)
    family.add_metric((), _buckets(distribution), distribution.total)
    return family


def _buckets(distribution: Distribution) -> Sequence[tuple[str, float]]:
    """Return how many values there were up to each bound, as Prometheus counts them."""
    buckets = []
    count = 0
    for bound, each in zip((*_texts(distribution.bounds), "+Inf"), distribution.counts, strict=True):
        count += each
        buckets.append((bound, count))
    return buckets


def _texts(bounds: Iterable[float]) -> list[str]:
    return [str(float(bound)) for bound in bounds]
