"""The scripts of the documentation, as a reader runs them, against a live service."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from urllib.request import Request, urlopen

import pytest

from tests.support.command import stored
from tests.support.free_ports import rejecting_port
from tests.support.live_service import LiveService

pytestmark = pytest.mark.page


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with LiveService(directory=tmp_path_factory.mktemp("examples")) as service:
        yield service


def run(project, name, url):
    return subprocess.run(
        [sys.executable, "-W", "error", str(project / "docs" / "examples" / name), url],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=30,
    )


def printed(project, name, url):
    ended = run(project, name, url)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def eventually_printed(expected, project, name, url):
    """Run a script until it prints something: a reading is served a moment after it was published."""
    until = time.monotonic() + 20
    while (output := printed(project, name, url)) != expected and time.monotonic() < until:
        pass
    return output


def test_a_message_with_a_key_becomes_a_reading_in_both_representations(project, service):
    answer = json.loads(printed(project, "publish_with_key.py", service.url))
    assert answer == {"topic": "readings", "partition": 0, "offset": 0}
    v1 = "[21.5]\n"
    assert eventually_printed(v1, project, "readings_v1.py", service.url) == v1
    assert printed(project, "readings_v2.py", service.url) == "kitchen 21.5\n"


def test_a_message_without_a_key_is_published(project, service):
    answer = json.loads(printed(project, "publish_without_key.py", service.url))
    assert answer == {"topic": "greetings", "partition": 0, "offset": 0}


def test_messages_are_published_in_one_request(project, service):
    lines = printed(project, "publish_batch.py", service.url).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"topic": "batch", "partition": 0, "offset": 0},
        {"topic": "batch", "partition": 0, "offset": 1},
    ]


def test_the_body_of_a_webhook_is_the_value_of_its_record(project, service):
    assert json.loads(printed(project, "publish_body.py", service.url))["topic"] == "webhooks"
    assert stored(service, "webhooks") == [("shop", '{"order": 17, "paid": true}')]


def test_a_tombstone_removes_a_reading(project, service):
    printed(project, "publish_with_key.py", service.url)
    assert json.loads(printed(project, "remove_reading.py", service.url))["topic"] == "readings"
    gone = "[]\n"
    assert eventually_printed(gone, project, "readings_v1.py", service.url) == gone


PUBLISHING = ["publish_with_key.py", "publish_without_key.py", "publish_batch.py"]


@pytest.mark.parametrize("name", [*PUBLISHING, "readings_v2.py"])
def test_an_answer_that_is_a_problem_is_printed_as_it_is_and_fails(project, service, name):
    ended = run(project, name, f"{service.url}no/such/")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert json.loads(ended.stderr)["status"] == 404


@pytest.mark.parametrize("name", [*PUBLISHING, "readings_v1.py", "readings_v2.py"])
def test_an_example_says_in_one_line_that_nothing_answers(project, name):
    with rejecting_port() as port:
        url = f"http://127.0.0.1:{port}/"
        ended = run(project, name, url)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"Nothing answers at {url}: Connection was refused")
    assert len(ended.stderr.splitlines()) == 1


def test_every_example_is_short_enough_to_be_read_at_a_glance(project):
    examples = sorted((project / "docs" / "examples").glob("*.py"))
    assert len(examples) >= 7
    lengths = {example.name: len(example.read_text(encoding="utf-8").splitlines()) for example in examples}
    assert {name: length for name, length in lengths.items() if length >= 30} == {}


def test_a_site_of_one_s_own_serves_the_interface_beside_its_own_pages(project, tmp_path):
    command = [sys.executable, "-W", "error", project / "docs/howto/embed.py", "tcp:0:interface=127.0.0.1"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, encoding="utf-8") as program:
        try:
            url = program.stdout.readline().strip()
            assert url.endswith("/gateway/")
            with urlopen(url.removesuffix("gateway/")) as page:
                assert page.read() == b"My own page.\n"
            with urlopen(Request(f"{url}topics/readings?key=kitchen", b"21.5")) as answer:
                assert json.load(answer) == {"topic": "readings", "partition": 0, "offset": 0}
            assert eventually_printed("[21.5]\n", project, "readings_v1.py", url) == "[21.5]\n"
        finally:
            program.terminate()
