"""
The promises to workers, checked for a history against the log of the topic.

What Kafka may do is allowed: after an election, or when the connection of a lease is lost, it gives messages
again at once, with the same number of attempts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import pairwise

from tests.chaos.history import Place, Topic
from tests.chaos.work_history import ACCEPT, JAVA, REJECT, Acknowledgement, Given, Held, Trouble, WorkHistory
from tests.real_kafka.reading import Stored

__all__ = ["check_work", "count_work"]

_AFTER_S = 2.0
"""For so long after its end a fault may have effects on new leases."""
_UNSEEN_S = 8.0
"""Between two attempts, beside the time of a lease: what it takes until a request is given up."""
_CLOCKS_S = 1.0


def check_work(history: WorkHistory, topic: Topic) -> list[str]:
    """Return a sentence for each promise that was broken."""
    checker = _Checker(history, topic)
    found = [each for held in history.held for each in checker.check_lease(held)]
    if history.backlog != 0:
        found.append(f"the backlog is {history.backlog} at the end")
    for place in sorted(checker.places):
        found += [f"message {place}: {each}" for each in checker.check_message(place)]
    return found


def count_work(history: WorkHistory, topic: Topic) -> Counter[str]:
    """How often there was what, for people."""
    checker = _Checker(history, topic)
    counts: Counter[str] = Counter()
    for held in history.held:
        kind = "Java" if JAVA in held.gateways else "gateways"
        counts[f"messages given by {kind}"] += len(held.messages)
        for each in held.acknowledgements:
            answer = "not answered" if each.status is None else str(each.status)
            counts[f"acknowledgements of {kind}: {answer}"] += 1
    for place in checker.places:
        counts[f"messages: {checker.end_of(place)}"] += 1
    counts["deliveries that had to be one after the other"] = checker.count_strict()
    counts["seconds until a message came again, at most"] = round(checker.longest_s())
    return counts


class _Checker:
    def __init__(self, history: WorkHistory, topic: Topic) -> None:
        self._history = history
        [log] = topic.generations
        self._log = log
        deliveries = defaultdict(list)
        for held in sorted(history.held, key=lambda each: each.ended_s):
            for place in held.messages:
                deliveries[place].append(held)
        self._deliveries: Mapping[Place, Sequence[Held]] = deliveries
        self.places = log.keys() | deliveries.keys()

    def check_lease(self, held: Held) -> Iterator[str]:
        """Check the answers to all acknowledgements of a lease."""
        name = f"the lease of {held.worker} at {held.begun_s:.3f}"
        ended_s: float | None = None
        is_unknown = False
        for each in held.acknowledgements:
            if each.status == HTTPStatus.OK and each.gateway != JAVA:
                if ended_s is not None and each.begun_s >= ended_s:
                    yield f"{name} was acknowledged again: {_show(each)}"
                if each.is_replaced:
                    yield f"{name} was acknowledged by a lease that was replaced: {_show(each)}"
                if self._is_late(held, each):
                    yield f"{name} was acknowledged late: {_show(each)}"
                if each.done != each.verdicts.keys():
                    yield f"{name} has other counts than verdicts: {_show(each)}"
                ended_s = each.ended_s
            if each.status == HTTPStatus.CONFLICT and ended_s is None and not is_unknown:
                is_early = (
                    not each.is_replaced and each.expires_s is not None and each.ended_s < each.expires_s
                )
                if is_early and not self._has_trouble(held, each.ended_s, each.gateway):
                    yield f"{name} was lost before its end: {_show(each)}"
            is_unknown |= each.status not in (HTTPStatus.OK, HTTPStatus.CONFLICT)

    def check_message(self, place: Place) -> Iterator[str]:
        """Check what happened to one message."""
        deliveries = self._deliveries.get(place, ())
        stored = self._log.get(place)
        if stored is None:
            yield f"was given, and is not in the topic: {deliveries[0].messages[place]}"
            return
        for held in deliveries:
            if not _is_same(held.messages[place], stored):
                yield f"was altered: given {held.messages[place]}, stored {stored}"
            if not 1 <= held.messages[place].attempts <= self._history.most_attempts:
                yield f"was given with a wrong number of attempts: {_given(held, place)}"
        for first, second in pairwise(deliveries):
            yield from self._check_pair(first, second, place)
        done = self._done(place)
        if len(done) > 1:
            yield f"was done {len(done)} times: {[_show(each) for each in done]}"
        first_done = min(done, key=lambda each: each.ended_s, default=None)
        for held in deliveries:
            if first_done and held.begun_s > first_done.ended_s:
                yield f"was given after it was done: {_show(first_done)}, {_given(held, place)}"
        if self.end_of(place) == "lost":
            yield f"is lost: {[_given(held, place) for held in deliveries]}"

    def end_of(self, place: Place) -> str:
        """The fate of a message, in words."""
        done = self._done(place)
        if done:
            return {ACCEPT: "accepted", REJECT: "rejected"}[done[0].verdicts[place]]
        if self._may_be_done(place):
            return "perhaps done"
        deliveries = self._deliveries.get(place, ())
        seen = max((held.messages[place].attempts for held in deliveries), default=0)
        missing = self._history.most_attempts - seen
        if missing <= 0:
            return "given up"
        begun_s = deliveries[-1].begun_s if deliveries else 0.0
        until_s = begun_s + missing * (self._history.lease_s + _UNSEEN_S) if deliveries else float("inf")
        unseen = sum(begun_s <= ended_s and lost_s <= until_s for lost_s, ended_s in self._history.lost)
        if unseen >= missing or any(
            not each.is_clock and each.begun_s <= until_s and begun_s <= each.ended_s + _UNSEEN_S
            for each in self._history.troubles
        ):
            return "given up, after attempts that no worker saw"
        return "lost"

    def count_strict(self) -> int:
        """Count the deliveries of a message again that no fault excuses."""
        return sum(
            not self._has_trouble(first, second.ended_s)
            for deliveries in self._deliveries.values()
            for first, second in pairwise(deliveries)
        )

    def longest_s(self) -> float:
        """The longest time between two deliveries of a message."""
        return max(
            (
                second.ended_s - first.ended_s
                for deliveries in self._deliveries.values()
                for first, second in pairwise(deliveries)
            ),
            default=0.0,
        )

    def _check_pair(self, first: Held, second: Held, place: Place) -> Iterator[str]:
        if self._has_trouble(first, second.ended_s):
            return
        pair = f"{_given(first, place)}, {_given(second, place)}"
        ends_s = first.begun_s + self._history.lease_s if first.expires_s is None else first.expires_s
        answered_s = min((each.begun_s for each in first.acknowledgements), default=ends_s)
        if second.ended_s < min(ends_s, answered_s):
            yield f"was given to two within a lease: {pair}"
        attempts = second.messages[place].attempts - first.messages[place].attempts
        # A worker that was frozen may return from its poll after those that were given the message later.
        is_order_known = first.ended_s <= second.begun_s
        if attempts == 0 or (attempts < 0 and is_order_known):
            yield f"was given again as the same attempt: {pair}"

    def _done(self, place: Place) -> list[Acknowledgement]:
        """The acknowledgements by which a message was accepted or rejected for certain."""
        return [
            each
            for held in self._deliveries.get(place, ())
            for each in held.acknowledgements
            if place in each.done and _ends(each, place) and not self._is_doubtful(held, each)
        ]

    def _may_be_done(self, place: Place) -> bool:
        return any(
            _ends(each, place)
            and (self._is_doubtful(held, each) if place in each.done else each.status != HTTPStatus.CONFLICT)
            for held in self._deliveries.get(place, ())
            for each in held.acknowledgements
        )

    def _is_doubtful(self, held: Held, answer: Acknowledgement) -> bool:
        """Return whether Kafka's "done" may be the answer to a late acknowledgement."""
        if JAVA in held.gateways:
            return answer.ended_s is None or answer.ended_s > held.begun_s + self._history.lease_s
        return self._is_clock_wrong(held, answer)

    def _is_late(self, held: Held, answer: Acknowledgement) -> bool:
        return (
            answer.expires_s is not None
            and answer.begun_s > answer.expires_s
            and not self._is_clock_wrong(held, answer)
        )

    def _is_clock_wrong(self, held: Held, answer: Acknowledgement) -> bool:
        return any(
            each.is_clock
            and each.gateway in (*held.gateways, answer.gateway)
            and each.begun_s - _CLOCKS_S <= (answer.ended_s or answer.begun_s)
            and held.begun_s <= each.ended_s + _CLOCKS_S
            for each in self._history.troubles
        )

    def _has_trouble(self, held: Held, until_s: float, *gateways: str) -> bool:
        """Return whether a fault may have ended a lease early, or have cost it an answer."""
        return any(_concerns(each, held, until_s, gateways) for each in self._history.troubles)


