"""The trace of a request comes back from SQLite and from Kafka, as ``sampleapp consume`` shows it."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.support.command import consumed
from tests.support.mock_cluster import MockCluster
from tests.support.process import answer_on, connect

TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "congo=t61rcWkgMzE",
}


@pytest.fixture
def kafka():
    with MockCluster(brokers=1) as mock:
        mock.create_topic("readings")
        mock.create_topic("t")
        yield f"kafka://{mock.bootstrap}"


@pytest.fixture(params=["sqlite", "kafka"])
def broker(request):
    return None if request.param == "sqlite" else request.getfixturevalue("kafka")


def test_a_trace_is_a_header_of_the_record_that_is_read_back(start, broker):
    service = start(broker=broker)
    with closing(connect(service)) as connection:
        for fields in (TRACE, {}):
            headers = {"Content-Type": "application/json", **fields}
            connection.request("POST", "/messages", '{"topic":"t","content":"c"}', headers)
            assert answer_on(connection)[0] == 200
    traced, untraced = consumed(service, "t")
    assert traced["headers"] == TRACE
    assert untraced["headers"] == {}
