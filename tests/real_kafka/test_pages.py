"""The commands of the pages, against a cluster with topics that are made as the page about Kafka says."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import (
    ROOT,
    SHELL_PAGES,
    blocks_of,
    each_session,
    each_shell_page,
    run_session,
    run_shell,
    topics_in,
)
from tests.real_kafka.cluster import Cluster
from tests.real_kafka.service import kafka_url

pytestmark = [pytest.mark.one_version, pytest.mark.release]

# An operator enables idempotency keys for a topic: the page about sending again does.
OPTIONS = ["--idempotent-topic", "*"]


@pytest.fixture(scope="module")
def cluster(version, tmp_path_factory):
    """Three nodes with no topics but those of a page, which some pages list."""
    with Cluster(version=version, nodes=3, directory=tmp_path_factory.mktemp("kafka-of-pages")) as cluster:
        yield cluster


def creations():
    """The settings of the two topics that the page about Kafka creates, by name."""
    page = (ROOT / "docs/howto/kafka.rst").read_text(encoding="utf-8")
    found = {}
    for command in re.findall(r"kafka-topics\.sh .*?--create(.*?(?<!\\)\n)", page, re.DOTALL):
        (name,) = re.findall(r"--topic (\S+)", command)
        config = dict(re.findall(r"--config (\S+?)=(\S+)", command))
        (replicas,) = re.findall(r"--replication-factor (\d+)", command)
        found[name] = (int(replicas), config)
    return found


@pytest.fixture
def create(cluster):
    """Creates topics as the page says, with one partition, so that their offsets are those of the pages."""
    made = []

    def create_all(names):
        kinds = creations()
        for name in names:
            replicas, config = kinds.get(name, kinds["events"])
            assert replicas == len(cluster.nodes)
            settings = {key.replace(".", "_"): value for key, value in config.items()}
            made.append(cluster.admin.create(name, **settings))

    yield create_all
    for name in made:
        cluster.admin.delete(name)


def test_the_page_about_kafka_compacts_the_readings():
    kinds = creations()
    assert set(kinds) == {"events", "readings"}
    assert kinds["readings"][1]["cleanup.policy"] == "compact"


@each_session
def test_every_session_prints_on_kafka_what_the_page_shows(cluster, create, tmp_path, pages, commands):
    create(topics_in(block.text for page in pages for block in blocks_of(page)))
    run_session(pages, tmp_path, broker=kafka_url(cluster), options=OPTIONS)


@each_shell_page
def test_every_command_of_a_page_succeeds_on_kafka(cluster, create, tmp_path, page):
    create(topics_in(SHELL_PAGES[page]))
    run_shell(page, tmp_path, broker=kafka_url(cluster), options=OPTIONS)
