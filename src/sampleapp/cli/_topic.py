"""Reading a topic from a broker until all that was asked for is printed, or cannot be had."""

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

LOOK_INTERVAL_S = 0.25
COMPLAIN_AFTER_S = 2.0
STOP_DEADLINE_S = 5.0


class Selection(Struct, frozen=True, kw_only=True):
    """Which records of a topic to print, and for how long to wait for them."""

    topic: str
    start: Start = EARLIEST
    partition: int | None = None
    """The only one; ``None`` for all."""
    limit: int | None = None
    """How many at most; ``None`` for all."""
    follow: bool = False
    """Whether to go on, until cancelled, when all that was there has been printed."""
    timeout_s: float | None = None
    """For how many seconds without a record to wait; ``None`` to wait for ever."""

    def describe(self) -> str:
        """Name what is read, for a person."""
        where = "" if self.partition is None else f"partition {self.partition} of "
        return f"{where}{self.topic!r}"


async def print_topic(selection: Selection, *, broker_url: str, reactor: Any) -> int:
    """
    Print the records of a topic.

    :return: how many there were.
    :raise click.ClickException: the broker is not one, or is not usable, or there is no such topic; says why.
    """
    try:
        broker = from_url(broker_url, reactor=reactor)
        # Before the reactor runs, as it wants to be: commands are called before that.
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

    :raise click.exceptions.Exit: nobody reads stdout any more.
    :raise click.ClickException: stdout cannot be written, the topic does not exist, or reading it has failed
        for good.
    """
    printer = Printer(follow=selection.follow, limit=selection.limit)
    following = broker.follow(
        topic=selection.topic, observer=printer, start=selection.start, partition=selection.partition
    )
    supervisor = _Supervisor(
        broker=broker, following=following, printer=printer, selection=selection, clock=clock
    )
    watching = LoopingCall(supervisor.look)
    watching.clock = clock
    watching.start(LOOK_INTERVAL_S, now=False)
    try:
        await printer.done
    except CancelledError:
        # With --follow, Ctrl-C is how it ends; without, it has kept something from being printed.
        if not selection.follow:
            raise
        return printer.printed
    finally:
        watching.stop()
        await following.stop()
        flush_results()
    if not printer.printed and printer.caught_up_once and following.exists() is False:
        raise CommandFailed(f"There is no {_missing(selection)}. Is its name right?")
    return printer.printed


def _missing(selection: Selection) -> str:
    return f"topic {selection.topic!r}" if selection.partition is None else selection.describe()


class _Supervisor:
    """Looks now and then how the reading goes: says what holds it up, and ends what is of no use."""

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
        # A broker that has only just been started has not failed yet.
        self._complain_at_s = self._since_s + COMPLAIN_AFTER_S
        self._said: tuple[str, ...] = ()
        self._said_missing = False

    def look(self) -> None:
        """Look once."""
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
        elif now_s >= self._complain_at_s:
            self._complain_at_s = now_s + COMPLAIN_AFTER_S
            self._complain()

    def _time_out(self, timeout_s: float) -> None:
        if self._printer.caught_up_once:
            self._printer.done.callback(None)
        else:
            sentence = f"Gave up after {timeout_s:g} seconds without a record. {self._reasons()}"
            self._printer.done.errback(CommandFailed(sentence.rstrip()))

    def _complain(self) -> None:
        """Say, once for each cause, what it waits for."""
        reasons = self._broker.health().reasons
        if reasons and reasons != self._said:
            note(f"{self._reasons()} Trying again.")
        self._said = reasons
        if self._printer.caught_up_once and self._following.exists() is False and not self._said_missing:
            self._said_missing = True
            note(f"There is no {_missing(self._selection)} yet. Waiting for it.")

    def _reasons(self) -> str:
        reasons = self._broker.health().reasons
        # Why a broker cannot be reached is part of why a topic cannot be read.
        return " ".join(
            each for each in reasons if not any(each != other and each in other for other in reasons)
        )
