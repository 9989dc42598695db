"""Methods and paths: which are served, and how the others are rejected."""

from __future__ import annotations

import json

import pytest
from twisted.logger import capturedLogs

from sampleapp.readings import Readings
from tests.web.http import JSON, MESSAGE, assert_problem


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/", b"GET, HEAD, OPTIONS"),
        ("DELETE", "/", b"GET, HEAD, OPTIONS"),
        ("BREW", "/", b"GET, HEAD, OPTIONS"),
        ("get", "/", b"GET, HEAD, OPTIONS"),
        ("GET", "/messages", b"POST, OPTIONS"),
        ("HEAD", "/messages", b"POST, OPTIONS"),
        ("PUT", "/messages", b"POST, OPTIONS"),
    ],
)
def test_a_wrong_method_is_rejected_with_those_that_are_right(service, method, path, allow):
    response = service.request(method, path)
    assert response.status == 405
    assert response.headers[b"allow"] == allow
    if method != "HEAD":
        assert_problem(response, 405)


@pytest.mark.parametrize(("path", "allow"), [("/", b"GET, HEAD, OPTIONS"), ("/messages", b"POST, OPTIONS")])
def test_options_tells_the_methods_of_a_path(service, path, allow):
    response = service.request("OPTIONS", path)
    assert (response.status, response.headers[b"allow"], response.body) == (204, allow, b"")


def test_options_of_the_whole_server_is_answered(service):
    assert service.request("OPTIONS", "*").status == 204
    assert_problem(service.request("GET", "*"), 400)


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/%2Fmessages",
        "/messages/",
        "/messages/1",
        "//",
        "//messages",
        "/Messages",
        "/a/../messages",
        "/%00",
        "/%2e",
        "/.",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_an_unknown_path_is_not_found(service, path, method):
    assert_problem(service.request(method, path, JSON, MESSAGE), 404)
    assert service.broker.records == []


def test_a_path_that_is_longer_than_any_is_not_found_without_being_decoded(service):
    response = service.request("GET", "/" + "%ff" * 1000)
    assert_problem(response, 404)
    assert "2048 bytes" in json.loads(response.body)["detail"]


@pytest.mark.parametrize(
    "target", ["Xmessages", "messages", "x/", "ftp://localhost/messages", "localhost:443"]
)
def test_a_target_that_is_no_path_is_a_bad_request(service, target):
    assert_problem(service.request("POST", target, JSON, MESSAGE), 400)
    assert_problem(service.request("CONNECT", target), 400)
    assert service.broker.records == []


def test_a_path_may_be_percent_encoded(service):
    assert service.request("POST", "/%6Dessages", JSON, MESSAGE).status == 200


@pytest.mark.parametrize("path", ["/%ff", "/%", "/%4", "/%zz", "/messages%", "/%u0041", "/%+1"])
def test_a_path_that_is_not_utf_8_or_no_percent_encoding_is_a_bad_request(service, path):
    assert_problem(service.request("GET", path), 400)


def test_a_whole_url_may_be_the_target(service):
    assert service.request("GET", "http://localhost:8080/").body == b"[]"
    assert service.request("GET", "HTTP://localhost:8080").body == b"[]"
    assert service.request("POST", "http://localhost:8080/messages", JSON, MESSAGE).status == 200


def test_the_date_is_that_of_the_answer(service):
    before = service.request("GET").headers[b"date"]
    service.clock.advance(61)
    assert before == b"Tue, 14 Nov 2023 22:13:20 GMT"
    assert service.request("GET").headers[b"date"] == b"Tue, 14 Nov 2023 22:14:21 GMT"


def test_a_rejected_head_request_is_no_fault_of_the_service(service):
    for path in ("/%ff", "//", "/nothing", "/messages"):
        with capturedLogs() as events:
            assert service.request("HEAD", path).status in (400, 404, 405)
        assert events == []


def test_a_fault_of_the_service_is_500_and_logged(service, no_failure_is_lost, monkeypatch):
    def fail(_readings, _version):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Readings, "encoded_representation", fail)
    response = service.request("GET", "/")
    assert_problem(response, 500)
    assert b"secret" not in response.body
    assert no_failure_is_lost
    no_failure_is_lost.clear()


def test_no_server_header_tells_versions(service):
    for method, path in (("GET", "/"), ("GET", "/nothing"), ("OPTIONS", "*"), ("GET", "/%ff")):
        assert service.request(method, path).headers[b"server"] == b"sampleapp"


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/messages/", "/messages"),
        ("/docs/", "/docs"),
        ("/topics/", "/topics"),
        ("/topics/t/", "/topics/{topic}"),
        ("/topics/t/partitions/0/", "/topics/{topic}/partitions/{partition}"),
        ("/%6Dessages/", "/messages"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_a_trailing_slash_is_named_with_the_right_path(service, method, path, right):
    response = service.request(method, path, [(b"Accept", b"application/problem+json")])
    assert_problem(response, 404)
    assert json.loads(response.body)["detail"] == (
        f"A trailing slash makes a different path: use {right}. /openapi.json lists all paths."
    )


@pytest.mark.parametrize(
    "accept", [b"*/*", b"text/event-stream", b"application/json", b"text/html, TEXT/EVENT-STREAM;q=0.5"]
)
def test_an_unknown_path_below_a_topic_is_a_problem_and_no_error_of_rest_proxy(service, accept):
    for path in ("/topics/t/recrods", "/topics/t/partitions/0/x", "/topics/t/x/y", "/topics/t/changes"):
        response = service.request("GET", path, [(b"Accept", accept)])
        assert_problem(response, 404)


def test_a_reader_of_events_gets_problems_on_paths_of_rest_proxy_too(service):
    for path in ("/topics/none", "/topics/t/partitions/7"):
        response = service.request("GET", path, [(b"Accept", b"text/event-stream")])
        assert response.headers[b"content-type"] == b"application/problem+json"


def test_who_looks_for_consumers_is_told_where_topics_are_read(service):
    for path in ("/consumers/group", "/consumers/group/instances/i/records"):
        response = service.request("POST", path, [(b"Content-Type", b"application/vnd.kafka.v2+json")], b"{}")
        assert response.status == 404
        assert "GET /topics/{topic}/records" in json.loads(response.body)["message"]


@pytest.mark.parametrize("path", ["/nothing/", "//", "/messages//", "/messages/x/", "/docs/a/b/"])
def test_other_unknown_paths_with_a_trailing_slash_are_not_found(service, path):
    response = service.request("GET", path)
    assert_problem(response, 404)
    assert "slash" not in json.loads(response.body)["detail"]
