"""Publishing many lines in batches, a bounded number at a time, and accounting for each line."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import TypeAlias

from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime

from sampleapp.cli._lines import MAX_LINE_BYTES, Line, LineSource
from sampleapp.cli._pace import Pace
from sampleapp.cli._report import Report
from sampleapp.cli._template import Template
from sampleapp.client import (
    Client,
    ClientError,
    Forbidden,
    Message,
    PartlyPublished,
    ProblemError,
    ServiceUnreachable,
    Unauthorized,
    UnexpectedAnswer,
)
from sampleapp.model import RecordMetadata

__all__ = ["Concurrency", "publish_lines"]

# A batch of these takes the service a few milliseconds; larger ones are not cheaper for a line.
MAX_BATCH_LINES = 1000
MAX_BATCH_BYTES = 1024 * 1024

_REFUSED_FOR_A_PART = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
_COMMON_MEMBERS = frozenset({"topic", "key", "headers", "timestamp"})

_OF_A_MESSAGE = re.compile(r"/(?P<number>[0-9]{1,9})(?:/(?P<member>[^/]*).*)?", re.DOTALL)

_NOT_SENT = "interrupted before it was sent."
_NO_ANSWER = "interrupted before the answer. May have been published."

_Outcome: TypeAlias = RecordMetadata | ClientError | None
"""Of one line: where its record is, what went wrong, or nothing if the answer was not waited for."""


class Concurrency(Struct, frozen=True, kw_only=True):
    """How many requests may wait for their answers at one time; 1 keeps the order of the lines."""

    batches: int
    single_messages: int
    """For a service that takes no batches."""


async def publish_lines(
    *,
    client: Client,
    template: Template,
    source: LineSource,
    in_flight: Concurrency,
    clock: IReactorTime,
    progress: Callable[[Report], None],
) -> Report:
    """
    Publish each line as a message, in batches if the service takes them.

    What was certainly not published, and may be later, is sent again: when the service refuses it because
    the caller has sent too much (429) or because it cannot take it now (503), and when the service cannot
    be reached any more. Nothing else is sent before. Lines whose outcome is not known are not sent again.
    Cancelling it cancels what is in flight, and returns the report all the same.

    :param clock: tells when lines may be sent again.
    :param progress: is told each time the outcome of lines is known, or that they have to wait.
    :return: what became of the lines.
    """
    publisher = _Publisher(
        client=client, template=template, source=source, in_flight=in_flight, clock=clock, progress=progress
    )
    return await publisher.run()


class _Parcel(Struct, frozen=True):
    """Lines that are sent at one time."""

    lines: Sequence[Line]
    contents: Sequence[str]
    """Of each line, as text."""

    def of(self, indices: Iterable[int]) -> _Parcel:
        chosen = list(indices)
        return _Parcel([self.lines[index] for index in chosen], [self.contents[index] for index in chosen])

    def pieces(self, size: int) -> list[_Parcel]:
        """Return the same lines in parcels of at most so many."""
        return [
            _Parcel(self.lines[begin : begin + size], self.contents[begin : begin + size])
            for begin in range(0, len(self.lines), size)
        ]


class _Publisher:
    def __init__(
        self,
        *,
        client: Client,
        template: Template,
        source: LineSource,
        in_flight: Concurrency,
        clock: IReactorTime,
        progress: Callable[[Report], None],
    ) -> None:
        self._client = client
        self._template = template
        self._source = source
        self._workers = in_flight.batches
        self._lines_at_once = MAX_BATCH_LINES
        # So that all workers together have as many messages in flight as they may, or a few more.
        self._single_lines_at_once = -(-in_flight.single_messages // in_flight.batches)
        self._takes_batches = True
        self._progress = progress
        self._report = Report()
        self._pace = Pace(clock, self._report)

    async def run(self) -> Report:
        workers = [Deferred.fromCoroutine(self._work()) for _ in range(self._workers)]
        await gatherResults(workers, consumeErrors=True)
        return self._report

    async def _work(self) -> None:
        report = self._report
        while not report.stopped:
            try:
                lines = await self._source.take(max_lines=self._lines_at_once, max_bytes=MAX_BATCH_BYTES)
            except CancelledError:
                report.interrupted = True
                return
            except OSError as error:
                report.unreadable = error.strerror or str(error)
                return
            if not lines:
                return
            await self._publish(self._readable(lines))
            report.finished_bytes += sum(line.size for line in lines)
            self._progress(report)

    def _readable(self, lines: list[Line]) -> _Parcel:
        """Return the lines that can be messages; account for the others."""
        contents = [line.content for line in lines]
        if None not in contents:
            try:
                # All at once is many times faster, and a line feed is no part of another character.
                return _Parcel(lines, b"\n".join(contents).decode("utf-8").split("\n"))  # type: ignore[arg-type]  # see above
            except UnicodeDecodeError:
                pass
        readable: list[tuple[Line, str]] = []
        for line in lines:
            if line.content is None:
                self._report.fail(line.number, f"longer than {MAX_LINE_BYTES} bytes.")
                continue
            try:
                readable.append((line, line.content.decode("utf-8")))
            except UnicodeDecodeError:
                # Where in the line would make a reason of each line; the number of the line finds it.
                self._report.fail(line.number, "not UTF-8.")
        return _Parcel([line for line, _ in readable], [content for _, content in readable])

    async def _publish(self, parcel: _Parcel) -> None:
        """Publish lines, and account for each."""
        waiting = deque([parcel] if parcel.lines else [])
        while waiting and not self._report.interrupted:
            try:
                await self._pace.wait()
            except CancelledError:
                self._report.interrupted = True
                break
            # More than one, if it was a batch, and batches turned out not to be taken.
            first, *others = waiting.popleft().pieces(self._lines_at_once)
            # What is sent again comes before the others, so that lines stay in order.
            waiting.extendleft(reversed([*await self._send(first), *others]))
        for unsent in waiting:
            for line in unsent.lines:
                self._report.fail(line.number, _NOT_SENT)

    async def _send(self, parcel: _Parcel) -> list[_Parcel]:
        """Send lines; return those that have to be sent again, in their order."""
        if not self._takes_batches:
            return self._settle(parcel, await self._send_one_by_one(parcel))
        try:
            await self._client.publish_many(self._messages(parcel))
        except PartlyPublished as error:
            return self._settle(parcel, error.results)
        except (ProblemError, UnexpectedAnswer) as error:
            smaller = self._smaller(parcel, error)
            return self._settle(parcel, [error] * len(parcel.lines)) if smaller is None else smaller
        except ClientError as error:
            return self._settle(parcel, [error] * len(parcel.lines))
        except CancelledError:
            return self._settle(parcel, [None] * len(parcel.lines))
        self._report.published += len(parcel.lines)
        self._pace.goes_on()
        return []

    def _messages(self, parcel: _Parcel) -> list[Message]:
        template = self._template
        topic, key, headers, timestamp_ms = (
            template.topic,
            template.key,
            template.headers,
            template.timestamp_ms,
        )
        return [
            Message(topic=topic, content=content, key=key, headers=headers, timestamp_ms=timestamp_ms)
            for content in parcel.contents
        ]

    async def _send_one_by_one(self, parcel: _Parcel) -> Sequence[_Outcome]:
        return await gatherResults(
            [Deferred.fromCoroutine(self._send_one(content)) for content in parcel.contents],
            consumeErrors=True,
        )

    async def _send_one(self, content: str) -> _Outcome:
        template = self._template
        try:
            return await self._client.publish(
                topic=template.topic,
                content=content,
                key=template.key,
                headers=template.headers,
                timestamp_ms=template.timestamp_ms,
            )
        except ClientError as error:
            return error
        except CancelledError:
            return None

    def _smaller(self, parcel: _Parcel, error: ProblemError | UnexpectedAnswer) -> list[_Parcel] | None:
        """
        Return what to send in place of a batch that was refused because of a part of it.

        :return: ``None`` if it was refused, or not, as a whole.
        """
        status = error.problem.status if isinstance(error, ProblemError) else error.status
        if status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
            # A service that is older than batches.
            self._takes_batches = False
            self._lines_at_once = self._single_lines_at_once
            self._pace.goes_on()
            return [parcel]
        count = len(parcel.lines)
        wrong = _wrong_lines(error, count=count) if isinstance(error, ProblemError) else {}
        if wrong:
            self._take_note(error)
            for index, reason in wrong.items():
                self._report.fail(parcel.lines[index].number, reason)
            rest = [index for index in range(count) if index not in wrong]
            return [parcel.of(rest)] if rest else []
        if status in _REFUSED_FOR_A_PART and count > 1:
            self._take_note(error)
            return parcel.pieces(-(-count // 2))
        return None

    def _settle(self, parcel: _Parcel, outcomes: Sequence[_Outcome]) -> list[_Parcel]:
        """Account for the outcomes of lines; return those that have to be sent again."""
        report = self._report
        again: list[tuple[int, ClientError]] = []
        latest = -1
        for index, outcome in enumerate(outcomes):
            if outcome is None:
                report.interrupted = True
                report.fail(parcel.lines[index].number, _NO_ANSWER)
            elif isinstance(outcome, RecordMetadata):
                self._pace.goes_on()
                report.published += 1
                latest = index
            elif outcome.retriable and not outcome.possibly_published:
                again.append((index, outcome))
            else:
                self._fail_for_good(parcel.lines[index], outcome)
                latest = index if outcome.possibly_published else latest
        keeps_order = self._workers == 1
        allowed: list[int] = []
        for index, error in again:
            if keeps_order and index < latest:
                report.fail(
                    parcel.lines[index].number,
                    f"{error} Not sent again, since a later line may have been published.",
                )
            elif self._pace.allows_another_try(error):
                allowed.append(index)
            else:
                report.fail(parcel.lines[index].number, str(error))
        self._progress(report)
        return [parcel.of(allowed)] if allowed else []

    def _fail_for_good(self, line: Line, error: ClientError) -> None:
        self._take_note(error)
        reason = f"{error} May have been published." if error.possibly_published else str(error)
        self._report.fail(line.number, reason)

    def _take_note(self, error: ClientError) -> None:
        """See what an error that is not a matter of time means for the lines that follow."""
        if isinstance(error, ServiceUnreachable):
            self._report.unreachable = True
            return
        self._pace.goes_on()
        # The other lines are of the same caller, for the same topic.
        self._report.refused = self._report.refused or isinstance(error, Unauthorized | Forbidden)


def _wrong_lines(error: ProblemError, *, count: int) -> dict[int, str]:
    """
    Return what is wrong with which of so many messages, as far as the service says which member it is.

    A fault in what all lines have in common is one of each line. One of a whole message among others may be
    any failure: the status of the problem is only that of the first.
    """
    of_lines: dict[int, list[str]] = {}
    for fault in error.problem.errors:
        found = _OF_A_MESSAGE.fullmatch(fault.pointer)
        if found is None or int(found["number"]) >= count or (found["member"] is None and count > 1):
            continue
        is_common = found["member"] in _COMMON_MEMBERS
        for index in range(count) if is_common else [int(found["number"])]:
            details = of_lines.setdefault(index, [])
            if fault.detail not in details:
                details.append(fault.detail)
    problem = error.problem
    return {
        index: f"{problem.title} ({problem.status}): {' '.join(details)}"
        for index, details in of_lines.items()
    }
