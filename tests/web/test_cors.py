"""Which sites' pages may use the service from a browser."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.web.cors import NotAnOrigin, check_origin
from tests.support.callers import by, caller
from tests.support.in_memory import InMemoryService, PromptBroker, request_bytes
from tests.web.http import JSON, MESSAGE, raw

ALLOWED = ["https://example.org", "http://localhost:3000", "https://app.example.org:8443"]
ORIGIN = (b"Origin", b"https://example.org")
OF_CORS = {
    b"access-control-allow-origin",
    b"access-control-expose-headers",
    b"access-control-allow-methods",
    b"access-control-allow-headers",
    b"access-control-max-age",
    b"access-control-allow-credentials",
}


def service(**options):
    return InMemoryService(broker=PromptBroker(), allowed_origins=ALLOWED, **options)


def near(origin):
    """Texts that are an allowed origin but for a little."""
    return st.one_of(
        st.sampled_from(
            [
                origin,
                origin.upper(),
                origin + "/",
                origin + ".",
                origin + ":443",
                origin.replace("https", "http"),
                origin.replace("http", "https", 1),
                origin.replace("://", "://www."),
                origin.replace(".", "x"),
                origin + ".evil.example",
                f"{origin}, {origin}",
                "null",
                "*",
                "",
            ]
        ),
        st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=8).map(
            lambda more: origin + more
        ),
        st.integers(1, len(origin)).map(lambda length: origin[:length]),
    )


@given(st.sampled_from(ALLOWED).flatmap(near), st.sampled_from(["GET /", "GET /nothing", "POST /messages"]))
@example("https://example.org", "GET /")
def test_exactly_the_allowed_origins_are_allowed_on_every_answer(origin, request_line):
    method, path = request_line.split()
    body = MESSAGE if method == "POST" else None
    response = service().request(method, path, [*JSON, (b"Origin", origin.encode())], body)
    told = {name: value for name, value in response.headers.items() if name in OF_CORS}
    if origin in ALLOWED:
        assert told[b"access-control-allow-origin"] == origin.encode()
        exposed = told[b"access-control-expose-headers"].split(b", ")
        assert {b"ETag", b"Position", b"Link", b"Up-To-Date", b"Retry-After"} <= set(exposed)
    else:
        assert told == {}
    assert b"Origin" in response.headers[b"vary"].split(b", ")


@given(st.sampled_from(ALLOWED).flatmap(near), st.sampled_from(["/", "/messages", "/nothing", "*"]))
def test_exactly_the_allowed_origins_may_ask_before(origin, path):
    headers = [(b"Origin", origin.encode()), (b"Access-Control-Request-Method", b"POST")]
    response = service().request("OPTIONS", path, headers)
    told = {name for name in response.headers if name in OF_CORS}
    assert bool(told) == (origin in ALLOWED)
    assert b"Origin" in response.headers[b"vary"]


def test_a_preflight_says_what_a_page_may_send():
    headers = [
        ORIGIN,
        (b"Access-Control-Request-Method", b"POST"),
        (b"Access-Control-Request-Headers", b"authorization,content-type"),
    ]
    response = service().request("OPTIONS", "/messages", headers)
    assert (response.status, response.body) == (204, b"")
    assert response.headers[b"access-control-allow-origin"] == b"https://example.org"
    methods = response.headers[b"access-control-allow-methods"].split(b", ")
    assert {b"GET", b"HEAD", b"POST"} <= set(methods)
    names = response.headers[b"access-control-allow-headers"].lower().split(b", ")
    assert {b"authorization", b"content-type", b"x-request-id", b"traceparent", b"if-none-match"} <= set(
        names
    )
    assert {b"idempotency-key", b"last-event-id"} <= set(names)
    assert int(response.headers[b"access-control-max-age"]) > 0
    assert b"access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize(
    "names",
    [
        b"ce-id,ce-source,ce-specversion,ce-type",
        b"cache-control",
        b"X-Own",
        b"a!#$%&'*+-.^_`|~9",
        b",".join(b"x-%d" % number for number in range(64)),
    ],
)
def test_a_page_of_an_allowed_origin_may_send_any_header(names):
    headers = [
        ORIGIN,
        (b"Access-Control-Request-Method", b"POST"),
        (b"Access-Control-Request-Headers", names),
    ]
    response = service().request("OPTIONS", "/topics/t", headers)
    assert response.status == 204
    assert response.headers[b"access-control-allow-origin"] == ORIGIN[1]
    allowed = response.headers[b"access-control-allow-headers"].split(b", ")
    assert set(names.split(b",")) | {b"Content-Type"} <= set(allowed)


@pytest.mark.parametrize(
    "names", [b",".join(b"x-%d" % number for number in range(65)), b"x y", b"x,,y", b"x:1", b"x" * 257, b""]
)
def test_too_many_names_and_what_is_no_name_are_not_repeated(names):
    headers = [ORIGIN, (b"Access-Control-Request-Method", b"POST")]
    usual = service().request("OPTIONS", "/topics/t", headers)
    response = service().request(
        "OPTIONS", "/topics/t", [*headers, (b"Access-Control-Request-Headers", names)]
    )
    of_cors = [{name: each.headers.get(name) for name in OF_CORS} for each in (usual, response)]
    assert of_cors[0] == of_cors[1]


def test_a_preflight_tells_nobody_which_paths_there_are():
    headers = [ORIGIN, (b"Access-Control-Request-Method", b"POST"), (b"X-Request-Id", b"1")]
    one, other = (service().request("OPTIONS", path, headers) for path in ("/messages", "/nothing"))
    assert one == other


def test_options_without_that_question_is_answered_as_ever():
    response = service().request("OPTIONS", "/messages", [ORIGIN])
    assert response.headers[b"allow"] == b"POST, OPTIONS"
    assert response.headers[b"access-control-allow-origin"] == b"https://example.org"


def test_two_origins_are_none():
    response = service().request("GET", "/", [ORIGIN, ORIGIN])
    assert OF_CORS.isdisjoint(response.headers)
    assert b"Origin" in response.headers[b"vary"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request_bytes("POST", "/messages", [*JSON, ORIGIN], b"{"), 400),
        (request_bytes("POST", "/messages", [ORIGIN], b"{}"), 415),
        (request_bytes("DELETE", "/", [ORIGIN]), 405),
        (request_bytes("POST", "/messages", [*JSON, ORIGIN, (b"Content-Length", b"99999999")]), 413),
    ],
)
def test_a_page_can_read_why_it_was_rejected(data, status):
    connection = raw(service(), data)
    (response,) = connection.responses(["POST"])
    assert response.status == status
    assert response.headers[b"access-control-allow-origin"] == b"https://example.org"
    assert response.headers[b"vary"] == b"Origin"


def test_a_page_can_read_that_its_body_came_too_slowly():
    slow = service()
    connection = raw(slow, request_bytes("POST", "/messages", [*JSON, ORIGIN], b"x" * 9999)[:-9999])
    for _ in range(30):
        slow.clock.advance(1)
    (response,) = connection.responses(["POST"])
    assert response.status == 408
    assert response.headers[b"access-control-allow-origin"] == b"https://example.org"


def test_caches_are_told_of_the_origin_also_when_there_is_none():
    response = service().request("GET", "/")
    assert response.headers[b"vary"] == b"Accept, Origin"
    assert OF_CORS.isdisjoint(response.headers)


@pytest.mark.parametrize(
    "data",
    [
        request_bytes("GET", "/", [ORIGIN]),
        request_bytes("GET", "/"),
        request_bytes("POST", "/messages", [*JSON, ORIGIN], MESSAGE),
        request_bytes("OPTIONS", "/", [ORIGIN, (b"Access-Control-Request-Method", b"GET")]),
        b"nonsense\r\n\r\n",
    ],
)
def test_without_an_allowed_origin_no_answer_tells_of_one(data):
    head, _, _ = raw(InMemoryService(broker=PromptBroker()), data).sent.partition(b"\r\n\r\n")
    assert b"Access-Control" not in head
    assert b"Origin" not in head


@pytest.mark.parametrize(
    "origin",
    [
        *ALLOWED,
        "http://127.0.0.1:8080",
        "http://[::1]:8080",
        "https://xn--bcher-kva.example",
        "https://under_score.example.",
        "capacitor://localhost",
        "ionic://localhost",
        "tauri://localhost",
        "http://tauri.localhost",
        "app://.",
        "app://obsidian.md",
        "file://",
        "chrome-extension://aapocclcgogkmnckokdopfmhonfmgoek",
        "moz-extension://2c127fa4-62c7-7e4f-90e5-472b45eecfdc",
        "safari-web-extension://4C5F2A41-8B0E-4E2B-9A53-2C9D3B8E7A11",
        "vscode-webview://1n2b3c4d5e6f",
        "custom+app.v2-x://My_Host~1:8080",
    ],
)
def test_an_origin_as_browsers_send_it_may_be_allowed(origin):
    assert check_origin(origin) == origin


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("*", "does not accept *"),
        ("https://*.example.org", "does not accept *"),
        ("moz-extension://*", "does not accept *"),
        ("wss://a.example", "takes an origin, such as https://example.org"),
        ("null", "sandboxed pages of every site"),
        ("capacitor://", "https://example.org"),
        ("capacitor://user@localhost", "https://example.org"),
        ("capacitor:localhost", "begins with a scheme"),
        ("Capacitor://localhost", "in lower case: capacitor://localhost"),
        ("SAFARI-web-extension://AB", "in lower case: safari-web-extension://AB"),
        ("capacitor://localhost/", "no path and no slash at its end: capacitor://localhost"),
        ("", "https://example.org"),
        ("example.org", "begins with a scheme, such as https://"),
        ("https://", "https://example.org"),
        ("https://a..b", "https://example.org"),
        ("https://user@example.org", "https://example.org"),
        ("https://example.org/", "no path and no slash at its end: https://example.org"),
        ("https://example.org:8443/app/", "no path and no slash at its end: https://example.org:8443"),
        ("https://Example.ORG", "in lower case: https://example.org"),
        ("https://example.org:443", "takes https://example.org instead"),
        ("http://example.org:80", "takes http://example.org instead"),
        ("https://example.org:99999", "port up to 65535"),
        ("https://example.org:0", "https://example.org"),
        ("https://bücher.example", "xn--"),
        ("https://[::0:1]", "[::1]"),
        ("https://[:::]", "IPv6 address"),
    ],
)
def test_what_no_browser_would_send_is_rejected_with_what_would_be_right(text, hint):
    with pytest.raises(NotAnOrigin) as caught:
        check_origin(text)
    assert hint in str(caught.value)


@given(st.one_of(st.text(max_size=60), st.sampled_from(ALLOWED).flatmap(near)))
def test_what_is_taken_has_no_more_than_a_scheme_a_host_and_a_port(text):
    try:
        check_origin(text)
    except NotAnOrigin:
        return
    parts = urlsplit(text)
    assert parts.hostname or parts.scheme == "file"
    assert parts.username is None
    assert text == f"{parts.scheme}://{parts.netloc}"
    if parts.scheme in {"http", "https"}:
        assert text == text.lower()


def test_a_preflight_needs_no_credentials_and_everything_else_does():
    guarded = InMemoryService(
        broker=PromptBroker(), allowed_origins=ALLOWED, callers=caller("page", 'publish = ["t"]')
    )
    question = (b"Access-Control-Request-Method", b"POST")
    assert guarded.request("OPTIONS", "/messages", [ORIGIN, question]).status == 204
    assert guarded.request("OPTIONS", "/messages", [ORIGIN]).status == 401
    assert guarded.request("OPTIONS", "/messages", [(b"Origin", b"https://other"), question]).status == 401
    response = guarded.request("POST", "/messages", [*JSON, ORIGIN], MESSAGE)
    assert response.status == 401
    # So that the page can tell why.
    assert response.headers[b"access-control-allow-origin"] == b"https://example.org"
    assert b"WWW-Authenticate" in response.headers[b"access-control-expose-headers"]
    response = guarded.request("POST", "/messages", [*JSON, ORIGIN, by("page")], MESSAGE)
    assert response.status == 200
    assert response.headers[b"access-control-allow-origin"] == b"https://example.org"
