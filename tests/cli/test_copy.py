"""``sampleapp consume | sampleapp publish --messages``: a copy of a topic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import consumed, redirected, sampleapp
from tests.support.copies import KINDS, copied, pipe
from tests.support.live_service import LiveService


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    with LiveService(directory=tmp_path_factory.mktemp("other")) as service:
        yield service


@pytest.fixture(scope="module")
def topic(service):
    lines = [json.dumps({"topic": "kinds-to-copy", **each}) + "\n" for each in KINDS]
    sampleapp(service, "publish", "--messages", "-", stdin="".join(lines).encode())
    return "kinds-to-copy"


@pytest.mark.parametrize("options", [[], ["--idempotent"]], ids=["plain", "idempotent"])
@pytest.mark.parametrize("through", ["url", "broker"])
def test_a_topic_is_copied_to_another_service_record_for_record(service, other, topic, through, options):
    copy = f"copy-{through}{len(options)}"
    lines, _ = sampleapp(service, "consume", topic, f"--{through}", getattr(service, through))
    arguments = ["publish", copy, "--messages", "-", "--results", *options]
    printed, told = sampleapp(other, *arguments, stdin=lines.encode())
    original = consumed(service, topic)
    assert len(original) == len(KINDS)
    assert [copied(record) for record in consumed(other, copy)] == [copied(record) for record in original]
    assert [json.loads(line) for line in printed.splitlines()] == [
        {"line": number, "topic": copy, "partition": 0, "offset": number - 1}
        for number in range(1, len(KINDS) + 1)
    ]
    assert told == f"Published {len(KINDS)} lines, 0 failed.\n"


def test_in_a_pipe_without_a_topic_each_line_goes_where_it_says(service, other, topic):
    pipe([topic, "--broker", service.broker], ["--messages", "-"], source=service, target=other)
    assert list(map(copied, consumed(other, topic))) == list(map(copied, consumed(service, topic)))


def test_a_file_that_is_copied_again_with_idempotency_keys_adds_nothing(service, topic, tmp_path):
    file = tmp_path / "records"
    file.write_text(sampleapp(service, "consume", topic, "--broker", service.broker)[0])
    for _ in range(2):
        _, told = sampleapp(service, "publish", "copied-once", "--messages", str(file), "--idempotent")
    assert f"At least {len(KINDS)} of them had been published before" in told
    assert len(consumed(service, "copied-once")) == len(KINDS)


def test_lines_that_fail_are_named_with_their_reasons_and_the_others_are_published(service):
    names = ["some-lines", None, "a b", "some-lines"]
    lines = ["{" if name is None else json.dumps({"topic": name, "content": "c"}) for name in names]
    printed, told = sampleapp(
        service, "publish", "--messages", "-", "--results", stdin="\n".join(lines).encode(), code=1
    )
    one, two, three, four = sorted(map(json.loads, printed.splitlines()), key=lambda each: each["line"])
    assert (one["offset"], four["offset"]) == (0, 1)
    assert two["error"].startswith("The line is not JSON: ")
    assert '"topic" must be' in three["error"]
    assert told.endswith("Published 2 lines, 2 failed.\n")
    assert [record["content"] for record in consumed(service, "some-lines")] == ["c", "c"]


def test_results_are_printed_for_lines_too(service):
    printed, _ = sampleapp(service, "publish", "plain", "--lines", "-", "--results", stdin=b"a\nb\n")
    assert [json.loads(line)["offset"] for line in printed.splitlines()] == [0, 1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this machine has no /dev/full")
def test_results_that_cannot_be_printed_do_not_stop_the_lines(service):
    arguments = ["publish", "full-of-lines", "--lines", "-", "--results"]
    code, stdout, stderr = redirected(service, ">/dev/full", *arguments, stdin=b"a\nb\n")
    assert (code, stdout) == (3, "")
    assert "The outcomes of some lines are not printed." in stderr
    assert [record["content"] for record in consumed(service, "full-of-lines")] == ["a", "b"]
