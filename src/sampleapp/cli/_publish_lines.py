"""Publishing of many lines in batches, with a bounded number of requests, and a report on each line."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from http import HTTPStatus
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct, structs
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from sampleapp.cli._line_readers import LineReader, Tombstone
from sampleapp.cli._lines import Line, LineSource
from sampleapp.cli._report import LineResult, Report
from sampleapp.cli._run import after_silence
from sampleapp.client import (
    Client,
    ClientError,
    Forbidden,
    Message,
    PartlyPublished,
    ProblemError,
    ServiceUnreachable,
    TooManyRequests,
    Unauthorized,
    UnexpectedResponse,
)
from sampleapp.model import RecordMetadata, ReplayedRecord

# The service handles such a batch in a few milliseconds; a larger one is not cheaper per line.
MAX_BATCH_LINES = 1000
MAX_BATCH_BYTES = 1024 * 1024

_REJECTED_FOR_A_LINE = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
_NO_KEYS = frozenset({"idempotency-not-enabled", "idempotency-not-supported"})
"""The last parts of the types of problems that any request with an idempotency key has for this topic."""

_OF_A_MESSAGE = re.compile(r"/(?P<number>[0-9]{1,9})(?:/(?P<member>[^/]*).*)?", re.DOTALL)
_LINE_IN_TEXT = re.compile(r"\bLine (?P<number>[0-9]{1,9}):")

_NOT_SENT = "interrupted before it was sent."
_NO_RESPONSE = "interrupted before the answer."

_Response = TypeVar("_Response")

_Outcome: TypeAlias = RecordMetadata | ClientError | None
"""Of one line: the metadata of its record, an error, or ``None`` if it was cancelled before the response."""


async def publish_lines(
    *,
    client: Client,
    reader: LineReader,
    source: LineSource,
    in_flight: int,
    clock: IReactorTime,
    progress: Callable[[Report], None],
    key_seed: str | None = None,
    result: Callable[[LineResult], None] | None = None,
) -> Report:
    """
    Publish the messages of a file's lines, in batches.

    Lines that were certainly not published are sent again if that may succeed: when the service rejects them
    because the caller has exceeded its rate (429) or because it cannot publish now (503), and when the
    service cannot be reached any more. Until then nothing else is sent. Lines whose outcome is not known are
    not sent again, unless they have an idempotency key. Cancelling it cancels the requests in flight, and
    still returns the report.

    :param reader: converts lines to messages.
    :param in_flight: the maximum number of requests at one time; 1 keeps the order of the lines.
    :param clock: times the pauses before lines are sent again.
    :param progress: is called when the outcome of lines is known, and when lines must wait.
    :param key_seed: send an idempotency key with each batch, made from this text, the messages, and the
        numbers of their lines. So a batch may be sent again, also by another call for the same
        file with the same text. ``None``: send no keys.
    :param result: is called with the outcome of each line.
    :return: the outcome of the lines.
    """
    publisher = _Publisher(
        client=client,
        reader=reader,
        source=source,
        in_flight=in_flight,
        clock=clock,
        progress=progress,
        key_seed=key_seed,
        report=Report(result),
    )
    return await publisher.run()


class _Parcel(Struct, frozen=True):
    """Lines for one request."""

    lines: Sequence[Line]
    messages: Sequence[Message] | Tombstone
    """That of each line; a tombstone is that of the only line."""
    in_doubt: bool = False
    """True if an earlier request with the same idempotency key may have published some of the lines."""

    def select(self, indices: Iterable[int]) -> _Parcel:
        messages = self.messages
        if isinstance(messages, Tombstone):
            return self
        chosen = list(indices)
        return _Parcel([self.lines[index] for index in chosen], [messages[index] for index in chosen])

    def chunks(self, size: int) -> list[_Parcel]:
        """Return the lines in parcels of at most ``size`` lines."""
        return [
            self.select(range(begin, min(begin + size, len(self.lines))))
            for begin in range(0, len(self.lines), size)
        ]

    def with_line_numbers(self, text: str) -> str:
        """Replace the numbers of lines in the request by those of the file."""

        def line(found: re.Match[str]) -> str:
            number = int(found["number"])
            return f"Line {self.lines[number - 1].number}:" if 0 < number <= len(self.lines) else found[0]

        return _LINE_IN_TEXT.sub(line, text)


class _Publisher:
    def __init__(
        self,
        *,
        client: Client,
        reader: LineReader,
        source: LineSource,
        in_flight: int,
        clock: IReactorTime,
        progress: Callable[[Report], None],
        key_seed: str | None,
        report: Report,
    ) -> None:
        self._client = client
        self._reader = reader
        self._source = source
        self._workers = in_flight
        self._progress = progress
        self._key_seed = key_seed
        self._report = report
        self._clock = clock
        self._pace = Pace(clock, self._report)

    async def run(self) -> Report:
        workers = [Deferred.fromCoroutine(self._work()) for _ in range(self._workers)]
        await gatherResults(workers, consumeErrors=True)
        return self._report

    async def _work(self) -> None:
        report = self._report
        while not report.stopped:
            try:
                lines = await self._source.take(max_lines=MAX_BATCH_LINES, max_bytes=MAX_BATCH_BYTES)
            except CancelledError:
                report.interrupted = True
                return
            except OSError as error:
                report.unreadable = error.strerror or str(error)
                return
            if not lines:
                return
            await self._publish([_Parcel(*each) for each in self._reader.requests(lines, self._report.fail)])
            report.finished_bytes += sum(line.size for line in lines)
            self._progress(report)

    async def _publish(self, parcels: Sequence[_Parcel]) -> None:
        """Publish lines, and report the outcome of each."""
        waiting = deque(parcels)
        report = self._report
        while waiting and not (report.interrupted or report.rejected):
            try:
                await self._pace.wait()
            except CancelledError:
                report.interrupted = True
                break
            # Lines that are sent again come first, so that lines stay in order.
            waiting.extendleft(reversed(await self._send(waiting.popleft())))
        not_sent = _NOT_SENT if report.interrupted else "not sent."
        for unsent in waiting:
            for line in unsent.lines:
                reason = _NO_RESPONSE if unsent.in_doubt else not_sent
                report.fail(line.number, reason, in_doubt=unsent.in_doubt)

    async def _send(self, parcel: _Parcel) -> list[_Parcel]:
        """Send lines; return those to send again, in their order."""
        messages = parcel.messages
        key = None if self._key_seed is None else _idempotency_key(self._key_seed, parcel)
        try:
            if isinstance(messages, Tombstone):
                deleted = self._client.delete(topic=messages.topic, key=messages.key, idempotency_key=key)
                published = [await self._watched(deleted)]
            else:
                many = self._client.publish_many(messages, idempotency_key=key)
                published = await self._watched(many)
        except PartlyPublished as error:
            return self._settle(parcel, error.results)
        except (ProblemError, UnexpectedResponse) as error:
            # Smaller batches would have other keys, and publish lines of the earlier request twice.
            smaller = None if parcel.in_doubt else self._smaller(parcel, error)
            return self._settle(parcel, [error] * len(parcel.lines)) if smaller is None else smaller
        except ClientError as error:
            return self._settle(parcel, [error] * len(parcel.lines))
        except CancelledError as error:
            self._report.interrupted = True
            if not getattr(error, "possibly_published", True):
                return [parcel]
            return self._settle(parcel, [None] * len(parcel.lines))
        self._report.publish(parcel.lines, published)
        if isinstance(published[0], ReplayedRecord) and not parcel.in_doubt:
            self._report.published_before += len(parcel.lines)
        self._pace.record_success()
        return []

    def _watched(self, awaited: Deferred[_Response]) -> Deferred[_Response]:
        """Show that the service has not answered for some seconds."""

        def show() -> None:
            if self._report.waiting_because is None:
                self._report.waiting_because = "The service has not answered yet."
            self._progress(self._report)

        return after_silence(awaited, clock=self._clock, call=show)

    def _smaller(self, parcel: _Parcel, error: ProblemError | UnexpectedResponse) -> list[_Parcel] | None:
        """
        Return parcels to send instead of a batch that was rejected because of some of its lines.

        :return: ``None`` if the error is about the whole batch.
        """
        status = error.problem.status if isinstance(error, ProblemError) else error.status
        count = len(parcel.lines)
        wrong = self._faults_by_line(error, count=count) if isinstance(error, ProblemError) else {}
        if wrong:
            self._note_rejection(error)
            for index, reason in wrong.items():
                self._report.fail(parcel.lines[index].number, reason)
            rest = [index for index in range(count) if index not in wrong]
            return [parcel.select(rest)] if rest else []
        if status in _REJECTED_FOR_A_LINE and count > 1 and not self._concerns_all_lines(error):
            self._note_rejection(error)
            return parcel.chunks(-(-count // 2))
        return None

    def _settle(self, parcel: _Parcel, outcomes: Sequence[_Outcome]) -> list[_Parcel]:
        """Report the outcomes of lines; return the lines to send again."""
        if self._key_seed is not None and (whole := self._whole_again(parcel, outcomes)) is not None:
            return [whole]
        report = self._report
        again: list[tuple[int, ClientError]] = []
        latest = -1
        for index, outcome in enumerate(outcomes):
            if outcome is None:
                report.fail(parcel.lines[index].number, _NO_RESPONSE, in_doubt=True)
            elif isinstance(outcome, RecordMetadata):
                self._pace.record_success()
                report.publish([parcel.lines[index]], [outcome])
                latest = index
            elif outcome.retriable and not outcome.possibly_published:
                again.append((index, outcome))
            else:
                self._fail_for_good(parcel, index, outcome)
                latest = index if outcome.possibly_published else latest
        keeps_order = self._workers == 1
        allowed: list[int] = []
        for index, error in again:
            if keeps_order and index < latest and self._key_seed is None:
                report.fail(
                    parcel.lines[index].number,
                    f"{parcel.with_line_numbers(str(error))} Not sent again, since a later line may have "
                    "been published.",
                )
            elif self._key_seed is None and self._pace.schedule_retry(error):
                allowed.append(index)
            else:
                self._fail(parcel, index, error)
        self._progress(report)
        return [parcel.select(allowed)] if allowed else []

    def _whole_again(self, parcel: _Parcel, outcomes: Sequence[_Outcome]) -> _Parcel | None:
        """Schedule another attempt with the same key, which publishes only the missing lines."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, ClientError)]
        retriable = [error for error in errors if error.retriable]
        if not retriable or not self._pace.schedule_retry(retriable[0]):
            return None
        self._progress(self._report)
        in_doubt = (
            parcel.in_doubt
            or len(errors) < len(outcomes)
            or any(error.possibly_published for error in errors)
        )
        return structs.replace(parcel, in_doubt=in_doubt)

    def _fail_for_good(self, parcel: _Parcel, index: int, error: ClientError) -> None:
        self._note_rejection(error)
        self._fail(parcel, index, error)

    def _fail(self, parcel: _Parcel, index: int, error: ClientError) -> None:
        self._report.fail(
            parcel.lines[index].number,
            parcel.with_line_numbers(str(error)),
            in_doubt=error.possibly_published or parcel.in_doubt,
        )

    def _note_rejection(self, error: ClientError) -> None:
        """Stop the lines that follow if a permanent error concerns them, too."""
        if isinstance(error, ServiceUnreachable):
            self._report.unreachable = True
            return
        self._pace.record_success()
        self._report.rejected = self._report.rejected or self._concerns_all_lines(error)

    def _concerns_all_lines(self, error: ClientError) -> bool:
        """Return true if the service rejects the caller, or idempotency keys for the topic of all lines."""
        if isinstance(error, Unauthorized):
            return True
        return "topic" in self._reader.shared and (
            isinstance(error, Forbidden)
            or (isinstance(error, ProblemError) and error.problem.type.rpartition(":")[2] in _NO_KEYS)
        )

    def _faults_by_line(self, error: ProblemError, *, count: int) -> dict[int, str]:
        """
        Return the faults of a batch's messages, by their indices, if the service names the members.

        A fault in a member that all lines share is a fault of each line. A fault of a whole message in a
        batch is ignored: it may be any failure, since the status of the problem is only that of the first.
        """
        of_lines: dict[int, list[str]] = {}
        for fault in error.problem.errors:
            found = _OF_A_MESSAGE.fullmatch(fault.pointer)
            if found is None or int(found["number"]) >= count or (found["member"] is None and count > 1):
                continue
            is_common = found["member"] in self._reader.shared
            for index in range(count) if is_common else [int(found["number"])]:
                details = of_lines.setdefault(index, [])
                if fault.detail not in details:
                    details.append(fault.detail)
        problem = error.problem
        return {
            index: f"{problem.title} ({problem.status}): {' '.join(details)}"
            for index, details in of_lines.items()
        }


