"""``sampleapp consume --url``: the records of a topic through a live service."""

from __future__ import annotations

import http.client
import json
import signal
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from tests.support.command import DEADLINE_S, Watched, consumed, publish, sampleapp
from tests.support.live_service import LiveService


@pytest.fixture(scope="module")
def topic(service):
    """A topic with a record of every kind."""
    with closing(http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=DEADLINE_S)) as connection:

        def send(method, path, body, content_type="application/octet-stream"):
            connection.request(method, path, body, {"Content-Type": content_type})
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer

        message = {"topic": "kinds", "content": "\u0085 \u2028 \x00 é", "headers": {"b": "1", "a": ""}}
        send("POST", "/messages", json.dumps(message), "application/json")
        send(
            "POST",
            "/messages",
            json.dumps(message | {"key": "k", "timestamp": "1970-01-01T00:00:00.001Z"}),
            "application/json",
        )
        send("POST", "/topics/kinds?key=%FF%00", b"\x00\xff")
        send("POST", "/topics/kinds?key=", b"")
        send("DELETE", "/topics/kinds?key=k", b"")
        send("POST", "/topics/kinds", b"x" * 100_000)
    return "kinds"


# All other options are in test_pages, without processes.
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--from", "-5", "--limit", "2", "--key", "k"],
        ["--from", "offset:3"],
        ["--from", "2020-01-01T00:00:00Z", "--timeout", "0", "--follow"],
        ["--from", "100000000000"],
        ["--from", "POSITION"],
    ],
    ids=" ".join,
)
def test_the_output_is_that_of_reading_the_broker_byte_for_byte(service, topic, options):
    if "POSITION" in options:
        with closing(http.client.HTTPConnection(urlsplit(service.url).netloc)) as connection:
            connection.request("GET", f"/topics/{topic}/records?limit=2")
            response = connection.getresponse()
            response.read()
            options = ["--from", response.getheader("Position")]
    direct = sampleapp(service, "consume", topic, "--broker", service.broker, *options)
    assert direct[0].count("\n") >= 2
    assert sampleapp(service, "consume", topic, "--url", service.url, *options) == direct


def test_the_output_is_that_of_http_byte_for_byte(service, topic):
    with closing(http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=DEADLINE_S)) as connection:
        connection.request("GET", f"/topics/{topic}/records")
        page = connection.getresponse().read().decode()
    assert page.count("\n") >= 6
    for source in (["--broker", service.broker], ["--url", service.url]):
        assert sampleapp(service, "consume", topic, *source) == (page, "")


def test_it_says_what_to_do_when_it_cannot_read(service, topic):
    arguments = ["--url", service.url]
    _, stderr = sampleapp(service, "consume", "none", *arguments, code=1)
    assert stderr == "Error: There is no topic 'none'. Is its name right?\n"
    _, stderr = sampleapp(service, "consume", topic, "--key", "none", *arguments)
    assert stderr == "There are no records in 'kinds' for --key 'none'.\n"
    _, stderr = sampleapp(service, "consume", topic, "--partition", "7", *arguments, code=1)
    assert (
        stderr
        == "Error: There is no partition 7 of 'kinds'. The topic has only one partition, with the number 0.\n"
    )


@pytest.mark.slow
def test_follow_goes_on_after_a_crash_of_the_service_and_ends_with_sigterm(tmp_path):
    with LiveService(directory=tmp_path) as service:
        publish(service, "live", "first")
        with Watched(service, "consume", "live", "--follow", "--url", service.url) as following:
            following.wait_for('"content":"first"')
            publish(service, "live", "second")
            following.wait_for('"content":"second"')
            service.kill()
            following.wait_for("Asking again until there is an answer.")
            port = urlsplit(service.url).port
            with LiveService(directory=tmp_path, listen=f"tcp:{port}:interface=127.0.0.1") as again:
                publish(again, "live", "third")
                following.wait_for('"content":"third"')
                publish(again, "live", "fourth")
                following.wait_for('"content":"fourth"')
                following.process.send_signal(signal.SIGTERM)
                code, lines = following.end()
    assert code == 0
    assert [json.loads(line)["offset"] for line in lines if line.startswith("{")] == [0, 1, 2, 3]
    assert [line for line in lines if not line.startswith("{")][1:] == ["The service answers again."]


def test_keys_in_base64_and_headers_select_records_from_both_sources(service, topic):
    for options, count in [
        (["--key-base64", "/wA="], 1),
        (["--header", "b:1", "--header", "a:", "--key", "k"], 1),
        (["--header", "b:2"], 0),
    ]:
        for source in (["--broker", service.broker], ["--url", service.url]):
            printed, told = sampleapp(service, "consume", topic, *source, *options)
            assert printed.count("\n") == count
            assert told == ("" if count else "There are no records in 'kinds' for --header 'b:2'.\n")


def test_a_key_in_base64_is_deleted(service):
    sampleapp(service, "delete", "deleted", "--key-base64", "/wA=")
    (record,) = consumed(service, "deleted")
    assert (record["key_base64"], record["content"]) == ("/wA=", None)
