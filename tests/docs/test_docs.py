"""
The commands of the pages are run with a service, and must print the output on the page, or succeed.

`tests.docs.pages` runs them. Blocks in another language than ``console`` start or install the service.
Those of ``README.md`` are run by a test of their own, with a twistd on a free port; those of the tutorial are
not run.
"""

from __future__ import annotations

import ast
import contextlib
import grp
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import metadata
from pathlib import Path
from textwrap import dedent
from threading import Thread
from types import SimpleNamespace

import pytest
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins

from sampleapp import DISTRIBUTION
from sampleapp.access.signatures import HMACScheme
from sampleapp.cli import main
from sampleapp.web.errors import FAULT, ROWS
from sampleapp.web.server import Fields
from tests.docs.pages import (
    NO_SESSIONS,
    NOT_RUN,
    SESSIONS,
    Block,
    Session,
    blocks,
    blocks_of,
    each_session,
    each_shell_page,
    needs_curl,
    run_session,
    run_shell,
)
from tests.docs.pages import SHELL_BLOCK as ANY_SHELL_BLOCK
from tests.support.certificates import Authority
from tests.support.command import stored
from tests.support.live_service import LiveService

DEADLINE_S = 20
GO_DEADLINE_S = 300


@pytest.mark.page
@each_session
def test_every_command_prints_what_the_page_shows(tmp_path, pages, commands):
    assert (
        sum(len(block.commands()) for page in pages for block in blocks_of(page) if "$ " in block.text)
        >= commands
    )
    run_session(pages, tmp_path)


@pytest.mark.page
@each_shell_page
def test_every_command_of_a_page_succeeds(tmp_path, page):
    run_shell(page, tmp_path)


def test_every_page_with_a_session_is_run_or_says_why_not(project):
    pages = {path.relative_to(project).as_posix(): path for path in (project / "docs").rglob("*.rst")}
    with_sessions = {
        name for name, path in pages.items() if ".. code-block:: console" in path.read_text(encoding="utf-8")
    }
    run = {page for pages, _ in SESSIONS for page in pages} - {"README.md"}
    assert run & set(NO_SESSIONS) == set()
    assert with_sessions == run | set(NO_SESSIONS)


def test_every_block_that_is_not_run_is_on_its_page(project):
    for page, begin in NOT_RUN:
        found = ANY_SHELL_BLOCK.findall((project / page).read_text(encoding="utf-8"))
        assert any(dedent(block).strip().startswith(begin) for _, block in found), (page, begin)


SHELL_BLOCK = re.compile(r"^```shell\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE_COMMAND = re.compile(r"`(make [^`]+)`")
LISTENING = re.compile(r"Listening at http://127\.0\.0\.1:\d+/")


@pytest.fixture
def sources(project, tmp_path):
    """
    A directory that looks like the sources after ``make run`` has installed the service.

    Its two commands are those of this environment, with one more endpoint, on a free port.
    """
    for name in ["Makefile", "setup.py", "pyproject.toml", "src", "twisted"]:
        (tmp_path / name).symlink_to(project / name)
    directory = tmp_path / ".venv-run/bin"
    directory.mkdir(parents=True)
    for name, run in [
        ("twistd", "from twisted.scripts.twistd import run; run()"),
        ("sampleapp", "from sampleapp.cli import main; main()"),
    ]:
        command = directory / name
        command.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -c "{run}" "$@" --listen tcp:0:interface=127.0.0.1\n'
        )
        command.chmod(0o755)
    installed = tmp_path / ".venv-run/installed"
    installed.touch()
    ahead_s = time.time() + 86_400
    os.utime(installed, (ahead_s, ahead_s))
    return tmp_path


def commands_of_readme(project):
    text = (project / "README.md").read_text(encoding="utf-8")
    joined = "\n".join(SHELL_BLOCK.findall(text)).replace("\\\n", "")
    lines = [line.split("  #")[0].strip() for line in joined.splitlines()]
    return [line for line in [*lines, *INLINE_COMMAND.findall(text)] if line]


def test_every_kind_of_block_in_the_readme_is_run(project):
    text = (project / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^```(\w*)$", text, re.MULTILINE)) == {"console", "shell", ""}
    assert {command.split()[0] for command in commands_of_readme(project)} == {"make", "twistd"}


