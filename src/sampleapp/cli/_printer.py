"""Printing of records as they arrive from a broker."""

from __future__ import annotations

from collections.abc import Iterable

import click
from twisted.internet.defer import Deferred
from zope.interface import implementer

from sampleapp.cli._output import flush_results, print_result
from sampleapp.interfaces import IRecordObserver
from sampleapp.model import ConsumerRecord
from sampleapp.records.record_lines import record_line

__all__ = ["Printer"]


@implementer(IRecordObserver)
class Printer:
    """Prints each record as it arrives, until it has printed enough, or stdout has no reader."""

    def __init__(
        self,
        *,
        follow: bool,
        limit: int | None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
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
