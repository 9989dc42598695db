"""Reading of a topic through the service, until the selected records are printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from sampleapp.cli._consume_broker import Printer, Selection
from sampleapp.cli._output import CommandFailed, flush_results, note
from sampleapp.cli._run import command_failure, note_waiting
from sampleapp.client import (
    ClientError,
    Page,
    PositionError,
    PositionExpired,
    ProblemError,
    ServiceUnreachable,
)
from sampleapp.records.positions import InvalidPosition, Position, parse_position

MOST_RECORDS = 10_000
"""The maximum of the service for one page."""
WAIT_S = 30
"""The time that the service waits for a record, in seconds."""
PAUSE_S = 1.0
MAX_RETRY_AFTER_S = 30.0
FIRST = "earliest"
END = "latest"


class PageClient(Protocol):
    """The method of `sampleapp.client.Client` that reads pages."""

    def read(
        self,
        *,
        topic: str,
        start: str,
        partitions: list[int] | None,
        key: bytes | None,
        headers: Iterable[tuple[str, str | bytes]],
        limit: int,
        wait_s: int,
    ) -> Deferred[Page]:
        """See `sampleapp.client.Client.read`."""


async def print_pages(selection: Selection, *, client: PageClient, clock: IReactorTime) -> int | None:
    """
    Print the records of a topic.

    When the service cannot be reached any more, it is asked again, from the same position, until it answers.

    :return: the number of records; ``None`` if it was cancelled before it was known that there are none.
    :raise click.exceptions.Exit: stdout has no reader any more.
    :raise click.ClickException: stdout cannot be written, the topic does not exist, or the service rejects
        the request or cannot be reached at the start; the message says what to do.
    """
    printer = Printer(follow=selection.follow, limit=selection.limit)
    pages = _Pages(selection, client=client, clock=clock, printer=printer)
    reading = Deferred.fromCoroutine(pages.run())
    reading.addErrback(pages.fail)
    try:
        await printer.done
    except CancelledError:
        # The regular end of --follow; otherwise, some records have not been printed.
        if not selection.follow:
            raise
    finally:
        reading.cancel()
        pages.stop()
        flush_results()
    return printer.count


class _Pages:
    """Fetches one page after the other, and hands their records to the printer."""

    def __init__(
        self, selection: Selection, *, client: PageClient, clock: IReactorTime, printer: Printer
    ) -> None:
        self._selection = selection
        self._client = client
        self._clock = clock
        self._printer = printer
        self._start = selection.start
        self._ends: Mapping[int, int] | None = None
        """The ends of the partitions at the start, at which reading is complete without --follow."""
        self._has_responded = False
        self._trouble = ""
        self._is_missing = False
        self._timer: IDelayedCall | None = None
        self._since_s = clock.seconds()
        self._set_timer()

    def fail(self, failure: Failure) -> None:
        """End with a failure, unless reading was cancelled because it is complete."""
        if not self._printer.done.called:
            self._printer.done.errback(failure)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    async def run(self) -> None:
        """Read until the printer has had enough."""
        if not self._selection.follow:
            end = _parsed((await self._fetch(END, wait_s=0)).position)
            self._ends = None if end is None else end.offsets
        while not self._printer.done.called:
            before = self._start
            page = await self._read_on()
            for record in page.records:
                self._printer.record_received(record)
            self._start = page.position
            if page.up_to_date or self._is_past_the_end(page.position):
                self._printer.caught_up()
            elif not page.records and page.position == before:
                # For example a partition without a leader.
                await deferLater(self._clock, PAUSE_S)
            self._set_timer()

    async def _read_on(self) -> Page:
        """Return the next page; report missing records."""
        while True:
            # Not without a position: a request that is lost while it waits would not say where it was.
            wait_s = WAIT_S if self._selection.follow and "~" in self._start else 0
            try:
                page = await self._fetch(self._start, wait_s=wait_s)
            except PositionExpired as error:
                note(f"{error} Going on with the first records that are left.")
                self._start = FIRST if error.resume is None else error.resume
            except PositionError as error:
                note(f"{error} Reading the topic from its first record.")
                self._start, self._ends = FIRST, None
            else:
                return page

    async def _fetch(self, start: str, *, wait_s: int) -> Page:
        """
        Return a page; ask again while the service is away or busy.

        :raise PositionError: the service cannot read on at the position.
        """
        while True:
            reading = self._read(start, wait_s=wait_s)
            try:
                page = await reading
            except PositionError:
                raise
            except ProblemError as error:
                if _is_missing(error):
                    self._wait_for_the_topic(error)
                    if "~" not in start:
                        # All records of a topic that is made later are new.
                        start = self._start = FIRST
                else:
                    self._wait_for_the_service(error)
                await deferLater(self._clock, self._pause_s(error))
            except ClientError as error:
                self._wait_for_the_service(error)
                await deferLater(self._clock, PAUSE_S)
            else:
                self._has_responded = True
                if self._trouble:
                    note("The service answers again.")
                self._trouble = ""
                if page.records or not self._printer.caught_up_once:
                    self._since_s = self._clock.seconds()
                    self._set_timer()
                return page

    def _read(self, start: str, *, wait_s: int) -> Deferred[Page]:
        selection = self._selection
        left = MOST_RECORDS if selection.limit is None else selection.limit - self._printer.printed
        reading = self._client.read(
            topic=selection.topic,
            start=start,
            partitions=None if selection.partition is None else [selection.partition],
            key=selection.key,
            headers=selection.headers,
            limit=min(left, MOST_RECORDS),
            wait_s=wait_s,
        )
        return reading if wait_s else note_waiting(reading, clock=self._clock, url="the service")

    def _wait_for_the_service(self, error: ClientError) -> None:
        """
        Report an error once.

        :raise CommandFailed: a later request would fail in the same way; or the service was never there.
        """
        never_there = isinstance(error, ServiceUnreachable) and not self._has_responded
        if not error.retriable or (never_there and not self._selection.follow):
            raise command_failure(error) from error
        if not self._trouble:
            note(f"{error} Asking again until there is an answer.")
        self._trouble = str(error)
        self._set_timer()

    def _wait_for_the_topic(self, error: ProblemError) -> None:
        missing, hint = f"topic {self._selection.topic!r}", "Is its name right?"
        if error.problem.type.endswith(":unknown-partition"):
            missing, hint = self._selection.describe(), error.problem.detail
        if not self._selection.follow:
            raise CommandFailed(f"There is no {missing}. {hint}") from error
        if not self._is_missing:
            note(f"There is no {missing} yet. Waiting for it.")
        self._is_missing = True

    def _is_past_the_end(self, position: str) -> bool:
        """Return whether everything is read that was there at the start."""
        if self._ends is None:
            return False
        read = _parsed(position)
        return read is not None and all(read.offsets.get(each, 0) >= end for each, end in self._ends.items())

    def _pause_s(self, error: ProblemError) -> float:
        return max(PAUSE_S, min(error.retry_after_s or 0, MAX_RETRY_AFTER_S))

    def _set_timer(self) -> None:
        """Set the timer of --timeout again: there was progress, or trouble."""
        self.stop()
        patience_s = self._selection.patience_s(
            caught_up=self._printer.caught_up_once, in_trouble=bool(self._trouble)
        )
        if patience_s is not None and not self._printer.done.called:
            left_s = max(0.0, self._since_s + patience_s - self._clock.seconds())
            self._timer = self._clock.callLater(left_s, self._time_out, patience_s)

    def _time_out(self, after_s: float) -> None:
        if self._printer.done.called:
            return
        if self._printer.caught_up_once:
            self._printer.done.callback(None)
        else:
            self._printer.done.errback(self._selection.given_up(after_s, self._trouble))


def _is_missing(error: ProblemError) -> bool:
    return error.problem.type.endswith((":unknown-topic", ":unknown-partition"))


def _parsed(position: str) -> Position | None:
    """Return the offsets of a position; ``None`` if it has another form, as of a later version."""
    try:
        return parse_position(position)
    except InvalidPosition:
        return None