def _idempotency_key(seed: str, parcel: _Parcel) -> str:
    messages = parcel.messages
    numbers = [line.number for line in parcel.lines]
    # Bytes and their base64 as text are encoded alike.
    kinds: list[object] = (
        [type(messages.key).__name__]
        if isinstance(messages, Tombstone)
        else [(type(each.key).__name__, type(each.content).__name__) for each in messages]
    )
    return sha256(msgspec.json.encode((seed, kinds, messages, numbers))).hexdigest()


# The pause after a rejection without Retry-After, and the maximum pause that Retry-After may ask for.
DEFAULT_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# Shorter pauses because of the caller's rate are usual, and are reported only at the end.
LONG_PAUSE_S = 10.0
# Without a published line for this time, the cause is not a rate or a restart: for example, a line may exceed
# the caller's rate by itself.
PATIENCE_S = 300.0


class Pace:
    """
    The time of the next attempt, and the decision to give up.

    A rate limit applies to the caller, and a restart to the whole service. So a rejection of one request
    delays all of them.
    """

    def __init__(self, clock: IReactorTime, report: Report) -> None:
        self._clock = clock
        self._report = report
        self._rejected_since_s: float | None = None
        self._until_s = 0.0
        self._reached = False

    def record_success(self) -> None:
        """Record that the service has accepted lines, or rejected them for good."""
        self._reached = True
        self._rejected_since_s = None
        self._report.waiting_because = None

    def schedule_retry(self, error: ClientError) -> bool:
        """
        Schedule a retry after a pause, or give up: then no more lines are sent.

        :param error: the error of a request that published nothing, and may succeed later.
        :return: True if the lines should be sent again.
        """
        report = self._report
        now_s = self._clock.seconds()
        if self._rejected_since_s is None:
            self._rejected_since_s = now_s
        unreachable = isinstance(error, ServiceUnreachable)
        self._reached = self._reached or not unreachable
        # A service that was never reached is not restarting: probably its URL is wrong.
        hopeless = now_s - self._rejected_since_s > PATIENCE_S or not self._reached
        if hopeless or report.unreachable or report.rejected:
            report.unreachable = report.unreachable or unreachable
            report.rejected = report.rejected or not unreachable
            return False
        retry_after_s = error.retry_after_s if isinstance(error, ProblemError) else None
        pause_s = DEFAULT_PAUSE_S if retry_after_s is None else min(retry_after_s, LONGEST_PAUSE_S)
        begins_s, self._until_s = max(now_s, self._until_s), max(now_s + pause_s, self._until_s)
        is_rate = isinstance(error, TooManyRequests)
        if is_rate:
            report.held_back_s += self._until_s - begins_s
        else:
            report.waited_s += self._until_s - begins_s
        if not is_rate or self._until_s - self._rejected_since_s >= LONG_PAUSE_S:
            report.waiting_because = str(error)
        return True

    async def wait(self) -> None:
        """Wait until the pause has ended."""
        while (pause_s := self._until_s - self._clock.seconds()) > 0:
            await deferLater(self._clock, pause_s)
