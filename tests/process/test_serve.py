"""``sampleapp serve`` and ``python -m sampleapp``: what twistd runs, without twistd's command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from itertools import cycle
from pathlib import Path

import pytest

from tests.support.live_service import TWISTD_SAMPLEAPP
from tests.support.process import DEADLINE_S, connect, publish, records, wait_for_readings

SCRIPT = str(Path(sys.executable).with_name("sampleapp"))
COMMANDS = {
    "sampleapp serve": (SCRIPT, "serve"),
    "python -m sampleapp": (sys.executable, "-m", "sampleapp"),
}
every_command = pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=name, marks=[] if name == "sampleapp serve" else [pytest.mark.slow])
        for name, command in COMMANDS.items()
    ],
)


def what_is_logged(output):
    """The lines of the log, without what differs from one run to the next."""
    for line in output.splitlines():
        _time, _, event = line.partition(" ")
        yield re.sub(r"\(\S+/bin/\S+ ", "(PYTHON ", re.sub(r"[0-9]+", "N", event))


@every_command
def test_it_serves_logs_and_ends_as_under_twistd(start, tmp_path, command):
    logs = []
    for each in (TWISTD_SAMPLEAPP, command):
        service = start(command=each, options=["--max-body", "1000"])
        with closing(connect(service)) as connection:
            assert publish(connection, "21.5", topic="readings", key="kitchen")[0] == 200
            assert publish(connection, "x" * 1000)[0] == 413
        wait_for_readings(service, b"[21.5]")
        assert service.stop() == -signal.SIGTERM
        logs.append(list(what_is_logged(service.output)))
    assert logs[0] == logs[1]
    assert [value for _, value in records(tmp_path, "readings")] == ["21.5", "21.5"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.sqlite3"]


@every_command
def test_ctrl_c_ends_it(start, command):
    service = start(command=command)
    # The signal handlers are there when the reactor runs, which is a little later than it listens.
    wait_for_readings(service, b"[]")
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(DEADLINE_S) == -signal.SIGINT


def run(command, installed, directory, *options):
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        check=False,
        cwd=directory,
        env={**os.environ, **installed},
        text=True,
        timeout=DEADLINE_S,
    )


@every_command
def test_its_help_has_every_option_and_examples_with_its_own_name(installed, tmp_path, command):
    helped = run(command, installed, tmp_path, "--help")
    twistd = run(TWISTD_SAMPLEAPP, installed, tmp_path, "--help")
    assert helped.returncode == 0
    assert helped.stdout.startswith("Usage: sampleapp serve [options]\n")
    options = re.compile(r"^(?:\w+:|  (?:-., |    )--[a-z-]+)", re.MULTILINE)
    assert len(options.findall(helped.stdout)) > 20
    assert options.findall(helped.stdout) == options.findall(twistd.stdout)
    assert "\n  sampleapp serve\n" in helped.stdout
    assert "twistd" not in helped.stdout


MISTAKES = [
    (["--port", "80"], 2, "option --port not recognized"),
    (["--nonsense", "80"], 2, "option --nonsense not recognized. See: sampleapp serve --help"),
    (["--lisen", "tcp:80"], 2, "not recognized; did you mean --listen? See: sampleapp serve --help\n"),
    (["--broker", "http://localhost"], 2, "--broker: The scheme of this broker's URL is not known"),
    (["surplus"], 2, "Unexpected argument 'surplus'"),
    (["--max-body", "1k"], 2, "--max-body takes a whole number of bytes"),
]


@pytest.fixture(scope="module")
def mistaken(installed, tmp_path_factory, two_at_a_time):
    """How the service ends with each of these mistakes, and where."""

    def make(command, options):
        directory = tmp_path_factory.mktemp("mistake")
        return two_at_a_time.submit(run, command, installed, directory, *options), directory

    # Each is made with one of the commands, which have the same code behind them.
    commands = cycle(COMMANDS.values())
    return [make(next(commands), options) for options, _, _ in MISTAKES]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[sentence for _, _, sentence in MISTAKES])
def test_a_mistake_is_one_sentence_and_an_exit_code(mistaken, number):
    ended, directory = mistaken[number]
    done = ended.result()
    _, status, sentence = MISTAKES[number]
    assert (done.returncode, done.stdout) == (status, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(directory.iterdir()) == []
