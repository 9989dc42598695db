"""The errors of the client."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from twisted.internet.defer import CancelledError

from sampleapp.errors import Fault, SampleAppError
from sampleapp.model import GoneRecords, RecordMetadata

MULTIPLE_CHOICES = 300
INTERNAL_SERVER_ERROR = 500

NOTHING_PUBLISHED = frozenset({501, 503})
"""The statuses from 500 on with which the service promises that nothing was published."""

# By RFC 9110 and RFC 6585, answers to this attempt rather than to this request.
RETRIABLE = frozenset({408, 429, 500, 502, 503, 504})

_MOST_SHOWN = 10
"""Maximum faults in the message of a `ProblemError`; all of them are in its ``problem``."""


class ClientError(SampleAppError):
    """
    A request has failed.

    The message is one or more whole sentences for the person who made the request.
    """

    retriable: bool
    """True if the same request, unchanged, may succeed later."""
    possibly_published: bool
    """True if the message may have been published all the same; ``False`` promises that it was not."""


class ServiceUnreachable(ClientError):
    """No connection could be made, so nothing was sent."""

    retriable = True
    possibly_published = False


class TLSFailed(ServiceUnreachable):
    """
    A server answers, but is not trusted, or does not speak TLS for ``https:``, or speaks it for ``http:``.

    In the last case the request was sent, but the server cannot have understood it.
    """

    def __init__(self, message: str, *, retriable: bool) -> None:
        """:param retriable: True if the same request may succeed later."""
        super().__init__(message)
        self.retriable = retriable


class RequestTimedOut(ClientError):
    """The whole response did not arrive in time."""

    retriable = True

    def __init__(self, message: str, *, possibly_published: bool = True) -> None:
        """:param possibly_published: False if the request was not sent."""
        super().__init__(message)
        self.possibly_published = possibly_published


class RequestCancelled(CancelledError):
    """The caller has cancelled a request."""

    def __init__(self, *, possibly_published: bool) -> None:
        """:param possibly_published: False if no attempt had begun to send the request."""
        super().__init__()
        self.possibly_published = possibly_published


class ResponseLost(ClientError):
    """The connection ended between the request and the end of its response."""

    retriable = True
    possibly_published = True


class UnexpectedResponse(ClientError):
    """The response is not one that this service sends: perhaps it comes from a proxy in between."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        """:param status: the status of the response; ``None`` if the response has no status."""
        super().__init__(message)
        self.status = status
        self.retriable = status in RETRIABLE
        # 3xx and 4xx reject a request, even from another server. A 5xx from a proxy can hide any outcome, and
        # so can a success that does not name the record.
        self.possibly_published = status is None or not MULTIPLE_CHOICES <= status < INTERNAL_SERVER_ERROR


class Problem(Struct, frozen=True, kw_only=True):
    """The problem document of a response (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: tuple[Fault, ...] = ()
    """The faults in the fields of the request."""


def _first(texts: list[str], others: str) -> list[str]:
    """Return the first `_MOST_SHOWN` texts, and the number of the others: a batch may have many faults."""
    rest = len(texts) - _MOST_SHOWN
    return texts if rest <= 0 else [*texts[:_MOST_SHOWN], others.format(rest)]


class ProblemError(ClientError):
    """The service answered with a problem document."""

    def __init__(self, problem: Problem, *, retry_after_s: int | None = None) -> None:
        """:param retry_after_s: the seconds after which the client may try again."""
        # This service repeats the faults in the detail, for people who read no further; others may not.
        faults = [fault.detail for fault in problem.errors if fault.detail not in problem.detail]
        told = _first(list(dict.fromkeys(faults)), "{} more are in the problem.")
        text = " ".join([f"{problem.title} ({problem.status}): {problem.detail}", *told])
        # A pointer ends with the name of a member, which the text may have or not.
        where = [fault.pointer for fault in problem.errors if fault.pointer.rpartition("/")[2] not in text]
        super().__init__(f"{text} (At {', '.join(_first(where, '{} more'))}.)" if where else text)
        self.problem = problem
        self.retry_after_s = retry_after_s
        self.retriable = problem.status in RETRIABLE
        # 4xx reject a request; with other 5xx the service does not know.
        self.possibly_published = (
            problem.status >= INTERNAL_SERVER_ERROR and problem.status not in NOTHING_PUBLISHED
        )


class Unauthorized(ProblemError):
    """The service does not accept the credentials, or needs some (401). Nothing was done."""

    def __init__(self, problem: Problem, *, has_token: bool, retry_after_s: int | None = None) -> None:
        """:param has_token: True if the client has sent a token."""
        super().__init__(problem, retry_after_s=retry_after_s)
        said = "The service does not accept the token." if has_token else "No token was sent."
        self.args = (f"{self} {said}",)
        self.has_token = has_token


class Forbidden(ProblemError):
    """The caller does not have the right for the request (403). Nothing was done."""


class TooManyRequests(ProblemError):
    """The caller has exceeded its rate (429). Nothing was done."""

    def __init__(self, problem: Problem, *, retry_after_s: int | None = None) -> None:
        """:param retry_after_s: the seconds after which the rate allows the request."""
        super().__init__(problem, retry_after_s=retry_after_s)
        if retry_after_s is not None:
            seconds = "second" if retry_after_s == 1 else "seconds"
            self.args = (f"{self} Try again in {retry_after_s} {seconds}.",)


class PartlyPublished(ProblemError):
    """Some messages of a batch were published, and others not."""

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
        """For each message the metadata of its record, or the error that it would have got alone."""
        self.possibly_published = True


class LeaseLost(ProblemError):
    """A lease has ended (409): its messages are given to workers again."""

    def __init__(self, problem: Problem, *, done: Sequence[str] = ()) -> None:
        """:param done: the ids of messages whose results stand all the same."""
        super().__init__(problem)
        self.done = tuple(done)
        """The ids of messages whose results stand all the same, if they are known."""


class PositionError(ProblemError):
    """Reading cannot go on at a position (410). A request without that position would succeed."""

    def __init__(
        self,
        problem: Problem,
        *,
        gone: Sequence[GoneRecords] = (),
        resume: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """
        :param gone: the records that are missing.
        :param resume: a position that leaves the missing records out; ``None`` if there is none.
        """
        super().__init__(problem, retry_after_s=retry_after_s)
        self.gone = tuple(gone)
        """The records that are missing, for each partition in which some are."""
        self.resume = resume
        """A position that leaves the missing records out, if there is one."""


class PositionExpired(PositionError):
    """Records after the position are gone. ``gone`` names them, and ``resume`` leaves them out."""


class TopicReplaced(PositionError):
    """The topic was deleted and made again after the position, or the position is another topic's."""


class PositionUnknown(PositionError):
    """The position is not in the log: it is another cluster's, or the broker has lost records."""
