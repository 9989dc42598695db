"""
Counting requests, and what they have published.

This is on the path of every request, so it only adds to numbers. Whatever a caller can name and make up
(paths, methods, topics) is bounded here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

from sampleapp.measures import SECONDS, Distribution
from sampleapp.web import Answer, Batch, Exchange
from sampleapp.web.problems import KINDS

__all__ = ["MOST_TOPICS", "OTHER", "Published", "RequestCounts"]

OTHER: Final = "other"
"""What stands for all that has no name of its own: unknown paths and methods, topics beyond the limit."""
MOST_TOPICS: Final = 100

# Those of RFC 9110, section 9.3, and of RFC 5789. They are counted by name, whether or not a path takes them.
_METHODS: Final = {
    method.encode("ascii"): method
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
}


class Published:
    """What was published to a topic."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        """Of keys and values."""


class RequestCounts:
    """How requests were answered, since the start."""

    def __init__(self, *, seconds: Callable[[], float]) -> None:
        """:param seconds: the clock by which exchanges start."""
        self._seconds = seconds
        self._answers: dict[tuple[str, bytes | None, int], Distribution] = {}
        self.published: dict[str, Published] = {}
        """By topic: the first hundred, and the others as one."""
        self.batches = 0
        """How many answers were to requests that may have several records."""
        self.refused_in_batches = 0
        """How many of the records of those were not published, or not for certain."""
        self.problems = dict.fromkeys(sorted(KINDS), 0)
        """How many answers told of each kind of problem."""

    def answered(self, exchange: Exchange, answer: Answer) -> None:
        """Count one answer: an `sampleapp.web.OnAnswer`."""
        head = exchange.head
        answers = self._answers.get((exchange.route, None if head is None else head.method, answer.status))
        if answers is None:
            answers = self._find_answers(exchange, answer)
        elapsed_s = self._seconds() - exchange.started_s
        # As `Distribution.add` does it, without the call.
        if elapsed_s > 0:
            answers.counts[bisect_left(SECONDS, elapsed_s)] += 1
            answers.total += elapsed_s
        else:
            answers.counts[0] += 1
        record = answer.record
        if record is not None:
            published = self.published.get(record.topic)
            if published is None:
                published = self._find_published(record.topic)
            published.records += 1
            published.bytes += answer.record_bytes
            return
        batch = answer.batch
        if batch is not None:
            self._count_batch(batch)
        if answer.problem:
            kind = answer.problem if answer.problem in KINDS else OTHER
            self.problems[kind] = self.problems.get(kind, 0) + 1

    def _count_batch(self, batch: Batch) -> None:
        self.batches += 1
        self.refused_in_batches += batch.refused
        for total in batch.published:
            published = self.published.get(total.topic) or self._find_published(total.topic)
            published.records += total.records
            published.bytes += total.bytes

    def answers(self) -> Iterator[tuple[str, str, int, Distribution]]:
        """
        Return the durations of all requests: for each route, method and status.

        :return: the path of the route as it was declared, the method, the status, and the seconds from when
            the head was whole until there was an answer.
        """
        for (route, method, status), durations in self._answers.items():
            yield route or OTHER, OTHER if method is None else _METHODS[method], status, durations

    def _find_answers(self, exchange: Exchange, answer: Answer) -> Distribution:
        method = None if exchange.head is None else exchange.head.method
        # Whatever else a client may call a method is not kept.
        key = (exchange.route, method if method in _METHODS else None, int(answer.status))
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = Distribution(SECONDS)
        return found

    def _find_published(self, topic: str) -> Published:
        if len(self.published) >= MOST_TOPICS and topic not in self.published:
            topic = OTHER
        return self.published.setdefault(topic, Published())
