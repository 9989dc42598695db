"""``GET /metrics``: the two formats, read by Prometheus' own parsers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from twisted.internet.task import Clock

from tests.metrics.service import OPENMETRICS, MeasuredService, of, samples_in
from tests.support.in_memory import request_bytes

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
TEXT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, TEXT_TYPE),
        ("*/*", TEXT_TYPE),
        ("text/plain", TEXT_TYPE),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT_TYPE),
        ("application/openmetrics-text;q=0", TEXT_TYPE),
        ("application/openmetrics-text;q=0.3, text/plain;q=0.7", TEXT_TYPE),
        ("application/openmetrics-text; version=abc", OPENMETRICS_TYPE),
        ("application/openmetrics-text", OPENMETRICS_TYPE),
        (PROMETHEUS_2, OPENMETRICS_TYPE),
        (PROMETHEUS_3, OPENMETRICS_TYPE),
        ("application/openmetrics-text; version=", TEXT_TYPE),
        ("///", TEXT_TYPE),
    ],
)
def test_the_format_is_the_one_that_is_asked_for(accept, content_type):
    service = MeasuredService()
    headers = [] if accept is None else [(b"Accept", accept.encode())]
    response = service.request("GET", "/metrics", headers)
    assert response.status == 200
    assert response.headers[b"content-type"] == content_type
    assert response.headers[b"cache-control"] == b"no-store"
    assert response.headers[b"vary"] == b"Accept"
    assert response.body.endswith(b"# EOF\n") == (content_type == OPENMETRICS_TYPE)
    head = service.request("HEAD", "/metrics", headers)
    assert (head.status, head.body) == (200, b"")
    assert head.headers[b"content-type"] == content_type


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)).map(str.strip))
def test_any_accept_is_answered_with_one_of_the_two(accept):
    response = MeasuredService().request("GET", "/metrics", [(b"Accept", accept.encode())])
    assert response.status == 200
    assert response.headers[b"content-type"] in {TEXT_TYPE, OPENMETRICS_TYPE}


def test_both_formats_say_the_same():
    service = MeasuredService()
    service.post(b'{"topic":"t","content":"c"}')
    changing = ("process_", "python_gc_", "sampleapp_connections")
    both = [
        {key: value for key, value in service.scrape(headers).items() if not key[0].startswith(changing)}
        for headers in ((), OPENMETRICS)
    ]
    # The first one is counted by the second.
    assert of(both[1], "sampleapp_http_requests_total").pop(("GET", "/metrics", "200")) == 1
    for each in both:
        for key in [key for key in each if ("route", "/metrics") in key[1]]:
            del each[key]
    assert both[0] == both[1]
    assert of(both[0], "sampleapp_published_records_total") == {"t": 1}


def test_the_process_is_shown_as_prometheus_names_it():
    found = {name for name, _ in MeasuredService().scrape()}
    assert found >= {
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
        "python_gc_collections_total",
        "sampleapp_build_info",
    }


def test_nothing_is_left_in_the_registry_of_the_process():
    before = {metric.name for metric in REGISTRY.collect()}
    MeasuredService().scrape()
    assert {metric.name for metric in REGISTRY.collect()} == before
    assert not any(name.startswith("sampleapp") for name in before)


def test_two_services_in_one_process_count_for_themselves():
    one, other = MeasuredService(), MeasuredService()
    one.post(b'{"topic":"t","content":"c"}')
    assert of(one.counted(), "sampleapp_published_records_total") == {"t": 1}
    assert of(other.counted(), "sampleapp_published_records_total") == {}


class SlowClock(Clock):
    """A clock by which everything takes a millisecond, and whose turns the test takes."""

    def __init__(self):
        super().__init__()
        self.turns = []

    def seconds(self):
        self.rightNow += 0.001
        return self.rightNow

    def callLater(self, when, what, *args):
        assert when == 0
        self.turns.append(lambda: what(*args))


@pytest.mark.parametrize("headers", [[], OPENMETRICS])
def test_others_have_their_turn_while_much_is_written(headers):
    service = MeasuredService()
    service.page._clock = clock = SlowClock()  # noqa: SLF001
    service.post(b'{"topic":"t","content":"c"}')
    connection = service.connect()
    connection.send(request_bytes("GET", "/metrics", headers))
    turns = 0
    while not connection.sent:
        (turn,) = clock.turns
        clock.turns.clear()
        turn()
        turns += 1
        # Requests during a scrape count for the next one.
        service.post(b'{"topic":"t","content":"c"}')
    assert turns > 5
    (response,) = connection.responses(["GET"])
    assert samples_in(response.body, headers)["sampleapp_published_records_total", (("topic", "t"),)] == 1
    assert response.body.count(b"# EOF\n") == (headers == OPENMETRICS)
