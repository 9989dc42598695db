"""
The commands of the pages, run with a service.

A ``console`` block has commands, each after ``$ ``, and their output below them, which must be right.
A comment before a block may mark it:

- ``in the background``: its one command continues while the rest of the page is run; a block marked
  ``in the background, continued`` is the next output of that command;
- ``the service``: lines of the service's log;
- ``with SQLite``: its output differs with Kafka, as the text says.

A ``shell`` block has commands without output. Those that call a service, or change its callers file,
must succeed.
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
from textwrap import dedent
from typing import NamedTuple

import pytest

from tests.support.live_service import LiveService

__all__ = [
    "NOT_RUN",
    "NO_SESSIONS",
    "ROOT",
    "SESSIONS",
    "SHELL_BLOCK",
    "SHELL_PAGES",
    "Block",
    "Session",
    "blocks",
    "blocks_of",
    "each_session",
    "each_shell_page",
    "needs_curl",
    "run_session",
    "run_shell",
    "topics_in",
]

ROOT = Path(__file__).parents[2]
HTTP = "docs/reference/http"
SESSIONS = [
    (["README.md"], 6),
    (["docs/index.rst"], 3),
    (["docs/tutorial.rst"], 6),
    (["docs/howto/languages/curl.rst"], 6),
    (["docs/howto/read_a_topic.rst"], 5),
    (["docs/howto/send-again.rst"], 2),
    (["docs/howto/publish-file.rst"], 2),
    (["docs/howto/schemas.rst"], 3),
    ([f"{HTTP}/messages.rst"], 2),
    ([f"{HTTP}/batches.rst"], 3),
    ([f"{HTTP}/topics.rst"], 4),
    ([f"{HTTP}/records.rst"], 3),
    ([f"{HTTP}/readings.rst"], 4),
    ([f"{HTTP}/changes.rst"], 3),
    ([f"{HTTP}/rest-proxy.rst"], 6),
    ([f"{HTTP}/headers.rst"], 2),
    (["docs/reference/options.rst"], 1),
    # Nothing on these pages is published, so they share a service.
    ([f"{HTTP}/probes.rst", f"{HTTP}/errors.rst", f"{HTTP}/access.rst"], 6),
]
"""Pages that share a service, and the least number of their commands, so that missing blocks are noticed."""

OPTIONS = {
    "docs/howto/schemas.rst": ["--schemas", str(ROOT / "docs/howto/schemas")],
    "docs/howto/webhooks.rst": ["--record-query", "event"],
}
"""Options of the service that a page starts, by the page."""

NO_SESSIONS = {
    "docs/explanation/decisions.rst": "it measures",
    "docs/howto/callers.rst": "needs TLS",
    "docs/howto/embed.rst": "test_examples.py runs the program",
}
"""Pages with console blocks that are not run, with the reason."""

WITH_SQLITE = "with SQLite"
NOT_RUN = {
    ("docs/howto/callers.rst", "sampleapp publish readings 21.5 --key kitchen"): "needs a client certificate",
    ("docs/howto/containers.rst", "docker compose"): "needs a container engine",
    ("docs/howto/generate-client.rst", "mkdir sampleapp"): "test_generated_clients.py does it",
    ("docs/howto/production.rst", "curl -s http://127.0.0.1:9090/"): "needs the unit",
    ("docs/howto/read_a_topic.rst", 'curl -i "http'): "its variable is set in the session of the page",
    ("docs/howto/proxies.rst", "curl"): "test_stream_proxies.py has the proxies",
    ("docs/howto/tls.rst", "curl"): "test_tls.py has the certificates",
}
"""Shell blocks that are not run, by page and beginning, with the reason."""

DEADLINE_S = 60
ADDRESS = "127.0.0.1:8080"

MARKDOWN_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>.*?) -->\n)?^```console\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
RST_BLOCK = re.compile(
    r"(?:^\.\. (?P<mark>[^\n:]*)\n)?^( *)\.\. code-block:: console\n\n(?P<text>(?:\2 +[^\n]*\n|\n)+)",
    re.MULTILINE,
)
# Text that differs each time, and its replacement for comparisons.
CHANGING = (
    (re.compile(r"^Date: .*$", re.MULTILINE), "Date: ..."),
    (re.compile(r"^X-Request-Id: .*$", re.MULTILINE), "X-Request-Id: ..."),
    (re.compile(r'"timestamp":\d{13}'), '"timestamp":...'),
    # Only Kafka has leader epochs.
    (re.compile(r"(?<=~)(\d+)e\d+"), r"\1"),
    # Positions begin with the id of the topic.
    (re.compile(r"\b[A-Za-z0-9_-]{1,16}~(?=\d)"), "..."),
    (re.compile(r"^retry: \d+$", re.MULTILINE), "retry: ..."),
    (re.compile(r"^retry: \d+$", re.MULTILINE), "retry: ..."),
    # The id of a topic is random.
    (re.compile(r"[A-Za-z0-9_-]{11,16}(?=~\d)|(?<=has the id )\w+"), "..."),
)


class Block(NamedTuple):
    mark: str
    text: str

    def commands(self):
        """Return the commands, each with its output."""
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
    pattern = MARKDOWN_BLOCK if markdown else RST_BLOCK
    return [Block(match["mark"] or "", dedent(match["text"]).strip()) for match in pattern.finditer(text)]


def normalised(output):
    """Return the output without text that differs each time, and without white space at the ends of lines."""
    for pattern, replacement in CHANGING:
        output = pattern.sub(replacement, output)
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


class Session:
    """A terminal in the directory of a service, with the service's address instead of that of the pages."""

    def __init__(self, *, directory, service, patience_s=30):
        """:param patience_s: how long a command that only reads may print other output."""
        self._patience_s = patience_s
        self._directory = directory
        self._service = service
        self._address = service.url.removeprefix("http://").rstrip("/")
        self._background = None
        self._background_shows = ""
        (directory / ".curlrc").write_text("silent\nshow-error\n")
        make_environment(directory)
        self._environment = environment_of_a_user(directory, service)

    def show(self, block):
        """Run a block, and fail if the output differs."""
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
            assert block.mark in {"", WITH_SQLITE}, f"an unknown mark: {block.mark}"
            for command, shown in block.commands():
                assert self._eventually(command, shown) == shown, f"is not what this prints: {command}"

    def _eventually(self, command, shown):
        """Run a command; repeat a command that only reads until it shows the latest records."""
        reads_only = not re.search(r"\bpublish\b| -d | --data-binary | -X ", command)
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
                # The signal must end the command, not a shell around it.
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
        """End the command in the background with Ctrl-C, like a reader."""
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


