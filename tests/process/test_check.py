"""``--check`` says what a start would say, and leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.support.callers import FULL
from tests.support.certificates import Authority
from tests.support.files import written
from tests.support.process import run
from tests.support.secrets import secret

MISTAKES = [
    (["--listen", "nonsense:1"], 2, "--listen nonsense:1: not an endpoint that Twisted understands"),
    (["--broker", "sqlite:nowhere/b.sqlite3"], 1, "nowhere does not exist"),
]
MORE_MISTAKES = [
    (["--listen", "ssl:0:privateKey=nowhere.pem"], 1, "cannot read nowhere.pem"),
    (["--broker", "kafka+tls://localhost?ca=nowhere.pem"], 1, "nowhere.pem"),
    (["--listen", "tcp:1"], 2, "--listen tcp:1: other machines can reach this endpoint, "),
    (["--callers", "nowhere.toml"], 1, "--callers: cannot read nowhere.toml: No such file or directory."),
    (["--max-body", "1k"], 2, "--max-body takes a whole number of bytes"),
]


@pytest.fixture
def check(installed, tmp_path):
    def check(*options, **variables):
        # As in a pipe of an operator's: Python may write what it prints late.
        environment = installed | {"PYTHONUNBUFFERED": ""} | variables
        done = run(["sampleapp", "--check", *options], environment, tmp_path)
        assert list(tmp_path.iterdir()) == []
        return done

    return check


def test_what_is_right_is_shown_without_a_look_at_the_broker(check):
    done = check(
        *("--broker", "kafka://127.0.0.1:1"),
        SAMPLEAPP_LISTEN="tcp:1",
        SAMPLEAPP_OPEN_TO_EVERYBODY="1",
        SAMPLEAPP_MAX_BODDY="1",
    )
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "sampleapp would start with this configuration:",
        "--broker kafka://127.0.0.1:1",
        "--listen tcp:1 (SAMPLEAPP_LISTEN)",
        "--open-to-everybody (SAMPLEAPP_OPEN_TO_EVERYBODY)",
        (
            "sampleapp: The environment variable SAMPLEAPP_MAX_BODDY is unknown, and has no effect; did you "
            "mean SAMPLEAPP_MAX_BODY?"
        ),
    ]


def test_no_file_is_made(check):
    assert check().returncode == 0


def test_what_a_start_would_warn_of_is_said(check):
    done = check("--admin", "tcp:9090")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == (
        "sampleapp: The endpoint for operators (--admin), tcp:9090, is open to the network without "
        "credentials: let only operators reach it, by a firewall or a network policy."
    )


def test_what_others_could_read_is_named(check, tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    files = Authority(directory).server()
    files.key.chmod(0o644)
    https = f"https:2:interface=127.0.0.1:privateKey={files.key}:certKey={files.certificate}"
    credentials = written(
        directory / "credentials", f"username=me\npassword={secret('s3cr3t-Check', 'a password')}", mode=0o644
    )
    kafka = f"kafka://127.0.0.1:1?sasl=SCRAM-SHA-256&credentials={credentials}"
    callers = written(directory / "callers.toml", FULL)
    done = check("--listen", "tcp:1", "--listen", https, "--callers", str(callers), "--broker", kafka)
    assert done.returncode == 0
    warnings = [line for line in done.stdout.splitlines() if line.startswith("sampleapp: ")]
    assert len(warnings) == 3
    for words in (
        "credentials, given with credentials=, holds a secret",
        "server.key, given with privateKey=",
    ):
        assert any(words in each and "every user of this machine may read it" in each for each in warnings)
    assert warnings[-1].startswith(
        "sampleapp: Tokens of callers cross the network unencrypted to tcp:1, which has no"
    )


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [*MISTAKES, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_MISTAKES)],
)
def test_what_would_keep_it_from_starting_is_said_as_a_start_says_it(check, options, status, sentence):
    done = check(*options)
    assert done.returncode == status
    assert sentence in done.stdout
    assert done.stdout.count("\n") == 1
