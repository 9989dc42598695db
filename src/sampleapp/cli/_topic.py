"""Reading of a topic from a broker, until the selected records are printed, or reading has failed."""

from __future__ import annotations

from typing import Any

import click
from msgspec import Struct
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from sampleapp.brokers import BrokerURLError, from_url
from sampleapp.cli._output import CommandFailed, flush_results, note
from sampleapp.cli._printer import Printer
from sampleapp.cli._warnings import warnings_on_stderr
from sampleapp.errors import StartUpError
from sampleapp.interfaces import IBroker, IFollowing
from sampleapp.model import EARLIEST, Start

__all__ = ["Selection", "print_topic", "print_topic_of"]

CHECK_INTERVAL_S = 0.25
REPORT_AFTER_S = 2.0
STOP_DEADLINE_S = 5.0


class Selection(Struct, frozen=True, kw_only=True):
    """The records of a topic to print, and the time to wait for them."""

    topic: str
    start: Start = EARLIEST
    partition: int | None = None
    """The only partition to print; ``None`` for all."""
    key: bytes | None = None
    """Print only records with this key; ``None`` for all records."""
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

    def describe_missing(self) -> str:
        """Return the topic or partition that does not exist, for a person."""
        return f"topic {self.topic!r}" if self.partition is None else self.describe()


async def print_topic(selection: Selection, *, broker_url: str, reactor: Any) -> int:
    """
    Print the records of a topic.

    :return: the number of records.
    :raise click.ClickException: the broker's URL is invalid, the broker is not usable, or the topic does not
        exist; the message says why.
    """
    try:
        broker = from_url(broker_url, reactor=reactor)
        # It must be called before the reactor runs, and so are commands.
        broker.check()
    except BrokerURLError as error:
        raise click.UsageError(f"--broker: {error}") from error
    except StartUpError as error:
        raise CommandFailed(str(error)) from error
    broker.start()
    try:
        with warnings_on_stderr():
            return await print_topic_of(broker, selection, clock=reactor)
    finally:
        await broker.stop(deadline_s=STOP_DEADLINE_S)


async def print_topic_of(broker: IBroker, selection: Selection, *, clock: IReactorTime) -> int:
    """
    Print the records of a topic of a started broker; see `print_topic`.

    :raise click.exceptions.Exit: stdout has no reader any more.
    :raise click.ClickException: stdout cannot be written, the topic does not exist, or reading it has failed
        for good.
    """
    printer = Printer(follow=selection.follow, limit=selection.limit, key=selection.key)
    following = broker.follow(
        topic=selection.topic, observer=printer, start=selection.start, partition=selection.partition
    )
    supervisor = _Supervisor(
        broker=broker, following=following, printer=printer, selection=selection, clock=clock
    )
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
        return printer.printed
    finally:
        if watching.running:
            watching.stop()
        await following.stop()
        flush_results()
    if not printer.printed and printer.caught_up_once and following.exists() is False:
        raise CommandFailed(f"There is no {selection.describe_missing()}. Is its name right?")
    return printer.printed


class _Supervisor:
    """Checks the progress of reading: prints failures, and ends it after a time-out or for good."""

    def __init__(
        self,
        *,
        broker: IBroker,
        following: IFollowing,
        printer: Printer,
        selection: Selection,
        clock: IReactorTime,
    ) -> None:
        self._broker = broker
        self._following = following
        self._printer = printer
        self._selection = selection
        self._clock = clock
        self._printed = 0
        self._since_s = clock.seconds()
        # A broker that was just started needs a moment.
        self._report_at_s = self._since_s + REPORT_AFTER_S
        self._reported: tuple[str, ...] = ()
        self._reported_missing = False

    def check(self) -> None:
        """Check once."""
        if self._printer.done.called:
            return
        if self._following.is_lasting() and not self._selection.follow:
            self._printer.done.errback(CommandFailed(self._reasons() or "The topic cannot be read."))
            return
        now_s = self._clock.seconds()
        if self._printer.printed != self._printed:
            self._printed, self._since_s = self._printer.printed, now_s
        timeout_s = self._selection.timeout_s
        if timeout_s is not None and now_s - self._since_s >= timeout_s:
            self._time_out(timeout_s)
        elif now_s >= self._report_at_s:
            self._report_at_s = now_s + REPORT_AFTER_S
            self._report_failures()

    def _time_out(self, timeout_s: float) -> None:
        if self._printer.caught_up_once:
            self._printer.done.callback(None)
        else:
            sentence = f"Gave up after {timeout_s:g} seconds without a record. {self._reasons()}"
            self._printer.done.errback(CommandFailed(sentence.rstrip()))

    def _report_failures(self) -> None:
        """Print failures to read, once for each."""
        reasons = self._broker.health().reasons
        if reasons and reasons != self._reported:
            note(f"{self._reasons()} Trying again.")
        self._reported = reasons
        if self._printer.caught_up_once and self._following.exists() is False and not self._reported_missing:
            self._reported_missing = True
            note(f"There is no {self._selection.describe_missing()} yet. Waiting for it.")

    def _reasons(self) -> str:
        reasons = self._broker.health().reasons
        # The reason why a broker cannot be reached is a part of the reason why a topic cannot be read.
        return " ".join(
            each for each in reasons if not any(each != other and each in other for other in reasons)
        )
