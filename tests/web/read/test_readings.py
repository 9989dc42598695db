"""``GET /`` over HTTP."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from tests.support import strategies
from tests.support.in_memory import InMemoryService
from tests.web.http import same_headers

V1 = b"application/json"
V2 = b"application/vnd.sampleApp.v2+json"


@pytest.fixture
def service():
    service = InMemoryService()
    service.read(b"kitchen", b"21.5")
    service.read(b"hall", b"19.0")
    return service


def test_without_an_accept_header_the_body_is_an_array_of_numbers(service):
    response = service.request("GET")
    assert response.status == 200
    assert response.headers[b"content-type"] == V1
    assert json.loads(response.body) == [21.5, 19.0]


def test_the_accept_header_chooses_version_2(service):
    response = service.request("GET", headers=[(b"Accept", V2)])
    assert response.status == 200
    assert response.headers[b"content-type"] == V2
    assert json.loads(response.body) == [{"id": "kitchen", "value": 21.5}, {"id": "hall", "value": 19.0}]


def test_all_accept_lines_count_together(service):
    lines = [(b"Accept", b"text/html"), (b"Accept", V2 + b";q=0.5"), (b"accept", b"application/json;q=0.4")]
    assert service.request("GET", headers=lines).headers[b"content-type"] == V2
    assert (
        service.request("GET", headers=[*lines, (b"Accept", b"application/json")]).headers[b"content-type"]
        == V1
    )


@pytest.mark.parametrize(
    "accept", [b"text/html", b"*/*", b"application/vnd.sampleApp.v3+json", b";;\xff", b""]
)
def test_anything_else_gets_version_1_and_is_never_rejected(service, accept):
    response = service.request("GET", headers=[(b"Accept", accept)])
    assert (response.status, response.headers[b"content-type"]) == (200, V1)


@given(strategies.field_bytes | strategies.accept_like)
def test_no_accept_header_whatever_makes_a_request_fail(accept):
    response = InMemoryService().request("GET", headers=[(b"Accept", accept)])
    assert response.status == 200
    assert response.body == b"[]"


@pytest.mark.parametrize("path", ["/v1/readings", "/v2/readings", "/readings"])
def test_no_version_has_a_path(service, path):
    assert service.request("GET", path).status == 404


@pytest.mark.parametrize("accept", [V1, V2])
def test_every_answer_can_be_cached_by_what_it_depends_on(service, accept):
    headers = service.request("GET", headers=[(b"Accept", accept)]).headers
    assert headers[b"vary"] == b"Accept"
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"etag"].startswith(b'"')


@pytest.mark.parametrize("accept", [V1, V2])
@pytest.mark.parametrize("form", [b"%b", b"W/%b", b'"other", %b', b'"a,b" , W/%b', b"*", b" %b "])
def test_a_caller_that_has_the_current_state_is_not_sent_it_again(service, accept, form):
    whole = service.request("GET", headers=[(b"Accept", accept)])
    tag = form % whole.headers[b"etag"] if b"%b" in form else form
    for method in ("GET", "HEAD"):
        response = service.request(method, headers=[(b"Accept", accept), (b"If-None-Match", tag)])
        assert response.status == 304
        assert response.body == b""
        for name in (b"etag", b"vary", b"cache-control"):
            assert response.headers[name] == whole.headers[name]


def test_all_lines_of_if_none_match_count(service):
    tag = service.request("GET").headers[b"etag"]
    lines = [(b"If-None-Match", b'"other"'), (b"If-None-Match", tag)]
    assert service.request("GET", headers=lines).status == 304


def test_a_tag_of_another_state_or_version_gets_the_whole(service):
    tags = [service.request("GET", headers=[(b"Accept", accept)]).headers[b"etag"] for accept in (V1, V2)]
    assert service.request("GET", headers=[(b"If-None-Match", tags[1])]).status == 200
    service.read(b"hall", b"20")
    assert service.request("GET", headers=[(b"If-None-Match", tags[0])]).status == 200
    tag = service.request("GET").headers[b"etag"]
    for nonsense in (b"nonsense", b'"a, %b b"', b"w/%b", b"%b%b", b'"*"', tag.strip(b'"')):
        value = nonsense.replace(b"%b", tag)
        assert service.request("GET", headers=[(b"If-None-Match", value)]).status == 200


@pytest.mark.parametrize("accept", [V1, V2])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_if_match_lets_pass_who_names_the_current_state_and_goes_before_if_none_match(
    service, accept, method
):
    version = (b"Accept", accept)
    tag = service.request("GET", headers=[version]).headers[b"etag"]
    for passes in (tag, b"*", b'"other" ,%b' % tag):
        assert service.request(method, headers=[version, (b"If-Match", passes)]).status == 200
        both = [version, (b"If-None-Match", tag), (b"If-Match", passes)]
        assert service.request(method, headers=both).status == 304
    lines = [version, (b"If-Match", b'"other"'), (b"If-Match", tag)]
    assert service.request(method, headers=lines).status == 200
    for fails in (b"W/" + tag, b'"other"', b"", tag.strip(b'"'), b'"*"', b"*, *"):
        for none_match in ([], [(b"If-None-Match", tag)], [(b"If-None-Match", b'"other"')]):
            rejected = service.request(method, headers=[version, (b"If-Match", fails), *none_match])
            assert rejected.status == 412
            assert rejected.headers[b"content-type"] == b"application/problem+json"
            assert b"etag" not in rejected.headers


def test_a_condition_is_not_looked_at_where_there_is_no_state_yet(service):
    service.follower.reset()
    assert service.request("GET", headers=[(b"If-Match", b'"other"')]).status == 503


@pytest.mark.parametrize("accept", [V1, V2])
def test_head_answers_as_get_without_the_body(service, accept):
    headers = [(b"Accept", accept)]
    got, head = service.request("GET", headers=headers), service.request("HEAD", headers=headers)
    assert head.status == got.status
    assert same_headers(head) == same_headers(got)
    assert head.body == b""


def test_until_the_readings_are_complete_the_answer_is_503_rather_than_a_part(service):
    service.follower.reset()
    response = service.request("GET")
    assert response.status == 503
    assert response.headers[b"retry-after"] == b"1"
    assert response.headers[b"content-type"] == b"application/problem+json"
    assert json.loads(response.body) == {
        "type": "urn:sampleapp:problem:readings-not-ready",
        "title": "Readings not ready",
        "status": 503,
        "detail": "The stored readings are still being read; ask again.",
    }
    service.follower.caught_up()
    assert service.request("GET").status == 200


def test_a_query_does_not_matter(service):
    assert service.request("GET", "/?version=2").headers[b"content-type"] == V1


@pytest.mark.parametrize("version", [1, 2])
def test_readings_of_many_blocks_are_sent_whole(service, version):
    for n in range(5000):
        service.read(b"sensor-%d" % n, b"%d" % n)
    representation = service.readings.representation(version)
    assert len(representation.parts) > 2
    response = service.request("GET", headers=[(b"Accept", V2)] if version == 2 else [])
    assert response.body == representation.body
    assert response.headers[b"content-length"] == b"%d" % representation.length