@pytest.mark.page
def test_what_starts_the_service_in_the_readme_starts_it(project, sources):
    Authority(sources)
    (sources / "kafka-credentials").write_text("username=a\npassword=b\n")
    (sources / "kafka-credentials").chmod(0o600)
    starts = [each for each in commands_of_readme(project) if each.startswith(("make run", "twistd"))]
    assert len(starts) >= 4
    for command in dict.fromkeys(starts):
        # The port may be taken on this machine.
        on_a_free_port = command.replace("tcp:9090:", "tcp:0:")
        shown = what_it_prints_until(LISTENING, on_a_free_port, directory=sources)
        assert LISTENING.search(shown), f"{command}\n{shown}"


def what_it_prints_until(pattern, command, *, directory):
    running = subprocess.Popen(
        command,
        shell=True,
        cwd=directory,
        env={**os.environ, "PATH": f"{directory}/.venv-run/bin{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    )
    shown = ""
    try:
        for line in running.stdout:
            shown += line
            if pattern.search(line):
                break
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=DEADLINE_S)
    return shown


def test_what_else_the_readme_has_make_do_is_there(project):
    others = [
        each for each in commands_of_readme(project) if each.startswith("make") and "make run" not in each
    ]
    assert set(others) == {"make test", "make test-all", "make chaos", "make docs"}
    for command in others:
        subprocess.run([*command.split(), "--dry-run"], cwd=project, check=True, stdout=subprocess.DEVNULL)


def test_one_sentence_says_what_sampleapp_is_everywhere(project):
    from sampleapp.service.command_line import CommandLine

    sentence = (
        "an HTTP gateway to Apache Kafka: publish messages with POST, get the response once they are stored, "
        "and read topics as pages or event streams."
    )
    for page in ["README.md", "docs/index.rst"]:
        assert f"sampleapp is {sentence}" in " ".join((project / page).read_text(encoding="utf-8").split())
    (plugin,) = [each for each in getPlugins(IServiceMaker) if each.tapname == "sampleapp"]
    for told in [plugin.description, CommandLine.longdesc, main.help, metadata(DISTRIBUTION)["Summary"]]:
        assert f"A{sentence[1:]}" in " ".join(told.split())


def test_a_package_index_gets_no_link_that_leads_nowhere():
    description = metadata(DISTRIBUTION).get_payload() or metadata(DISTRIBUTION)["Description"]
    targets = re.findall(r"\]\(([^)]*)\)", description)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "Glossary (`docs/reference/glossary.rst`)".casefold() in description.casefold()


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


@pytest.mark.page
def test_the_client_of_the_how_to_does_what_the_page_says(project, tmp_path):
    with LiveService(directory=tmp_path) as service:
        ended = subprocess.run(
            [sys.executable, "-W", "error", str(project / "docs/howto/forward.py"), service.url],
            input="kitchen 21.5\ndamp\nhall 19\n",
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=DEADLINE_S,
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        0,
        "kitchen: partition 0, offset 0\nhall: partition 0, offset 1\n",
        "not an id and a number: 'damp\\n'\n",
    )


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with LiveService(directory=tmp_path_factory.mktemp("pages")) as service:
        yield service


def printed_by(*command, deadline_s=DEADLINE_S):
    ended = subprocess.run(
        list(map(str, command)), capture_output=True, check=False, encoding="utf-8", timeout=deadline_s
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.page
def test_the_program_with_requests_publishes_a_batch_a_body_and_a_tombstone(project, service):
    code, shown, errors = printed_by(sys.executable, project / "docs/howto/with_requests.py", service.url)
    assert (code, errors) == (0, "")
    batch, body, tombstone = shown.splitlines()
    assert batch == "published: 3"
    assert (body[:4], json.loads(body[4:])["topic"]) == ("200 ", "webhooks")
    assert (tombstone[:4], json.loads(tombstone[4:])["topic"]) == ("200 ", "readings")


@pytest.mark.page
def test_the_program_with_httpx_publishes_its_batches_in_order(project, service):
    pytest.importorskip("httpx")
    shown = printed_by(sys.executable, "-W", "error", project / "docs/howto/with_httpx.py", service.url)
    assert shown == (0, "published: 1000\n", "")
    contents = {}
    for key, content in stored(service, "events"):
        contents.setdefault(key, []).append(int(content))
    assert contents == {f"sensor-{sensor}": list(range(100)) for sensor in range(10)}


@pytest.mark.skipif(shutil.which("node") is None, reason="this machine has no Node.js")
@pytest.mark.page
def test_the_program_with_fetch_publishes_a_batch_a_body_and_a_tombstone(project, service):
    code, shown, errors = printed_by("node", project / "docs/howto/with_fetch.mjs", service.url)
    assert (code, errors) == (0, "")
    assert re.fullmatch(
        r"\[ \d+, \d+ \]\n"
        r"200 \{ topic: 'webhooks', partition: 0, offset: \d+ \}\n"
        r"200 \{ topic: 'readings', partition: 0, offset: \d+ \}\n",
        shown,
    )


PLACE = '{"topic":"orders","partition":0,"offset":0}\n'


class FailingServer(BaseHTTPRequestHandler):
    """Cuts the first connection, then answers 504, then 503, and then 200 to each request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        attempts = self.server.attempts
        attempts.append((self.headers["Idempotency-Key"], json.loads(body)))
        if len(attempts) == 1:
            self.close_connection = True
            return
        status = {2: 504, 3: 503}.get(len(attempts), 200)
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", "0")
        if status == 200:
            self.send_header("Idempotent-Replayed", "true")
        self.send_header("Content-Length", str(len(PLACE)))
        self.end_headers()
        self.wfile.write(PLACE.encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def failing_server():
    with ThreadingHTTPServer(("127.0.0.1", 0), FailingServer) as server:
        server.attempts = []
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(DEADLINE_S)


@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-W", "error", "send_again.py"),
        (sys.executable, "-W", "error", "send_again_with_httpx.py"),
        (sys.executable, "-W", "error", "send_again_with_twisted.py"),
        pytest.param(
            ("node", "send_again.mjs"),
            marks=pytest.mark.skipif(shutil.which("node") is None, reason="this machine has no Node.js"),
        ),
        pytest.param(
            ("go", "run", "send_again.go"),
            marks=pytest.mark.skipif(shutil.which("go") is None, reason="this machine does not have Go"),
        ),
    ],
    ids=["requests", "httpx", "twisted", "fetch", "go"],
)
@pytest.mark.page
def test_the_programs_that_send_again_do_so_with_the_same_key_until_the_outcome_is_known(
    project, service, command
):
    *start, name = command
    if "httpx" in name:
        pytest.importorskip("httpx")
    program = (*start, project / "docs/howto" / name)

    def outcome(*arguments):
        """Return whether the program says that an earlier request published the record, and its offset."""
        code, shown, errors = printed_by(*program, *arguments, deadline_s=GO_DEADLINE_S)
        assert (code, errors) == (0, "")
        return "published before" in shown, int(re.findall(r"\d+", shown)[-1])

    with failing_server() as server:
        assert outcome(f"http://127.0.0.1:{server.server_port}/") == (True, 0)
    assert len(server.attempts) == 4
    ((key, message),) = {(key, json.dumps(message)) for key, message in server.attempts}
    assert len(key.strip('"')) in {32, 36}
    assert json.loads(message) == {"topic": "orders", "key": "17", "content": "paid"}
    before = stored(service, "orders")
    assert outcome(service.url, "a-key-of-" + name) == (False, len(before))
    assert outcome(service.url, "a-key-of-" + name) == (True, len(before))
    assert stored(service, "orders") == [*before, ("17", "paid")]


@needs_curl
@pytest.mark.skipif(shutil.which("openssl") is None, reason="this machine does not have openssl")
@pytest.mark.page
def test_the_command_of_curl_that_sends_again_does_so_with_the_same_key(project):
    page = (project / "docs/howto/send-again.rst").read_text(encoding="utf-8")
    command = dedent(re.search(r"^ +curl --retry .*\n(?: .*\n)+", page, re.MULTILINE)[0])
    with failing_server() as server:
        here = command.replace("127.0.0.1:8080", f"127.0.0.1:{server.server_port}")
        code, shown, _ = printed_by("sh", "-c", here, deadline_s=60)
    # It prints the answers that it repeats after, too: they are empty here.
    assert (code, shown) == (0, PLACE + PLACE + PLACE)
    ((key, message),) = {(key, json.dumps(message)) for key, message in server.attempts}
    assert (len(server.attempts), len(key)) == (4, 32)
    assert json.loads(message) == {"topic": "orders", "key": "17", "content": "paid"}


@pytest.mark.skipif(shutil.which("go") is None, reason="this machine does not have Go")
@pytest.mark.page
def test_the_program_in_go_publishes_a_batch_a_body_and_a_tombstone(project, service):
    # It is compiled first, together with Go's HTTP library.
    code, shown, errors = printed_by(
        "go", "run", project / "docs/howto/with_go.go", service.url, deadline_s=GO_DEADLINE_S
    )
    assert (code, errors) == (0, "")
    assert re.fullmatch(
        r"2 <nil>\n"
        r'200 <nil> \{"topic":"webhooks","partition":0,"offset":\d+\}\n'
        r'200 <nil> \{"topic":"readings","partition":0,"offset":\d+\}\n',
        shown,
    )


@needs_curl
@pytest.mark.page
def test_the_script_with_curl_publishes_a_file_or_says_which_line_is_wrong(project, service, tmp_path):
    script, file = project / "docs/howto/publish-batch.sh", tmp_path / "batch.jsonl"
    file.write_text('{"topic": "script", "content": "1"}\n{"topic": "script", "content": "2"}\n')
    assert printed_by(script, file, service.url) == (0, "", "")
    assert stored(service, "script") == [(None, "1"), (None, "2")]
    file.write_text('{"topic": "script", "content": "1"}\n{"topic": "script"}\n')
    code, shown, errors = printed_by(script, file, service.url)
    assert (code, shown) == (1, "")
    assert [fault["pointer"] for fault in json.loads(errors)["errors"]] == ["/1/content"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_script_of_a_device_signs_as_the_scheme_hmac_has_it(project, tmp_path):
    (tmp_path / "secret").write_text("the secret of a meter\n")
    curl = tmp_path / "curl"
    curl.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    curl.chmod(0o700)
    sent = subprocess.run(
        [
            project / "docs/howto/send-signed.sh",
            "http://h/hooks/meters",
            tmp_path / "secret",
            "kitchen",
            "21.5",
        ],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    names = ("X-Signature: ", "X-Meter: ")
    fields = Fields([tuple(each.encode().split(b": ")) for each in sent if each.startswith(names)])
    claim = HMACScheme("x-signature", prefix=b"sha256=").claim(fields, now_s=0, tolerance_s=1)
    claim.verify(b"21.5", [b"the secret of a meter"])
    assert (sent[-1], fields.all(b"X-Meter")) == ("21.5", (b"kitchen",))


def test_no_code_is_wider_than_a_page(project):
    # The width of the theme at 1280 pixels; blocks of "console" and "text" wrap.
    widest = 88
    found = {}
    for page in sorted((project / "docs").rglob("*.rst")):
        text = page.read_text(encoding="utf-8")
        # A block ends where the indentation does: in a list, more text may follow.
        for _, language, block in re.findall(
            r"^( *)\.\. code-block:: (\w+)\n\n((?:\1 +[^\n]*\n|\n)+)", text, re.MULTILINE
        ):
            if language not in {"console", "text"}:
                found[page.name] = max(found.get(page.name, 0), *map(len, dedent(block).splitlines()))
    for shown in [*(project / "docs/examples").iterdir(), *(project / "docs/howto").iterdir()]:
        if shown.suffix not in {".py", ".mjs", ".go", ".sh", ".service", ".socket", ".conf"}:
            continue
        found[shown.name] = max(map(len, shown.read_text(encoding="utf-8").splitlines()))
    assert {"kafka.rst", "forward.py", "sampleapp.service", "nginx.conf"} <= found.keys()
    assert {name: width for name, width in found.items() if width > widest} == {}


ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(ANALYZE is None, reason="this machine has no systemd-analyze")
def test_systemd_understands_the_units_of_the_how_to(project, tmp_path):
    names = ["sampleapp.service", "sampleapp.socket", "sampleapp@.service"]
    change = "sampleapp.service.d/production.conf"
    (tmp_path / change).parent.mkdir()
    for name in [*names, change]:
        unit = (project / "docs/howto" / Path(name).name).read_text(encoding="utf-8")
        # It checks that the program exists.
        (tmp_path / name).write_text(unit.replace("/opt/sampleapp/bin/twistd", sys.executable))
    units = [tmp_path / name.replace("@", "@9091") for name in names]
    verified = subprocess.run(
        [ANALYZE, "verify", "--man=no", *units],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=DEADLINE_S,
    )
    about_ours = [line for line in verified.stdout.splitlines() if "sampleapp" in line]
    assert (verified.returncode, about_ours) == (0, [])


def test_instances_are_as_confined_as_a_single_service(project):
    def confinement(name):
        unit = (project / "docs/howto" / name).read_text(encoding="utf-8")
        return unit.partition("# It can write")[2]

    assert confinement("sampleapp@.service") == confinement("sampleapp.service") != ""


def unit_settings(text):
    """Return the settings of a unit, the values of each name in a list."""
    found = {}
    for line in text.replace("\\\n", "").splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_has_the_directories_that_the_pages_name(project):
    unit = unit_settings((project / "docs/howto/sampleapp.service").read_text(encoding="utf-8"))
    directories = {
        "/run": unit["RuntimeDirectory"],
        "/var/lib": unit["StateDirectory"],
        "/var/log": unit["LogsDirectory"],
    }
    pages = "\n".join(
        page.read_text(encoding="utf-8") for page in sorted((project / "docs/howto").glob("*.rst"))
    )
    for place, names in directories.items():
        assert set(re.findall(rf"(?<=[ :=]){place}/(?!secrets)([\w.-]+)/", pages)) == set(names)
    # A user for the time of one run owns nothing that an operator could make before.
    assert unit["User"] == ["sampleapp"]
    assert "DynamicUser" not in unit


def test_the_service_can_read_the_files_that_an_operator_makes_as_the_pages_say(project, tmp_path):
    """The group of this process is that of the service. A file for its owner only would not be readable."""
    group = grp.getgrgid(os.getgid()).gr_name
    directory, elsewhere = tmp_path / "etc", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for page, begins in [
        ("systemd", "useradd"),
        ("callers", "umask"),
        ("webhooks", "install"),
        ("webhooks", "sampleapp hook github"),
        ("kafka", "install -m 0640 -g sampleapp /dev/null"),
        ("kafka", "install -m 0640 -g sampleapp new-credentials"),
    ]:
        text = (project / f"docs/howto/{page}.rst").read_text(encoding="utf-8")
        (block,) = (
            dedent(block)
            for block in re.findall(r"^ *\.\. code-block:: shell\n\n((?: +[^\n]*\n|\n)+)", text, re.MULTILINE)
            if block.strip().startswith(begins)
        )
        (elsewhere / "new-credentials").write_text("username=a\npassword=b\n")
        script = re.sub(r"^useradd .*\\\n.*\n", "", block)
        assert (begins == "useradd") == (script != block)
        script = script.replace("/etc/sampleapp", str(directory)).replace("-g sampleapp", f"-g {group}")
        subprocess.run(
            ["sh", "-e", "-c", script],
            cwd=elsewhere,
            check=True,
            input="a secret\n",
            stdout=subprocess.DEVNULL,
            encoding="utf-8",
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        )
    made = {path.name: path.stat() for path in [directory, *directory.iterdir()]}
    assert set(made) == {"etc", "callers.toml", "github.secret", "kafka-credentials"}
    assert {name: oct(status.st_mode & 0o077) for name, status in made.items()} == {
        "etc": "0o50",
        "callers.toml": "0o40",
        "github.secret": "0o40",
        "kafka-credentials": "0o40",
    }


def test_the_unit_for_production_starts_a_service(project, tmp_path):
    change = unit_settings((project / "docs/howto/production.conf").read_text(encoding="utf-8"))
    variables = dict(value.split("=", 1) for value in change["Environment"])
    reset, command = change["ExecStart"]
    assert reset == ""
    for name, value in variables.items():
        command = command.replace(f"${{{name}}}", value)
    program, *arguments = (
        command.replace("/etc/sampleapp", str(tmp_path)).replace("/var/log/sampleapp", str(tmp_path)).split()
    )
    assert program == "/opt/sampleapp/bin/twistd"
    server = Authority(tmp_path).server()
    server.certificate.rename(tmp_path / "certificate.pem")
    server.key.rename(tmp_path / "key.pem")
    (tmp_path / "kafka-credentials").write_text("username=a\npassword=b\n")
    (tmp_path / "kafka-credentials").chmod(0o600)
    digest = "0" * 64
    (tmp_path / "callers.toml").write_text(
        f'[callers.archive]\nread = true\ntokens = [{{sha256 = "{digest}"}}]\n'
    )
    checked = subprocess.run(
        [Path(sys.executable).with_name("twistd"), *arguments, "--check"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_first_page_describes_each_page_in_the_order_of_the_menu(project):
    page = (project / "docs/index.rst").read_text(encoding="utf-8")
    menu = re.findall(r"^   ([a-z][\w/-]+)$", page, re.MULTILINE)
    assert re.findall(r"^- :doc:`([\w/-]+)`: \S", page, re.MULTILINE) == menu
    assert len(menu) > 40


def test_the_page_for_production_has_a_row_for_each_file_of_its_unit(project):
    page = (project / "docs/howto/production.rst").read_text(encoding="utf-8")
    change = (project / "docs/howto/production.conf").read_text(encoding="utf-8")
    rows = re.findall(r"^   \* - ``/etc/sampleapp/([\w.-]+)``$", page, re.MULTILINE)
    assert sorted(rows) == sorted(set(re.findall(r"/etc/sampleapp/([\w.-]+)", change)))


def test_the_pages_about_kubernetes_probe_as_the_manifest_does(project):
    manifest = (project / "deploy/kubernetes/deployment.yaml").read_text(encoding="utf-8")
    (row,) = re.findall(
        r"^   \* - Kubernetes\n(.*?)(?=^   \* - )",
        (project / "docs/howto/operations.rst").read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    probed = set(re.findall(r"httpGet: \{path: (/\w+), port: admin\}", manifest))
    (delay,) = re.findall(r'SAMPLEAPP_DRAIN_DELAY, value: "(\d+)"', manifest)
    assert set(re.findall(r"``(/\w+)``", row)) == probed == {"/live"}
    assert re.findall(r"--drain-delay (\d+)", row) == [delay]
    page = (project / "docs/howto/containers.rst").read_text(encoding="utf-8")
    assert "All probes ask ``/live``" in page
    assert f"for {delay} seconds more" in page


# Texts of Twisted and of other programs, and one that is made from two.
NOT_OURS = {
    "address already in use",
    "another twistd server is running",
    "permission denied",
    "twistd.pid",
}


def test_the_page_about_troubleshooting_has_the_lines_of_the_log_as_the_code_has_them(project):
    texts = "\n".join(
        node.value.lower()
        for path in (project / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    page = (project / "docs/howto/troubleshooting.rst").read_text(encoding="utf-8").partition("Symptoms")[0]
    lines = re.findall(r"``(.*?)``", " ".join(re.findall(r"^   (``.*?) \| ", page, re.MULTILINE)))
    parts = {part.strip(" .,:()").lower() for line in lines for part in re.split("…|; ", line)}
    assert len(parts) > 50
    assert {part for part in parts if part not in texts} == NOT_OURS


def test_the_lines_by_which_operators_judge_storing_are_about_storing_alone(project):
    page = (project / "docs/howto/operations.rst").read_text(encoding="utf-8")
    (row,) = re.findall(r"^Can it store records\?\n((?:   .*\n)+)", page, re.MULTILINE)
    phrases = re.findall(r"``((?:is )[\w ]+)``", row)
    assert phrases == ["is unreachable", "is not ready", "is ready again"]
    logged = {
        (path.name, phrase)
        for path in (project / "src").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and re.search(r"_?log\.(info|warn|error|failure)$", ast.unparse(call.func))
        for phrase in phrases
        if phrase in ast.unparse(call)
    }
    # The others are the beginning of its lines about `WRITING`.
    assert logged == {("health.py", "is ready again")}


UNITS = {"seconds": 1, "KiB": 1024, "MiB": 1024**2, "": 1}


def test_a_page_that_gives_the_value_of_an_option_gives_its_default(project):
    from sampleapp.service.options import OPTIONS

    defaults = {option.name: option.default for option in OPTIONS if option.kind}
    found = 0
    for page in sorted((project / "docs").rglob("*.rst")):
        text = " ".join(page.read_text(encoding="utf-8").split())
        for name, number, unit in re.findall(
            r":option:`--([\w-]+)(?: <[^>]*>)?` \(([\d,]+) ?(seconds|KiB|MiB|)\b", text
        ):
            value = int(number.replace(",", "")) * UNITS[unit]
            assert (page.name, name, value) == (page.name, name, int(defaults[name]))
            found += 1
    assert found > 5


def test_every_problem_type_is_in_the_reference(project):
    names = {row.name for row in ROWS.values()} - {None}
    page = (project / "docs/reference/http/errors.rst").read_text(encoding="utf-8")
    shown = set(re.findall(r"urn:sampleapp:problem:([a-z-]+)", page))
    assert len(names) > 10
    assert names == shown


def test_every_header_that_cors_names_is_in_the_reference(project):
    page = (project / "docs/reference/http/access.rst").read_text(encoding="utf-8")
    (section,) = re.findall(r"^\.\. _cors:\n(.*?)^\.\. ", page, re.DOTALL | re.MULTILINE)
    source = (project / "src/sampleapp/web/cors.py").read_text(encoding="utf-8")
    lists = re.findall(r"^_(?:ALLOWED|EXPOSED)_HEADERS: Final = \((.*?)^\)", source, re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"[\w-]{2,}(?=, |\")", "".join(lists)))
    assert {"Accept", "Idempotency-Key", "ETag", "Idempotent-Replayed", "X-Request-Id"} <= named
    assert named - set(re.findall(r"``([\w-]+)``", section)) == set()


def test_every_status_is_on_the_screen_of_status_codes(project):
    page = (project / "docs/reference/http/index.rst").read_text(encoding="utf-8")
    shown = {int(status) for status in re.findall(r"^   \* - :index:`!(\d+)`$", page, re.MULTILINE)}
    assert shown == {*(row.status for row in ROWS.values()), FAULT.status, 200, 204, 304}


def test_the_reference_has_every_option_in_the_groups_and_the_order_of_help(project):
    from sampleapp.service.options import GROUPS

    page = (project / "docs/reference/options.rst").read_text(encoding="utf-8")
    shown: dict[str, list[str]] = {}
    for title, option in re.findall(r"^(\w+)\n-+$|^\.\. service-option:: ([a-z-]+)", page, re.MULTILINE):
        if title:
            names = shown.setdefault(title, [])
        else:
            names.append(option)
    shown = {title: names for title, names in shown.items() if names}
    assert list(shown) == list(GROUPS)
    assert shown == {title: [option.name for option in group] for title, group in GROUPS.items()}


def test_the_page_about_kafka_has_the_default_of_each_option(project):
    from sampleapp.brokers.kafka.config import parse

    page = (project / "docs/reference/kafka.rst").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^``(\w+)``: .* Default: ``([\w.]+)``", page, re.MULTILINE))
    assert len(shown) > 5
    assert parse("kafka://kafka1?" + "&".join(f"{name}={value}" for name, value in shown.items())) == parse(
        "kafka://kafka1"
    )


def test_the_page_about_kafka_has_the_versions_of_each_request(project):
    from sampleapp.brokers.kafka import protocol

    page = (project / "docs/reference/kafka.rst").read_text(encoding="utf-8")
    shown = re.findall(r"^   ``(\w+)`` \| (\d+) to (\d+) \|", page, re.MULTILINE)
    apis = {each.api for each in vars(protocol).values() if hasattr(each, "api")}
    assert sorted(shown) == sorted((api.name, str(api.lowest), str(api.highest)) for api in apis)
    assert [name for name, *_ in shown[:4]] == [api.name for api in protocol.REQUIRED]


def test_the_page_about_brokers_has_the_facts_of_each_error(project):
    from sampleapp.errors import PublishError

    page = (project / "docs/reference/broker.rst").read_text(encoding="utf-8")
    rows = re.findall(r"^``(\w+)`` +(yes|no) +(yes|no)$", page, re.MULTILINE)
    shown = {name: (retriable == "yes", possibly == "yes") for name, retriable, possibly in rows}
    assert shown == {
        error.__name__: (error.retriable, error.possibly_published) for error in subclasses(PublishError)
    }


def subclasses(parent):
    """The classes below a class that come from the same module."""
    for child in parent.__subclasses__():
        if child.__module__ == parent.__module__:
            yield child
            yield from subclasses(child)
