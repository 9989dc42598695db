"""Operators of Kafka see in their own tools which program it is that connects (KIP-511)."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.cluster import Cluster
from tests.real_kafka.service import post
from tests.real_kafka.versions import SOFTWARE_NAME, needs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.release


@needs(SOFTWARE_NAME)
def test_the_broker_knows_the_name_and_the_version_of_the_program(version, start_service, tmp_path):
    # A line for each request, which the other tests do not want to have.
    with Cluster(
        version=version, nodes=1, directory=tmp_path / "kafka", log_levels={"kafka.request.logger": "debug"}
    ) as cluster:
        topic = cluster.admin.create(new_topic("named"))
        assert post(start_service(cluster), topic, "x")[0] == 200
        log = cluster.node(1).log

        def produced():
            lines = [each for each in log.read_text().splitlines() if "clientInformation" in each]
            return [each for each in lines if '"requestApiKeyName":"PRODUCE"' in each]

        # Only the service produces.
        for line in wait_until(produced, "the request is in the broker's log"):
            name = re.search(r'"softwareName":"([^"]*)"', line)[1]
            version = re.search(r'"softwareVersion":"([^"]*)"', line)[1]
            assert (name, version) == ("sampleapp", metadata.version("sampleapp-http-gateway"))
