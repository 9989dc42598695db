"""A request that only reads changes nothing, so no error of it says that its outcome is unknown."""

from __future__ import annotations

import json

import pytest
from twisted.internet.defer import fail

from sampleapp.errors import OutcomeUnknown, PublishError, PublishTimedOut
from sampleapp.web.errors import ROWS
from tests.support.in_memory import InMemoryService
from tests.web.http import assert_problem

ERRORS = [OutcomeUnknown("Perhaps stored."), PublishTimedOut("Perhaps stored.")]


def respond(service, method, error):
    service.site.dispatch = lambda _: lambda _: fail(error)
    return service.request(method, "/topics/t/groups/g", (), None if method == "GET" else b"")


@pytest.mark.parametrize("error", ERRORS)
def test_a_read_is_safe_to_repeat_whatever_the_broker_says(error):
    response = respond(InMemoryService(), "GET", error)
    assert_problem(response, 503)
    assert response.headers[b"retry-after"]
    assert b"urn:sampleapp:problem:broker-unavailable" in response.body
    assert respond(InMemoryService(), "HEAD", error).status == 503
    for method in ("POST", "DELETE"):
        assert_problem(respond(InMemoryService(), method, error), 504)


def test_the_errors_with_an_unknown_outcome_are_all_here():
    unknown = {kind for kind in ROWS if issubclass(kind, PublishError) and kind.possibly_published}
    assert {type(error) for error in ERRORS} == unknown


def test_a_fault_in_a_read_leaves_no_doubt_either(no_failure_is_lost):
    assert b"Nothing was changed." in respond(InMemoryService(), "GET", ZeroDivisionError()).body
    assert b"request is unknown" in respond(InMemoryService(), "DELETE", ZeroDivisionError()).body
    no_failure_is_lost.clear()


def test_no_operation_that_reads_has_504():
    paths = json.loads(InMemoryService().request("GET", "/openapi.json").body)["paths"]
    for path, item in paths.items():
        for method in item.keys() & {"get", "head"}:
            assert "504" not in item[method]["responses"], path
