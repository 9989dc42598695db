"""``/docs``: its HTML and files, and the page in a browser, if one is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64decode
from email.message import Message
from html.parser import HTMLParser
from urllib.parse import urljoin
from urllib.request import Request, urlopen

import pytest
from twisted.internet.defer import Deferred

from sampleapp.access import Right
from sampleapp.web import AdminApp
from sampleapp.web.openapi import pages
from sampleapp.web.openapi.pages import read_files
from tests.support.callers import FULL, token_of
from tests.support.chromium import CHROMIUM, Chromium
from tests.support.in_memory import InMemoryService, request_bytes
from tests.support.live_service import LiveService
from tests.support.waiting import wait_until


class Page(HTMLParser):
    """The files that a page loads, its inline scripts and styles, and its attributes."""

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


PAGES = ["/docs", "/docs/readings"]


def page_of(service, path="/docs"):
    """The page, with the paths of the files that it loads and not of the pages that it links to."""
    page = Page(service.request("GET", path).body.decode())
    page.loaded = [urljoin(path, each) for each in page.loaded]
    page.loaded = [each for each in page.loaded if each not in {"/", *PAGES}]
    return page


def files_of_all_pages(service):
    return sorted({each for path in PAGES for each in page_of(service, path).loaded})


def policy(response):
    directives = response.headers[b"content-security-policy"].decode().split("; ")
    return {name: values for name, *values in map(str.split, directives)}


@pytest.mark.parametrize(("path", "count"), [("/docs", 6), ("/docs/readings", 4)])
def test_everything_that_a_page_loads_is_served_here_with_its_type(service, path, count):
    loaded = set(page_of(service, path).loaded)
    assert len(loaded) == count
    types = {
        "js": b"text/javascript; charset=utf-8",
        "css": b"text/css; charset=utf-8",
        "svg": b"image/svg+xml",
    }
    for target in loaded - {"/openapi.json"}:
        assert re.fullmatch(r"/docs/[a-z-]+\.[A-Za-z0-9_-]{12}\.(js|css|svg)", target)
        response = service.request("GET", target)
        assert response.status == 200
        assert response.headers[b"content-type"] == types[target.rpartition(".")[2]]
    assert service.request("GET", "/openapi.json").status == 200


@pytest.mark.parametrize("path", PAGES)
def test_nothing_in_a_page_is_inline(service, path):
    page = page_of(service, path)
    assert page.inline == []
    assert [name for name, _ in page.attributes if name == "style" or name.startswith("on")] == []


def test_nothing_that_is_ours_names_another_host(service):
    for target in [*PAGES, *files_of_all_pages(service)]:
        if "swagger-ui" not in target and target != "/openapi.json":
            body = service.request("GET", target).body.decode()
            assert set(re.findall(r"https?://[^\s\"'<>]+", body)) <= {"http://www.w3.org/2000/svg"}


def test_style_sheets_load_nothing_from_elsewhere(service):
    for target in files_of_all_pages(service):
        if target.endswith(".css"):
            body = service.request("GET", target).body.decode()
            assert "@import" not in body
            assert set(re.findall(r"""url\(["']?([a-z]*:?)""", body)) <= {"data:"}


def test_the_pages_and_their_files_are_guarded_against_other_sites(service):
    for target in [*PAGES, *files_of_all_pages(service)]:
        if target == "/openapi.json":
            continue
        response = service.request("GET", target)
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
    for path in PAGES:
        page = service.request("GET", path)
        assert page.headers[b"cache-control"] == b"no-cache"
        again = service.request("GET", path, [(b"If-None-Match", page.headers[b"etag"])])
        assert (again.status, again.body) == (304, b"")
    for target in files_of_all_pages(service):
        if target.startswith("/docs/"):
            response = service.request("GET", target)
            assert response.headers[b"cache-control"] == b"public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    "path",
    ["/docs/", "/docs/swagger-ui.js", "/docs/docs.html", "/docs/..%2fsetup.py", "/docs/%2e%2e", "/docs/a/b"],
)
def test_nothing_else_is_served(service, path):
    assert service.request("GET", path).status == 404


def test_probes_and_documentation_need_no_credentials():
    assert {route.right for route in AdminApp.app.routes.values()} == {Right.NONE}


@pytest.mark.parametrize(
    "urls", [[], ["Source, https://example.org", "Documentation, https://example.org/a, b"]]
)
def test_the_description_links_to_the_manual_if_the_distribution_names_one(monkeypatch, urls):
    built = Message()
    for url in urls:
        built["Project-URL"] = url
    monkeypatch.setattr(pages, "metadata", lambda _name: built)
    document = json.loads(InMemoryService().request("GET", "/openapi.json").body)
    assert document.get("externalDocs", {}).get("url") == ("https://example.org/a, b" if urls else None)


