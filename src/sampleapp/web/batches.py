"""
Many messages in one request: first everything is checked, then anything is published.

What takes long is done in pieces, one in each turn of the reactor, so that others are served in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from itertools import count, islice
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace
from twisted.internet.defer import Deferred

from sampleapp.errors import (
    Fault,
    InvalidMessage,
    MessageError,
    PartlyPublished,
    PartlyRefused,
    PublishError,
    SampleAppError,
)
from sampleapp.interfaces import IBroker, Outcome
from sampleapp.message_lines import MOST_FAULTS, MessageLines, RefusedLine
from sampleapp.model import Record, RecordMetadata
from sampleapp.records import RecordHeaders, length_of
from sampleapp.turns import Turns
from sampleapp.web.answers import Answer, Batch, Headers, TopicTotal
from sampleapp.web.problems import (
    LEAST_URGENT,
    Result,
    partly_published_answer,
    problem_answer,
    row_of,
    urgency_of,
)

__all__ = ["NDJSON", "BatchPublisher", "RefuseTopic"]

RefuseTopic: TypeAlias = Callable[[str], SampleAppError | None]

NDJSON: Final = "application/x-ndjson"
_HEADERS: Final[Headers] = ((b"Content-Type", NDJSON.encode("ascii")),)

_SMALL: Final = 16 * 1024
"""A body of so many bytes takes hardly longer than a message alone, and need not wait for a turn."""
_RECORDS_AT_ONCE: Final = 2500
"""Records whose outcomes are looked at in one turn: half a millisecond."""
_RESULTS_AT_ONCE: Final = 500
"""The same where some are not published."""
_MOST_TOPICS: Final = 1000
"""So many topics of one batch are counted."""

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


class BatchPublisher:
    """Publishes bodies with a message on each line."""

    def __init__(self, broker: IBroker, turns: Turns, *, max_line: int) -> None:
        """
        :param broker: where records go.
        :param turns: for what takes long.
        :param max_line: the greatest length of a message, in bytes.
        """
        self._broker = broker
        self._turns = turns
        self._max_line = max_line

    def publish(
        self, body: bytes, *, now_ms: int, trace: RecordHeaders = (), refuse_topic: RefuseTopic | None = None
    ) -> Deferred[Answer]:
        """
        Publish all messages of a body, or none if one of them is wrong.

        :param now_ms: when those messages were made that do not say so; milliseconds since the epoch.
        :param trace: headers of every record.
        :param refuse_topic: says why there may be no message for a topic, if so; by default all may be.
        :return: fires with what to answer, also when nothing was published.
        """
        lines = MessageLines(
            body, max_line=self._max_line, now_ms=now_ms, trace=trace, refuse_topic=refuse_topic
        )
        return Deferred.fromCoroutine(self._publish(lines, is_small=len(body) <= _SMALL))

    async def _publish(self, lines: MessageLines, *, is_small: bool) -> Answer:
        try:
            return await self._check_and_publish(lines, is_small=is_small)
        finally:
            self._turns.let_go(lines.records)

    async def _check_and_publish(self, lines: MessageLines, *, is_small: bool) -> Answer:
        if not is_small:
            await self._turns.next()
        while lines.read():
            await self._turns.next()
        if lines.count == 0:
            return replace(problem_answer(_NO_MESSAGE), batch=Batch())
        refused = [*lines.refused, *await self._refused_by_broker(lines)]
        if refused:
            return _refusal(refused)
        records = lines.records
        try:
            outcomes = await self._broker.publish_many(records)
        except PublishError as error:
            return replace(problem_answer(error), batch=Batch(refused=len(records)))
        answer = await self._answer(records, outcomes)
        self._turns.let_go(outcomes)
        return answer

    async def _refused_by_broker(self, lines: MessageLines) -> list[RefusedLine]:
        """Find the messages whose topics cannot be published to, as far as they are to be named."""
        room = MOST_FAULTS - lines.faults
        if room <= 0 or not lines.topics:
            return []
        errors = await self._broker.check_topics(lines.topics)
        if not errors:
            return []
        found: list[RefusedLine] = []
        numbers = _numbers(lines)
        for start in range(0, len(lines.records), _RECORDS_AT_ONCE):
            if start:
                await self._turns.next()
            # The records come first, so that no number is taken when there is no record for it.
            some = lines.records[start : start + _RECORDS_AT_ONCE]
            for record, number in zip(some, numbers, strict=False):
                if record.topic in errors:
                    found.append(RefusedLine(number, errors[record.topic]))
            if len(found) >= room:
                break
        return found[:room]

    async def _answer(self, records: Sequence[Record], outcomes: Sequence[Outcome]) -> Answer:
        pieces = []
        totals = _Totals()
        for start in range(0, len(records), _RECORDS_AT_ONCE):
            if start:
                await self._turns.next()
            some = outcomes[start : start + _RECORDS_AT_ONCE]
            if {*map(type, some)} != {RecordMetadata}:
                return await self._answer_for_each(records, outcomes)
            pieces.append(_encode_lines(some))
            totals.add(records[start : start + _RECORDS_AT_ONCE])
        body = pieces[0] if len(pieces) == 1 else tuple(pieces)
        return Answer(HTTPStatus.OK, _HEADERS, body, batch=totals.batch(refused=0))

    async def _answer_for_each(self, records: Sequence[Record], outcomes: Sequence[Outcome]) -> Answer:
        pieces = []
        totals = _Totals()
        failures = _Failures()
        for start in range(0, len(records), _RESULTS_AT_ONCE):
            if start:
                await self._turns.next()
            some = outcomes[start : start + _RESULTS_AT_ONCE]
            pieces.append(_encode([_result(outcome) for outcome in some])[1:-1])
            stored = []
            for number, (record, outcome) in enumerate(
                zip(records[start : start + _RESULTS_AT_ONCE], some, strict=True), start
            ):
                if isinstance(outcome, RecordMetadata):
                    stored.append(record)
                else:
                    failures.add(number, outcome)
            totals.add(stored)
        batch = totals.batch(refused=failures.count)
        answer = (
            partly_published_answer(failures.summary(len(records)), pieces)
            if totals.records or failures.may_be_published
            else failures.answer(len(records))
        )
        return replace(answer, batch=batch)


class _Totals:
    """Adds up what was published, by topic."""

    def __init__(self) -> None:
        self.records = 0
        self._by_topic: dict[str, list[int]] = {}

    def add(self, records: Sequence[Record]) -> None:
        self.records += len(records)
        topics = {record.topic for record in records}
        if len(topics) == 1:
            self._add(topics.pop(), len(records), sum(map(length_of, records)))
        else:
            for record in records:
                self._add(record.topic, 1, length_of(record))

    def _add(self, topic: str, records: int, length: int) -> None:
        total = self._by_topic.setdefault(topic, [0, 0])
        total[0] += records
        total[1] += length

    def batch(self, *, refused: int) -> Batch:
        totals = islice(self._by_topic.items(), _MOST_TOPICS)
        return Batch(
            published=tuple(TopicTotal(topic, *total) for topic, total in totals),
            records=self.records,
            refused=refused,
        )


class _Failures:
    """Gathers what is not published."""

    def __init__(self) -> None:
        self.count = 0
        self.may_be_published = False
        self._may_be_tried_again = False
        self._first: list[RefusedLine] = []
        self._said: set[tuple[type[PublishError], str]] = set()

    def add(self, number: int, error: PublishError) -> None:
        self.count += 1
        self.may_be_published |= error.possibly_published
        self._may_be_tried_again |= error.retriable
        if len(self._first) < MOST_FAULTS:
            self._first.append(RefusedLine(number, error))
            self._said.add((type(error), str(error)))

    def summary(self, count: int) -> PartlyPublished:
        """Say what to do after some of so many messages are published, or may be."""
        if self.may_be_published or self._may_be_tried_again:
            return PartlyPublished(
                f"{self.count} of the {count} messages are not published, or not for certain. The results "
                "say which of them, and why."
            )
        return PartlyRefused(
            f"{self.count} of the {count} messages were refused for good; the results say which, and why. "
            "All others are published."
        )

    def answer(self, count: int) -> Answer:
        """Answer that not one of so many messages is published."""
        first = self._first[0]
        if len(self._said) == 1:
            return problem_answer(first.error)
        return problem_answer(
            first.error,
            detail=f"None of the {count} messages is published. Message {first.number}: {first.error}",
            faults=[Fault(f"/{each.number}", str(each.error)) for each in self._first],
        )


_NO_MESSAGE: Final = InvalidMessage(
    [Fault("", 'There is no message in the body; each is one line, such as {"topic":"t","content":"21.5"}.')]
)


def _refusal(refused: Sequence[RefusedLine]) -> Answer:
    """
    Answer that nothing was published, because some messages cannot be.

    :param refused: at least one; not in order.
    """
    decisive = min(refused, key=_rank)
    if _rank(decisive)[0] == LEAST_URGENT:
        # Not one message is wrong; and what keeps the first one is likely to keep all.
        answer = problem_answer(decisive.error)
    else:
        wrong = sorted((each for each in refused if _rank(each)[0] < LEAST_URGENT), key=_number)
        # What has decided is named, even if it came after as many as are.
        faults = [fault for each in wrong for fault in _faults(each)][:MOST_FAULTS]
        if not any(each is decisive for each in wrong[:MOST_FAULTS]):
            faults[-1:] = _faults(decisive)[:1]
        others = " More are wrong, see errors." if len(wrong) > 1 else ""
        answer = problem_answer(
            decisive.error,
            detail=f"Nothing was published. Message {decisive.number}: {decisive.error}{others}",
            faults=faults,
        )
    return replace(answer, batch=Batch(refused=len(refused)))


def _number(refused: RefusedLine) -> int:
    return refused.number


def _rank(refused: RefusedLine) -> tuple[int, int]:
    """Order what is wrong by what decides, and then by the lines."""
    return urgency_of(type(refused.error)), refused.number


def _faults(refused: RefusedLine) -> list[Fault]:
    error, pointer = refused.error, f"/{refused.number}"
    if isinstance(error, InvalidMessage):
        return [Fault(f"{pointer}{fault.pointer}", fault.detail) for fault in error.faults]
    if isinstance(error, MessageError):
        return [Fault(pointer, str(error))]
    return [Fault(f"{pointer}/topic", str(error))]


def _result(outcome: Outcome) -> RecordMetadata | Result:
    if isinstance(outcome, RecordMetadata):
        return outcome
    row = row_of(type(outcome))
    return Result(status=row.status, type=row.type, detail=str(outcome))


def _numbers(lines: MessageLines) -> Iterator[int]:
    """The numbers of the messages that have a record, without end."""
    refused = {each.number for each in lines.refused}
    return (number for number in count() if number not in refused)
