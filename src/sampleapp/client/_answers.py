"""What the answers of the service mean."""

from __future__ import annotations

from http import HTTPStatus
from typing import TypeVar

import msgspec
from msgspec import Struct
from twisted.web.http_headers import Headers

from sampleapp.client._errors import (
    Forbidden,
    PartlyPublished,
    Problem,
    ProblemError,
    TooManyRequests,
    Unauthorized,
    UnexpectedAnswer,
)
from sampleapp.client._exchange import Answer
from sampleapp.model import RecordMetadata

__all__ = ["OK", "AnswerReader", "decode"]

PROBLEM_MEDIA_TYPE = "application/problem+json"
OK = 200
UNAUTHORIZED = 401
FORBIDDEN = 403
TOO_MANY_REQUESTS = 429

SHORTEST_SECRET = 16

_T = TypeVar("_T")


class AnswerReader:
    """Makes of each answer what it says, or an error."""

    def __init__(self, *, token: str | None) -> None:
        """:param token: what was sent; it is in none of the errors."""
        self._token = token

    def metadata(self, answer: Answer) -> RecordMetadata:
        """Read where the one record is; raises what `refusal` makes of another answer."""
        if answer.status != OK:
            raise self.refusal(answer)
        return decode(answer, RecordMetadata)

    def metadata_of_many(self, answer: Answer, *, count: int) -> list[RecordMetadata]:
        """Read where each of so many records is; raises what `refusal` makes of another answer."""
        if answer.status != OK:
            raise self.refusal(answer, count=count)
        return _decode_lines(answer, count=count)

    def refusal(self, answer: Answer, *, count: int | None = None) -> ProblemError | UnexpectedAnswer:
        """
        Make an error of an answer that is none of the expected ones.

        :param count: how many messages the request had, if it may have had many.
        """
        if answer.media_type == PROBLEM_MEDIA_TYPE:
            try:
                problem = decode(
                    msgspec.structs.replace(answer, body=self._without_token(answer.body)), _ProblemOfMany
                )
            except UnexpectedAnswer as error:
                # Whatever the status is: it may be that of a part of many.
                error.possibly_published |= count is not None
                return error
            if problem.status == answer.status:
                retry_after_s = _retry_after_s(answer.headers)
                if count is None or not problem.is_partly_published:
                    return self._problem_error(problem.problem(), retry_after_s=retry_after_s)
                return self._partly_published(answer, problem, count=count, retry_after_s=retry_after_s)
        locations = answer.headers.getRawHeaders(b"location") or []
        place = self._without_token(locations[0]).decode("ascii", "backslashreplace") if locations else ""
        elsewhere = f" and refers to {place}" if locations else ""
        return UnexpectedAnswer(
            f"{answer.url} answered {answer.status} ({answer.media_type or 'no type'}){elsewhere}, "
            "which is not an answer of the service: is there a proxy in between, or something else there?",
            status=answer.status,
        )

    def _partly_published(
        self, answer: Answer, problem: _ProblemOfMany, *, count: int, retry_after_s: int | None
    ) -> PartlyPublished | UnexpectedAnswer:
        try:
            results = [
                result.metadata() if result.status is None else self._problem_error(result.problem())
                for result in problem.results or ()
            ]
        except msgspec.ValidationError as error:
            return _without_the_results(answer, str(error))
        if len(results) != count:
            return _without_the_results(answer, f"it has {len(results)} results for {count} messages")
        return PartlyPublished(problem.problem(), results=results, retry_after_s=retry_after_s)

    def _problem_error(self, problem: Problem, *, retry_after_s: int | None = None) -> ProblemError:
        if problem.status == UNAUTHORIZED:
            return Unauthorized(problem, has_token=self._token is not None, retry_after_s=retry_after_s)
        kind = {FORBIDDEN: Forbidden, TOO_MANY_REQUESTS: TooManyRequests}.get(problem.status, ProblemError)
        return kind(problem, retry_after_s=retry_after_s)

    def _without_token(self, text: bytes) -> bytes:
        """Take the token out of what is to be shown: some servers, not this one, repeat what they refuse."""
        # What is shorter is no secret, and may be a part of any word.
        if self._token is None or len(self._token) < SHORTEST_SECRET:
            return text
        return text.replace(self._token.encode("ascii"), b"[token]")


class _Result(Struct, frozen=True):
    """What became of one of many messages: either the members of a record's metadata, or of a problem."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    status: int | None = None
    type: str = "about:blank"
    title: str | None = None
    detail: str = ""

    def metadata(self) -> RecordMetadata:
        """:raise msgspec.ValidationError: it is not that of a record."""
        if self.topic is None or self.partition is None or self.offset is None:
            raise msgspec.ValidationError("a result has neither a status nor the place of a record")
        return RecordMetadata(topic=self.topic, partition=self.partition, offset=self.offset)

    def problem(self) -> Problem:
        status = self.status or 0
        title = self.title
        if title is None:
            title = HTTPStatus(status).phrase if status in _STATUSES else "Not published"
        return Problem(type=self.type, title=title, status=status, detail=self.detail)


class _ProblemOfMany(Problem, frozen=True, kw_only=True):
    """A problem document that may be about many messages."""

    results: list[_Result] | None = None

    @property
    def is_partly_published(self) -> bool:
        return self.results is not None or self.type.endswith(":partly-published")

    def problem(self) -> Problem:
        return Problem(
            type=self.type, title=self.title, status=self.status, detail=self.detail, errors=self.errors
        )


_STATUSES = frozenset(HTTPStatus)

_decode_metadata_lines = msgspec.json.Decoder(RecordMetadata).decode_lines


def _decode_lines(answer: Answer, *, count: int) -> list[RecordMetadata]:
    """Read where each of the records is."""
    try:
        lines = _decode_metadata_lines(answer.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _misunderstood(answer, error) from error
    if len(lines) != count:
        raise UnexpectedAnswer(
            f"{answer.url} answered {answer.status} with {len(lines)} lines for {count} messages.",
            status=answer.status,
        )
    return lines


def _without_the_results(answer: Answer, why: str) -> UnexpectedAnswer:
    error = UnexpectedAnswer(
        f"{answer.url} answered {answer.status} that some messages were published, but not which: {why}.",
        status=answer.status,
    )
    # Whatever the status is: some were.
    error.possibly_published = True
    return error


def decode(answer: Answer, shape: type[_T]) -> _T:
    """Read a body by what it has to be. What Content-Type says of it proves nothing, and is not asked."""
    try:
        return msgspec.json.decode(answer.body, type=shape)
    # Not JSON, or of another shape; not UTF-8; or brackets without end.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _misunderstood(answer, error) from error


def _misunderstood(answer: Answer, error: Exception) -> UnexpectedAnswer:
    return UnexpectedAnswer(
        f"{answer.url} answered {answer.status} ({answer.media_type or 'no type'}), but not with what "
        f"the service sends: {error}. Is it the address of the service, in a version that knows this "
        "request?",
        status=answer.status,
    )


def _retry_after_s(headers: Headers) -> int | None:
    """The seconds of a Retry-After; the service does not use its other form, a date."""
    values = headers.getRawHeaders(b"retry-after") or [b""]
    return int(values[-1]) if values[-1].isdigit() else None
