"""Requests with ``Idempotency-Key``: identities and answers of their records, and counts for metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from sampleapp.access import Caller
from sampleapp.errors import Fault, InvalidParameters, PublishError
from sampleapp.interfaces import Outcome
from sampleapp.messages.idempotency_key import IdempotencyScope, parse_idempotency_key
from sampleapp.model import RecordMetadata, ReplayedRecord
from sampleapp.web.errors import problem_response
from sampleapp.web.responses import Response, published_response
from sampleapp.web.server import Request

__all__ = [
    "IDEMPOTENCY_KEY",
    "REPLAYED",
    "SAFE_TO_REPEAT",
    "IdempotentRecords",
    "check_key",
    "reject_key",
    "repeatable_response",
    "scope_of",
]

IDEMPOTENCY_KEY: Final = b"Idempotency-Key"
"""The header field of requests."""
REPLAYED: Final = (b"Idempotent-Replayed", b"true")
"""The header field of responses to requests for which nothing new was published."""

SAFE_TO_REPEAT: Final = "Sending the same request again, with the same Idempotency-Key, is safe."
"""The end of the detail of a problem whose records may have been published."""

T = TypeVar("T")


def scope_of(request: Request, field: bytes = IDEMPOTENCY_KEY) -> IdempotencyScope | None:
    """
    Return the scope of the records of a request, after the caller is known.

    :param field: the name of the header field with the key.
    :return: ``None`` for a request without this field.
    :raise MalformedIdempotencyKey: the field is not valid.
    """
    values = request.fields.all(field)
    if not values:
        return None
    key = parse_idempotency_key(values, field=field.decode("ascii"))
    caller: Caller | None = request.caller
    # parse_idempotency_key() returns None only without values.
    return None if key is None else IdempotencyScope(caller="" if caller is None else caller.name, key=key)


def check_key(request: Request) -> None:
    """
    Keep the scope of a request for its handler: a check of its head.

    :raise MalformedIdempotencyKey: the field is not valid.
    """
    request.checked = scope_of(request)


def reject_key(request: Request) -> None:
    """
    Reject ``Idempotency-Key`` where it would have no effect.

    :raise InvalidParameters: the request has the field.
    """
    if request.fields.all(IDEMPOTENCY_KEY):
        raise InvalidParameters(
            [
                Fault(
                    "/Idempotency-Key",
                    "REST Proxy's API does not support Idempotency-Key. Omit the field, or publish with "
                    "another media type, or to /messages.",
                )
            ]
        )


def repeatable_response(error: PublishError) -> Response:
    """Return the problem document of an error of a request with ``Idempotency-Key``."""
    return problem_response(error, detail=f"{error} {SAFE_TO_REPEAT}" if error.possibly_published else None)


class IdempotentRecords:
    """Counts records with an identity, and makes the response for a single one."""

    def __init__(self) -> None:
        self.waiting = 0
        """The number of records that wait for the broker's response."""
        self.results = dict.fromkeys(("first", "replayed", "refused", "unknown"), 0)
        """The number of records by result. ``rejected``: not published. ``unknown``: perhaps published."""

    def begin(self, count: int) -> None:
        """Count records that begin to wait."""
        self.waiting += count

    def end(self, count: int) -> None:
        """Count records that no longer wait, whatever their result."""
        self.waiting -= count

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count the results of records."""
        for outcome in outcomes:
            self.results[_result(outcome)] += 1

    def add_rejected(self, error: PublishError, count: int) -> None:
        """Count records that have one result: this error."""
        self.results[_result(error)] += count

    def respond(self, publishing: Deferred[RecordMetadata], length: int) -> Deferred[Response]:
        """
        Return the response for one record.

        :param publishing: fires as that of `IBroker.publish`.
        :param length: of its key and value, in bytes.
        """
        self.begin(1)
        return publishing.addBoth(self._ended).addCallbacks(
            self._response, self._rejection, callbackArgs=(length,)
        )

    def _ended(self, result: T) -> T:
        self.end(1)
        return result

    def _response(self, record: RecordMetadata, length: int) -> Response:
        self.add([record])
        response = published_response(record, length)
        if not isinstance(record, ReplayedRecord):
            return response
        return replace(
            response, headers=(*response.headers, REPLAYED), record=None, record_bytes=0, replayed=record
        )

    def _rejection(self, failure: Failure) -> Response | Failure:
        error = failure.value
        if not isinstance(error, PublishError):
            return failure
        self.add([error])
        return repeatable_response(error)


def _result(outcome: Outcome) -> str:
    if isinstance(outcome, PublishError):
        return "unknown" if outcome.possibly_published else "refused"
    return "replayed" if isinstance(outcome, ReplayedRecord) else "first"