def _concerns(trouble: Trouble, held: Held, until_s: float, gateways: Sequence[str]) -> bool:
    return (
        trouble.begun_s <= until_s
        and held.begun_s <= trouble.ended_s + _AFTER_S
        and trouble.gateway in ("", *held.gateways, *gateways)
    )


def _ends(answer: Acknowledgement, place: Place) -> bool:
    return answer.verdicts.get(place) in (ACCEPT, REJECT)


def _is_same(given: Given, stored: Stored) -> bool:
    if given.value != (None if stored.value is None else stored.value.decode()):
        return False
    key = None if stored.key is None else stored.key.decode()
    headers = {name: value.decode() for name, value in stored.headers}
    return given.headers is None or (given.key, given.headers) == (key, headers)


def _given(held: Held, place: Place) -> str:
    ends = "" if held.expires_s is None else f" until {held.expires_s:.3f}"
    return (
        f"attempt {held.messages[place].attempts} to {held.worker} through {'/'.join(held.gateways)} "
        f"from {held.begun_s:.3f}/{held.ended_s:.3f}{ends}"
    )


def _show(answer: Acknowledgement) -> str:
    ended = "never" if answer.ended_s is None else f"{answer.ended_s:.3f}"
    ends = "" if answer.expires_s is None else f", its lease ended at {answer.expires_s:.3f}"
    return f"{answer.status} through {answer.gateway} from {answer.begun_s:.3f} to {ended}{ends}"
