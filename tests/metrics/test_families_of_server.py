"""The metrics of connections and of waiting requests."""

from __future__ import annotations

from tests.metrics.service import MeasuredService, of
from tests.support.callers import FULL, by, caller
from tests.support.in_memory import Connection, ManualBroker, request_bytes
from tests.web.http import JSON, raw

POST = request_bytes("POST", "/messages", JSON, b'{"topic":"t","content":"c"}')


def test_connections_are_counted_by_what_they_are_at():
    service = MeasuredService(broker=ManualBroker())
    service.connect()
    raw(service, POST[:20])
    raw(service, POST[:-1])
    connections = [raw(service, POST) for _ in range(3)]
    raw(service, b"\0\0\0\0\r\n\r\n")
    counted = service.counted()
    assert of(counted, "sampleapp_connections") == {
        "handshake": 0,
        "idle": 1,
        "header": 1,
        "body": 1,
        "waiting": 3,
        "answering": 0,
        "streaming": 0,
        "lingering": 1,
        "closing": 0,
    }
    assert of(counted, "sampleapp_http_requests_in_flight") == {(): 4}
    assert of(counted, "sampleapp_http_requests_waiting") == {(): 3}
    # The connection of a client that goes away no longer counts, but its request still waits.
    connections[0].lose()
    counted = service.counted()
    assert of(counted, "sampleapp_connections")["waiting"] == 2
    assert of(counted, "sampleapp_http_requests_waiting") == {(): 3}
    for _ in range(3):
        service.broker.acknowledge()
    counted = service.counted()
    assert of(counted, "sampleapp_http_requests_in_flight") == {(): 1}
    assert of(counted, "sampleapp_http_requests_waiting") == {(): 0}


def test_rejections_are_counted_by_the_limit_and_the_limits_are_shown():
    service = MeasuredService(
        broker=ManualBroker(), max_waiting=1, max_connections=4, max_body=100, max_body_memory=1000
    )
    raw(service, request_bytes("POST", "/messages", [*JSON, (b"Content-Length", b"28")])).send(bytes(27))
    raw(service, request_bytes("POST", "/messages", JSON, bytes(101)))
    raw(service, POST)
    raw(service, POST)
    counted = service.counted()
    rejections = of(counted, "sampleapp_refusals_total")
    assert {limit: count for limit, count in rejections.items() if count} == {"max-body": 1, "max-waiting": 1}
    assert set(rejections) >= {"descriptors", "header-timeout", "idle-timeout", "max-connections"}
    assert set(rejections) >= {"body-idle-timeout", "max-body-memory"}
    assert of(counted, "sampleapp_body_memory_bytes") == {(): 27}
    assert of(counted, "sampleapp_body_memory_limit_bytes") == {(): 1000}
    assert of(counted, "sampleapp_http_requests_waiting_limit") == {(): 1}
    assert of(counted, "sampleapp_connections_limit") == {(): 4}


def test_what_is_for_operators_is_counted_apart():
    service = MeasuredService(max_body=100)
    Connection(service.admin).send(request_bytes("POST", "/messages", JSON, bytes(101)))
    Connection(service.admin)
    counted = service.counted()
    assert of(counted, "sampleapp_admin_connections")["idle"] == 1
    assert of(counted, "sampleapp_admin_connections")["lingering"] == 1
    assert of(counted, "sampleapp_admin_refusals_total")["max-body"] == 1
    assert set(of(counted, "sampleapp_connections").values()) == {0}
    assert set(of(counted, "sampleapp_refusals_total").values()) == {0}


def test_the_longest_wait_for_a_header_is_counted_when_it_is_over():
    service = MeasuredService()
    raw(service, POST[:20])
    service.clock.pump([1.0] * 15)
    counted = service.counted()
    assert of(counted, "sampleapp_refusals_total")["header-timeout"] == 1
    assert of(counted, "sampleapp_http_requests_total") == {("other", "other", "408"): 1}


def test_what_is_over_a_caller_s_rate_is_counted_by_the_rate_and_stays_so():
    limited = caller("requests", 'publish = ["*"]', "requests_per_second = 1") + caller(
        "bytes", 'publish = ["*"]', "bytes_per_second = 40"
    )
    service = MeasuredService(callers=FULL + limited)
    for name, count in (("requests", 4), ("bytes", 3), ("full", 5)):
        for _ in range(count):
            service.post(b'{"topic":"t","content":"c"}', [*JSON, by(name)])
    expected = {"requests_per_second": 3, "bytes_per_second": 2}
    assert of(service.counted(), "sampleapp_refusals_total").items() >= expected.items()
    service.use_callers(FULL)
    counted = service.counted()
    assert of(counted, "sampleapp_refusals_total").items() >= expected.items()
    assert of(counted, "sampleapp_problems_total")["rate-exceeded"] == 5
    assert of(counted, "sampleapp_http_requests_total") == {
        ("POST", "/messages", "200"): 7,
        ("POST", "/messages", "429"): 5,
    }


def test_metrics_are_for_callers_that_may_see_them():
    service = MeasuredService(callers=FULL + caller("reader", "read = true"))
    statuses = [
        service.request("GET", "/metrics", headers).status for headers in ([by("full")], [by("reader")], [])
    ]
    assert statuses == [200, 403, 401]


def test_nothing_that_a_caller_sends_to_be_known_is_in_the_metrics():
    service = MeasuredService(callers=FULL)
    service.request("GET", "/", [by("full")])
    service.request("GET", "/", [(b"Authorization", b"Bearer of-nobody")])
    service.request("GET", "/", [by("full"), (b"X-Request-Id", b"of-nobody")])
    text = service.request("GET", "/metrics", [by("full")]).body
    assert b"of-nobody" not in text
    assert by("full")[1].split()[1] not in text
