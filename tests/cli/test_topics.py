"""``sampleapp topics``: the names of topics, of a broker or as the service shows them."""

from __future__ import annotations

from tests.support.command import publish, sampleapp


def test_the_topics_of_the_service_and_of_its_broker_are_listed(service):
    for topic in ("b.topics", "a-topics"):
        publish(service, topic, "1")
    for source in (["--url", service.url], ["--broker", service.broker], []):
        printed, told = sampleapp(service, "topics", *source)
        listed = printed.splitlines()
        assert {"b.topics", "a-topics"} <= set(listed)
        assert (listed, told) == (sorted(listed), "")


def test_a_broker_without_topics_has_none(service, tmp_path):
    empty = f"sqlite:{tmp_path / 'empty.sqlite3'}"
    (tmp_path / "empty.sqlite3").touch()
    assert sampleapp(service, "topics", "--broker", empty) == ("", "There are no topics.\n")


def test_what_cannot_be_listed_is_a_failure(service):
    _, told = sampleapp(service, "topics", "--url", "http://127.0.0.1:1/", code=1)
    assert told.startswith("Error: ")
