"""Requests with all their answers, and what must be true of the topic then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from tests.real_kafka.reading import Stored

__all__ = ["NOT_STORED", "UNKNOWN", "Asked", "Outcome", "Place", "check_topic"]

Place = tuple[int, int]
"""A partition and an offset."""
NOT_STORED = "not stored"
UNKNOWN = "unknown"
Outcome = Place | str
"""What an answer says of a record: its place, `NOT_STORED` or `UNKNOWN`."""


class Asked(Struct):
    """A request, and what its answers say."""

    contents: Sequence[str]
    is_identified: bool
    """Whether it has an idempotency key."""
    answers: list[Sequence[Outcome]] = []
    """Of each answer, the outcome of each record."""
    firsts: int = 0
    """How many answers said that something was published."""
    sends_before_known: int = 0
    """How often it was sent before an answer had the places of all."""

    def places(self, n: int) -> set[Place]:
        """Return the places that the answers gave a record."""
        return {answer[n] for answer in self.answers if isinstance(answer[n], tuple)}


def check_topic(asked: Sequence[tuple[str | None, Sequence[Asked]]], stored: Sequence[Stored]) -> None:
    """
    Check that a topic has what the answers say, once, there, and in order.

    :param asked: record keys, and all requests with that key. Each of them was sent when those before it were
        answered, or, without idempotency key, given up.
    :raise AssertionError: says what is lost, doubled, elsewhere, out of order, or was never sent.
    """
    found = defaultdict(list)
    for each in stored:
        found[each.value.decode()].append((each.partition, each.offset))
    wrong = []
    for key, requests in asked:
        for request in requests:
            wrong += _check_request(request, found)
        if key is not None:
            wrong += _check_order(requests, found)
    known = {content for _, requests in asked for request in requests for content in request.contents}
    wrong += [f"{content} was never sent" for content in found.keys() - known]
    assert not wrong, f"{len(wrong)} faults: {wrong[:10]}"


def _check_request(asked: Asked, found: dict[str, list[Place]]) -> list[str]:
    wrong = []
    for n, content in enumerate(asked.contents):
        there, said = found.get(content, []), asked.places(n)
        if said or asked.is_identified:
            is_right = len(there) == 1 and said == set(there)
        elif any(answer[n] == NOT_STORED for answer in asked.answers):
            is_right = not there
        else:
            is_right = len(there) <= 1
        if not is_right:
            wrong.append(f"{content} is at {there}, and the answers were {[a[n] for a in asked.answers]}")
    if asked.is_identified and asked.firsts > len(asked.contents):
        wrong.append(f"{asked.contents} was first {asked.firsts} times")
    return wrong


def _check_order(requests: Sequence[Asked], found: dict[str, list[Place]]) -> list[str]:
    wrong, last = [], (-1, "nothing")
    partitions = set()
    for asked in requests:
        places = [(found[content][0], content) for content in asked.contents if found.get(content)]
        partitions |= {partition for (partition, _), _ in places}
        offsets = [(offset, content) for (_, offset), content in places]
        wrong += [f"{content} is before {last[1]}" for offset, content in offsets if offset <= last[0]]
        # A record with an idempotency key that was given up may come after those that were sent later.
        if not asked.is_identified or asked.sends_before_known == 1:
            wrong += [f"{two[1]} is before {one[1]}" for one, two in pairwise(offsets) if two < one]
        # A record whose place no answer has may be stored late.
        known = {content for n, content in enumerate(asked.contents) if asked.places(n)}
        last = max([last, *(each for each in offsets if each[1] in known)])
    if len(partitions) > 1:
        wrong.append(f"records of one key are in {partitions}: {requests[0].contents}")
    return wrong
