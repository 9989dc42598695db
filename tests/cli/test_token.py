"""``sampleapp token``: what it prints, and what it does to the callers file."""

from __future__ import annotations

import errno
import hashlib
import io
import re
import stat
import subprocess
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.access import parse_callers
from sampleapp.cli import main
from tests.support.command import COMMAND
from tests.support.secrets import record_output, secret

A_TOKEN = re.compile(r"sampleapp_[A-Za-z0-9_-]{43}\n")
# None of them is the name of the other caller.
NAMES = st.text("azAZ09._-@", min_size=1, max_size=100)
# "." and ".." are names of no topic.
PATTERN = st.text("azAZ09._-*", min_size=1, max_size=249).filter(lambda text: text not in {".", ".."})
PATTERNS = st.lists(PATTERN, max_size=4)
DAYS = st.integers(0, 10_000).map(lambda days: (datetime.now(UTC) + timedelta(days)).date())
OTHER = f'[callers.other]\nread = true\n[[callers.other.tokens]]\nsha256 = "{"0" * 64}"\n'


def make(*arguments):
    """Run the command in this process; returns the exit code, stdout and stderr."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as ended:
        main(["token", *map(str, arguments)])
    record_output("output of commands", stderr.getvalue())
    return ended.value.code or 0, stdout.getvalue(), stderr.getvalue()


def digest(stdout):
    assert A_TOKEN.fullmatch(stdout), "not one token, alone"
    secret(stdout.strip(), "a token")
    return hashlib.sha256(stdout.strip().encode()).hexdigest()


def callers(text):
    return tomllib.loads(text)["callers"]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "callers.toml"


@given(
    name=NAMES,
    patterns=PATTERNS,
    consumed=PATTERNS,
    groups=st.lists(st.sampled_from(["orders/billing", "orders/*", "*"])),
    flags=st.sets(st.sampled_from(["read", "metrics"])),
    until=st.none() | DAYS,
)
def test_what_is_on_stderr_is_toml_that_can_stand_below_other_callers(
    *, name, patterns, consumed, groups, flags, until
):
    options = [f"--{flag}" for flag in flags]
    rights = dict.fromkeys(flags, True)
    for right, topics in (("publish", patterns), ("consume", consumed), ("work", groups)):
        options += [f"--{right}={pattern}" for pattern in topics]
        rights |= {right: list(dict.fromkeys(topics))} if topics else {}
    code, stdout, stderr = make(*options, *([f"--until={until}"] if until else []), "--", name)
    assert code == 0
    token = {"sha256": digest(stdout)} | ({"until": until} if until else {})
    assert name in parse_callers((OTHER + stderr).encode(), name="callers.toml").by_name
    assert callers(OTHER + stderr) == callers(OTHER) | {name: rights | {"tokens": [token]}}


def test_no_two_tokens_are_the_same():
    assert len({make("one")[1] for _ in range(10)}) == 10


def test_a_caller_without_rights_is_said_to_be_one():
    assert "Without rights" in make("one")[2]
    assert "Without rights" not in make("one", "--read")[2]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["no name"], "'no name' is not the name of a caller: 1 to 100 characters out of A-Z, a-z, 0-9,"),
        ([""], "'' is not the name of a caller"),
        (["x" * 101], "is not the name of a caller"),
        (["name\n"], "is not the name of a caller"),
        (["one", "--publish", "a/b"], "'a/b' is neither a topic nor a pattern of topics"),
        (["one", "--publish", ""], "'' is neither a topic"),
        (["one", "--publish", 'a"b'], "is neither a topic"),
        (
            ["one", "--work", "orders"],
            "'orders' is neither a group of workers nor a pattern of groups: TOPIC/GR",
        ),
        (["one", "--until", "tomorrow"], "'tomorrow' is not a date such as 2027-01-31."),
        (["one", "--until", "2027-02-30"], "'2027-02-30' is not a date"),
        (["one", "--until", "20270131"], "'20270131' is not a date"),
        (["one", "--until", "2020-01-31"], "2020-01-31 is in the past (in UTC)"),
    ],
)
def test_what_the_file_could_not_hold_is_rejected_with_what_would_be_right(arguments, reason):
    code, stdout, stderr = make(*arguments)
    assert (code, stdout) == (2, "")
    assert reason in " ".join(stderr.split())


def test_a_file_is_made_for_its_owner_alone_and_grows_by_callers_and_tokens(file):
    _, first, said = make("one", "--publish", "a.*", "--append", file)
    assert said == f"Added to {file}: the caller one.\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    _, second, said = make("two@b", "--append", file)
    assert said == f"Added to {file}: the caller two@b. It has no rights yet: add them there.\n"
    _, third, said = make("one", "--until", "2099-12-31", "--append", file)
    assert said == f"Added to {file}: another token of the caller one.\n"
    found = callers(file.read_text())
    assert found["one"].pop("tokens")[0] == {"sha256": digest(first)}
    assert found == {"one": {"publish": ["a.*"]}, "two@b": {"tokens": [{"sha256": digest(second)}]}}
    assert callers(file.read_text())["one"]["tokens"][1]["sha256"] == digest(third)


def test_what_was_in_the_file_stays_as_it_was(file):
    old = f"# A comment, and no line feed at the end.\n{OTHER}# ä"
    file.write_text(old, encoding="utf-8")
    make("one", "--read", "--append", file)
    new = file.read_text(encoding="utf-8")
    assert new.startswith(f"{old}\n\n[callers.one]\n")
    assert callers(new)["other"] == callers(OTHER)["other"]


def test_the_file_keeps_its_permissions_and_a_link_to_it_stays_one(file, tmp_path):
    file.write_text(OTHER)
    file.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(file.name)
    assert make("one", "--append", link)[0] == 0
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert "one" in callers(file.read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"callers.toml", "link.toml"}


def test_a_file_that_every_user_may_write_to_is_left_as_it_was(file):
    file.write_text(OTHER)
    file.chmod(0o606)
    code, stdout, stderr = make("one", "--append", file)
    assert (code, stdout, file.read_text()) == (1, "", OTHER)
    assert f"{file} cannot be used, since every user of this machine may write to it" in stderr
    file.unlink()
    file.parent.chmod(0o777)
    code, stdout, stderr = make("one", "--append", file)
    assert (code, stdout, file.exists()) == (1, "", False)
    assert f"{file} cannot be used, since every user of this machine may replace it" in stderr


def test_a_file_in_a_directory_that_it_may_not_enter_is_named(file, monkeypatch):
    # root may enter any.
    def stat(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    file.write_text(OTHER)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", stat)
        code, stdout, stderr = make("one", "--append", file)
    assert (code, stdout, file.read_text()) == (1, "", OTHER)
    assert f"{file} cannot be changed, so the token is useless: Permission denied." in stderr


def test_rights_of_a_caller_who_is_there_already_are_not_changed(file):
    file.write_text(OTHER)
    code, stdout, stderr = make("other", "--publish", "a", "--append", file)
    assert (code, stdout, file.read_text()) == (1, "", OTHER)
    assert f"The caller other is already in {file}" in stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[callers.one\n", "line 1: is not TOML"),
        (b"[callers.two]\nraed = true\n", "line 2: callers.two.raed is not known here; did you mean read?"),
        (b"\xff", "is not UTF-8"),
        # A table that is written in one line cannot grow by lines below.
        (b"[callers]\none = {read = true}\n", "add the token by hand"),
    ],
)
def test_a_file_to_which_nothing_can_be_added_is_left_alone(file, content, reason):
    file.write_bytes(content)
    code, stdout, stderr = make("one", "--append", file)
    assert (code, stdout, file.read_bytes()) == (1, "", content)
    assert reason in stderr


def test_a_directory_that_cannot_be_written_to_is_said_to_be_one(tmp_path):
    code, stdout, stderr = make("one", "--append", tmp_path / "missing" / "callers.toml")
    assert (code, stdout) == (1, "")
    assert "No such file or directory" in stderr


def test_a_token_that_nobody_takes_is_not_added(file):
    file.write_text(OTHER)
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [COMMAND, "token", "one", "--append", file], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (ended.returncode, file.read_text()) == (1, OTHER)
    assert b"The token cannot be printed, so it is lost: No space left on device." in ended.stderr
    assert [path.name for path in file.parent.iterdir()] == ["callers.toml"]


def test_tokens_that_are_added_at_one_time_are_all_there(file):
    commands = [
        subprocess.Popen([COMMAND, "token", f"caller-{number}", "--append", file], stdout=subprocess.PIPE)
        for number in range(4)
    ]
    printed = [command.communicate(timeout=60)[0].decode() for command in commands]
    found = callers(file.read_text())
    assert {name: caller["tokens"] for name, caller in found.items()} == {
        f"caller-{number}": [{"sha256": digest(token)}] for number, token in enumerate(printed)
    }
