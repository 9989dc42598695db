"""The programs of the page about reading a topic go on after a restart of the service, as it says."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import NamedTuple

import pytest

from tests.support.command import COMMAND, publish
from tests.support.live_service import LiveService
from tests.support.waiting import wait_until

pytestmark = pytest.mark.page

DEADLINE_S = 30
NPM_DEADLINE_S = 60


class Program(NamedTuple):
    file: str
    command: tuple[str, ...] = (sys.executable, "-W", "error")
    has_file: bool = False
    """True if it keeps its position in a file."""
    needs: str | None = None
    """A module of Python that may be missing."""


PROGRAMS = {
    "requests": Program("read_with_requests.py", has_file=True),
    "httpx-sse": Program("read_with_httpx_sse.py", needs="httpx_sse"),
    "twisted": Program("read_with_twisted.py", has_file=True),
    "fetch": Program("read_with_fetch.mjs", command=("node",)),
    "eventsource": Program("read_with_eventsource.mjs", command=("node",)),
    "consume": Program("", command=(COMMAND,)),
}


def has_eventsource(directory):
    """Install npm's package, if there is a registry."""
    if shutil.which("npm") is None:
        return False
    try:
        ended = subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "eventsource"],
            cwd=directory,
            check=False,
            capture_output=True,
            timeout=NPM_DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


class Reader:
    """A program that prints four records, and what it has printed."""

    def __init__(self, program, project, directory, url):
        self._output = directory / "output.txt"
        self._errors = directory / "errors.txt"
        if program.file:
            # A copy: Node.js looks for packages beside the file.
            file = directory / program.file
            shutil.copy(project / "docs/howto" / program.file, file)
            arguments = [str(file), url, "orders", *(["position.txt"] if program.has_file else []), "4"]
        else:
            arguments = ["consume", "orders", "--url", url, "--follow", "--limit", "4"]
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*program.command, *arguments],
                cwd=directory,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_PROXY": "*"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def output(self):
        return self._output.read_text(encoding="utf-8")

    def errors(self):
        return self._errors.read_text(encoding="utf-8")

    def end(self):
        """Wait for the end; return the exit status, which is negative if it has to be killed."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@pytest.fixture(scope="module")
def readers(project, tmp_path_factory):
    """All programs that can run here, at their end; they have read through one restart of the service."""
    directory = tmp_path_factory.mktemp("reading")
    started = {}
    with LiveService(directory=directory) as service:
        publish(service, "orders", "a", "b", key="17")
        for name, program in PROGRAMS.items():
            place = directory / name
            place.mkdir()
            if shutil.which(program.command[0]) is None or (program.needs and not find_spec(program.needs)):
                continue
            if name == "eventsource" and not has_eventsource(place):
                continue
            started[name] = Reader(program, project, place, service.url)
        # Each test says what its program has printed.
        with contextlib.suppress(AssertionError):
            wait_until(
                lambda: all(reader.output().count("\n") == 2 for reader in started.values()),
                "each program has printed what was there",
                deadline_s=DEADLINE_S,
            )
        port = service.url.rstrip("/").rpartition(":")[2]
        service.stop()
        with LiveService(directory=directory, listen=f"tcp:{port}:interface=127.0.0.1") as again:
            publish(again, "orders", "c", "d", key="17")
            codes = {name: reader.end() for name, reader in started.items()}
    return {name: (codes[name], reader.output(), reader.errors()) for name, reader in started.items()}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "consume"])
def test_each_program_prints_each_record_once_through_a_restart_of_the_service(readers, name):
    if name not in readers:
        pytest.skip(f"this machine cannot run the program with {name}")
    assert readers[name] == (0, "0 a\n1 b\n2 c\n3 d\n", "")


def test_the_command_prints_each_record_once_through_a_restart_of_the_service(readers):
    code, shown, errors = readers["consume"]
    assert (code, [json.loads(line)["content"] for line in shown.splitlines()]) == (0, ["a", "b", "c", "d"])
    assert errors.splitlines()[-1:] in (["The service answers again."], [])
