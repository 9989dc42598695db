"""What the command makes of its arguments, before it does anything."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest
from click.testing import CliRunner

from sampleapp.cli import main


@pytest.mark.parametrize("arguments", [[], ["publish"], ["delete"], ["readings"], ["consume"]])
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
        (["publish", "t", "c", "--raw", "-"], "either CONTENT (- for stdin), or --lines FILE, or --raw"),
        (["publish", "t", "--raw", "-", "--header", "a=1"], "With --raw, a record has a key at most"),
        (["publish", "t", "c", "--header", "a"], "takes NAME=VALUE; there is no = in it."),
        (["publish", "t", "c", "--header", "a=1", "--header", "a=2"], "'a' is given twice."),
        (["publish", "t", "c", "--header", "a=\udcff"], "it is not UTF-8."),
        (["publish", "t", "c", "--timestamp", "2026-11-21T08:00:00"], "time with its offset from UTC"),
        (["publish", "t", "c", "--timestamp", "-1"], "time with its offset from UTC"),
        (["publish", "t", "c", "--timestamp", "@1795363727"], "looks like seconds, not milliseconds"),
        (["publish", "t", "c", "--timestamp", "@1795363727918000"], "looks like microseconds"),
        (["delete", "t"], "Missing argument 'KEY'"),
        (["publish", "t", "--kye", "k", "c"], "No such option"),
        (["publish", "t", "--kye", "k", "-5.5"], "unexpected extra argument"),
        (["publish", "t", "--- attention ---"], 'Content that begins with a dash must follow "--"'),
        (["publish", "t", "c", "--url", "localhost:8080"], "is not a URL such as"),
        (["readings", "--version", "3"], "is not one of"),
        (["consume", "t", "--broker", "sqlite:no-such-file"], "there is no file 'no-such-file'"),
        (["consume", "t", "--from", "yesterday"], '"yesterday" is none of these'),
        (["consume", "t", "--from", "42"], 'it is "offset:42" for an offset; a time is milliseconds since'),
        (["consume", "t", "--from", "1795363727"], "in at least 12 digits, or a date-time such as"),
        (["consume", "t", "--from", "2026-11-21T08:00:00"], "is not a date-time of RFC 3339 with an offset"),
        (["consume", "t", "--from", "99999999999999999999"], '"latest", "-N" for the last N records of each'),
        (["consume", "t", "--from", "id~1.-", "--partition", "1"], "does not read partition 1"),
        (["consume", "t", "--limit", "0"], "not in the range"),
        (["consume", "t", "--timeout", "soon"], "not a valid float"),
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
