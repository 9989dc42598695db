"""The EventSource of a real browser, directly and through proxies; the service is stopped and killed."""

from __future__ import annotations

import json
from contextlib import ExitStack
from urllib.request import Request, urlopen

import pytest

from tests.docs.stream_proxies import haproxy, nginx, running, through
from tests.support.chromium import CHROMIUM, Chromium
from tests.support.free_ports import free_port
from tests.support.live_service import LiveService

pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(CHROMIUM is None, reason="this machine has no Chromium"),
]

FOLLOW = """
window.records = [];
window.errors = 0;
const stream = new EventSource(`${records_of}/topics/readings/records?from=earliest`);
stream.onmessage = (event) => {
  const { partition, offset, key, content } = JSON.parse(event.data);
  records.push([partition, offset, key, content]);
};
stream.onerror = () => errors += 1;
for (const name of ["gap", "reset"]) {
  stream.addEventListener(name, (event) => records.push([name, event.data]));
}

window.tag = "";
const states = new EventSource("/changes");
for (const name of ["readings", "reading", "removed"]) {
  states.addEventListener(name, (event) => tag = event.lastEventId);
}
window.streams = [stream, states];
0
"""


class Published:
    """What was published, and acknowledged, in its order."""

    def __init__(self):
        self.records = []
        self.state = {}

    def publish(self, service, key, content):
        message = {"topic": "readings", "key": key, "content": content}
        request = Request(
            f"{service.url}messages", json.dumps(message).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request) as answer:
            place = json.load(answer)
        self.records.append([place["partition"], place["offset"], key, content])
        self.state[key] = float(content)

    def publish_some(self, service):
        for number in range(20):
            self.publish(service, f"k{number % 7}", str(len(self.records)))


@pytest.mark.parametrize(
    "proxy",
    [
        pytest.param(None, id="directly"),
        through(nginx, pytest.mark.slow),
        through(haproxy, pytest.mark.slow),
    ],
)
def test_a_browser_loses_nothing_and_gets_nothing_twice_whatever_ends_the_service(tmp_path, project, proxy):
    published = Published()
    service_port = free_port()
    port = service_port if proxy is None else free_port()
    # One address, but two sites: the page reads the records of the other one.
    site, other_site = f"http://localhost:{port}", f"http://127.0.0.1:{port}"

    def start():
        return LiveService(
            directory=tmp_path,
            listen=f"tcp:{service_port}:interface=127.0.0.1",
            options=["--allow-origin", site],
        )

    with ExitStack() as stack:
        service = stack.enter_context(start())
        if proxy is not None:
            proxied = running(proxy, project, tmp_path, port=port, service_port=service_port, site=site)
            stack.enter_context(proxied)
        browser = stack.enter_context(Chromium(directory=tmp_path))
        browser.open(f"{site}/live")
        browser.wait_for("location.pathname == '/live'")
        published.publish_some(service)
        browser.evaluate(f"const records_of = {json.dumps(other_site)}; {FOLLOW}")
        # The page of the documentation keeps a copy of the readings, and shows it.
        script = (project / "docs/reference/http/changes.mjs").read_text(encoding="utf-8")
        browser.evaluate(f"{{ {script} }} 0")
        published.publish_some(service)
        browser.wait_for(f"records.length >= {len(published.records)}")
        for end in ("stop", "kill"):
            # Some of these have not reached the browser when the service ends.
            published.publish_some(service)
            getattr(service, end)()
            service = stack.enter_context(start())
            published.publish_some(service)
            browser.wait_for(f"records.length >= {len(published.records)}")
        assert browser.evaluate("records") == published.records
        browser.wait_for("streams.every((each) => each.readyState == EventSource.OPEN)")
        assert browser.evaluate("errors") >= 2

        shown = ", ".join(f"{key}: {value:g}" for key, value in published.state.items())
        browser.wait_for(f"document.body.textContent == {json.dumps(shown)}")
        accept = {"Accept": "application/vnd.sampleApp.v2+json"}
        with urlopen(Request(service.url, headers=accept)) as answer:
            etag = answer.headers["ETag"]
        browser.wait_for(f"tag == {json.dumps(etag.strip(chr(34)))}")
