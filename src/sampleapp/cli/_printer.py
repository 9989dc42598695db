"""Printing of records as they arrive from a broker."""

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
    Convert a record to a document that JSON represents without loss.

    :return: the members of the record; ``key_base64`` or ``value_base64`` instead of a key or value that is
        not UTF-8; ``headers`` only if there are any.
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
        # A list, not an object: a name may occur more than once, and the order matters.
        document["headers"] = [{"name": name, **_member("value", value)} for name, value in record.headers]
    return document


def _member(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        # Replacement characters would show a value that was never published.
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


@implementer(IRecordObserver)
class Printer:
    """Prints each record as it arrives, until it has printed enough, or stdout has no reader."""

    def __init__(self, *, follow: bool, limit: int | None, key: bytes | None = None) -> None:
        """
        :param follow: True to go on after all existing records have been printed.
        :param limit: the maximum number of records to print.
        :param key: print only records with this key; ``None`` for all records.
        """
        self.done: Deferred[None] = Deferred()
        """Fires when nothing more will be printed; fails with an exception that click shows."""
        self.printed = 0
        self.caught_up_once = False
        """True if all existing records have been printed."""
        self._follow = follow
        self._limit = limit
        self._key = key

    def record_received(self, record: ConsumerRecord) -> None:
        """Print a record. A slow reader blocks this call, and so slows the broker down."""
        if self.done.called or (self._key is not None and record.key != self._key):
            return
        try:
            # Existing records follow each other closely; a new record may be the last for a long time.
            print_result(printable(record), flush=self.caught_up_once)
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
