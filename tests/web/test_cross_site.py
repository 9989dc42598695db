"""Requests that pages of other sites make: they publish nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.web.server import Site

from tests.support.callers import by, caller
from tests.support.in_memory import Connection, InMemoryService, PromptBroker, request_bytes
from tests.web.http import JSON, MESSAGE, assert_problem, raw

ALLOWED = "https://example.org"
FOREIGN = (b"Origin", b"https://evil.example")
CROSS_SITE = (b"Sec-Fetch-Site", b"cross-site")


def post(service, host, *headers, method="POST", path="/messages", body=MESSAGE):
    """Send one request to the service, and to its resource in a site of twisted.web; both answer alike."""
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: " + host, b"Content-Length: %d" % len(body)]
    data = b"\r\n".join([*lines, *(b"%b: %b" % header for header in headers)]) + b"\r\n\r\n" + body
    servers = [service.site, Site(service.gateway.app.resource(), reactor=service.clock)]
    connections = [Connection(server) for server in servers]
    before = len(service.broker.records)
    for connection in connections:
        connection.send(data)
    # Only the service's own server speaks of origins that may read its answers.
    of_cors = {b"access-control-allow-origin", b"access-control-expose-headers", b"vary"}
    answers = [connection.responses([method])[0] for connection in connections]
    assert answers[0].status == answers[1].status
    if answers[0].status == 200:
        assert len(service.broker.records) == before + 2
        return answers[0]
    assert len(service.broker.records) == before
    own = answers[0]._replace(
        headers={name: value for name, value in answers[0].headers.items() if name not in of_cors}
    )
    assert own.body == answers[1].body
    return own


def service(**options):
    return InMemoryService(broker=PromptBroker(), allowed_origins=[ALLOWED], **options)


def sites(value):
    return [] if value is None else [(b"Sec-Fetch-Site", value)]


HOSTS = ["a.example", "A.Example", "b.example", "127.0.0.1", "[::1]", "localhost"]
PORTS = [None, 80, 443, 8080]


@given(
    scheme=st.sampled_from(["http", "https"]),
    host=st.sampled_from(HOSTS),
    port=st.sampled_from(PORTS),
    origin_host=st.sampled_from(HOSTS),
    origin_port=st.sampled_from(PORTS),
    site=st.sampled_from([None, b"none", b"same-origin", b"same-site", b"cross-site", b"later", b""]),
)
@example(scheme="https", host="a", port=None, origin_host="a", origin_port=443, site=None)
@example(scheme="http", host="a", port=443, origin_host="a", origin_port=None, site=None)
def test_exactly_pages_of_the_same_host_and_port_may_publish(
    *, scheme, host, port, origin_host, origin_port, site
):
    def text(name, number):
        return name if number is None else f"{name}:{number}"

    usual = {"http": 80, "https": 443}[scheme]
    is_same = (host.lower(), port or usual) == (origin_host.lower(), origin_port or usual)
    origin = f"{scheme}://{text(origin_host, origin_port)}".encode()
    answer = post(service(), text(host, port).encode(), *JSON, *sites(site), (b"Origin", origin))
    if is_same and site in {None, b"none", b"same-origin"}:
        assert answer.status == 200
    else:
        assert_problem(answer, 403)
        assert json.loads(answer.body)["type"] == "urn:sampleapp:problem:cross-site"


@given(
    st.one_of(
        st.sampled_from(
            [
                b"null",
                b"",
                b"*",
                b"a",
                b"http://a/",
                b"http://a:80:80",
                b"http://x@a",
                b"http://a, http://a",
                b"ftp://a",
                b"file://",
                b"http://[a]",
                b"http://a:" + b"8" * 5000,
            ]
        ),
        st.binary(max_size=20).map(lambda more: b"http://a" + more.translate(None, b"\r\n\0")),
    ).filter(
        lambda origin: origin.strip(b" \t").lower() not in {b"http://a", b"http://a:80", b"http://a:080"}
    )
)
def test_what_is_no_origin_of_this_host_is_foreign(origin):
    assert post(service(), b"a", *JSON, (b"Origin", origin)).status in {403, 400}


@pytest.mark.parametrize("site", [None, b"none", b"same-origin"])
def test_who_is_no_page_of_another_site_may_publish(site):
    assert post(service(), b"a", *JSON, *sites(site)).status == 200


@pytest.mark.parametrize("site", [None, b"cross-site", b"same-site", b"same-origin"])
def test_an_allowed_origin_may_publish_whatever_else_the_browser_says(site):
    assert post(service(), b"a", *JSON, *sites(site), (b"Origin", ALLOWED.encode())).status == 200


def test_what_is_there_twice_is_foreign_if_one_of_them_is():
    same = (b"Origin", b"http://a")
    allowed = (b"Origin", ALLOWED.encode())
    for headers in ([same, FOREIGN], [same, same], [allowed, allowed], [*sites(b"none"), CROSS_SITE]):
        assert post(service(), b"a", *JSON, *headers).status == 403


def test_a_rejection_says_what_was_wrong_and_what_would_be_right():
    detail = json.loads(post(service(), b"a", *JSON, FOREIGN).body)["detail"]
    assert "Origin: https://evil.example" in detail
    assert "--allow-origin" in detail
    detail = json.loads(post(service(), b"a", *JSON, CROSS_SITE).body)["detail"]
    assert "Sec-Fetch-Site: cross-site" in detail


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_what_publishes_nothing_is_not_concerned(method):
    response = service().request(method, "/", [FOREIGN, CROSS_SITE])
    assert response.status in {200, 204}


def test_a_path_and_a_method_are_judged_before_and_the_content_type_after():
    for headers in ([FOREIGN], [CROSS_SITE]):
        assert post(service(), b"a", *headers, path="/nothing").status == 404
        assert post(service(), b"a", *headers, method="DELETE").status == 405
        assert post(service(), b"a", *headers, (b"Content-Type", b"text/plain")).status == 403
        assert post(service(), b"a", *headers, (b"Content-Encoding", b"br")).status == 403
    large = [*JSON, FOREIGN, (b"Content-Length", b"99999999")]
    (response,) = raw(service(), request_bytes("POST", "/messages", large)).responses(["POST"])
    assert response.status == 403


def test_who_has_no_credentials_is_told_only_that():
    guarded = service(callers=caller("page", 'publish = ["t"]'))
    assert post(guarded, b"a", *JSON, FOREIGN).status == 401
    assert post(guarded, b"a", *JSON, FOREIGN, by("page")).status == 403
    assert post(guarded, b"a", *JSON, by("page")).status == 200


def test_without_a_host_every_origin_is_foreign():
    data = b"POST /messages HTTP/1.0\r\nOrigin: http://a\r\nContent-Type: application/json\r\n"
    data += b"Content-Length: %d\r\n\r\n%b" % (len(MESSAGE), MESSAGE)
    (response,) = raw(service(), data).responses(["POST"])
    assert_problem(response, 403)


@pytest.mark.parametrize(("target", "host", "status"), [(b"a", b"b", 200), (b"b", b"a", 403)])
def test_the_host_is_that_of_the_target_if_the_target_is_a_url(target, host, status):
    data = b"POST http://%b/messages HTTP/1.1\r\nHost: %b\r\nOrigin: http://a\r\n" % (target, host)
    data += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(MESSAGE), MESSAGE)
    (response,) = raw(service(), data).responses(["POST"])
    assert response.status == status
