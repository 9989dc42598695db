"""The directory with schemas, of a service that runs, is to start, or is checked."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.files import by_link, by_rename, in_place
from tests.support.process import run
from tests.support.waiting import wait_until

DEADLINE_S = 5.0
NUMBERS, TEXTS = '{"type": "number"}', '{"type": "string"}'


def status(service, content):
    try:
        with urlopen(Request(f"{service.url}topics/orders", content)) as answer:
            return answer.status
    except HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    "write", [by_rename, *(pytest.param(each, marks=pytest.mark.slow) for each in (in_place, by_link))]
)
def test_a_change_counts_within_five_seconds_and_a_mistake_changes_nothing(start, tmp_path, write):
    directory = tmp_path / "schemas"
    directory.mkdir()
    path = directory / "orders.json"
    write(path, NUMBERS)
    service = start(broker="memory:", options=["--schemas", str(directory)])
    assert (status(service, b"1"), status(service, b'"a"')) == (200, 422)
    write(path, TEXTS)
    wait_until(lambda: status(service, b'"a"') == 200, "200", deadline_s=DEADLINE_S)
    assert status(service, b"1") == 422
    write(path, '{"minLength": "a"}')
    service.wait_for_output(
        r"Could not reload the schemas; the previous version stays in use: --schemas: \S*orders\.json, at "
        r'/minLength: "minLength" must be an integer\.',
        deadline_s=DEADLINE_S,
    )
    assert (status(service, b'"a"'), status(service, b"1")) == (200, 422)
    write(path, NUMBERS)
    wait_until(lambda: status(service, b"1") == 200, "200", deadline_s=DEADLINE_S)


def test_a_signal_has_the_schemas_read_at_once(start, tmp_path):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/orders.json").write_text(NUMBERS)
    service = start(broker="memory:", options=["--schemas", "schemas"])
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_output(r"Reloaded the schemas\.", deadline_s=DEADLINE_S)
    assert status(service, b"1") == 200


@pytest.mark.parametrize("options", [[], pytest.param(["--check"], marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"type": "nmuber"}', 'schemas/orders.json, at /type: "type" must match one of the schemas under'),
        pytest.param("{", "schemas/orders.json: The file is not JSON: ", marks=pytest.mark.slow),
        pytest.param(
            None,
            "schemas has no schema; the file TOPIC.json in it is the schema of that topic.",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_wrong_schema_is_said_in_one_sentence_instead_of_a_start(
    installed, tmp_path, options, text, sentence
):
    (tmp_path / "schemas").mkdir()
    if text is not None:
        (tmp_path / "schemas/orders.json").write_text(text)
    command = ["sampleapp", "--schemas", "schemas", "--broker", "memory:", *options]
    done = run(command, installed, tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("sampleapp: --schemas: ")
    assert sentence in done.stdout
    assert done.stdout.count("\n") == 1


EVIL = "evil\x1b]0;title\x07\n2026-01-01T00:00:00+0000 [-] Server Shut Down.\x9b\u202e"
SHOWN = r"evil\x1b]0;title\x07\n2026-01-01T00:00:00+0000 [-] Server Shut Down.\x9b\u202e"


def test_names_of_files_and_members_cannot_control_a_terminal_or_make_lines(start, installed, tmp_path):
    directory = tmp_path / "schemas"
    directory.mkdir()
    (directory / f"{EVIL}.json").write_text("{}")
    done = run(["sampleapp", "--schemas", "schemas", "--check"], installed, tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith(
        f"sampleapp: --schemas: schemas/{SHOWN}.json: its name is not that of a topic"
    )
    assert done.stdout.count("\n") == 1
    (directory / f"{EVIL}.json").unlink()
    (directory / "orders.json").write_text(NUMBERS)
    service = start(broker="memory:", options=["--schemas", str(directory)])
    (directory / f"{EVIL}.json").write_text("{}")
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_output(re.escape(f"schemas/{SHOWN}.json: its name is not that of a topic"))
    (directory / f"{EVIL}.json").unlink()
    (directory / "orders.json").write_text(json.dumps({"properties": {EVIL: {"type": "nmuber"}}}))
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_output(re.escape(f"schemas/orders.json, at /properties/{SHOWN}/type: "))
    assert "\x1b" not in service.output


def test_a_missing_directory_is_said(installed, tmp_path):
    done = run(["sampleapp", "--schemas", "nowhere.d", "--check"], installed, tmp_path)
    assert (done.returncode, done.stdout.count("\n")) == (1, 1)
    assert "--schemas: cannot read the directory" in done.stdout


def test_the_library_is_loaded_only_with_schemas(tmp_path):
    (tmp_path / "orders.json").write_text(NUMBERS)
    program = (
        "import sys\n"
        "from twisted.internet import reactor\n"
        "from sampleapp.service.assembly import build\n"
        "from sampleapp.service.config import Config\n"
        "build(Config(broker='memory:', schemas=sys.argv[1]), reactor=reactor)\n"
        "print('jsonschema_rs' in sys.modules)\n"
    )
    for directory, is_loaded in (("", "False\n"), (str(tmp_path), "True\n")):
        assert subprocess.check_output([sys.executable, "-c", program, directory], text=True) == is_loaded
