"""The process that checks contents by schemas, with a service that runs."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.process import run
from tests.support.waiting import wait_until

DEADLINE_S = 20.0
UNIQUE = {"uniqueItems": True}
# All of them have the same hash in the library.
EQUAL_HASHES = b"[" + b",".join(b"%d" % (2**63 + number) for number in range(20_000)) + b"]"
FLOATS = b"[" + b"1e308," * 130_000 + b"1]"
PATTERNS = {"anyOf": [{"pattern": f"^a*{letter}$"} for letter in "bcdefghijk"]}


def post(service, content, topic="orders"):
    try:
        with urlopen(Request(f"{service.url}topics/{topic}", content), timeout=DEADLINE_S) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def children_of(pid):
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid and b"validation.worker" in (each / "cmdline").read_bytes():
                found.append(int(each.name))
    return found


def child_of(service):
    wait_until(lambda: len(children_of(service.process.pid)) == 1, "one process", deadline_s=DEADLINE_S)
    return children_of(service.process.pid)[0]


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def service_with(start, tmp_path):
    def started(**schemas):
        for topic, schema in schemas.items():
            (tmp_path / "schemas").mkdir(exist_ok=True)
            (tmp_path / f"schemas/{topic}.json").write_text(json.dumps(schema))
        return start(broker="memory:", options=["--schemas", "schemas"] if schemas else [])

    return started


def test_a_content_that_takes_too_long_is_rejected_and_others_are_served(service_with):
    service = service_with(orders=UNIQUE, others={"type": "array"})
    first = child_of(service)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(post, service, EQUAL_HASHES)
        # The reactor answers in the meantime.
        while not slow.done():
            assert post(service, b"[1]", "others")[0] == 200
        status, problem = slow.result()
    assert (status, problem["type"]) == (422, "urn:sampleapp:problem:schema-too-expensive")
    assert post(service, b"[1,2]")[0] == 200
    assert post(service, b"[1,1]")[0] == 422
    assert has_ended(first)


@pytest.mark.parametrize(
    ("schema", "content", "status"),
    [
        ({"type": "object"}, FLOATS, 422),
        ({"type": "array", "multipleOf": 0.01}, FLOATS, None),
        (PATTERNS, b'"' + b"a" * 1_000_000 + b'"', 422),
        (PATTERNS, b'"' + b"a" * 1_000_000 + b'b"', 200),
        (PATTERNS, b'"' + b'\\",' * 300_000 + b'"', 422),
        ({"items": {"type": "integer"}}, b"[" + b'"a",' * 140_000 + b'"a"]', 422),
    ],
)
def test_large_contents_are_answered_within_the_deadline(service_with, schema, content, status):
    found, problem = post(service_with(orders=schema), content)
    assert found == (status or found)
    if found == 422:
        assert problem["type"].rpartition(":")[2] in ("schema-mismatch", "schema-too-expensive")


def test_a_batch_with_a_content_that_takes_too_long_publishes_nothing(service_with):
    service = service_with(orders=UNIQUE)
    lines = [b'{"topic":"orders","content":"%b"}' % each for each in (b"[1]", EQUAL_HASHES)]
    request = Request(f"{service.url}messages", b"\n".join(lines), {"Content-Type": "application/x-ndjson"})
    with pytest.raises(HTTPError) as caught:
        urlopen(request, timeout=DEADLINE_S)
    with caught.value as error:
        assert json.loads(error.read())["type"] == "urn:sampleapp:problem:schema-too-expensive"
    assert post(service, b"[1]")[1]["offset"] == 0


def test_the_process_is_started_again_after_it_was_killed(service_with):
    service = service_with(orders=UNIQUE)
    first = child_of(service)
    os.kill(first, signal.SIGKILL)
    assert post(service, b"[1,2]")[0] == 200
    second = child_of(service)
    assert second != first
    service.wait_for_output(
        r"The process that checks contents by schemas has ended; starting it again in 0\.1 s"
    )


def test_a_check_is_repeated_if_the_process_is_killed_in_the_middle_of_it(service_with):
    service = service_with(orders=UNIQUE)
    first = child_of(service)
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(post, service, b"[1,2]")
        os.kill(first, signal.SIGKILL)
        assert checked.result()[0] == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_all_processes_of_a_group_do_not_end_the_process(service_with, number):
    service = service_with(orders=UNIQUE)
    # After a first check, it has begun to ignore them.
    assert post(service, b"[1,2]")[0] == 200
    child = child_of(service)
    os.kill(child, number)
    assert post(service, b"[1,2]")[0] == 200
    assert children_of(service.process.pid) == [child]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("is_busy", [False, True])
def test_the_process_ends_with_the_service(service_with, number, is_busy):
    service = service_with(orders=UNIQUE)
    assert post(service, b"[1,2]")[0] == 200
    child = child_of(service)
    with ThreadPoolExecutor(1) as pool:
        if is_busy:
            pool.submit(post, service, EQUAL_HASHES)
        service.process.send_signal(number)
        service.process.wait(DEADLINE_S)
    wait_until(lambda: has_ended(child), "the end of the process", deadline_s=DEADLINE_S)


def test_there_is_no_process_without_schemas(service_with):
    service = service_with()
    assert post(service, EQUAL_HASHES)[0] == 200
    assert children_of(service.process.pid) == []


def test_a_reload_is_followed_by_checks_with_the_new_schemas(service_with, tmp_path):
    service = service_with(orders=UNIQUE)
    assert post(service, b"[1,1]")[0] == 422
    (tmp_path / "schemas/orders.json").write_text('{"contains": {"const": 1}, "minimun": 3}')
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_output(r"Reloaded the schemas\.", deadline_s=DEADLINE_S)
    service.wait_for_output(r"orders\.json, at /minimun: minimun is not a keyword of the schema's draft")
    assert post(service, b"[1,1]")[0] == 200
    assert post(service, b"[2]")[0] == 422
    assert len(children_of(service.process.pid)) == 1


def test_unknown_keywords_are_warnings_of_a_check(installed, tmp_path):
    (tmp_path / "schemas").mkdir()
    schema = {"properties": {"price": {"minimun": 0}}, "nullable": True}
    (tmp_path / "schemas/orders.json").write_text(json.dumps(schema))
    done = run(["sampleapp", "--schemas", "schemas", "--broker", "memory:", "--check"], installed, tmp_path)
    assert done.returncode == 0
    assert (
        "sampleapp: --schemas: schemas/orders.json, at /properties/price/minimun: minimun is not a keyword "
        "of the schema's draft, and has no effect. Is minimum meant?\n"
    ) in done.stdout
    assert "at /nullable: nullable is not a keyword of the schema's draft" in done.stdout
