"""Whether the service is ready, as a load balancer and an operator see it."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest

from tests.support.mock_cluster import MockCluster
from tests.support.process import (
    answer_on,
    connect,
    get,
    one_held_up,
    publish,
    rejects,
    wait_for_readings,
)
from tests.support.waiting import wait_until

ADMIN = r"Listening for operators at http://127\.0\.0\.1:(\d+)/"


def port_of(service):
    return urlsplit(service.url).port


def admin_port_of(service):
    return int(service.wait_for_output(ADMIN).group(1))


def reasons(port):
    status, body = get(port, "/ready")
    document = json.loads(body)
    assert status == (503 if "reasons" in document else 200)
    return document.get("reasons", [])


@pytest.fixture
def mock():
    with MockCluster(brokers=1) as mock:
        mock.create_topic("readings")
        yield mock


def test_it_is_not_ready_while_kafka_is_away_and_ready_again_when_it_is_back(start, mock):
    mock.broker_down()
    service = start(broker=f"kafka://{mock.bootstrap}")
    port = port_of(service)
    (host, broker_port) = mock.bootstrap.split(",")[0].split(":")
    wait_until(lambda: len(reasons(port)) == 2, "both publishing and reading are held up")
    assert not any(host in reason or broker_port in reason for reason in reasons(port))
    mock.broker_up()
    wait_until(lambda: reasons(port) == [], "Kafka was reached, and the readings were read")
    with closing(connect(service)) as connection:
        assert publish(connection, "1", topic="readings", key="a")[0] == 200
    mock.broker_down()
    wait_until(lambda: reasons(port) != [], "it is noticed that Kafka has gone")
    assert get(port, "/live")[0] == 200
    # What was read is served on.
    assert get(port, "/")[0] == 200
    mock.broker_up()
    wait_until(lambda: reasons(port) == [], "Kafka was reached again")


def test_before_it_stops_it_serves_on_but_says_that_it_is_not_ready(start):
    service = start(options=["--drain-delay", "1.5"])
    wait_for_readings(service, b"[]")
    port = port_of(service)
    assert reasons(port) == []
    service.process.terminate()
    wait_until(lambda: reasons(port) == ["The service is stopping."], "the signal has come")
    # A second one changes nothing.
    service.process.terminate()
    with closing(connect(service)) as connection:
        assert publish(connection, "late")[0] == 200
        assert get(port, "/")[0] == 200
        wait_until(lambda: rejects(service), "the port is closed")
    assert service.stop() == -15
    assert "Traceback" not in service.output


def test_operators_are_answered_until_the_end_where_nobody_else_is(start, tmp_path):
    service = start(options=["--admin", "tcp:0:interface=127.0.0.1"])
    port, admin_port = port_of(service), admin_port_of(service)
    wait_until(lambda: reasons(admin_port) == [], "all readings are read")
    statuses = {path: get(admin_port, path)[0] for path in ("/live", "/ready", "/metrics", "/openapi.json")}
    assert set(statuses.values()) == {200}
    assert {path: get(admin_port, path)[0] for path in ("/", "/messages")} == {"/": 404, "/messages": 404}
    assert get(port, "/metrics")[0] == 404
    paths = json.loads(get(port, "/openapi.json")[1])["paths"]
    assert "/metrics" not in paths
    assert "/messages" in paths
    with closing(connect(service)) as connection:
        with one_held_up(service, connection, tmp_path):
            service.process.terminate()
            wait_until(lambda: rejects(service), "the port is closed")
            # A request is running still.
            assert "The service is stopping." in reasons(admin_port)
            assert get(admin_port, "/live")[0] == 200
        assert answer_on(connection)[0] == 200
    assert service.stop() == -15


def test_operators_are_answered_also_when_all_other_connections_are_taken(start):
    options = ["--admin", "tcp:0:interface=127.0.0.1", "--max-connections", "1"]
    service = start(options=options)
    admin_port = admin_port_of(service)
    with ExitStack() as stack:
        # Those that are kept for this machine included.
        for _ in range(1 + 32):
            stack.enter_context(closing(connect(service))).connect()
        assert get(port_of(service), "/live")[0] == 503
        assert get(admin_port, "/live")[0] == 200
    assert "network" not in service.output


def test_an_endpoint_for_operators_on_the_network_is_worth_a_warning(start):
    service = start(options=["--admin", "tcp:0"])
    service.wait_for_output("is open to the network without credentials")
