"""``/live`` and ``/ready``."""

from __future__ import annotations

import json

import pytest

from sampleapp.web import AdminApp, HTTPServer, Probes, RouteTable, response_to_failure
from sampleapp.web.errors import problem_response
from tests.support.callers import by, caller
from tests.support.in_memory import Connection, InMemoryService, request_bytes
from tests.web.http import assert_problem

REASONS = ["Kafka does not answer.", "The stored readings are still being read; ask again."]


def test_live_is_200_whatever_the_state():
    service = InMemoryService()
    service.fail(*REASONS)
    response = service.request("GET", "/live")
    assert (response.status, json.loads(response.body)) == (200, {"live": True})
    assert response.headers[b"cache-control"] == b"no-store"


def test_ready_is_200_without_a_reason_and_503_with_all_reasons_otherwise():
    service = InMemoryService()
    response = service.request("GET", "/ready")
    assert (response.status, json.loads(response.body)) == (200, {"ready": True})
    assert response.headers[b"cache-control"] == b"no-store"
    service.fail(*REASONS)
    response = service.request("GET", "/ready")
    assert_problem(response, 503)
    problem = json.loads(response.body)
    assert problem["type"] == "urn:sampleapp:problem:not-ready"
    assert problem["reasons"] == REASONS
    assert problem["detail"] == " ".join(REASONS)
    assert response.headers[b"cache-control"] == b"no-store"
    assert response.headers[b"retry-after"] == b"1"


def test_ready_has_warnings_for_those_who_may_see_reasons():
    warnings = ["The clock of this service is 100 s ahead of that of Kafka."]
    everybody = Probes(get_reasons=list, get_warnings=lambda: warnings)
    response = everybody.ready(None)
    assert (response.status, json.loads(response.body)) == (200, {"ready": True, "warnings": warnings})
    nobody = Probes(get_reasons=list, get_warnings=lambda: warnings, may_see_reasons=lambda _: False)
    assert json.loads(nobody.ready(None).body) == {"ready": True}
    failing = Probes(get_reasons=lambda: REASONS, get_warnings=lambda: warnings)
    assert json.loads(failing.ready(None).body)["reasons"] == REASONS


@pytest.mark.parametrize("path", ["/live", "/ready"])
def test_head_gets_the_same_without_the_body(path):
    service = InMemoryService()
    service.fail(*REASONS)
    get, head = service.request("GET", path), service.request("HEAD", path)
    assert head.body == b""
    assert head.status == get.status
    assert head.headers[b"content-length"] == b"%d" % len(get.body)


@pytest.mark.parametrize("path", ["/live", "/ready"])
def test_a_probe_takes_no_other_method(path):
    response = InMemoryService().request("POST", path, body=b"")
    assert response.status == 405
    assert response.headers[b"allow"] == b"GET, HEAD, OPTIONS"


def test_probes_are_answered_while_as_many_requests_wait_as_may():
    service = InMemoryService(max_waiting=1)
    waiting = service.connect()
    waiting.send(
        request_bytes(
            "POST",
            "/messages",
            [(b"Content-Type", b"application/json")],
            b'{"topic":"t","content":"c"}',
        )
    )
    assert service.post(b'{"topic":"t","content":"c"}').status == 503
    assert service.request("GET", "/live").status == 200
    assert service.request("GET", "/ready").status == 200


def test_probes_are_answered_on_a_connection_that_is_open_while_the_service_drains():
    service = InMemoryService()
    connection = service.connect()
    service.site.drain()
    service.fail("The service is stopping.")
    connection.send(request_bytes("GET", "/ready"))
    (response,) = connection.responses(["GET"])
    assert response.status == 503
    assert response.headers[b"connection"] == b"close"


def test_who_may_not_see_the_reasons_gets_the_status_only():
    service = InMemoryService()
    probes = Probes(
        get_reasons=lambda: service.broker.health().reasons,
        may_see_reasons=lambda request: request.fields.joined(b"Authorization") is not None,
    )
    site = HTTPServer(
        RouteTable(AdminApp(probes, service.documentation).app).dispatch,
        reject=problem_response,
        response_to=response_to_failure,
        reactor=service.clock,
    )

    def ask(*headers):
        connection = Connection(site)
        connection.send(request_bytes("GET", "/ready", headers))
        (response,) = connection.responses(["GET"])
        return response

    assert ask().body == b'{"ready":true}\n'
    service.fail(*REASONS)
    response = ask()
    assert_problem(response, 503)
    assert "reasons" not in json.loads(response.body)
    assert json.loads(response.body)["detail"] == "The service is not ready."
    response = ask((b"Authorization", b"Bearer x"))
    assert (response.status, json.loads(response.body)["reasons"]) == (503, REASONS)


def test_with_callers_a_probe_needs_no_credentials_but_reasons_are_for_callers_only():
    service = InMemoryService(callers=caller("reader", "read = true") + caller("nobody"))
    service.fail(*REASONS)
    assert service.request("GET", "/live").status == 200
    for headers in ([], [(b"Authorization", b"Bearer wrong")], [(b"Authorization", b"")]):
        response = service.request("GET", "/ready", headers)
        assert_problem(response, 503)
        assert json.loads(response.body)["detail"] == "The service is not ready."
        assert "reasons" not in json.loads(response.body)
    for name in ("reader", "nobody"):
        response = service.request("GET", "/ready", [by(name)])
        assert (response.status, json.loads(response.body)["reasons"]) == (503, REASONS)
