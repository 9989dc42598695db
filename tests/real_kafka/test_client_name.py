"""Operators of Kafka see in their own tools which program it is that connects (KIP-511)."""

from __future__ import annotations

from tests.real_kafka.admin import new_topic
from tests.real_kafka.cluster import Cluster
from tests.real_kafka.service import post
from tests.real_kafka.versions import SOFTWARE_NAME, needs
from tests.support.waiting import wait_until


@needs(SOFTWARE_NAME)
def test_the_broker_knows_the_name_and_the_version_of_the_program(version, start_service, tmp_path):
    # A line for each request, which the other tests do not want to have.
    with Cluster(
        version=version, nodes=1, directory=tmp_path / "kafka", log_levels={"kafka.request.logger": "debug"}
    ) as cluster:
        topic = cluster.admin.create(new_topic("named"))
        assert post(start_service(cluster), topic, "x")[0] == 200
        log = cluster.node(1).log
        wait_until(
            lambda: "librdkafka" in log.read_text(),
            "the admin's requests are in the log",
        )
        lines = [each for each in log.read_text().splitlines() if "clientInformation" in each]
        ours = [each for each in lines if topic in each and "PRODUCE" in each.upper()]
        assert ours
        assert all("sampleapp" in each.partition("clientInformation")[2] for each in ours), ours[:1]
