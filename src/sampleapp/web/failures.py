"""Answers to the failures of handlers, and the form of errors for their clients."""

from __future__ import annotations

from contextlib import suppress

from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.errors import SampleAppError
from sampleapp.web.answers import Answer
from sampleapp.web.errors import INTERNAL_ERROR, problem_answer
from sampleapp.web.rest_proxy_errors import in_form_for
from sampleapp.web.server.head import Head

__all__ = ["answer_to_failure", "refusal_in_form"]

_log = Logger()


def answer_to_failure(failure: Failure, request_id: bytes) -> Answer:
    """Return the answer to a failed handler. A fault of the service is logged with the id of the request."""
    if isinstance(failure.value, SampleAppError):
        with suppress(LookupError):
            return problem_answer(failure.value)
    _log.failure(
        "A fault in the service: a request was answered with 500. (X-Request-Id: {request_id})",
        failure=failure,
        request_id=request_id.decode("ascii", "backslashreplace"),
    )
    return INTERNAL_ERROR


def refusal_in_form(answer: Answer, head: Head) -> Answer:
    """Return a refusal in the form that its client reads; see `sampleapp.web.rest_proxy_errors`."""
    fields = head.fields
    return in_form_for(
        answer,
        method=head.method,
        path=head.path,
        content_types=fields.all(b"Content-Type"),
        accept=fields.joined(b"Accept"),
    )
