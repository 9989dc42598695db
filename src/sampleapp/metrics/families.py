"""
All metrics of the service, as tables: each name with its kind, HELP, value and labels.

The names follow https://prometheus.io/docs/practices/naming/: they end with their base unit, and counters
with ``_total``, which the library adds.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from math import nan
from typing import Any, Final, Generic, TypeAlias, TypeVar

from msgspec import Struct
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
from sampleapp.web import HTTPServer, IdempotentRecords, OpenStreams, StreamKind, TopicReads, WorkGroups
from sampleapp.web.read.registry import StreamNumbers

_BOOTSTRAP: Final = "bootstrap"
"""The label for an address of the configuration while the node id there is not known."""

_S = TypeVar("_S")
_Value: TypeAlias = float | Distribution | Mapping[Any, Any]


class _Metric(Struct, Generic[_S], frozen=True):
    """A row of a table. Its key is the name of the metric."""

    kind: Callable[..., Any]
    documentation: str
    get: Callable[[_S], _Value | None]
    """
    Returns the value, or values by their labels: each is a string, or a tuple if there are several labels.

    ``None`` if the metric does not apply.
    """
    labels: tuple[str, ...] = ()


def _counter(documentation: str, get: Callable[[_S], _Value], *labels: str) -> _Metric[_S]:
    return _Metric(CounterMetricFamily, documentation, get, labels)


def _gauge(documentation: str, get: Callable[[_S], _Value | None], *labels: str) -> _Metric[_S]:
    return _Metric(GaugeMetricFamily, documentation, get, labels)


def _histogram(documentation: str, get: Callable[[_S], _Value], *labels: str) -> _Metric[_S]:
    return _Metric(HistogramMetricFamily, documentation, get, labels)


@dataclass(eq=False, kw_only=True)
class Families(Collector):
    """A collector of all metrics of the service itself."""

    requests: RequestCounts
    server: HTTPServer
    """The server for callers."""
    broker: IBroker
    """Has more metrics if it provides `IMeasured`."""
    follower: ReadingsFollower
    admin: HTTPServer | None = None
    """The server for operators only, if there is one."""
    streams: OpenStreams | None = None
    """The open streams and waiting pages, if there can be any."""
    reads: TopicReads | None = None
    """Counts the reads of topics, if there can be any."""
    idempotent_records: IdempotentRecords | None = None
    """Counts the records of requests with ``Idempotency-Key``, if there can be any."""
    work: WorkGroups | None = None
    """Groups of workers, if there can be any."""
    rate_rejections: Mapping[str, int] | None = None
    """The number of requests over a rate of their caller, by the name of the rate."""
    hook_results: Mapping[tuple[str, str], int] | None = None
    """The number of requests of hooks, by the name of the hook and the result."""
    lost_lines: Mapping[str, int] | None = None
    """The number of lines that could not be written, by the name of the log."""

    def collect(self) -> Iterator[Metric]:
        """Return all metrics, with their current values."""
        measures = self.broker.measures() if IMeasured.providedBy(self.broker) else None
        yield from _families(_BUILD, self)
        yield from _families(_REQUESTS, self.requests)
        yield from _families(_IDEMPOTENT_RECORDS, self.idempotent_records)
        yield from _families(_SERVER, self.server)
        yield from _families(_REJECTIONS, self)
        yield from _families(_READINGS, self.follower)
        yield from _families(_STREAMS, self.streams)
        yield from _families(_READS, self.reads)
        yield from _families(_WORK, self.work)
        yield from _families(_BROKER, self.broker)
        yield from _families(_WAITING, measures)
        yield from _families(_KAFKA, measures if isinstance(measures, KafkaMeasures) else None)
        yield from _families(_SQLITE, measures if isinstance(measures, SQLiteMeasures) else None)


def _families(table: Mapping[str, _Metric[_S]], source: _S | None) -> Iterator[Metric]:
    """Return the metrics of a table with the current values of their source; none without a source."""
    if source is None:
        return
    for name, metric in table.items():
        value = metric.get(source)
        if value is None:
            continue
        family = metric.kind(name, metric.documentation, labels=metric.labels)
        for labels, each in value.items() if isinstance(value, Mapping) else [((), value)]:
            values = (_buckets(each), each.total) if isinstance(each, Distribution) else (each,)
            family.add_metric((labels,) if isinstance(labels, str) else labels, *values)
        yield family


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    """Return the cumulative count of values up to each bound, as Prometheus requires it."""
    bounds = (*(str(float(bound)) for bound in distribution.bounds), "+Inf")
    return list(zip(bounds, accumulate(distribution.counts), strict=True))


_VERSIONS: Final = {
    "version": __version__,
    "python": platform.python_version(),
    "twisted": version("twisted"),
}
_BUILD: Final[Mapping[str, _Metric[object]]] = {
    "sampleapp_build": _Metric(
        InfoMetricFamily, "Versions of the service, Python and Twisted.", lambda _: {(): _VERSIONS}
    )
}


def _durations(requests: RequestCounts) -> Mapping[str, Distribution]:
    by_route: dict[str, Distribution] = {}
    for route, _, _, durations in requests.responses():
        total = by_route.setdefault(route, Distribution(SECONDS))
        total.counts = [sum(pair) for pair in zip(total.counts, durations.counts, strict=True)]
        total.total += durations.total
    return by_route


_REQUESTS: Final[Mapping[str, _Metric[RequestCounts]]] = {
    "sampleapp_http_requests": _counter(
        "Requests that were answered, by the route's path, the method and the status.",
        lambda requests: {
            (route, method, str(status)): sum(durations.counts)
            for route, method, status, durations in requests.responses()
        },
        "route",
        "method",
        "status",
    ),
    "sampleapp_http_request_duration_seconds": _histogram(
        "Time from the end of a request's header until its response, by the route's path.",
        _durations,
        "route",
    ),
    "sampleapp_problems": _counter(
        "Responses that describe a problem, by its kind.", lambda requests: requests.problems, "kind"
    ),
    "sampleapp_published_records": _counter(
        "Records that were published, by topic (other: all topics after the first hundred).",
        lambda requests: {topic: published.records for topic, published in requests.published.items()},
        "topic",
    ),
    "sampleapp_published_bytes": _counter(
        "Bytes of keys and values that were published, by topic (other: all topics after the first hundred).",
        lambda requests: {topic: published.bytes for topic, published in requests.published.items()},
        "topic",
    ),
    "sampleapp_batches": _counter(
        "Requests that may have several records.", lambda requests: requests.batches
    ),
    "sampleapp_batch_refused_records": _counter(
        "Records in batch requests that were not published, or may not have been.",
        lambda requests: requests.rejected_in_batches,
    ),
}

_IDEMPOTENT_RECORDS: Final[Mapping[str, _Metric[IdempotentRecords]]] = {
    "sampleapp_idempotent_records": _counter(
        "Records of requests with Idempotency-Key, by result: first, replayed, refused or unknown.",
        lambda records: records.results,
        "result",
    ),
    "sampleapp_idempotent_records_waiting": _gauge(
        "Records of requests with Idempotency-Key that wait for the broker's response.",
        lambda records: records.waiting,
    ),
}

_SERVER: Final[Mapping[str, _Metric[HTTPServer]]] = {
    "sampleapp_connections": _gauge(
        "Open connections of clients, by state.", lambda server: server.connections_by_state(), "state"
    ),
    "sampleapp_connections_limit": _gauge(
        "The most connections that may be open at once.", lambda server: server.limits.max_connections
    ),
    "sampleapp_http_requests_in_flight": _gauge(
        "Requests whose header has arrived and whose answer is not sent completely.",
        lambda server: server.requests_in_flight,
    ),
    "sampleapp_http_requests_waiting": _gauge(
        "Requests that wait for the broker, or for readings to be encoded.", lambda server: server.waiting
    ),
    "sampleapp_http_requests_waiting_limit": _gauge(
        "The most requests that may wait; further ones are rejected.",
        lambda server: server.limits.max_waiting,
    ),
    "sampleapp_body_memory_bytes": _gauge(
        "Memory of the bodies of requests, of their records, and of pages of records.",
        lambda server: server.body_memory.reserved,
    ),
    "sampleapp_body_memory_limit_bytes": _gauge(
        "Limit of the memory for the bodies of requests, their records, and pages of records.",
        lambda server: server.body_memory.limit,
    ),
}

_REJECTIONS: Final[Mapping[str, _Metric[Families]]] = {
    "sampleapp_refusals": _counter(
        "Requests and connections that were refused or ended, by the limit that they exceeded.",
        lambda service: {
            **service.server.rejections,
            **(service.rate_rejections or {}),
            **({} if service.streams is None else service.streams.rejections),
            **({} if service.work is None else {"max-leases": service.work.rejections}),
        },
        "limit",
    ),
    "sampleapp_hook_requests": _counter(
        "Requests to /hooks/{hook}, by hook and by result: accepted, rate, or the fault of the signature "
        "(missing, malformed, old, early, wrong). Names that are not in the callers file have no label hook "
        "and the result unknown.",
        lambda service: service.hook_results or {},
        "hook",
        "result",
    ),
    # Not added to the metrics of callers: this server has limits of its own, and no callers.
    "sampleapp_admin_connections": _gauge(
        "Open connections to the endpoint for operators (--admin), by state.",
        lambda service: {} if service.admin is None else service.admin.connections_by_state(),
        "state",
    ),
    "sampleapp_admin_refusals": _counter(
        "Requests and connections at --admin that were refused or ended, by the limit that they exceeded.",
        lambda service: {} if service.admin is None else service.admin.rejections,
        "limit",
    ),
    "sampleapp_log_lost_lines": _counter(
        "Log lines that were dropped because the log was full or not read, by log: service or access.",
        lambda service: service.lost_lines or {},
        "log",
    ),
}

_READINGS: Final[Mapping[str, _Metric[ReadingsFollower]]] = {
    "sampleapp_readings": _gauge("Readings in the collection.", lambda follower: follower.count),
    "sampleapp_readings_complete": _gauge(
        "1 once all records that were in the readings topic at the start have been read, else 0.",
        lambda follower: follower.is_complete,
    ),
    "sampleapp_readings_skipped_records": _counter(
        "Records of the readings topic that were skipped, because they are not readings.",
        lambda follower: follower.skipped,
    ),
    "sampleapp_readings_lag_records": _gauge(
        "Records of the readings topic that are not read yet; absent while their number is not known.",
        lambda follower: {} if follower.lag is None else follower.lag,
    ),
}


def _by_kind(get: Callable[[StreamNumbers], int]) -> Callable[[OpenStreams], Mapping[str, int]]:
    """Return a getter of a number of each kind of stream."""
    return lambda streams: {
        kind.value: get(streams.numbers[kind]) for kind in (StreamKind.RECORDS, StreamKind.CHANGES)
    }


_STREAMS: Final[Mapping[str, _Metric[OpenStreams]]] = {
    "sampleapp_streams": _gauge(
        "Open streams, by kind: records of a topic, or changes of the readings.",
        _by_kind(lambda numbers: numbers.open),
        "kind",
    ),
    "sampleapp_streams_limit": _gauge(
        "The most streams, and the most waiting pages and pulls, that may be open at once.",
        lambda streams: streams.limit,
    ),
    "sampleapp_streams_behind": _gauge(
        "Open streams that are not up to date, by kind.", _by_kind(lambda numbers: numbers.behind), "kind"
    ),
    "sampleapp_stream_events": _counter(
        "Events that were sent on streams, by kind; heartbeats included.",
        _by_kind(lambda numbers: numbers.events),
        "kind",
    ),
    "sampleapp_stream_bytes": _counter(
        "Bytes of events that were sent on streams, by kind.", _by_kind(lambda numbers: numbers.bytes), "kind"
    ),
    "sampleapp_streams_ended": _counter(
        "Streams that ended, by kind and reason.",
        lambda streams: {
            (kind.value, reason): count
            for kind in (StreamKind.RECORDS, StreamKind.CHANGES)
            for reason, count in streams.numbers[kind].ended.items()
        },
        "kind",
        "reason",
    ),
    "sampleapp_waiting_pages": _gauge(
        "Requests for a page of records that wait for the first record.",
        lambda streams: streams.numbers[StreamKind.PAGE].open,
    ),
    "sampleapp_waiting_pulls": _gauge(
        "Requests of workers that wait for the first message.",
        lambda streams: streams.numbers[StreamKind.PULL].open,
    ),
}

_READS: Final[Mapping[str, _Metric[TopicReads]]] = {
    "sampleapp_topic_reads": _counter(
        "Reads of a topic that have ended, for pages of records and for streams that are not up to date.",
        lambda reads: reads.ended,
    ),
    "sampleapp_topic_reads_in_progress": _gauge(
        "Reads of a topic that the broker has not answered yet.", lambda reads: reads.in_progress
    ),
    "sampleapp_topic_read_records": _counter(
        "Records that were read for pages of records and for streams that are not up to date.",
        lambda reads: reads.records,
    ),
}

_WORK: Final[Mapping[str, _Metric[WorkGroups]]] = {
    "sampleapp_leases": _gauge(
        "Leases of this instance that go on, as far as it knows.",
        lambda work: work.leases,
    ),
    "sampleapp_leases_limit": _gauge(
        "The most leases of this instance that workers may have.",
        lambda work: work.max_leases,
    ),
    "sampleapp_work_given_up_messages": _counter(
        "Messages that were given up: no attempt of a group of workers was accepted.",
        lambda work: work.given_up,
    ),
    "sampleapp_work_messages": _counter(
        "Messages of workers, by topic, group and result: given (each attempt), accepted, released or "
        "rejected (other: all groups after the first hundred).",
        lambda work: work.counts.messages,
        "topic",
        "group",
        "result",
    ),
    "sampleapp_work_backlog_messages": _gauge(
        "Messages that a group has not finished, at the previous scrape, by topic and group, for the first "
        "hundred groups whose workers have pulled from this instance.",
        lambda work: work.backlogs(),
        "topic",
        "group",
    ),
}

_BROKER: Final[Mapping[str, _Metric[IBroker]]] = {
    "sampleapp_broker_ready": _gauge(
        "1 if the broker is expected to accept a record now, else 0.", lambda broker: broker.health().ready
    )
}

_WAITING: Final[Mapping[str, _Metric[Measures]]] = {
    "sampleapp_broker_waiting_records": _gauge(
        "Records that wait for the broker's response.", lambda measures: measures.waiting.records
    ),
    "sampleapp_broker_waiting_bytes": _gauge(
        "Bytes of records waiting for the broker.", lambda measures: measures.waiting.bytes
    ),
    "sampleapp_broker_waiting_limit_bytes": _gauge(
        "The most bytes of records that may wait for the broker; further records are rejected.",
        lambda measures: measures.waiting.limit_bytes,
    ),
}


def _requests_to_kafka(measures: KafkaMeasures) -> Mapping[tuple[str, str], int]:
    by_labels: Counter[tuple[str, str]] = Counter()
    for (api, node_id), count in measures.requests.items():
        by_labels[api, str(node_id) if node_id >= 0 else _BOOTSTRAP] += count
    return by_labels


_KAFKA: Final[Mapping[str, _Metric[KafkaMeasures]]] = {
    "sampleapp_kafka_requests": _counter(
        "Requests to Kafka, by API and the broker's node id (bootstrap while that is not known).",
        _requests_to_kafka,
        "api",
        "broker",
    ),
    "sampleapp_kafka_batch_retries": _counter(
        "Batches that were sent again because an attempt had failed.", lambda measures: measures.retries
    ),
    "sampleapp_kafka_batch_records": _histogram(
        "Records of each batch that was sent.", lambda measures: measures.batch_records
    ),
    "sampleapp_kafka_batch_bytes": _histogram(
        "Bytes of each batch that was sent, after compression.", lambda measures: measures.batch_bytes
    ),
    "sampleapp_kafka_acknowledgement_seconds": _histogram(
        "Time from sending records to Kafka until all in-sync replicas had them.",
        lambda measures: measures.acknowledgement_s,
    ),
    "sampleapp_kafka_throttled_seconds": _counter(
        "Seconds of pause that Kafka's brokers have asked for because of a quota.",
        lambda measures: measures.throttled_s,
    ),
    "sampleapp_kafka_clock_ahead_seconds": _gauge(
        "Seconds by which this service's clock is ahead of Kafka's; negative if behind, NaN if not known.",
        lambda measures: nan if measures.clock_ahead_s is None else measures.clock_ahead_s,
    ),
}

_SQLITE: Final[Mapping[str, _Metric[SQLiteMeasures]]] = {
    "sampleapp_sqlite_commits": _counter(
        "Transactions that stored records.", lambda measures: sum(measures.commit_records.counts)
    ),
    "sampleapp_sqlite_failed_commits": _counter(
        "Transactions with records that failed, or may have failed.", lambda measures: measures.failed_commits
    ),
    "sampleapp_sqlite_commit_records": _histogram(
        "Records of each transaction that was committed.", lambda measures: measures.commit_records
    ),
    "sampleapp_sqlite_commit_duration_seconds": _histogram(
        "Time from handing records to SQLite's thread until they were on the disk.",
        lambda measures: measures.commit_s,
    ),
    "sampleapp_sqlite_file_bytes": _gauge(
        "Size of SQLite's file when it was last written to.", lambda measures: measures.file_bytes
    ),
    "sampleapp_sqlite_wal_bytes": _gauge(
        "Size of SQLite's write-ahead log when it was last written to.", lambda measures: measures.wal_bytes
    ),
}

METRICS: Final[Mapping[str, _Metric[Any]]] = {
    **_BUILD,
    **_REQUESTS,
    **_IDEMPOTENT_RECORDS,
    **_SERVER,
    **_REJECTIONS,
    **_READINGS,
    **_STREAMS,
    **_READS,
    **_WORK,
    **_BROKER,
    **_WAITING,
    **_KAFKA,
    **_SQLITE,
}
"""Each metric that a service may have, by its name without the suffix of its kind."""