def test_files_are_read_when_they_are_asked_for_and_forgotten_after_a_minute():
    reads = []
    service = InMemoryService()
    read = service.documentation._run  # noqa: SLF001 -- nothing else tells that a file is read
    service.documentation._run = lambda function: reads.append(function) or read(function)  # noqa: SLF001
    assert reads == []
    targets = page_of(service).loaded
    for target in targets:
        service.request("GET", target)
    assert reads.count(read_files) == 1
    service.clock.advance(59)
    service.request("GET", "/docs")
    service.clock.advance(59)
    service.request("GET", "/docs")
    assert reads.count(read_files) == 1
    service.clock.advance(61)
    service.request("GET", targets[0])
    assert reads.count(read_files) == 2


def test_the_openapi_document_is_made_once_and_not_in_a_turn_of_the_reactor():
    service = InMemoryService()
    run, functions = Deferred(), []
    service.documentation._run = lambda function: functions.append(function) or run  # noqa: SLF001 -- see above
    connections = [service.connect() for _ in range(3)]
    for connection in connections:
        connection.send(request_bytes("GET", "/openapi.json"))
        assert connection.sent == b""
    (make,) = functions
    run.callback(make())
    for connection in connections:
        (response,) = connection.responses(["GET"])
        assert json.loads(response.body)["openapi"].startswith("3.1")
    assert service.request("GET", "/openapi.json").body == response.body


def test_many_requests_that_wait_for_the_same_files_are_all_answered():
    service = InMemoryService()
    reading = Deferred()
    service.documentation._run = lambda _: reading  # noqa: SLF001 -- nothing else delays it
    connections = [service.connect() for _ in range(1000)]
    for connection in connections:
        connection.send(request_bytes("GET", "/docs"))
    reading.callback(read_files())
    assert [connection.responses(["GET"])[0].status for connection in connections] == [200] * 1000


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


PLACE = {"topic": "readings", "partition": 0, "offset": 0}


def shown(browser, *, submit):
    """Send a form of the page, and return the status and the body of the answer."""
    browser.evaluate(f"document.getElementById('{submit}').requestSubmit()")
    return answer_on(browser)


def answer_on(browser):
    browser.wait_for("['right', 'wrong'].includes(document.getElementById('answer').dataset.outcome)")
    return browser.evaluate("['status', 'body'].map((id) => document.getElementById(id).textContent)")


@pytest.mark.slow
@needs_chromium
def test_a_person_publishes_from_the_page_in_a_browser(tmp_path):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs?url=http://other.example/&configUrl=http://other.example/")
        browser.wait_for("document.querySelectorAll('.opblock').length >= 5")
        browser.evaluate("document.getElementById('token').value = 'sampleapp_secret'")
        enter(browser, key="")
        status, published = shown(browser, submit="message")
        assert (status, json.loads(published)) == ("200 OK", PLACE)
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


def choose(browser, **values):
    for name, value in values.items():
        browser.evaluate(
            f"(() => {{ const field = document.getElementById({json.dumps(name.replace('_', '-'))});"
            f" field.value = {json.dumps(value)};"
            " field.dispatchEvent(new Event('change', { bubbles: true })); })()"
        )


def enter(browser, **values):
    for name, value in values.items():
        browser.evaluate(
            f"(() => {{ const field = document.getElementById({json.dumps(name.replace('_', '-'))});"
            f" field.value = {json.dumps(value)};"
            " field.dispatchEvent(new Event('input', { bubbles: true })); })()"
        )


@pytest.mark.slow
@needs_chromium
def test_a_person_publishes_headers_and_a_batch_and_reads_them_page_by_page(tmp_path):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs")
        browser.wait_for("document.readyState === 'complete'")
        enter(browser, headers="source: a: b\n\nempty:", timestamp="1700000000000")
        assert shown(browser, submit="message")[0] == "200 OK"
        status, places = shown(browser, submit="batch")
        assert (status, len(places.splitlines())) == ("200 OK", 2)
        enter(browser, limit="2")
        status, page = shown(browser, submit="records")
        first, second = map(json.loads, page.splitlines())
        assert (status, first["timestamp"], second["offset"]) == ("200 OK", 1700000000000, 1)
        assert first["headers"] == {"source": "a: b", "empty": ""}
        browser.evaluate("document.getElementById('next').click()")
        status, page = answer_on(browser)
        assert [json.loads(line)["offset"] for line in page.splitlines()] == [2]
        assert "no more records" in browser.evaluate("document.getElementById('time').textContent")
        assert browser.complaints == []


