"""
What the pages show, against a service: each command is run, and has to print what the page says.

A ``console`` block holds commands, each after ``$ ``, with what they print below them. Blocks that are
marked, in a comment before them, are

- ``in the background``: its one command goes on while the rest of the page is run; a block marked
  ``in the background, continued`` is what it prints next;
- ``the service``: what the log of the service holds, line by line.

Blocks in another language than ``console`` are not run: they start or install the service.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tests.support.live_service import LiveService

DEADLINE_S = 20
ADDRESS = "127.0.0.1:8080"

MARKDOWN_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>.*?) -->\n)?^```console\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
RST_BLOCK = re.compile(
    r"(?:^\.\. (?P<mark>[^\n:]*)\n)?^\.\. code-block:: console\n\n(?P<text>(?:   [^\n]*\n|\n)+)", re.MULTILINE
)
# What is another each time, and what it is compared as.
CHANGING = (
    (re.compile(r"^Date: .*$", re.MULTILINE), "Date: ..."),
    (re.compile(r'"timestamp":\d{13}'), '"timestamp":...'),
)


class Block(NamedTuple):
    mark: str
    text: str

    def commands(self):
        """The commands, each with what it prints."""
        found = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append([line.removeprefix("$ "), ""])
            elif found and not found[-1][1] and found[-1][0].endswith("\\"):
                found[-1][0] += "\n" + line
            else:
                assert found, f"output before any command: {line}"
                found[-1][1] += line + "\n"
        return [(command, normalised(output)) for command, output in found]


def blocks(text, *, markdown):
    found = []
    for match in (MARKDOWN_BLOCK if markdown else RST_BLOCK).finditer(text):
        lines = match["text"].rstrip().splitlines()
        found.append(
            Block(match["mark"] or "", "\n".join(lines if markdown else [line[3:] for line in lines]))
        )
    return found


def normalised(output):
    """The output, without what is another each time, and without white space at the ends of lines."""
    for pattern, replacement in CHANGING:
        output = pattern.sub(replacement, output)
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


class Session:
    """A terminal in the directory of a service, which it takes to be at the address of the pages."""

    def __init__(self, *, directory, service, patience_s=3):
        """:param patience_s: how long a command that only reads may show something else."""
        self._patience_s = patience_s
        self._directory = directory
        self._service = service
        self._address = service.url.removeprefix("http://").rstrip("/")
        self._background = None
        self._background_shows = ""
        (directory / ".curlrc").write_text("silent\nshow-error\n")
        self._environment = {
            **os.environ,
            "CURL_HOME": str(directory),
            "NO_PROXY": "*",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SAMPLEAPP_URL": service.url,
        }

    def show(self, block):
        """Do what a block says, and fail if something else comes of it."""
        if block.mark == "the service":
            for line in block.text.splitlines():
                self._service.wait_for_output(re.escape(line.replace(ADDRESS, self._address)))
        elif block.mark == "in the background":
            ((command, shown),) = block.commands()
            self._start(command)
            self._expect_of_background(shown)
        elif block.mark == "in the background, continued":
            self._expect_of_background(normalised(block.text))
        else:
            assert block.mark == "", f"an unknown mark: {block.mark}"
            for command, shown in block.commands():
                assert self._eventually(command, shown) == shown, f"is not what this prints: {command}"

    def _eventually(self, command, shown):
        """Run a command; one that only reads, until it shows what was published a moment ago."""
        reads_only = not re.search(r"\bpublish\b| -d ", command)
        until = time.monotonic() + (self._patience_s if reads_only else 0)
        while (printed := self._run(command)) != shown and time.monotonic() < until:
            time.sleep(0.05)
        return printed

    def _run(self, command):
        ended = subprocess.run(
            self._here(command),
            shell=True,
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            encoding="utf-8",
            timeout=DEADLINE_S,
        )
        return normalised(self._there(ended.stdout))

    def _start(self, command):
        assert self._background is None, "one command in the background is enough"
        with (self._directory / "background.txt").open("wb") as output:
            self._background = subprocess.Popen(
                # The signal that ends it is for the command, not for a shell around it.
                f"exec {self._here(command)}",
                shell=True,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _expect_of_background(self, shown):
        self._background_shows = f"{self._background_shows}\n{shown}".strip()
        until = time.monotonic() + DEADLINE_S
        while (printed := self._background_printed()) != self._background_shows and time.monotonic() < until:
            time.sleep(0.05)
        assert printed == self._background_shows

    def _background_printed(self):
        return normalised(self._there((self._directory / "background.txt").read_text(encoding="utf-8")))

    def end(self):
        """End the command in the background as its reader does, with Ctrl-C."""
        if self._background is not None:
            self._background.send_signal(signal.SIGINT)
            assert self._background.wait(DEADLINE_S) == 0
            assert self._background_printed() == self._background_shows

    def abort(self):
        if self._background is not None:
            self._background.kill()
            self._background.wait()

    def _here(self, text):
        return text.replace(ADDRESS, self._address)

    def _there(self, text):
        return text.replace(self._address, ADDRESS)


def show(found, directory):
    with LiveService(directory=directory, broker="sqlite:sampleapp.sqlite3") as service:
        session = Session(directory=directory, service=service)
        try:
            for block in found:
                session.show(block)
            session.end()
        finally:
            session.abort()


needs_curl = pytest.mark.skipif(
    shutil.which("curl") is None, reason="the pages show curl, which this machine does not have"
)


@needs_curl
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.rst"])
def test_every_command_prints_what_the_page_shows(project, tmp_path, page):
    found = blocks((project / page).read_text(encoding="utf-8"), markdown=page.endswith(".md"))
    assert sum(len(block.commands()) for block in found if "$ " in block.text) >= 6
    show(found, tmp_path)


@pytest.mark.parametrize("text", ["$ echo one\ntwo", "$ echo one", "$ true\none", "$ echo one\none\n\ntwo"])
def test_a_page_that_shows_something_else_is_noticed(tmp_path, text):
    session = Session(directory=tmp_path, service=SimpleNamespace(url="http://127.0.0.1:1/"), patience_s=0)
    session.show(Block("", "$ echo one\none"))
    with pytest.raises(AssertionError, match="is not what this prints"):
        session.show(Block("", text))


def test_commands_and_their_output_are_told_apart():
    text = "```console\n$ one \\\n  more\na\n\n$ two\n$ three\nb\n```\n"
    (block,) = blocks(text, markdown=True)
    assert block.commands() == [("one \\\n  more", "a"), ("two", ""), ("three", "b")]


def test_the_client_of_the_how_to_does_what_the_page_says(project, tmp_path):
    with LiveService(directory=tmp_path) as service:
        ended = subprocess.run(
            [sys.executable, "-W", "error", str(project / "docs/howto/forward.py"), service.url],
            input="kitchen 21.5\nhall 19\n",
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=DEADLINE_S,
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        0,
        "kitchen: partition 0, offset 0\nhall: partition 0, offset 1\n",
        "",
    )


def test_every_problem_type_is_in_the_reference(project):
    source = (project / "src/sampleapp/web/problems.py").read_text(encoding="utf-8")
    names = set(re.findall(r'_Row\(\s*_S\.\w+, "([a-z-]+)"', source))
    page = (project / "docs/reference/http.rst").read_text(encoding="utf-8")
    shown = set(re.findall(r"urn:sampleapp:problem:([a-z-]+)", page))
    assert len(names) > 10
    assert names == shown


def test_every_option_is_in_the_reference(project):
    source = (project / "src/sampleapp/options.py").read_text(encoding="utf-8")
    names = {"listen", "help", "version", *re.findall(r'\[\s*"([a-z-]+)",\s*(?:"[a-z]"|None),', source)}
    page = (project / "docs/reference/options.rst").read_text(encoding="utf-8")
    assert len(names) > 6
    assert names == set(re.findall(r"^\.\. option:: --([a-z-]+)", page, re.MULTILINE))
