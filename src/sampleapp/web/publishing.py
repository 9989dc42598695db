"""What all ways to publish over HTTP have in common."""

from __future__ import annotations

from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from sampleapp.errors import PublishError
from sampleapp.interfaces import IBroker
from sampleapp.model import Record, RecordMetadata
from sampleapp.records import RecordHeaders, length_of
from sampleapp.trace_context import trace_headers
from sampleapp.turns import Turns
from sampleapp.web.answers import Answer, published_answer
from sampleapp.web.descriptions import Content, Success
from sampleapp.web.problems import ROWS
from sampleapp.web.server import Limits, Request

__all__ = ["REFUSALS_OF_BROKERS", "STORED", "Publisher", "trace_of"]

STORED: Final = Success(
    meaning="The record is stored, and where.",
    contents=(
        Content(
            media_type="application/json",
            kind=RecordMetadata,
            summary="Where the record is",
            example={"topic": "readings", "partition": 0, "offset": 42},
        ),
    ),
)
REFUSALS_OF_BROKERS: Final = tuple(kind for kind in ROWS if issubclass(kind, PublishError))
"""Whatever a broker may refuse a record for."""


class Publisher:
    """Publishes what requests ask for."""

    def __init__(self, broker: IBroker, clock: IReactorTime, limits: Limits) -> None:
        """
        :param broker: where records go.
        :param clock: gives them their timestamps; it shows seconds since the epoch.
        :param limits: how long bodies may be.
        """
        self.broker = broker
        """Where records go."""
        self.limits = limits
        """How long bodies may be."""
        self.turns = Turns(clock)
        """For work that takes long."""
        self._clock = clock

    def now_ms(self) -> int:
        """The time in milliseconds since the epoch."""
        return int(self._clock.seconds() * 1000)

    def publish(self, record: Record) -> Deferred[Answer]:
        """
        Publish one record.

        :return: fires with where it is once the broker has it; fails with a `sampleapp.errors.PublishError`.
        """
        return self.broker.publish(record).addCallback(published_answer, length_of(record))


def trace_of(request: Request) -> RecordHeaders:
    """Return the trace of a request, if it has one, as headers of its records."""
    traceparents = request.fields.all(b"traceparent")
    return trace_headers(traceparents, request.fields.all(b"tracestate")) if traceparents else ()
