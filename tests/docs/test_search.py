"""The search of the built documentation, in a browser."""

from __future__ import annotations

import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.support.chromium import CHROMIUM

pytest.importorskip("furo")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="this machine has no Chromium")

RESULTS = "[...document.querySelectorAll('#search-results li')]"
FINISHED = "document.querySelector('.search-summary')?.innerText.startsWith('Search finished')"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module", params=["http", "file"])
def address(request, built):
    """The address of the pages: on a server, or as files that a reader opens."""
    if request.param == "file":
        yield built.as_uri()
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", ["200", "429", "503"])
def test_the_number_of_a_status_leads_to_the_screen_of_status_codes(browser, address, status):
    browser.open(f"{address}/search.html?q={status}")
    browser.wait_for(FINISHED)
    assert browser.evaluate(f"{RESULTS}[0].querySelector('a').href").startswith(
        f"{address}/reference/http/index.html"
    )


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("idempotency", "howto/send-again"),
        ("Idempotency-Key", "reference/http/idempotency"),
        ("retry", "howto/send-again"),
        ("rate limit", "howto/callers"),
        ("helm", "howto/containers"),
        ("drain", "howto/operations"),
        ("health check", "howto/operations"),
        ("failover", "howto/operations"),
        ("performance", "explanation/when-to-use"),
        ("authentication", "howto/callers"),
        ("token", "howto/callers"),
        ("backup", "howto/sqlite"),
        ("gzip", "reference/http/headers"),
        # Without an entry in the index: the title of a page, then a heading.
        ("batches", "reference/http/batches"),
        ("systemd", "howto/systemd"),
        ("signed webhooks", "reference/http/hooks"),
        ("alerts", "howto/alerts"),
        ("CORS", "reference/http/access"),
        ("browser", "howto/browser"),
        ("production", "howto/production"),
        ("runbook", "howto/alerts"),
        # A definition is first if no page is about the word.
        ("tombstone", "reference/glossary"),
    ],
)
def test_the_first_result_is_the_page_about_the_words(browser, address, query, page):
    browser.open(f"{address}/search.html?q={query}")
    browser.wait_for(FINISHED)
    assert browser.evaluate(f"{RESULTS}[0].querySelector('a').href").startswith(f"{address}/{page}.html")
    browser.wait_for(f"{RESULTS}[0].querySelector('.context')?.innerText.length > 100")


def test_the_changelog_is_the_last_of_the_pages_with_a_word(browser, address):
    browser.open(f"{address}/search.html?q=certificate")
    browser.wait_for(FINISHED)
    browser.wait_for(
        f"document.querySelector('.search-summary').innerText.match(/[0-9]+/)[0] == {RESULTS}.length"
    )
    assert browser.evaluate(f"{RESULTS}.at(-1).querySelector('a').innerText") == "Changes"


def test_the_old_address_of_a_page_leads_to_its_place_on_the_new_page(browser, address, built):
    moved = [page for page in built.rglob("*.html") if "<title>This page has moved<" in page.read_text()]
    assert moved != []
    for page in moved:
        (target,) = re.findall(r'rel="canonical" href="(.*)"', page.read_text())
        new = (page.parent / target).resolve().relative_to(built)
        browser.open(f"{address}/{page.relative_to(built).as_posix()}#part")
        browser.wait_for(f"location.href === '{address}/{new.as_posix()}#part'")
        assert (built / new).exists()


def test_each_page_has_an_icon(browser, address):
    browser.open(f"{address}/howto/tls.html")
    browser.wait_for("document.readyState === 'complete'")
    icon = browser.evaluate("document.querySelector('link[rel~=icon]').href")
    browser.evaluate(
        f"new Promise((resolve, reject) => Object.assign(new Image(), {{ onload: () => resolve(), "
        f"onerror: reject, src: '{icon}' }}))"
    )


def test_a_number_among_words_is_searched_for_and_shown_in_its_sentence(browser, address):
    browser.open(f"{address}/search.html?q=reader+25000000000000")
    browser.wait_for("document.querySelector('.search-summary')?.innerText.includes('did not match')")
    browser.open(f"{address}/search.html?q=MurmurHash2+16,384")
    browser.wait_for(FINISHED)
    assert browser.evaluate(f"{RESULTS}[0].querySelector('a').innerText") == "Decisions"
    browser.wait_for(f"{RESULTS}[0].querySelector('.context')?.innerText.includes('MurmurHash2')")


@pytest.mark.parametrize("query", ["tombstone", "retry after"])
def test_a_result_shows_the_words_on_its_page(browser, address, query):
    browser.open(f"{address}/search.html?q={query}")
    browser.wait_for(FINISHED)
    browser.wait_for(f"{RESULTS}.some((each) => each.querySelector('.context')?.innerText.length > 100)")
