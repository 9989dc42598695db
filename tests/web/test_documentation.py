"""``/docs``: what a browser gets, by what it would make of it; and in a browser, if there is one."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from sampleapp.access import Right
from sampleapp.web import Documentation
from tests.support.chromium import CHROMIUM, Chromium
from tests.support.in_memory import InMemoryService
from tests.support.live_service import LiveService


class Page(HTMLParser):
    """What a page loads, where it sends, and what it runs."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.inline, self.attributes = [], [], []
        self._tag = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._tag = tag
        self.attributes += attrs
        self.loaded += [
            value for name, value in attrs if name in {"src", "href", "action", "formaction", "data"}
        ]

    def handle_data(self, data):
        if self._tag in {"script", "style"} and data.strip():
            self.inline.append(data)


def page_of(service):
    return Page(service.request("GET", "/docs").body.decode())


def policy(response):
    directives = response.headers[b"content-security-policy"].decode().split("; ")
    return {name: values for name, *values in map(str.split, directives)}


def test_everything_that_the_page_loads_is_served_here_with_its_type(service):
    page = page_of(service)
    assert len(set(page.loaded)) == 6
    types = {
        "js": b"text/javascript; charset=utf-8",
        "css": b"text/css; charset=utf-8",
        "svg": b"image/svg+xml",
    }
    for target in set(page.loaded) - {"openapi.json"}:
        assert re.fullmatch(r"docs/[a-z-]+\.[A-Za-z0-9_-]{12}\.(js|css|svg)", target)
        response = service.request("GET", f"/{target}")
        assert response.status == 200
        assert response.headers[b"content-type"] == types[target.rpartition(".")[2]]
    assert service.request("GET", "/openapi.json").status == 200


def test_nothing_in_the_page_is_inline(service):
    page = page_of(service)
    assert page.inline == []
    assert [name for name, _ in page.attributes if name == "style" or name.startswith("on")] == []


def test_nothing_that_is_ours_names_another_host(service):
    for target in ["docs", *page_of(service).loaded]:
        if "swagger-ui" not in target and target != "openapi.json":
            body = service.request("GET", f"/{target}").body.decode()
            assert set(re.findall(r"https?://[^\s\"'<>]+", body)) <= {"http://www.w3.org/2000/svg"}


def test_style_sheets_load_nothing_from_elsewhere(service):
    for target in page_of(service).loaded:
        if target.endswith(".css"):
            body = service.request("GET", f"/{target}").body.decode()
            assert "@import" not in body
            assert set(re.findall(r"""url\(["']?([a-z]*:?)""", body)) <= {"data:"}


def test_the_page_and_its_files_are_guarded_against_other_sites(service):
    for target in ["docs", *page_of(service).loaded]:
        if target == "openapi.json":
            continue
        response = service.request("GET", f"/{target}")
        assert policy(response) == {
            "default-src": ["'none'"],
            "script-src": ["'self'"],
            "style-src": ["'self'"],
            "img-src": ["'self'", "data:"],
            "connect-src": ["'self'"],
            "base-uri": ["'none'"],
            "form-action": ["'none'"],
            "frame-ancestors": ["'none'"],
        }
        assert response.headers[b"x-content-type-options"] == b"nosniff"
        assert response.headers[b"x-frame-options"] == b"DENY"
        assert response.headers[b"referrer-policy"] == b"no-referrer"
        assert response.headers[b"cross-origin-opener-policy"] == b"same-origin"
        assert response.headers[b"cross-origin-resource-policy"] == b"same-origin"


def test_nothing_of_the_request_comes_back_in_the_page(service):
    plain = service.request("GET", "/docs").body
    assert (
        service.request("GET", "/docs?url=http://other.example/&configUrl=//x", [(b"Referer", b"x")]).body
        == plain
    )


