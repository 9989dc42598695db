"""Metrics of the service as it runs, and where it shows them."""

from __future__ import annotations

import socket
from contextlib import closing
from http.client import HTTPConnection

from prometheus_client.parser import text_string_to_metric_families

from tests.metrics.service import of, samples
from tests.support.process import DEADLINE_S, connect, publish, wait_for_readings
from tests.support.waiting import wait_until


def scraped(connection):
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    assert response.status == 200
    return samples(text_string_to_metric_families(response.read().decode()))


def on_unix_socket(path):
    connection = HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(DEADLINE_S)
    connection.sock.connect(str(path))
    return closing(connection)


def test_what_happens_in_the_service_is_counted(start):
    service = start()
    with closing(connect(service)) as connection:
        for number in range(3):
            assert publish(connection, f"{number}.5", topic="readings", key="kitchen")[0] == 200
        assert publish(connection, "no number", topic="readings", key="kitchen")[0] == 200
        wait_for_readings(service, b"[2.5]")
        wait_until(
            lambda: of(scraped(connection), "sampleapp_readings_skipped_records_total") == {(): 1},
            "the last record was read",
        )
        found = scraped(connection)
    assert of(found, "sampleapp_http_requests_total")["POST", "/messages", "200"] == 4
    assert of(found, "sampleapp_published_records_total") == {"readings": 4}
    assert of(found, "sampleapp_published_bytes_total") == {"readings": 4 * len("kitchen") + 3 * 3 + 9}
    assert of(found, "sampleapp_sqlite_commit_records_sum") == {(): 4}
    assert of(found, "sampleapp_readings") == {(): 1}
    assert of(found, "sampleapp_readings_skipped_records_total") == {(): 1}
    assert of(found, "sampleapp_readings_lag_records") == {(): 0}
    assert of(found, "sampleapp_broker_ready") == {(): 1}
    assert of(found, "sampleapp_connections")["idle"] >= 1
    assert 0 < of(found, "sampleapp_http_request_duration_seconds_sum")["/messages"] < DEADLINE_S
    assert of(found, "process_cpu_seconds_total")[()] > 0


def test_with_an_endpoint_for_operators_metrics_are_there_only_and_of_both(start, tmp_path):
    service = start(options=["--admin", f"unix:{tmp_path / 'admin'}"])
    with closing(connect(service)) as connection:
        assert publish(connection, "1")[0] == 200
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 404
    with on_unix_socket(tmp_path / "admin") as admin:
        scraped(admin)
        found = scraped(admin)
    requests = of(found, "sampleapp_http_requests_total")
    assert requests["POST", "/messages", "200"] == 1
    assert requests["GET", "other", "404"] == 1
    assert requests["GET", "/metrics", "200"] == 1
    assert sum(of(found, "sampleapp_admin_connections").values()) == 1
    assert set(of(found, "sampleapp_admin_refusals_total").values()) == {0}
