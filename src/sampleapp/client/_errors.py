"""What a caller of the service can be told, apart from what was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sampleapp.errors import Fault, SampleAppError
from sampleapp.model import RecordMetadata

__all__ = [
    "AnswerLost",
    "ClientError",
    "Forbidden",
    "PartlyPublished",
    "Problem",
    "ProblemError",
    "RequestTimedOut",
    "ServiceUnreachable",
    "TLSFailed",
    "TooManyRequests",
    "Unauthorized",
    "UnexpectedAnswer",
]

MULTIPLE_CHOICES = 300
INTERNAL_SERVER_ERROR = 500
SERVICE_UNAVAILABLE = 503

# What RFC 9110 and RFC 6585 define as an answer to this attempt rather than to this request.
RETRIABLE = frozenset({408, 429, 500, 502, 503, 504})

_MOST_TOLD = 10
"""So many faults are told in the message of a `ProblemError`; all of them are in its ``problem``."""


class ClientError(SampleAppError):
    """
    A request was not answered with what was asked for.

    Its message is one or more whole sentences for the person who made the request.
    """

    retriable: bool
    """Whether the same request, unchanged, may succeed later."""
    possibly_published: bool
    """Whether the message may have been published all the same; ``False`` is a promise that it was not."""


class ServiceUnreachable(ClientError):
    """No connection could be made, so nothing was sent."""

    retriable = True
    possibly_published = False


class TLSFailed(ServiceUnreachable):
    """There is something, but no secure connection to it: it is not trusted, or does not speak TLS."""

    def __init__(self, message: str, *, retriable: bool) -> None:
        """:param retriable: whether it may be only a matter of time."""
        super().__init__(message)
        self.retriable = retriable


class RequestTimedOut(ClientError):
    """The whole answer was not there in time."""

    retriable = True
    possibly_published = True


class AnswerLost(ClientError):
    """The connection ended between the request and the end of its answer."""

    retriable = True
    possibly_published = True


class UnexpectedAnswer(ClientError):
    """What answered is not this service, or not as it is described: perhaps a proxy in between."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        """:param status: the status of the answer; ``None`` if there was not even that."""
        super().__init__(message)
        self.status = status
        self.retriable = status in RETRIABLE
        # By 3xx and 4xx a request is refused, whoever says so. A 5xx of a proxy can hide anything, and so
        # can a success that does not say which record it is about.
        self.possibly_published = status is None or not MULTIPLE_CHOICES <= status < INTERNAL_SERVER_ERROR


class Problem(Struct, frozen=True, kw_only=True):
    """The problem document of an answer (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: tuple[Fault, ...] = ()
    """All that was wrong with the fields of the request."""


def _first(texts: list[str], others: str) -> list[str]:
    """Return the first few, and a word about the others: many messages may have many faults."""
    rest = len(texts) - _MOST_TOLD
    return texts if rest <= 0 else [*texts[:_MOST_TOLD], others.format(rest)]


class ProblemError(ClientError):
    """The service says what kept it from doing what was asked."""

    def __init__(self, problem: Problem, *, retry_after_s: int | None = None) -> None:
        """:param retry_after_s: the seconds after which the service would like to be asked again."""
        # The service repeats the faults in its detail, for those who read no further; others need not.
        faults = [fault.detail for fault in problem.errors if fault.detail not in problem.detail]
        told = _first(list(dict.fromkeys(faults)), "{} more are in the problem.")
        text = " ".join([f"{problem.title} ({problem.status}): {problem.detail}", *told])
        # A pointer ends with the name of a member, which what is said of it may have or not.
        where = [fault.pointer for fault in problem.errors if fault.pointer.rpartition("/")[2] not in text]
        super().__init__(f"{text} (At {', '.join(_first(where, '{} more'))}.)" if where else text)
        self.problem = problem
        self.retry_after_s = retry_after_s
        self.retriable = problem.status in RETRIABLE
        # The service promises it for 503 and for what it refuses; of a fault of its own it knows nothing.
        self.possibly_published = (
            problem.status >= INTERNAL_SERVER_ERROR and problem.status != SERVICE_UNAVAILABLE
        )


class Unauthorized(ProblemError):
    """The service does not know who calls, or not any more (401). Nothing was done."""

    def __init__(self, problem: Problem, *, has_token: bool, retry_after_s: int | None = None) -> None:
        """:param has_token: whether the client has sent one."""
        super().__init__(problem, retry_after_s=retry_after_s)
        said = "The token that was sent is not valid there." if has_token else "No token was sent."
        self.args = (f"{self} {said}",)
        self.has_token = has_token


class Forbidden(ProblemError):
    """The service knows who calls, and does not grant it (403). Nothing was done."""


class TooManyRequests(ProblemError):
    """The caller has asked for more than its rate allows (429). Nothing was done."""

    def __init__(self, problem: Problem, *, retry_after_s: int | None = None) -> None:
        """:param retry_after_s: the seconds after which there is room again."""
        super().__init__(problem, retry_after_s=retry_after_s)
        if retry_after_s is not None:
            seconds = "second" if retry_after_s == 1 else "seconds"
            self.args = (f"{self} There is room again in {retry_after_s} {seconds}.",)


class PartlyPublished(ProblemError):
    """Some of many messages were published, and not all."""

    def __init__(
        self,
        problem: Problem,
        *,
        results: Sequence[RecordMetadata | ProblemError],
        retry_after_s: int | None = None,
    ) -> None:
        """:param results: one for each message, in their order."""
        super().__init__(problem, retry_after_s=retry_after_s)
        self.results = tuple(results)
        """For each message where its record is, or the error that it would have got alone."""
        self.possibly_published = True
