"""
Counts of requests, and of the records that they have published.

This is on the path of every request, so it only adds to numbers. The labels that a caller can invent (paths,
methods, topics) are bounded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from sampleapp.measures import SECONDS, Distribution
from sampleapp.web import Batch, Exchange, Response
from sampleapp.web.errors import KINDS

OTHER: Final = "other"
"""The label value for unknown paths and methods, and for topics beyond the limit."""
MOST_TOPICS: Final = 100

# RFC 9110, section 9.3, and RFC 5789. These are counted by name, even where no path allows them.
_METHODS: Final = {
    method.encode("ascii"): method
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
}


class Published:
    """The records that were published to a topic."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        """Of their keys and values."""


class RequestCounts:
    """Counts of responses since the start."""

    def __init__(self, *, seconds: Callable[[], float]) -> None:
        """:param seconds: the clock of `Exchange.started_s`."""
        self._seconds = seconds
        self._responses: dict[tuple[str, bytes | None, int], Distribution] = {}
        self.published: dict[str, Published] = {}
        """By topic: the first hundred, and all others as `OTHER`."""
        self.batches = 0
        """The number of responses to requests that may have several records."""
        self.rejected_in_batches = 0
        """The number of records in these requests that were not published, or not for certain."""
        self.problems = dict.fromkeys(sorted(KINDS), 0)
        """The number of responses of each kind of problem."""

    def responded(self, exchange: Exchange, response: Response) -> None:
        """Count one response: an `sampleapp.web.OnResponse`."""
        head = exchange.head
        responses = self._responses.get(
            (exchange.route, None if head is None else head.method, response.status)
        )
        if responses is None:
            responses = self._find_responses(exchange, response)
        responses.add(self._seconds() - exchange.started_s)
        record = response.record
        if record is not None:
            published = self.published.get(record.topic)
            if published is None:
                published = self._find_published(record.topic)
            published.records += 1
            published.bytes += response.record_bytes
            return
        batch = response.batch
        if batch is not None:
            self._count_batch(batch)
        if response.problem:
            kind = response.problem if response.problem in KINDS else OTHER
            self.problems[kind] = self.problems.get(kind, 0) + 1

    def _count_batch(self, batch: Batch) -> None:
        self.batches += 1
        self.rejected_in_batches += batch.rejected
        for total in batch.published:
            published = self.published.get(total.topic) or self._find_published(total.topic)
            published.records += total.records
            published.bytes += total.bytes

    def responses(self) -> Iterator[tuple[str, str, int, Distribution]]:
        """
        Return the durations of all requests: for each route, method and status.

        :return: the path of the route as in OpenAPI, the method, the status, and the seconds from the
            end of a request's head until its response.
        """
        for (route, method, status), durations in self._responses.items():
            yield route or OTHER, OTHER if method is None else _METHODS[method], status, durations

    def _find_responses(self, exchange: Exchange, response: Response) -> Distribution:
        method = None if exchange.head is None else exchange.head.method
        # Other methods, which a client may invent, are counted as one.
        key = (exchange.route, method if method in _METHODS else None, int(response.status))
        found = self._responses.get(key)
        if found is None:
            found = self._responses[key] = Distribution(SECONDS)
        return found

    def _find_published(self, topic: str) -> Published:
        if len(self.published) >= MOST_TOPICS and topic not in self.published:
            topic = OTHER
        return self.published.setdefault(topic, Published())
