"""Answers to the failures of handlers, and the form of errors for their clients."""

from __future__ import annotations

from contextlib import suppress

from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.errors import SampleAppError
from sampleapp.web.errors import INTERNAL_ERROR, problem_response
from sampleapp.web.responses import Response
from sampleapp.web.rest_proxy_errors import in_form_for
from sampleapp.web.server.head import Head

_log = Logger()


def response_to_failure(failure: Failure, request_id: bytes) -> Response:
    """
    Return the response to a failed handler.

    A fault of the service is logged with the id of the request.
    """
    if isinstance(failure.value, SampleAppError):
        with suppress(LookupError):
            return problem_response(failure.value)
    _log.failure(
        "A fault in the service: a request was answered with 500. (X-Request-Id: {request_id})",
        failure=failure,
        request_id=request_id.decode("ascii", "backslashreplace"),
    )
    return INTERNAL_ERROR


def rejection_in_form(response: Response, head: Head) -> Response:
    """Return a rejection in the form that its client reads; see `sampleapp.web.rest_proxy_errors`."""
    fields = head.fields
    return in_form_for(
        response,
        method=head.method,
        path=head.path,
        content_types=fields.all(b"Content-Type"),
        accept=fields.joined(b"Accept"),
    )
