"""Decoding the responses of the service into values and errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from twisted.web.http_headers import Headers

from sampleapp.client._errors import (
    Forbidden,
    LeaseLost,
    PartlyPublished,
    PositionError,
    PositionExpired,
    PositionUnknown,
    Problem,
    ProblemError,
    TooManyRequests,
    TopicReplaced,
    Unauthorized,
    UnexpectedResponse,
)
from sampleapp.client._exchange import Response
from sampleapp.client._messages import (
    Gone,
    Lease,
    LeaseDocument,
    Number,
    Page,
    PublishedRecord,
    decode_records,
)
from sampleapp.errors import Fault
from sampleapp.model import RecordMetadata

PROBLEM_MEDIA_TYPE = "application/problem+json"
RECORDS_MEDIA_TYPE = "application/x-ndjson"
OK = 200
NO_CONTENT = 204
UNAUTHORIZED = 401
FORBIDDEN = 403
TOO_MANY_REQUESTS = 429

SHORTEST_SECRET = 16

_POSITION_ERRORS: dict[str, type[PositionError]] = {
    "position-expired": PositionExpired,
    "topic-replaced": TopicReplaced,
    "position-unknown": PositionUnknown,
}
"""By the last part of the problem's type."""

_T = TypeVar("_T")


class ResponseReader:
    """Decodes answers into values or errors."""

    def __init__(self, *, token: str | None) -> None:
        """:param token: the token that was sent; no error shows it."""
        self._token = token

    def metadata(self, response: Response, *, topic: str) -> RecordMetadata:
        """Return the metadata of the one record; raises the error of `rejection` for another response."""
        return _metadata(response, [self.value(response, PublishedRecord)], topics=[topic])[0]

    def metadata_of_many(self, response: Response, *, topics: list[str]) -> list[RecordMetadata]:
        """
        Return the metadata of records; raises the error of `rejection` for another response.

        :param topics: that of each record.
        """
        if response.status != OK:
            raise self.rejection(response, topics=topics)
        try:
            published = _published_records.decode_lines(response.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _misunderstood(response, error) from error
        return _metadata(response, published, topics=topics)

    def page(self, response: Response) -> Page:
        """Return the records of a page; raises the error of `rejection` for another response."""
        if response.status not in {OK, NO_CONTENT}:
            raise self.rejection(response)
        positions = response.headers.getRawHeaders(b"position") or []
        if not positions or (response.status == OK and response.media_type != RECORDS_MEDIA_TYPE):
            raise self.rejection(response)
        try:
            records = decode_records(response.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _misunderstood(response, error) from error
        up_to_date = response.headers.getRawHeaders(b"up-to-date") or [b""]
        return Page(
            records=records,
            position=positions[-1].decode("ascii", "backslashreplace"),
            up_to_date=up_to_date[-1].strip().lower() == b"true",
        )

    def lease(self, response: Response) -> Lease:
        """Return a lease; raises the error of `rejection` for another response."""
        document = self.value(response, LeaseDocument)
        try:
            # By the service's clock: the client's may differ. RFC 9110, section 5.6.7: in UTC.
            date = parsedate_to_datetime(response.headers.getRawHeaders("date", [""])[-1])
        except ValueError:
            date = datetime.now(UTC)
        return document.lease_at(date.replace(tzinfo=UTC))

    def value(self, response: Response, shape: type[_T]) -> _T:
        """Decode a response; raises the error of `rejection` for another one than 200."""
        if response.status != OK:
            raise self.rejection(response)
        return decode(response, shape)

    def rejection(
        self, response: Response, *, topics: list[str] | None = None
    ) -> ProblemError | UnexpectedResponse:
        """
        Convert a response that is not a success into an error.

        :param topics: those of the messages in a batch; ``None`` for a request that is not a batch.
        """
        if response.media_type == PROBLEM_MEDIA_TYPE:
            try:
                problem = decode(
                    msgspec.structs.replace(response, body=self._without_token(response.body)), _AnyProblem
                )
            except UnexpectedResponse as error:
                # Whatever the status: it may be the status of a part of the batch.
                error.possibly_published |= topics is not None
                return error
            if problem.status == response.status:
                retry_after_s = _retry_after_s(response.headers)
                position_error = _POSITION_ERRORS.get(problem.type.rpartition(":")[2])
                if position_error is not None:
                    gone = [each.records() for each in problem.gone]
                    return position_error(problem.problem(), gone=gone, resume=problem.resume)
                if problem.type.endswith(":lease-lost"):
                    return LeaseLost(problem.problem(), done=problem.done)
                if topics is None or not problem.is_partly_published:
                    return self._problem_error(problem.problem(), retry_after_s=retry_after_s)
                return self._partly_published(response, problem, topics=topics, retry_after_s=retry_after_s)
        locations = response.headers.getRawHeaders(b"location") or []
        each = self._without_token(locations[0]).decode("ascii", "backslashreplace") if locations else ""
        elsewhere = f" and refers to {each}" if locations else ""
        return UnexpectedResponse(
            f"{response.url} answered {response.status} ({response.media_type or 'no type'}){elsewhere}, "
            "which is not an answer of the service: is there a proxy in between, or another program there?",
            status=response.status,
        )

    def _partly_published(
        self, response: Response, problem: _AnyProblem, *, topics: list[str], retry_after_s: int | None
    ) -> PartlyPublished | UnexpectedResponse:
        try:
            results = [
                result.metadata() if result.status is None else self._problem_error(result.problem())
                for result in problem.results or ()
            ]
        except msgspec.ValidationError as error:
            return _without_the_results(response, str(error))
        why = _mismatch(results, topics)
        if why is not None:
            return _without_the_results(response, f"it has {why}")
        return PartlyPublished(problem.problem(), results=results, retry_after_s=retry_after_s)

    def _problem_error(self, problem: Problem, *, retry_after_s: int | None = None) -> ProblemError:
        if problem.status == UNAUTHORIZED:
            return Unauthorized(problem, has_token=self._token is not None, retry_after_s=retry_after_s)
        kind = {FORBIDDEN: Forbidden, TOO_MANY_REQUESTS: TooManyRequests}.get(problem.status, ProblemError)
        return kind(problem, retry_after_s=retry_after_s)

    def _without_token(self, text: bytes) -> bytes:
        """Remove the token from a text for an error: some servers, not this one, echo rejected tokens."""
        # A shorter token is not a secret, and may be part of any word.
        if self._token is None or len(self._token) < SHORTEST_SECRET:
            return text
        return text.replace(self._token.encode("ascii"), b"[token]")


class _Result(Struct, frozen=True):
    """The result for one message of a batch: the members of a record's metadata, or those of a problem."""

    topic: str | None = None
    partition: Number | None = None
    offset: Number | None = None
    status: int | None = None
    type: str = "about:blank"
    title: str | None = None
    detail: str = ""

    def metadata(self) -> RecordMetadata:
        """:raise msgspec.ValidationError: the result is not the metadata of a record."""
        if self.topic is None or self.partition is None or self.offset is None:
            raise msgspec.ValidationError("a result has neither a status nor the metadata of a record")
        return PublishedRecord(self.topic, self.partition, self.offset).metadata()

    def problem(self) -> Problem:
        status = self.status or 0
        title = self.title
        if title is None:
            title = HTTPStatus(status).phrase if status in _STATUSES else "Not published"
        return Problem(type=self.type, title=title, status=status, detail=self.detail)


class _Fault(Struct, frozen=True):
    pointer: str
    detail: str
    line: int | UnsetType = UNSET


class _AnyProblem(Struct, frozen=True, kw_only=True):
    """A problem document that may be about a batch, or a position."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: tuple[_Fault, ...] = ()
    results: list[_Result] | None = None
    gone: tuple[Gone, ...] = ()
    resume: str | None = None
    done: tuple[str, ...] = ()

    @property
    def is_partly_published(self) -> bool:
        return self.results is not None or self.type.endswith(":partly-published")

    def problem(self) -> Problem:
        return Problem(
            type=self.type,
            title=self.title,
            status=self.status,
            detail=self.detail,
            errors=tuple([Fault(each.pointer, each.detail, each.line) for each in self.errors]),
        )


_STATUSES = frozenset(HTTPStatus)

_published_records = msgspec.json.Decoder(PublishedRecord)


def _metadata(
    response: Response, published: list[PublishedRecord], *, topics: list[str]
) -> list[RecordMetadata]:
    """
    Return the metadata of the records.

    :raise UnexpectedResponse: the response is that to another request.
    """
    why = _mismatch(published, topics)
    if why is not None:
        raise UnexpectedResponse(
            f"{response.url} answered {response.status} with {why}.", status=response.status
        )
    is_replayed = _is_replayed(response)
    return [each.metadata(is_replayed=is_replayed) for each in published]


def _mismatch(
    results: Sequence[PublishedRecord | RecordMetadata | ProblemError], topics: list[str]
) -> str | None:
    """Return why results cannot be those of messages for these topics, as the end of a sentence."""
    if len(results) != len(topics):
        return f"{len(results)} results for {len(topics)} messages"
    if any(
        not isinstance(result, ProblemError) and result.topic != topic
        for result, topic in zip(results, topics, strict=True)
    ):
        return "a record in another topic than that of its message"
    return None


def _is_replayed(response: Response) -> bool:
    """Return true if earlier requests had published everything."""
    return (response.headers.getRawHeaders(b"idempotent-replayed") or [b""])[-1].strip().lower() == b"true"


def _without_the_results(response: Response, why: str) -> UnexpectedResponse:
    error = UnexpectedResponse(
        f"{response.url} answered {response.status} that some messages were published, but not which: {why}.",
        status=response.status,
    )
    # Whatever the status: some messages were published.
    error.possibly_published = True
    return error


def decode(response: Response, shape: type[_T]) -> _T:
    """Decode a body as a type, whatever its Content-Type: that proves nothing about the body."""
    try:
        return msgspec.json.decode(response.body, type=shape)
    # Not JSON, or of another type; not UTF-8; or nested too deeply.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _misunderstood(response, error) from error


def _misunderstood(response: Response, error: Exception) -> UnexpectedResponse:
    return UnexpectedResponse(
        f"{response.url} answered {response.status} ({response.media_type or 'no type'}), but not as the "
        f"service does: {error}. Is this the URL of the service, and does its version support this request?",
        status=response.status,
    )


def _retry_after_s(headers: Headers) -> int | None:
    """Return the seconds in Retry-After; the service does not send its other form, a date."""
    values = headers.getRawHeaders(b"retry-after") or [b""]
    return int(values[-1]) if values[-1].isdigit() else None