def test_a_file_is_kept_for_ever_and_the_page_is_asked_for_again(service):
    page = service.request("GET", "/docs")
    assert page.headers[b"cache-control"] == b"no-cache"
    again = service.request("GET", "/docs", [(b"If-None-Match", page.headers[b"etag"])])
    assert (again.status, again.body) == (304, b"")
    for target in page_of(service).loaded:
        if target.startswith("docs/"):
            response = service.request("GET", f"/{target}")
            assert response.headers[b"cache-control"] == b"public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    "path",
    ["/docs/", "/docs/swagger-ui.js", "/docs/docs.html", "/docs/..%2fsetup.py", "/docs/%2e%2e", "/docs/a/b"],
)
def test_nothing_else_is_served(service, path):
    assert service.request("GET", path).status == 404


def test_the_documentation_needs_no_credentials():
    assert {route.right for route in Documentation.routes.by_endpoint.values()} == {Right.NONE}


def test_files_are_read_when_they_are_asked_for_and_forgotten_after_a_minute():
    reads = []
    service = InMemoryService()
    read = service.documentation._read  # noqa: SLF001 -- nothing else tells that a file is read
    service.documentation._read = lambda function: reads.append(function) or read(function)  # noqa: SLF001
    assert reads == []
    targets = page_of(service).loaded
    for target in targets:
        service.request("GET", f"/{target}")
    assert len(reads) == 1
    service.clock.advance(59)
    service.request("GET", "/docs")
    service.clock.advance(59)
    service.request("GET", "/docs")
    assert len(reads) == 1
    service.clock.advance(61)
    service.request("GET", f"/{targets[0]}")
    assert len(reads) == 2


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@needs_chromium
def test_a_person_publishes_from_the_page_in_a_browser(tmp_path):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs?url=http://other.example/&configUrl=http://other.example/")
        browser.wait_for("document.querySelectorAll('.opblock').length >= 5")
        browser.evaluate("document.getElementById('token').value = 'sampleapp_secret'")
        browser.evaluate("document.getElementById('no-key').click()")
        browser.evaluate("document.getElementById('message').requestSubmit()")
        browser.wait_for("!document.getElementById('answer').hidden")
        assert browser.evaluate("document.getElementById('status').textContent") == "200 OK"
        published = json.loads(browser.evaluate("document.getElementById('body').textContent"))
        assert published == {"topic": "readings", "partition": 0, "offset": 0}
        assert "sampleapp_secret" not in browser.evaluate("document.getElementById('curl').textContent")

        # And with Swagger UI's own form.
        operation = "#operations-Messages-publish"
        for button in (".opblock-summary-control", ".try-out__btn", ".execute"):
            browser.wait_for(f"document.querySelector('{operation} {button}') !== null")
            browser.evaluate(f"document.querySelector('{operation} {button}').click()")
        found = f"document.querySelector('{operation} .live-responses-table tbody .response-col_status')"
        assert browser.wait_for(f"{found} && {found}.textContent").startswith("200")

        stored = "[localStorage.length, sessionStorage.length, document.cookie.length]"
        assert browser.evaluate(stored) == [0, 0, 0]
        assert browser.complaints == []
        assert len(browser.requests) > 6
        elsewhere = [url for url in browser.requests if not url.startswith((service.url, "data:image/"))]
        assert elsewhere == []
    assert "sampleapp_secret" not in service.output


@needs_chromium
def test_the_page_fits_its_window(tmp_path):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        for width, dark in [(390, False), (1280, False), (390, True), (1280, True)]:
            browser.look_like(width=width, dark=dark)
            # Another URL, so that the page is loaded again.
            browser.open(f"{service.url}docs?{width}{dark}")
            operation = "document.querySelector('#operations-Messages-publish"
            browser.wait_for(f"{operation} .opblock-summary-control') !== null")
            browser.evaluate(f"{operation} .opblock-summary-control').click()")
            browser.wait_for(f"{operation} .responses-table') !== null")
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert browser.evaluate("document.documentElement.classList.contains('dark-mode')") == dark
        assert browser.complaints == []
