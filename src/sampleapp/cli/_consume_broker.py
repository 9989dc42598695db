"""Reading of a topic from a broker, until the selected records are printed, or reading has failed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import click
from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall, deferLater
from twisted.python.failure import Failure
from zope.interface import implementer, provider

from sampleapp.brokers import BrokerURLError, from_url
from sampleapp.cli._output import CommandFailed, flush_results, note, print_result
from sampleapp.errors import (
    BrokerUnavailable,
    InvalidParameters,
    PublishError,
    StartUpError,
    UnknownPartition,
    UnknownTopic,
)
from sampleapp.interfaces import IBroker, IRecordObserver, ISubscription
from sampleapp.model import EARLIEST, ConsumerRecord, FromOffsets, ReadRequest
from sampleapp.records.positions import (
    Cursor,
    Position,
    PositionExpired,
    PositionUnknown,
    TopicReplaced,
    parse_position,
)
from sampleapp.records.read_parameters import parse_start
from sampleapp.records.record_lines import record_line

CHECK_INTERVAL_S = 0.25
REPORT_AFTER_S = 2.0
FIRST_RECORD_S = 10.0
STOP_DEADLINE_S = 5.0


class Selection(Struct, frozen=True, kw_only=True):
    """The records of a topic to print, and the time to wait for them."""

    topic: str
    start: str = "earliest"
    """The first record, in the words of `sampleapp.records.read_parameters.parse_start`."""
    partition: int | None = None
    """The only partition to print; ``None`` for all."""
    key: bytes | None = None
    """Print only records with this key; ``None`` for all records."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """Print only records with all of these headers."""
    limit: int | None = None
    """The maximum number of records; ``None`` for all."""
    follow: bool = False
    """True to go on with new records, until cancelled."""
    timeout_s: float | None = None
    """The maximum time without a record, in seconds; ``None`` to wait for ever."""

    def describe(self) -> str:
        """Return the topic, and the partition if there is only one, for a person."""
        where = "" if self.partition is None else f"partition {self.partition} of "
        return f"{where}{self.topic!r}"

    def filters(self) -> str:
        """Return the options that leave records out, as the end of a sentence about missing records."""
        given = {"--key": None if self.key is None else os.fsdecode(self.key)}
        given["--from"] = None if self.start == "earliest" else self.start
        named = [f"{option} {value!r}" for option, value in given.items() if value is not None]
        named += [f"--header {name + ':' + os.fsdecode(content)!r}" for name, content in self.headers]
        return f" for {' and '.join(named)}" if named else ""

    def patience_s(self, *, caught_up: bool, in_trouble: bool) -> float | None:
        """
        Return the seconds without a record, or without a sign of progress, after which reading ends.

        The time-out is for records that do not exist yet: the existing ones get the time that they need.
        """
        if self.timeout_s is None or caught_up:
            return self.timeout_s
        return max(self.timeout_s, REPORT_AFTER_S if in_trouble else FIRST_RECORD_S)

    def given_up(self, after_s: float, reason: str) -> CommandFailed:
        """Return the failure of a time-out before all existing records are printed."""
        sentence = f"Gave up after {after_s:g} seconds without a record{self.filters()}. {reason}"
        return CommandFailed(sentence.rstrip())

    def describe_missing(self) -> str:
        """Return the topic or partition that does not exist, for a person."""
        return f"topic {self.topic!r}" if self.partition is None else self.describe()


@asynccontextmanager
async def started_broker(url: str, *, reactor: Any) -> AsyncIterator[IBroker]:
    """
    Start a broker for reading, and stop it at the end.

    :raise click.ClickException: the broker's URL is invalid, or the broker is not usable; the message says
        why.
    """
    try:
        broker = from_url(url, reactor=reactor)
        # It must be called before the reactor runs, and so are commands.
        broker.check()
    except BrokerURLError as error:
        raise click.UsageError(f"--broker: {error}") from error
    except StartUpError as error:
        raise CommandFailed(str(error)) from error
    broker.start()
    try:
        with warnings_on_stderr():
            yield broker
    finally:
        await broker.stop(deadline_s=STOP_DEADLINE_S)


async def print_topic(selection: Selection, *, broker_url: str, reactor: Any) -> int | None:
    """
    Print the records of a topic.

    :return: the number of records; ``None`` if it was cancelled before it was known that there are none.
    :raise click.ClickException: the broker's URL is invalid, the broker is not usable, or the topic does not
        exist; the message says why.
    """
    async with started_broker(broker_url, reactor=reactor) as broker:
        return await print_topic_of(broker, selection, clock=reactor)


async def print_topic_of(broker: IBroker, selection: Selection, *, clock: IReactorTime) -> int | None:
    """
    Print the records of a topic of a started broker; see `print_topic`.

    :raise click.exceptions.Exit: stdout has no reader any more.
    :raise click.ClickException: stdout cannot be written, the topic does not exist, or reading it has failed
        for good.
    """
    printer = Printer(
        follow=selection.follow, limit=selection.limit, key=selection.key, headers=selection.headers
    )
    supervisor = _Supervisor(broker=broker, printer=printer, selection=selection, clock=clock)
    beginning = Deferred.fromCoroutine(supervisor.begin())
    beginning.addErrback(supervisor.fail)
    watching = LoopingCall(supervisor.check)
    watching.clock = clock
    # An exception in it ends the loop.
    watching.start(CHECK_INTERVAL_S, now=False).addErrback(printer.done.errback)
    try:
        await printer.done
    except CancelledError:
        # The regular end of --follow; otherwise, some records have not been printed.
        if not selection.follow:
            raise
        return printer.count
    finally:
        beginning.cancel()
        if watching.running:
            watching.stop()
        subscription = supervisor.subscription
        if subscription is not None:
            await subscription.stop()
        flush_results()
    if (
        not printer.printed
        and printer.caught_up_once
        and subscription is not None
        and not subscription.exists()
    ):
        raise await _missing(broker, selection)
    return printer.count


async def _missing(broker: IBroker, selection: Selection) -> CommandFailed:
    """Return the failure for a topic, or a partition, that does not exist."""
    partition = {} if selection.partition is None else {selection.partition: EARLIEST}
    try:
        await broker.read(
            ReadRequest(topic=selection.topic, starts=partition, others=None, limit=0, max_bytes=1)
        )
    except UnknownPartition as error:
        return CommandFailed(f"There is no {selection.describe()}. {error}")
    except PublishError:
        # It does not exist, as the following has said.
        pass
    return CommandFailed(f"There is no topic {selection.topic!r}. Is its name right?")


class _Supervisor:
    """Checks the progress of reading: prints failures, and ends it after a time-out or for good."""

    def __init__(
        self,
        *,
        broker: IBroker,
        printer: Printer,
        selection: Selection,
        clock: IReactorTime,
    ) -> None:
        self._broker = broker
        self.subscription: ISubscription | None = None
        """``None`` until a position is checked."""
        self._printer = printer
        self._selection = selection
        self._clock = clock
        self._progress = 0
        self._since_s = clock.seconds()
        # A broker that was just started needs a moment.
        self._report_at_s = self._since_s + REPORT_AFTER_S
        self._reported: tuple[str, ...] = ()
        self._reported_missing = False

    async def begin(self) -> None:
        """Begin to follow the topic."""
        selection = self._selection
        parsed = parse_start(selection.start)
        start = await self._checked(parsed) if isinstance(parsed, Position) else parsed
        self.subscription = self._broker.follow(
            topic=selection.topic, observer=self._printer, start=start, partition=selection.partition
        )

    async def _checked(self, start: Position) -> FromOffsets:
        """Return the offsets of a position, once the broker has told that they continue the topic."""
        partition = self._selection.partition
        cursor = Cursor(self._selection.topic, start, None if partition is None else (partition,))
        while True:
            request = cursor.request(limit=0, max_bytes=1)
            try:
                result = await self._broker.read(request)
                cursor.require_all(result)
                cursor.require_partition(result)
            except BrokerUnavailable:
                await deferLater(self._clock, CHECK_INTERVAL_S)
            except PositionExpired as error:
                note(f"{error} Going on with the first records that are left.")
                return FromOffsets(parse_position(error.resume).offsets, cursor.skipped)
            except (PositionUnknown, TopicReplaced) as error:
                note(f"{error} Reading the topic from its first record.")
                return FromOffsets({})
            except (UnknownTopic, UnknownPartition):
                return FromOffsets({})
            except (PublishError, InvalidParameters) as error:
                raise CommandFailed(str(error)) from error
            else:
                return FromOffsets(cursor.offsets, cursor.skipped)

    def fail(self, failure: Failure) -> None:
        """End with a failure, unless reading was cancelled because it is complete."""
        if not self._printer.done.called:
            self._printer.done.errback(failure)

    def check(self) -> None:
        """Check once."""
        if self._printer.done.called:
            return
        subscription = self.subscription
        if subscription is not None and subscription.is_lasting() and not self._selection.follow:
            self._printer.done.errback(CommandFailed(self._reasons() or "The topic cannot be read."))
            return
        now_s = self._clock.seconds()
        caught_up = self._printer.caught_up_once
        progress = self._printer.printed if caught_up else self._printer.received
        if progress != self._progress:
            self._progress, self._since_s = progress, now_s
        patience_s = self._selection.patience_s(caught_up=caught_up, in_trouble=bool(self._reasons()))
        if patience_s is not None and now_s - self._since_s >= patience_s:
            self._time_out(patience_s)
        elif now_s >= self._report_at_s:
            self._report_at_s = now_s + REPORT_AFTER_S
            self._report_failures()

    def _time_out(self, after_s: float) -> None:
        if self._printer.caught_up_once:
            self._printer.done.callback(None)
        else:
            self._printer.done.errback(self._selection.given_up(after_s, self._reasons()))

    def _report_failures(self) -> None:
        """Print failures to read, once for each."""
        reasons = self._broker.health().reasons
        if reasons and reasons != self._reported:
            note(f"{self._reasons()} Trying again.")
        self._reported = reasons
        is_missing = self.subscription is not None and self.subscription.exists() is False
        if self._printer.caught_up_once and is_missing and not self._reported_missing:
            self._reported_missing = True
            note(f"There is no {self._selection.describe_missing()} yet. Waiting for it.")

    def _reasons(self) -> str:
        reasons = self._broker.health().reasons
        # The reason why a broker cannot be reached is a part of the reason why a topic cannot be read.
        return " ".join(
            each for each in reasons if not any(each != other and each in other for other in reasons)
        )


@implementer(IRecordObserver)
class Printer:
    """Prints each record as it arrives, until it has printed enough, or stdout has no reader."""

    def __init__(
        self,
        *,
        follow: bool,
        limit: int | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """
        :param follow: True to go on after all existing records have been printed.
        :param limit: the maximum number of records to print.
        :param key: print only records with this key; ``None`` for all records.
        :param headers: print only records with these headers.
        """
        self.done: Deferred[None] = Deferred()
        """Fires when nothing more will be printed; fails with an exception that click shows."""
        self.received = self.printed = 0
        self.caught_up_once = False
        """True if all existing records have been printed."""
        self._follow = follow
        self._limit = limit
        self._key = key
        self._headers = headers

    @property
    def count(self) -> int | None:
        """The number of printed records; ``None`` if no record was printed, but there may be some."""
        return self.printed if self.printed or self.caught_up_once else None

    def record_received(self, record: ConsumerRecord) -> None:
        """Print a record. A slow reader blocks this call, and so slows the broker down."""
        self.received += 1
        if self.done.called or not record.matches(self._key, self._headers):
            return
        try:
            # Existing records follow each other closely; a new record may be the last for a long time.
            print_result(record_line(record), flush=self.caught_up_once)
        except (click.exceptions.Exit, click.ClickException) as error:
            self.done.errback(error)
            return
        self.printed += 1
        if self.printed == self._limit:
            self.done.callback(None)

    def caught_up(self) -> None:
        """Finish, or flush the printed records."""
        self.caught_up_once = True
        if self.done.called:
            return
        if not self._follow:
            self.done.callback(None)
            return
        try:
            flush_results()
        except (click.exceptions.Exit, click.ClickException) as error:
            self.done.errback(error)

    def reset(self) -> None:
        """Go on with the records of the new topic; printed records stay."""


_KAFKA = "sampleapp.brokers.kafka.consumer"
_NAMESPACES: Final = frozenset(
    {f"{_KAFKA}.delivery.Delivery", f"{_KAFKA}.fetcher._NotWaiting", f"{_KAFKA}.subscription.Subscription"}
)
"""Loggers of warnings about records. The state of the broker is in its health instead."""


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Show warnings about skipped records, and about a topic that is read again from its start."""
    from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogPublisher

    @provider(ILogObserver)
    def show(event: LogEvent) -> None:
        if event.get("log_level") is LogLevel.warn and event.get("log_namespace") in _NAMESPACES:
            note(f"{formatEvent(event)}.")

    globalLogPublisher.addObserver(show)
    try:
        yield
    finally:
        globalLogPublisher.removeObserver(show)
