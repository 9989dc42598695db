"""
The names and HELP texts of all metrics.

The names follow https://prometheus.io/docs/practices/naming/: they end with their base unit, and counters
with ``_total``.
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
from sampleapp.interfaces import IBroker, IMeasured
from sampleapp.measures import SECONDS, Distribution, KafkaMeasures, Measures, SQLiteMeasures
from sampleapp.metrics.requests import RequestCounts
from sampleapp.readings.follower import ReadingsFollower
from sampleapp.web import HTTPServer, IdempotentRecords, OpenStreams, StreamKind, TopicReads

__all__ = ["Families"]

_BOOTSTRAP: Final = "bootstrap"
"""The label for an address of the configuration while the node id there is not known."""


class Families(Collector):
    """A collector of all metrics of the service itself."""

    def __init__(
        self,
        *,
        requests: RequestCounts,
        server: HTTPServer,
        admin: HTTPServer | None = None,
        broker: IBroker,
        follower: ReadingsFollower,
        streams: OpenStreams | None = None,
        reads: TopicReads | None = None,
        idempotent_records: IdempotentRecords | None = None,
        rate_refusals: Mapping[str, int] | None = None,
        hook_results: Mapping[tuple[str, str], int] | None = None,
        lost_lines: Mapping[str, int] | None = None,
    ) -> None:
        """
        :param server: the server for callers.
        :param admin: the server for operators only, if there is one.
        :param broker: has more metrics if it provides `IMeasured`.
        :param streams: the open streams and waiting pages, if there can be any.
        :param reads: counts the reads of topics, if there can be any.
        :param idempotent_records: counts the records of requests with ``Idempotency-Key``, if there can be
            any.
        :param rate_refusals: the number of requests over a rate of their caller, by the name of the rate.
        :param hook_results: the number of requests of hooks, by the name of the hook and the result.
        :param lost_lines: the number of lines that could not be written, by the name of the log.
        """
        self._requests = requests
        self._server = server
        self._admin = admin
        self._broker = broker
        self._follower = follower
        self._streams = streams
        self._reads = reads
        self._idempotent_records = idempotent_records
        self._rate_refusals: Mapping[str, int] = {} if rate_refusals is None else rate_refusals
        self._hook_results: Mapping[tuple[str, str], int] = {} if hook_results is None else hook_results
        self._lost_lines: Mapping[str, int] = {} if lost_lines is None else lost_lines
        self._build = {
            "version": __version__,
            "python": platform.python_version(),
            "twisted": version("twisted"),
        }

    def collect(self) -> Iterator[Metric]:
        """Return all metrics, with their current values."""
        yield InfoMetricFamily(
            "sampleapp_build", "Versions of the service, Python and Twisted.", value=self._build
        )
        yield from _of_requests(self._requests)
        if self._idempotent_records is not None:
            yield from _of_idempotent_records(self._idempotent_records)
        yield from _of_server(self._server)
        yield _counter(
            "sampleapp_refusals",
            "Requests and connections that were refused or ended, by the limit that they exceeded.",
            {
                **self._server.refusals,
                **self._rate_refusals,
                **({} if self._streams is None else self._streams.refusals),
            },
            label="limit",
        )
        yield from _of_hooks(self._hook_results)
        yield from _of_admin(self._admin)
        yield _counter(
            "sampleapp_log_lost_lines",
            "Log lines that were dropped because the log was full or not read, by log: service or access.",
            self._lost_lines,
            label="log",
        )
        yield from _of_readings(self._follower)
        if self._streams is not None:
            yield from _of_streams(self._streams)
        if self._reads is not None:
            yield from _of_reads(self._reads)
        yield GaugeMetricFamily(
            "sampleapp_broker_ready",
            "1 if the broker is expected to accept a record now, else 0.",
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
        "Time from the end of a request's header until its answer, by the route's path.",
        by_route,
        label="route",
    )
    yield _counter(
        "sampleapp_problems",
        "Answers that describe a problem, by its kind.",
        requests.problems,
        label="kind",
    )
    yield _counter(
        "sampleapp_published_records",
        "Records that were published, by topic (other: all topics after the first hundred).",
        {topic: published.records for topic, published in requests.published.items()},
        label="topic",
    )
    yield _counter(
        "sampleapp_published_bytes",
        "Bytes of keys and values that were published, by topic (other: all topics after the first hundred).",
        {topic: published.bytes for topic, published in requests.published.items()},
        label="topic",
    )
    yield CounterMetricFamily(
        "sampleapp_batches", "Requests that may have several records.", value=requests.batches
    )
    yield CounterMetricFamily(
        "sampleapp_batch_refused_records",
        "Records in batch requests that were not published, or may not have been.",
        value=requests.refused_in_batches,
    )


def _of_idempotent_records(records: IdempotentRecords) -> Iterator[Metric]:
    yield _counter(
        "sampleapp_idempotent_records",
        "Records of requests with Idempotency-Key, by result: first, replayed, refused or unknown.",
        records.results,
        label="result",
    )
    yield GaugeMetricFamily(
        "sampleapp_idempotent_records_waiting",
        "Records of requests with Idempotency-Key that wait for the broker's answer.",
        value=records.waiting,
    )


def _of_hooks(results: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "sampleapp_hook_requests",
        "Requests to /hooks/{hook}, by hook and by result: accepted, rate, or the fault of the signature "
        "(missing, malformed, old, early, wrong). Names that are not in the callers file have no label hook "
        "and the result unknown.",
        labels=("hook", "result"),
    )
    for labels, count in results.items():
        family.add_metric(labels, count)
    yield family


def _of_server(server: HTTPServer) -> Iterator[Metric]:
    states = server.connections_by_state()
    yield _gauge("sampleapp_connections", "Open connections of clients, by state.", states, label="state")
    yield GaugeMetricFamily(
        "sampleapp_connections_limit",
        "The most connections that may be open at once.",
        value=server.limits.max_connections,
    )
    yield GaugeMetricFamily(
        "sampleapp_http_requests_in_flight",
        "Requests whose header has arrived and whose answer is not sent completely.",
        value=server.requests_in_flight,
    )
    yield GaugeMetricFamily(
        "sampleapp_http_requests_waiting",
        "Requests that wait for the broker, or for readings to be encoded.",
        value=server.waiting,
    )
    yield GaugeMetricFamily(
        "sampleapp_http_requests_waiting_limit",
        "The most requests that may wait; further ones are refused.",
        value=server.limits.max_waiting,
    )
    yield GaugeMetricFamily(
        "sampleapp_body_memory_bytes",
        "Memory of the bodies of requests, of their records, and of pages of records.",
        value=server.body_memory.reserved,
    )
    yield GaugeMetricFamily(
        "sampleapp_body_memory_limit_bytes",
        "Limit of the memory for the bodies of requests, their records, and pages of records.",
        value=server.body_memory.limit,
    )


def _of_admin(server: HTTPServer | None) -> Iterator[Metric]:
    # Not added to the metrics of callers: this server has limits of its own, and no callers.
    yield _gauge(
        "sampleapp_admin_connections",
        "Open connections to the endpoint for operators (--admin), by state.",
        {} if server is None else server.connections_by_state(),
        label="state",
    )
    yield _counter(
        "sampleapp_admin_refusals",
        "Requests and connections at --admin that were refused or ended, by the limit that they exceeded.",
        {} if server is None else server.refusals,
        label="limit",
    )


def _of_readings(follower: ReadingsFollower) -> Iterator[Metric]:
    yield GaugeMetricFamily("sampleapp_readings", "Readings in the collection.", value=follower.count)
    yield GaugeMetricFamily(
        "sampleapp_readings_complete",
        "1 once all records that were in the readings topic at the start have been read, else 0.",
        value=follower.is_complete,
    )
    yield CounterMetricFamily(
        "sampleapp_readings_skipped_records",
        "Records of the readings topic that were skipped, because they are not readings.",
        value=follower.skipped,
    )
    lag = GaugeMetricFamily(
        "sampleapp_readings_lag_records",
        "Records of the readings topic that are not read yet; absent while their number is not known.",
    )
    if follower.lag is not None:
        lag.add_metric((), follower.lag)
    yield lag


def _of_streams(streams: OpenStreams) -> Iterator[Metric]:
    kinds = {kind.value: streams.numbers[kind] for kind in (StreamKind.RECORDS, StreamKind.CHANGES)}
    yield _gauge(
        "sampleapp_streams",
        "Open streams, by kind: records of a topic, or changes of the readings.",
        {kind: numbers.open for kind, numbers in kinds.items()},
        label="kind",
    )
    yield GaugeMetricFamily(
        "sampleapp_streams_limit",
        "The most streams, and the most waiting pages, that may be open at once.",
        value=streams.limit,
    )
    yield _gauge(
        "sampleapp_streams_behind",
        "Open streams that are not up to date, by kind.",
        {kind: numbers.behind for kind, numbers in kinds.items()},
        label="kind",
    )
    yield _counter(
        "sampleapp_stream_events",
        "Events that were sent on streams, by kind; heartbeats included.",
        {kind: numbers.events for kind, numbers in kinds.items()},
        label="kind",
    )
    yield _counter(
        "sampleapp_stream_bytes",
        "Bytes of events that were sent on streams, by kind.",
        {kind: numbers.bytes for kind, numbers in kinds.items()},
        label="kind",
    )
    ended = CounterMetricFamily(
        "sampleapp_streams_ended", "Streams that ended, by kind and reason.", labels=("kind", "reason")
    )
    for kind, numbers in kinds.items():
        for reason, count in numbers.ended.items():
            ended.add_metric((kind, reason), count)
    yield ended
    yield GaugeMetricFamily(
        "sampleapp_waiting_pages",
        "Requests for a page of records that wait for the first record.",
        value=streams.numbers[StreamKind.PAGE].open,
    )


def _of_reads(reads: TopicReads) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "sampleapp_topic_reads",
        "Reads of a topic that have ended, for pages of records and for streams that are not up to date.",
        value=reads.ended,
    )
    yield GaugeMetricFamily(
        "sampleapp_topic_reads_in_progress",
        "Reads of a topic that the broker has not answered yet.",
        value=reads.in_progress,
    )
    yield CounterMetricFamily(
        "sampleapp_topic_read_records",
        "Records that were read for pages of records and for streams that are not up to date.",
        value=reads.records,
    )


def _of_broker(measures: Measures) -> Iterator[Metric]:
    waiting = measures.waiting
    yield GaugeMetricFamily(
        "sampleapp_broker_waiting_records",
        "Records that wait for the broker's answer.",
        value=waiting.records,
    )
    yield GaugeMetricFamily(
        "sampleapp_broker_waiting_bytes", "Bytes of records waiting for the broker.", value=waiting.bytes
    )
    if waiting.limit_bytes is not None:
        yield GaugeMetricFamily(
            "sampleapp_broker_waiting_limit_bytes",
            "The most bytes of records that may wait for the broker; further records are refused.",
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
        "Bytes of each batch that was sent, after compression.",
        measures.batch_bytes,
    )
    yield _single_histogram(
        "sampleapp_kafka_acknowledgement_seconds",
        "Time from sending records to Kafka until all in-sync replicas had them.",
        measures.acknowledgement_s,
    )
    yield CounterMetricFamily(
        "sampleapp_kafka_throttled_seconds",
        "Seconds of pause that Kafka's brokers have asked for because of a quota.",
        value=measures.throttled_s,
    )


def _of_sqlite(measures: SQLiteMeasures) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "sampleapp_sqlite_commits",
        "Transactions that stored records.",
        value=sum(measures.commit_records.counts),
    )
    yield CounterMetricFamily(
        "sampleapp_sqlite_failed_commits",
        "Transactions with records that failed, or may have failed.",
        value=measures.failed_commits,
    )
    yield _single_histogram(
        "sampleapp_sqlite_commit_records",
        "Records of each transaction that was committed.",
        measures.commit_records,
    )
    yield _single_histogram(
        "sampleapp_sqlite_commit_duration_seconds",
        "Time from handing records to SQLite's thread until they were on the disk.",
        measures.commit_s,
    )
    yield GaugeMetricFamily(
        "sampleapp_sqlite_file_bytes",
        "Size of SQLite's file when it was last written to.",
        value=measures.file_bytes,
    )
    yield GaugeMetricFamily(
        "sampleapp_sqlite_wal_bytes",
        "Size of SQLite's write-ahead log when it was last written to.",
        value=measures.wal_bytes,
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
    """Return the cumulative count of values up to each bound, as Prometheus requires it."""
    buckets = []
    count = 0
    for bound, each in zip((*_texts(distribution.bounds), "+Inf"), distribution.counts, strict=True):
        count += each
        buckets.append((bound, count))
    return buckets


def _texts(bounds: Iterable[float]) -> list[str]:
    return [str(float(bound)) for bound in bounds]