def records_in(service):
    """The records of the topic of readings."""
    with urlopen(f"{service.url}topics/readings/records") as response:
        return [json.loads(line) for line in response]


def bytes_of(record):
    """The key and the content of a record that are not text."""
    return tuple(b64decode(record[name]) for name in ("key_base64", "content_base64"))


def run_curl_of(browser):
    """Run the command that the page shows, as a shell does."""
    command = browser.evaluate("document.getElementById('curl').textContent")
    done = subprocess.run(["bash"], input=command, capture_output=True, text=True, timeout=60, check=False)
    assert " 200 OK" in done.stdout, done


@pytest.mark.slow
@needs_chromium
def test_an_empty_field_sends_no_key_and_the_empty_key_is_a_choice(tmp_path):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs")
        browser.wait_for("document.querySelectorAll('.opblock').length >= 5")
        enter(browser, key="")
        for kind in ("key", "key_base64", ""):
            choose(browser, key_as=kind)
            assert shown(browser, submit="message")[0] == "200 OK"
        assert [record.get("key") for record in records_in(service)] == [None, None, ""]

        # Swagger UI's form of the same.
        operation = "document.querySelector('#operations-Messages-publish_to_topic"
        for button in (".opblock-summary-control", ".try-out__btn"):
            browser.wait_for(f"{operation} {button}') !== null")
            browser.evaluate(f"{operation} {button}').click()")
        browser.wait_for(f"{operation} .execute') !== null")
        # React hears of a value only by its own setter, and Swagger UI when the field is left.
        browser.evaluate(
            "((field) => { Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value')"
            ".set.call(field, 'readings'); for (const type of ['input', 'focusout']) "
            f"field.dispatchEvent(new Event(type, {{ bubbles: true }})); }})({operation} "
            "[data-param-name=topic] input'))"
        )
        for number, key in enumerate([None, ""], 4):
            browser.evaluate(f"{operation} .execute').click()")
            wait_until(lambda count=number: len(records_in(service)) == count, "the record is stored")
            assert records_in(service)[-1].get("key") == key
            # While Swagger UI waits for a response, it does not send another request.
            browser.wait_for(f"{operation} .live-responses-table') !== null")
            browser.evaluate(f"{operation} [data-param-name=key] [type=checkbox]').click()")
        assert browser.complaints == []


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The script of axe-core, which finds faults of accessibility."""
    if shutil.which("npm") is None:
        pytest.skip("this machine has no npm")
    directory = tmp_path_factory.mktemp("axe")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", AXE]
    try:
        subprocess.run(install, cwd=directory, check=True, capture_output=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"npm cannot install {AXE}")
    return (directory / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


AXE = "axe-core@4.14.1"
FAULTS = """
Promise.allSettled(document.getAnimations().map(({ finished }) => finished))
  .then(() => axe.run(document))
  .then(({ violations }) => violations.flatMap(({ id, nodes }) =>
    nodes.map(({ target, failureSummary }) => [id, `${target}`, failureSummary])))
