"""
One cluster of each kind for each version of Kafka, started when the first test asks for it.

With pytest-xdist, each of its processes has its own.
"""

from __future__ import annotations

import pytest

from tests.real_kafka.cluster import Cluster
from tests.real_kafka.distribution import ARE_NAMED, VERSIONS, KafkaNotAvailable, get, why_not
from tests.real_kafka.listeners import PASSWORD, PROXIED, USER, Certificates, authorizer, listeners
from tests.real_kafka.publishers import RECOVERY, Figures
from tests.real_kafka.service import kafka_url
from tests.support.live_service import LiveService


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*features): what a version of Kafka must have, else: skipped")
    config.addinivalue_line(
        "markers", "one_version: runs with the newest version only, unless versions are named"
    )
    config.addinivalue_line(
        "markers", "release: not run by make test-kafka unless versions are named, as by make test-all"
    )


def pytest_collection_modifyitems(config, items):
    """Skip what a version of Kafka does not have, and say so; run with one version what needs no other."""
    if not ARE_NAMED:
        repeated = {
            each
            for each in items
            if each.get_closest_marker("one_version") and version_of(each) != VERSIONS[-1]
        }
        config.hook.pytest_deselected(items=repeated)
        items[:] = [each for each in items if each not in repeated]
    for item in items:
        version = version_of(item)
        for feature in (each for mark in item.iter_markers("needs") for each in mark.args):
            if version and not feature.is_in(version):
                item.add_marker(pytest.mark.skip(reason=feature.why_not_in(version)))


def version_of(item):
    callspec = getattr(item, "callspec", None)
    return callspec and callspec.params.get("version")


def pytest_sessionstart(session):
    """Get everything now, so that no test's deadline has to allow for a download."""
    reason = why_not()
    if reason is None and not session.config.option.collectonly:
        try:
            for version in VERSIONS:
                get(version)
        except KafkaNotAvailable as error:
            reason = str(error)
    if reason is not None:
        pytest.exit(f"The tests against real Kafka cannot be run: {reason}.", returncode=1)


def pytest_terminal_summary(terminalreporter):
    rows = [
        row
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call"
        for name, row in report.user_properties
        if name == RECOVERY
    ]
    if not rows:
        return
    terminalreporter.section("what faults cost those who publish")
    heads = ["Kafka", "fault", "200", "503", "504", "no 200 at all", "none on a partition", "slowest 200"]
    table = [heads]
    for version, fault, *values in rows:
        found = Figures(*values)
        counts = [found.accepted, found.unavailable, found.unknown]
        seconds = [found.silence_s, found.recovery_s, found.slowest_s]
        table.append([version, fault, *map(str, counts), *(f"{each:.1f} s" for each in seconds)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [f"{cell:<{width}}" for cell, width in zip(row[:2], widths, strict=False)]
        cells += [f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True)]
        terminalreporter.line("  ".join(cells).rstrip())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        for name, each in getattr(item, "funcargs", {}).items():
            if isinstance(each, Cluster):
                report.sections.append((f"Kafka's logs ({name})", each.show()))
    return report


@pytest.fixture(scope="session", params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates.write(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def one_node(version, certificates, tmp_path_factory):
    """One node that listens in every way."""
    with Cluster(
        version=version,
        nodes=1,
        directory=tmp_path_factory.mktemp(f"kafka-{version}-one"),
        listeners=listeners(certificates, version),
        settings=authorizer(version),
        users={USER: PASSWORD},
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def same_three_nodes(version, tmp_path_factory):
    with Cluster(
        version=version,
        nodes=3,
        directory=tmp_path_factory.mktemp(f"kafka-{version}-three"),
        listeners=[PROXIED],
    ) as cluster:
        yield cluster


@pytest.fixture
def three_nodes(same_three_nodes):
    """Three nodes, all of which are there when a test begins, whatever became of the one before."""
    same_three_nodes.restore()
    return same_three_nodes


@pytest.fixture
def start_service(tmp_path):
    """Starts services, and ends those that the test has left."""
    services = []

    def start(cluster, *, service_options=(), **options):
        service = LiveService(
            directory=tmp_path, broker=kafka_url(cluster, **options), options=service_options
        )
        services.append(service)
        return service

    yield start
    for service in services:
        if service.process.poll() is None:
            service.stop()
        service.kill()