def run_session(pages, directory, *, broker="sqlite:sampleapp.sqlite3", options=()):
    """Run the sessions of some pages with one service; fails at the first output that differs."""
    options = [*options, *OPTIONS.get(pages[0], ())]
    with LiveService(directory=directory, broker=broker, options=options) as service:
        session = Session(directory=directory, service=service)
        try:
            for page in pages:
                for block in blocks_of(page):
                    write_files_of(block, directory)
                    if block.mark != WITH_SQLITE or broker.startswith("sqlite:"):
                        session.show(block)
            session.end()
        finally:
            session.abort()


def environment_of_a_user(directory, service):
    """The variables for the commands of a page: without those of the tests, such as the versions of Kafka."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SAMPLEAPP_")},
        "CURL_HOME": str(directory),
        "NO_PROXY": "*",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SAMPLEAPP_URL": service.url,
    }


def make_environment(directory):
    """Make the file that activates the environment of ``make run``, whose commands are on PATH instead."""
    activate = directory / ".venv-run/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.touch()


def write_files_of(block, directory):
    """Write the files that a block shows with ``cat``."""
    for name, text in re.findall(r"^\$ cat (\S+)\n((?:(?!\$ ).*\n?)+)", block.text, re.MULTILINE):
        (directory / name).write_text(text, encoding="utf-8")


def blocks_of(page):
    return blocks((ROOT / page).read_text(encoding="utf-8"), markdown=page.endswith(".md"))


SHELL_BLOCK = re.compile(r"^( *)\.\. code-block:: shell\n\n((?:\1 +[^\n]*\n|\n)+)", re.MULTILINE)
WITH_A_SERVICE = re.compile(
    r"^(?:.*[ (;|/])?(?:curl|sampleapp (?:publish|delete|readings|consume|topics|token|hook)) ", re.MULTILINE
)
GOES_ON = re.compile(r".* (?:--follow|-f) .*|.* --follow")
"""Commands that end with Ctrl-C only; the sessions have those."""


def shell_blocks(page):
    """Return the shell blocks of a page that are run."""
    found = []
    for _, text in SHELL_BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        block = dedent(text).strip()
        commands = [each for each in block.replace("\\\n", "").split("\n") if not GOES_ON.fullmatch(each)]
        is_run = not any(page == where and block.startswith(begin) for where, begin in NOT_RUN)
        if is_run and WITH_A_SERVICE.search("\n".join(commands)):
            found.append("\n".join(commands))
    return found


def all_shell_pages():
    pages = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.rst"))
    return {page: found for page in pages if (found := shell_blocks(page))}


SHELL_PAGES = all_shell_pages()

TOPICS = re.compile(
    r"\"topic\": ?\"(\w+)\"|/topics/(\w+)|sampleapp (?:publish|delete|consume) (\w+)|topic: \"(\w+)\""
)


def topics_in(texts):
    """Return the topics in some commands, and the readings topic; not those that are shown to be absent."""
    text = "\n".join(texts)
    found = {name for names in TOPICS.findall(text) for name in names if name}
    return sorted({*found, "readings"} - set(re.findall(r"The topic (\w+) does not exist", text)))


def run_shell(page, directory, *, broker="sqlite:sampleapp.sqlite3", options=()):
    """Run the shell blocks of a page, each of which must succeed; the topics exist, with a record."""
    found = SHELL_PAGES[page]
    (directory / "callers.toml").write_text(f'[[callers.first.tokens]]\nsha256 = "{"0" * 64}"\n')
    (directory / ".curlrc").write_text("silent\nshow-error\nfail\n")
    make_environment(directory)
    for name in ("events.txt", "orders.txt", "token"):
        (directory / name).write_text("one\ntwo\n")
    options = [*options, *OPTIONS.get(page, ())]
    has_callers = any("--token-file" in block for block in found)
    if has_callers:
        options = [*options, "--callers", "callers.toml"]
    with LiveService(directory=directory, broker=broker, options=options) as service:
        places = {
            "/etc/sampleapp": str(directory),
            "/etc/prometheus": str(directory),
            "/opt/sampleapp/bin/": "",
            # The URL of a broker on a page is that of the service's own.
            "sqlite:/var/lib/sampleapp/records.sqlite3": broker,
            "kafka://127.0.0.1:9092": broker,
            "--broker URL": f"--broker {broker}",
            "http://127.0.0.1:8080/": service.url,
            "https://service.example:8443/": service.url,
            "https://service.example/": service.url,
        }
        pattern = re.compile("|".join(map(re.escape, places)))
        before = (
            []
            if has_callers
            else [f"curl -d 1 {service.url}topics/{each}?key=17" for each in topics_in(found)]
        )
        for block in [*before, *found]:
            succeed(pattern.sub(lambda match: places[match[0]], block), directory, service)


def succeed(block, directory, service):
    """Run a block until it succeeds; a new callers file is read within five seconds."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        ended = subprocess.run(
            ["sh", "-e", "-c", block],
            cwd=directory,
            env=environment_of_a_user(directory, service),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=DEADLINE_S,
        )
        if ended.returncode == 0:
            return
        assert time.monotonic() < until_s, f"{block}\n{ended.stdout}{ended.stderr}"
        time.sleep(0.2)


needs_curl = pytest.mark.skipif(
    shutil.which("curl") is None, reason="the pages show curl, which this machine does not have"
)


def each_session(function):
    """Run a test for each session, with the names of its pages and the least number of its commands."""
    mark = pytest.mark.parametrize(
        ("pages", "commands"), SESSIONS, ids=[Path(pages[0]).name for pages, _ in SESSIONS]
    )
    return needs_curl(mark(function))


def each_shell_page(function):
    """Run a test for each page with shell blocks that call a service."""
    return needs_curl(pytest.mark.parametrize("page", SHELL_PAGES)(function))