"""


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_no_fault_in_the_pages(tmp_path, axe, width, dark):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        publish(service, "kitchen", 20)
        browser.look_like(width=width, dark=dark)
        browser.open(f"{service.url}docs/readings")
        browser.wait_for("document.querySelectorAll('#readings li').length == 1")
        browser.evaluate(f"{axe};0")
        assert browser.evaluate(FAULTS) == []

        browser.open(f"{service.url}docs")
        browser.wait_for("document.querySelectorAll('.opblock').length >= 5")
        browser.evaluate(f"{axe};0")
        assert browser.evaluate(FAULTS) == []
        # And with all forms and one operation of each method open.
        browser.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        for name in ("Messages-publish", "Messages-delete_key", "Topics-read_records"):
            operation = f"document.querySelector('#operations-{name}"
            for part in (".opblock-summary-control", ".try-out__btn", ".execute"):
                browser.wait_for(f"{operation} {part}') !== null")
                browser.evaluate(f"{operation} {part}').click()")
        assert shown(browser, submit="message")[0] == "200 OK"
        browser.wait_for("document.querySelector('.live-responses-table .response-col_description') !== null")
        assert browser.evaluate(FAULTS) == []


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_each_method_has_a_colour_of_its_own_on_rows_that_are_alike(tmp_path, dark):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.look_like(width=1280, dark=dark)
        browser.open(f"{service.url}docs")
        browser.wait_for("document.querySelectorAll('.opblock').length >= 5")
        rows = browser.evaluate(
            "[...document.querySelectorAll('.opblock')].map((row) => {"
            " const method = row.querySelector('.opblock-summary-method');"
            " return [method.innerText, getComputedStyle(method).backgroundColor,"
            " getComputedStyle(row).borderLeftColor, getComputedStyle(row).backgroundColor]; })"
        )
        colours = {method: colour for method, colour, *_ in rows}
        assert sorted(colours) == ["DELETE", "GET", "POST"]
        assert len(set(colours.values())) == 3
        assert all(colours[method] == colour == edge for method, colour, edge, _ in rows)
        assert len({ground for *_, ground in rows}) == 1


BYTES = b"\x00\xff"
LINE = {"topic": "readings", "key_base64": "/wA=", "content_base64": "AP8="}


@pytest.mark.slow
@needs_chromium
def test_a_person_publishes_bytes_alone_and_in_a_batch_and_the_curl_command_publishes_the_same(tmp_path):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs")
        browser.wait_for("document.readyState === 'complete'")
        choose(browser, key_as="key_base64", content_as="content_base64")
        # As programs print it, with an end of line.
        enter(browser, key="/wA=", content="AP\n8=\n", lines=f"{json.dumps(LINE)}\n")
        for form in ("message", "batch"):
            assert shown(browser, submit=form)[0] == "200 OK"
            run_curl_of(browser)
        assert [bytes_of(record) for record in records_in(service)] == [(b"\xff\x00", BYTES)] * 4
        status, page = shown(browser, submit="records")
        assert (status, {bytes_of(json.loads(line)) for line in page.splitlines()}) == (
            "200 OK",
            {(b"\xff\x00", BYTES)},
        )
        assert browser.complaints == []


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("content", [b"", BYTES, BYTES * 200_000], ids=["empty", "small", "large"])
def test_a_person_publishes_a_file_and_the_curl_command_publishes_the_same(tmp_path, content):
    (tmp_path / "picture").write_bytes(content)
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs")
        browser.wait_for("document.readyState === 'complete'")
        choose(browser, content_as="file")
        browser.evaluate("document.getElementById('message').requestSubmit()")
        assert browser.evaluate("document.getElementById('answer').hidden")
        browser.choose_file("#file", tmp_path / "picture")
        assert shown(browser, submit="message")[0] == "200 OK"
        run_curl_of(browser)
        found = [
            b64decode(record["content_base64"]) if "content_base64" in record else record["content"].encode()
            for record in records_in(service)
        ]
        assert found == [content] * 2
        (tmp_path / "picture").unlink()
        status, error = shown(browser, submit="message")
        assert status == "Nothing was sent"
        assert error.startswith("The file could not be read: ")
        assert len(records_in(service)) == 2
        # Text again: the file is no longer required.
        choose(browser, content_as="content")
        assert shown(browser, submit="message")[0] == "200 OK"
        assert browser.complaints == []


@pytest.mark.slow
@needs_chromium
def test_a_file_that_is_too_large_for_a_page_is_rejected_before_it_is_read(tmp_path):
    with (tmp_path / "disk").open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs")
        browser.wait_for("document.readyState === 'complete'")
        choose(browser, content_as="file")
        browser.choose_file("#file", tmp_path / "disk")
        assert "16 MiB" in browser.evaluate("document.getElementById('file').validationMessage")
        browser.evaluate("document.getElementById('message').requestSubmit()")
        assert browser.evaluate("document.getElementById('answer').hidden")


@pytest.mark.slow
@needs_chromium
def test_an_old_answer_does_not_stand_beside_what_the_page_itself_rejects(tmp_path):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs")
        browser.wait_for("document.readyState === 'complete'")
        for wrong in ({"topic": "no topic"}, {"headers": "no colon"}, {"headers": "a: b\na: c"}):
            assert shown(browser, submit="message")[0] == "200 OK"
            enter(browser, **wrong)
            browser.evaluate("document.getElementById('message').requestSubmit()")
            assert browser.evaluate("document.getElementById('answer').hidden")
            enter(browser, topic="readings", headers="")


@pytest.mark.slow
@needs_chromium
def test_an_error_is_read_in_full_on_a_phone(tmp_path):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.look_like(width=390)
        browser.open(f"{service.url}docs")
        browser.wait_for("document.readyState === 'complete'")
        choose(browser, key_as="key_base64", content_as="content_base64")
        enter(browser, key="x", content="21.5", timestamp="x" * 200)
        status, body = shown(browser, submit="message")
        assert status.startswith("422 ")
        pointers = [error["pointer"] for error in json.loads(body)["errors"]]
        assert sorted(pointers) == ["/content_base64", "/key_base64", "/timestamp"]
        # It begins in the window, although the button was pressed far above.
        top_of_answer = "document.getElementById('status').getBoundingClientRect()"
        assert browser.evaluate(f"{top_of_answer}.top >= 0 && {top_of_answer}.bottom < innerHeight")
        parts = ("body.scrollWidth <= body.clientWidth", "body.scrollHeight <= body.clientHeight")
        for part in parts:
            assert browser.evaluate(
                f"(() => {{ const body = document.getElementById('body'); return {part} }})()"
            )
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
@needs_chromium
def test_the_page_describes_the_problems_of_an_operation_and_no_others(tmp_path):
    with LiveService(directory=tmp_path) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs")
        operation = "document.querySelector('#operations-Topics-read_records"
        browser.wait_for(f"{operation} .opblock-summary-control') !== null")
        browser.evaluate(f"{operation} .opblock-summary-control').click()")
        browser.wait_for(f"{operation} .responses-table') !== null")
        row = f'{operation} tr.response[data-code="422"] .response-col_description\')'
        assert browser.evaluate(f"{row}.innerText").strip() == (
            "Invalid parameters (urn:sampleapp:problem:invalid-parameters): The path, the query or the "
            "header fields of a request are not valid for a record."
        )
        assert browser.complaints == []


@pytest.mark.slow
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


LINES = """
[...document.querySelectorAll("#readings li")].map((item) => [
  item.querySelector("h2").textContent,
  item.querySelector(".value").textContent,
  item.querySelector("polyline").getAttribute("points").split(" ").length,
])
"""


def publish(service, key, value):
    request = Request(
        f"{service.url}messages",
        json.dumps({"topic": "readings", "key": key, "content": str(value)}).encode(),
        {"Content-Type": "application/json"},
    )
    urlopen(request).close()


STATE = "document.getElementById('state')?.dataset.state"


@pytest.mark.slow
@needs_chromium
def test_a_person_sees_the_readings_move_and_the_connection_come_back(tmp_path):
    with Chromium(directory=tmp_path) as browser:
        with LiveService(directory=tmp_path) as service:
            url = service.url
            for key in ("kitchen", "hall"):
                publish(service, key, 20)
            browser.look_like(width=390)
            browser.open(f"{url}docs/readings")
            browser.wait_for("document.querySelectorAll('#readings li').length == 2")
            # Several changes may come as one, so each is awaited.
            for value in (21, 23.5, 22):
                publish(service, "kitchen", value)
                browser.wait_for(f"document.querySelector('.value').textContent == '{value}'")
            assert browser.evaluate(LINES) == [["kitchen", "22", 4], ["hall", "20", 2]]
            publish(service, "attic", 5)
            browser.wait_for("document.querySelectorAll('#readings li').length == 3")
            assert browser.evaluate(STATE) == "live"
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert browser.complaints == []
        browser.wait_for(f"{STATE} == 'lost'")
        with LiveService(directory=tmp_path, listen=listening_at(url)) as service:
            browser.wait_for(f"{STATE} == 'live'")
            publish(service, "hall", 19)
            browser.wait_for("document.querySelectorAll('.value')[1].textContent == '19'")
            browser.look_like(width=1280, dark=True)
            browser.wait_for("document.documentElement.classList.contains('dark-mode')")
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert [each for each in browser.requests if not each.startswith(url)] == []


def listening_at(url):
    return f"tcp:{url.split(':')[-1].strip('/')}:interface=127.0.0.1"


@pytest.mark.slow
@needs_chromium
def test_a_person_with_a_token_sees_the_readings(tmp_path):
    (tmp_path / "callers.toml").write_text(FULL)
    options = ["--callers", "callers.toml"]
    with LiveService(directory=tmp_path, options=options) as service, Chromium(directory=tmp_path) as browser:
        browser.open(f"{service.url}docs/readings")
        browser.wait_for(f"{STATE} == 'refused'")
        browser.evaluate(f"document.getElementById('token').value = '{token_of('full')}'")
        browser.evaluate("document.getElementById('access').requestSubmit()")
        browser.wait_for(f"{STATE} == 'live'")
        assert browser.evaluate("document.getElementById('access').hidden")
        stored = "[localStorage.length, sessionStorage.length, document.cookie.length]"
        assert browser.evaluate(stored) == [0, 0, 0]
