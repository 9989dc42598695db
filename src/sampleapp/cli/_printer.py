"""Reading a topic from a broker, and printing what comes."""

from __future__ import annotations

import base64
from typing import Any

import click
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import LoopingCall
from zope.interface import implementer

from sampleapp.brokers import BrokerURLError, from_url
from sampleapp.cli._output import CommandFailed, flush_results, note, print_result
from sampleapp.errors import StartUpError
from sampleapp.interfaces import IBroker, IRecordObserver
from sampleapp.model import ConsumerRecord

__all__ = ["consume_topic", "follow_topic", "printable"]

HEALTH_INTERVAL_S = 2.0
STOP_DEADLINE_S = 5.0


async def consume_topic(*, broker_url: str, topic: str, follow: bool, reactor: Any) -> int:
    """
    Print the records of a topic.

    :param follow: whether to go on, until cancelled, when all that was there has been printed.
    :return: how many records there were.
    :raise click.ClickException: the broker is not one, or is not usable; says why.
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
        return await follow_topic(broker=broker, topic=topic, follow=follow, reactor=reactor)
    finally:
        await broker.stop(deadline_s=STOP_DEADLINE_S)


async def follow_topic(*, broker: IBroker, topic: str, follow: bool, reactor: Any) -> int:
    """
    Print the records of a topic of a started broker; see `consume_topic`.

    :raise click.exceptions.Exit: nobody reads stdout any more.
    :raise click.ClickException: stdout cannot be written.
    """
    printer = _Printer(follow=follow)
    following = broker.follow(topic=topic, observer=printer)
    complaint = _Complaint(broker)
    watching = LoopingCall(complaint.look)
    watching.clock = reactor
    # Not at once: a broker that has only just been started has not failed yet.
    watching.start(HEALTH_INTERVAL_S, now=False)
    try:
        await printer.done
    except CancelledError:
        # With --follow, Ctrl-C is how it ends; without, it has kept something from being printed.
        if not follow:
            raise
    finally:
        watching.stop()
        await following.stop()
        flush_results()
    return printer.printed


def printable(record: ConsumerRecord) -> dict[str, object]:
    """
    Make of a record what JSON can say without loss.

    :return: the members of the record, with ``key_base64`` or ``value_base64`` in place of what is not
        UTF-8.
    """
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_member("key", record.key),
        **_member("value", record.value),
    }


def _member(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        # Replacement characters would be a value that nobody has published.
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


@implementer(IRecordObserver)
class _Printer:
    """Prints each record as it comes, until there is nothing more to print, or nobody to read it."""

    def __init__(self, *, follow: bool) -> None:
        self.done: Deferred[None] = Deferred()
        self.printed = 0
        self._follow = follow
        self._caught_up = False

    def record_received(self, record: ConsumerRecord) -> None:
        """Print it. That this may wait for a slow reader is what keeps the broker from running ahead."""
        if self.done.called:
            return
        try:
            # Until all that was there is printed, the next record is not far; after that, it may be.
            print_result(printable(record), flush=self._caught_up)
        except (click.exceptions.Exit, click.ClickException) as error:
            self.done.errback(error)
        else:
            self.printed += 1

    def caught_up(self) -> None:
        """Finish, or let all that was printed be seen."""
        self._caught_up = True
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
        """Go on with the records of the new topic: what is printed is printed."""


class _Complaint:
    """Says on stderr, once for each cause, why a broker cannot be read."""

    def __init__(self, broker: IBroker) -> None:
        self._broker = broker
        self._said: tuple[str, ...] = ()

    def look(self) -> None:
        """Ask the broker how it is."""
        reasons = self._broker.health().reasons
        if reasons and reasons != self._said:
            note(f"{' '.join(reasons)} Trying again.")
        self._said = reasons
