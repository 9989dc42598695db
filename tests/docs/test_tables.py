"""The tables of the built documentation, on wide and on narrow screens."""

from __future__ import annotations

import json

import pytest

from tests.support.chromium import CHROMIUM

pytest.importorskip("furo")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="this machine has no Chromium")

WITHOUT_LABEL = """
[...document.querySelectorAll('table.docutils')].flatMap((table) => {
  const heads = [...table.querySelectorAll('thead th')].map((head) => head.textContent.trim());
  return [...table.querySelectorAll('tbody tr')].flatMap((row) =>
    [...row.children].filter((cell, n) => heads.length && (heads.length === 2 || n > 0)
      && heads[n] && cell.innerText && !cell.innerText.startsWith(heads[n])
    ).map((cell) => `${heads}: ${cell.innerText}`));
})
"""
LABELS = "[...document.querySelectorAll('td .column')].filter((label) => label.offsetParent !== null).length"
IS_WIDER = "document.documentElement.scrollWidth > innerWidth"


def test_on_a_narrow_screen_each_cell_has_the_head_of_its_column(browser, built):
    pages = [page for page in sorted(built.rglob("*.html")) if "<thead>" in page.read_text()]
    assert len(pages) > 20
    for page in pages:
        browser.look_like(width=390)
        address = page.as_uri()
        browser.open(address)
        browser.wait_for(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")
        assert browser.evaluate(WITHOUT_LABEL) == [], page
        assert browser.evaluate(IS_WIDER) is False, page
        browser.look_like(width=1280)
        assert browser.evaluate(LABELS) == 0, page
