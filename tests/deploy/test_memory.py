"""The files of a deployment limit the memory of the service to what the page for operators plans."""

from __future__ import annotations

import pytest
import yaml

from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.consumer.reader import MOST_BYTES
from sampleapp.web.server.limits import Limits

MIB = 2**20
BROKER = "kafka://kafka:9092"
READINGS = 100_000


def compose(root):
    service = yaml.safe_load((root / "deploy/compose.yaml").read_text())["services"]["sampleapp"]
    assert service["mem_limit"].endswith("m")
    return service["environment"], int(service["mem_limit"].removesuffix("m")) * MIB


def kubernetes(root):
    deployment = yaml.safe_load((root / "deploy/kubernetes/deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    return {each["name"]: each["value"] for each in container["env"]}, int(limit.removesuffix("Mi")) * MIB


def planned_with(variables):
    """The parts that the page plans for the variables of a service, in bytes; without the readings."""
    return (
        100 * 10**6,
        2 * int(variables.get("SAMPLEAPP_MAX_BODY_MEMORY", Limits().max_body_memory)),
        parse(variables["SAMPLEAPP_BROKER"]).buffer_bytes + MOST_BYTES,
        130 * 2**10 * int(variables.get("SAMPLEAPP_MAX_CONNECTIONS", Limits().max_connections)),
    )


def sum_of(parts):
    """The sum of the parts, as the page writes it."""
    return " + ".join(f"{part / 10**9:.2g}" for part in parts) + " GB"


@pytest.mark.parametrize("read", [compose, kubernetes])
def test_a_container_has_the_memory_that_the_page_plans(pytestconfig, read):
    variables, limit = read(pytestconfig.rootpath)
    assert sum(planned_with(variables)) + READINGS * 0.35 * 2**10 <= limit


def test_the_page_has_the_sums_for_the_defaults_and_for_the_containers(pytestconfig):
    page = " ".join((pytestconfig.rootpath / "docs/howto/capacity.rst").read_text().split())
    variables, limit = compose(pytestconfig.rootpath)
    assert sum_of(planned_with({"SAMPLEAPP_BROKER": BROKER})) in page
    assert (
        f"{sum_of(planned_with(variables))}: {limit // MIB} MiB leave room for {READINGS:,} readings" in page
    )
    body_memory, connections = (variables[f"SAMPLEAPP_MAX_{name}"] for name in ("BODY_MEMORY", "CONNECTIONS"))
    assert f"``--max-body-memory {body_memory} --max-connections {connections}``" in page
