"""What the command makes of its arguments, before it does anything."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from sampleapp.cli import main
from tests.support.command import COMMAND, sampleapp
from tests.support.free_ports import rejecting_port


@pytest.mark.parametrize(
    "arguments", [[], ["publish"], ["delete"], ["readings"], ["consume"], ["topics"], ["work"]]
)
def test_every_command_has_help_with_examples(arguments):
    shown = CliRunner().invoke(main, [*arguments, "--help"])
    assert shown.exit_code == 0
    assert "Examples:" in shown.output


def test_the_command_line_itself_needs_no_twisted():
    script = "import sys, sampleapp.cli; print(sorted({'twisted', 'treq', 'klein'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


def test_the_version_is_that_of_the_distribution():
    version = importlib.metadata.version("sampleapp-http-gateway")
    assert CliRunner().invoke(main, ["--version"]).output == f"sampleapp, version {version}\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["publish", "t"], "either CONTENT"),
        (["publish", "t", "c", "--lines", "-"], "either CONTENT"),
        (["publish", "t", "--lines", "no-such-file"], "does not exist"),
        (["publish", "t", "--lines", "-", "--in-flight", "0"], "not in the range"),
        (["publish", "t", "\udcff"], "it is not UTF-8."),
        (["publish", "t", "c", "--key", "\udcff"], "Invalid value for '--key': it is not UTF-8."),
        (["publish", "t", "c", "--raw", "-"], "either CONTENT (- for stdin), or --"),
        (["publish", "t", "--raw", "-", "--header", "a=1"], "With --raw, a record has a key at most"),
        (["publish", "t", "c", "--header", "a"], "takes NAME=VALUE; there is no = in it."),
        (["publish", "t", "c", "--header", "a=1", "--header", "a=2"], "'a' is given twice."),
        (["publish", "t", "c", "--header", "a=\udcff"], "it is not UTF-8."),
        (
            ["publish", "t", "c", "--timestamp", "2026-11-21T08:00:00"],
            "is not a date-time of RFC 3339 with an offset",
        ),
        (["publish", "t", "c", "--timestamp", "-1"], "milliseconds since 1970 in 12 to 14 digits"),
        (["publish", "t", "c", "--timestamp", "1795363727"], "looks like seconds, not milliseconds"),
        (["publish", "t", "c", "--timestamp", "1795363727918000"], "looks like microseconds"),
        (["delete", "t"], "Missing argument 'KEY'"),
        (["publish", "t", "--kye", "k", "c"], "No such option"),
        (["publish", "t", "--kye", "k", "-5.5"], "unexpected extra argument"),
        (["publish", "t", "--- attention ---"], 'An argument that begins with a dash must follow "--"'),
        (["publish", "t", "c", "--url", "localhost:8080"], "is not a URL such as"),
        (["publish", "t", "--base64", "!!!"], "Invalid value for 'CONTENT': it is not base64"),
        (["publish", "no/topic", "c"], "'no/topic' is not the name of a topic: 1 to 249 characters"),
        (["delete", "..", "k"], "'..' is not the name of a topic"),
        (["consume", ".."], "'..' is not the name of a topic"),
        (["delete", "t", "-k"], 'An argument that begins with a dash must follow "--".'),
        (["token", "-k"], 'An argument that begins with a dash must follow "--".'),
        (
            ["hook", "h", "--topic", "t", "--scheme", "githb"],
            "did you mean github?",
        ),
        (["hook", "h", "--topic", "t", "--scheme", "hmac"], "hooks.h has no header"),
        (["hook", "h", "--topic", "..", "--scheme", "github"], "hooks.h.topic"),
        (["hook", "h", "--topic", "t", "--scheme", "github", "--url", "x"], "is not a URL such as"),
        (["readings", "--version", "3"], "is not one of"),
        (["consume", "t", "--broker", "sqlite:no-such-file"], "there is no file 'no-such-file'"),
        (["consume", "t", "--from", "yesterday"], '"yesterday" is none of these'),
        (["consume", "t", "--from", "42"], 'it is "offset:42" for an offset; a time is milliseconds since'),
        (["consume", "t", "--from", "1795363727"], "in at least 12 digits, or a date-time such as"),
        (["consume", "t", "--from", "2026-11-21T08:00:00"], "is not a date-time of RFC 3339 with an offset"),
        (["consume", "t", "--from", "99999999999999999999"], '"latest", "-N" for the last N records of each'),
        (["consume", "t", "--from", "id~1.-", "--partition", "1"], "does not read partition 1"),
        (["consume", "t", "--limit", "0"], "not in the range"),
        (["work", "t", "g"], "Missing argument 'COMMAND...'"),
        (["work", "t", "g", "--", "no-such-program"], "there is no program 'no-such-program'."),
        (["work", "t", "a/b", "--", "cat"], "'a/b' is not the name of a group: 1 to 249 characters"),
        (["work", "t", "g", "--parallel", "0", "--", "cat"], "not in the range"),
        (["consume", "t", "--timeout", "soon"], "not a valid float"),
        (["publish", "t", "--key-base64", "_-8=", "c"], "it is not base64 with padding"),
        (["publish", "t", "--key-base64", "", "--key", "", "c"], "Give one key: either --key or"),
        (["publish", "t", "--base64", "--raw", "-"], "--raw publishes FILE as it is."),
        (["publish", "--messages", "-", "--key", "k"], "each line has its own key, headers and timestamp"),
        (["publish", "t", "c", "--messages", "-"], "Give the message to publish"),
        (["publish", "t", "c", "--results"], "--results is for --lines and --messages."),
        (["publish", "--lines", "-"], "Missing argument 'TOPIC'."),
        (["delete", "t", "k", "--key-base64", "aw=="], "Give one key: either KEY or --key-base64."),
        (["consume", "t", "--url", "http://h", "--key", "k", "--key-base64", "aw=="], "Give one key: either"),
        (["consume", "t", "--key-base64", "k"], "it is not base64 with padding"),
        (["consume", "t", "--header", "b=1"], "takes NAME:VALUE; there is no colon in 'b=1'"),
        (["topics", "--url", "http://localhost", "--broker", "sqlite:f"], "give one of them"),
        (["consume", "t", "--broker", "memory:"], "only in the service itself"),
        (["consume", "t", "--url", "localhost:8080"], "is not a URL such as"),
        (["consume", "t", "--broker", "sqlite:f", "--url", "http://localhost"], "give one of them"),
        (["consume", "t", "--url", "http://localhost", "--broker", "memory:"], "give one of them"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_2_and_a_reason(
    arguments, reason, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "arguments", "origin"),
    [
        ({"SAMPLEAPP_URL": "x"}, [], "'SAMPLEAPP_URL'"),
        ({"SAMPLEAPP_URL": "http://localhost/"}, ["--url", "x"], "'--url'"),
        ({"SAMPLEAPP_TOKEN_FILE": "/nowhere/token"}, [], "'SAMPLEAPP_TOKEN_FILE'"),
        ({}, ["--token-file", "/nowhere/token"], "'--token-file'"),
    ],
)
@pytest.mark.parametrize(
    "command", [["publish", "t", "c"], ["delete", "t", "k"], ["readings"], ["consume", "t"]]
)
def test_a_fault_names_the_option_or_the_variable_that_it_is_in(command, variables, arguments, origin):
    url = {} if "--url" in arguments else {"SAMPLEAPP_URL": "http://localhost/"}
    result = CliRunner().invoke(main, [*command, *arguments], env=url | variables)
    assert result.exit_code == 2
    assert f"Error: Invalid value for {origin}: " in result.output


def test_a_variable_does_not_matter_where_the_command_line_names_a_broker(tmp_path):
    broker = f"sqlite:{tmp_path / 'none'}"
    result = CliRunner().invoke(main, ["consume", "t", "--broker", broker], env={"SAMPLEAPP_URL": "x"})
    assert result.exit_code == 2
    assert "there is no file" in result.output


def assert_one_sentence(stderr):
    *usage, sentence = stderr.splitlines()
    assert sentence.startswith(("Error: ", "sampleapp: "))
    assert sentence.endswith((".", "?"))
    assert [line for line in usage if not line.startswith(("Usage: ", "Try ")) and line] == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["publish", "t", "c"], 1),
        (["publish", "t", "--raw", "file"], 2),
        (["consume", "t", "--broker", "sqlite:records"], 2),
        (["readings"], 1),
        (["token", "a", "--append", "callers.toml"], 1),
        (["hook", "h", "--scheme", "github", "--topic", "t", "--append", "callers.toml"], 1),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_directory_that_is_gone_is_one_sentence(arguments, code, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with rejecting_port() as port:
        stdout, stderr = sampleapp(None, *arguments, url=f"http://127.0.0.1:{port}/", code=code)
    assert stdout == ""
    assert_one_sentence(stderr)


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--broker", "memory:", "--callers", "callers.toml"], marks=pytest.mark.slow),
        pytest.param(["--broker", "memory:", "--access-log", "access.log"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_service_in_a_directory_that_is_gone_says_so_in_one_sentence(options, tmp_path):
    script = f'rmdir "$PWD" && exec {COMMAND} serve --check "$@"'
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode in {1, 2}, done.stdout) == (True, "")
    assert_one_sentence(done.stderr)


def test_python_m_sampleapp_is_the_whole_command(tmp_path):
    with rejecting_port() as port:
        done = subprocess.run(
            [sys.executable, "-m", "sampleapp", "publish", "t", "c"],
            env={**os.environ, "SAMPLEAPP_URL": f"http://127.0.0.1:{port}/"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Is the service running?" in done.stderr


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_a_prompt_ends_as_the_key_says(tmp_path, key):
    controller, terminal = os.openpty()
    arguments = ["hook", "h", "--scheme", "slack", "--topic", "t", "--append", str(tmp_path / "callers.toml")]
    # setsid makes it the terminal whose keys send signals.
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", COMMAND, *arguments], stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        shown = b""
        while b"shows: " not in shown:
            shown += os.read(controller, 1024)
        os.write(controller, key.encode())
        with contextlib.suppress(OSError):
            while data := os.read(controller, 1024):
                shown += data
    os.close(controller)
    assert process.returncode == (130 if key == "\x03" else 1)
    assert (b"Interrupted." if key == "\x03" else b"No secret was given.") in shown
    assert list(tmp_path.iterdir()) == []
