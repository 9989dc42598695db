"""Printing records as they come from a broker."""

from __future__ import annotations

import base64

import click
from twisted.internet.defer import Deferred
from zope.interface import implementer

from sampleapp.cli._output import flush_results, print_result
from sampleapp.interfaces import IRecordObserver
from sampleapp.model import ConsumerRecord

__all__ = ["Printer", "printable"]


def printable(record: ConsumerRecord) -> dict[str, object]:
    """
    Make of a record what JSON can say without loss.

    :return: the members of the record, with ``key_base64`` or ``value_base64`` in place of what is not
        UTF-8; ``headers`` only if it has some.
    """
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_member("key", record.key),
        **_member("value", record.value),
    }
    if record.headers:
        # Not an object: a name may be there more than once, and the order counts.
        document["headers"] = [{"name": name, **_member("value", value)} for name, value in record.headers]
    return document


def _member(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        # Replacement characters would be a value that nobody has published.
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


@implementer(IRecordObserver)
class Printer:
    """Prints each record as it comes, until there is nothing more to print, or nobody to read it."""

    def __init__(self, *, follow: bool, limit: int | None) -> None:
        """
        :param follow: whether to go on when all that was there has been printed.
        :param limit: how many records to print at most.
        """
        self.done: Deferred[None] = Deferred()
        """Fires when nothing more is to be printed, or fails with what click shows."""
        self.printed = 0
        self.caught_up_once = False
        """Whether all that was there has been printed."""
        self._follow = follow
        self._limit = limit

    def record_received(self, record: ConsumerRecord) -> None:
        """Print it. That this may wait for a slow reader is what keeps the broker from running ahead."""
        if self.done.called:
            return
        try:
            # Until all that was there is printed, the next record is not far; after that, it may be.
            print_result(printable(record), flush=self.caught_up_once)
        except (click.exceptions.Exit, click.ClickException) as error:
            self.done.errback(error)
            return
        self.printed += 1
        if self.printed == self._limit:
            self.done.callback(None)

    def caught_up(self) -> None:
        """Finish, or let all that was printed be seen."""
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
        """Go on with the records of the new topic: what is printed is printed."""
