"""``--check`` says what a start would say, and leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.support.process import run

MISTAKES = [
    (["--listen", "nonsense:1"], "--listen nonsense:1: not an endpoint that Twisted understands"),
    (["--listen", "ssl:0:privateKey=nowhere.pem"], "cannot read nowhere.pem"),
    (["--broker", "sqlite:nowhere/b.sqlite3"], "nowhere does not exist"),
    (["--broker", "kafka+tls://localhost?ca=nowhere.pem"], "nowhere.pem"),
    (["--listen", "tcp:1"], "--listen tcp:1: other machines can reach this, "),
    (["--callers", "nowhere.toml"], "--callers: cannot read nowhere.toml: No such file or directory."),
    (["--max-body", "1k"], "--max-body takes a whole number of bytes"),
]


@pytest.fixture(scope="module")
def checks(installed, tmp_path_factory, two_at_a_time):
    def check(options, variables):
        directory = tmp_path_factory.mktemp("check")
        arguments = ["sampleapp", "--check", *options]
        # As in a pipe of an operator's: Python may write what it prints late.
        environment = installed | {"PYTHONUNBUFFERED": ""} | variables
        return two_at_a_time.submit(run, arguments, environment, directory), directory

    return {
        "right": check(
            ["--broker", "kafka://127.0.0.1:1"],
            {
                "SAMPLEAPP_LISTEN": "tcp:1",
                "SAMPLEAPP_OPEN_TO_EVERYBODY": "1",
                "SAMPLEAPP_MAX_BODDY": "1",
            },
        ),
        "SQLite": check([], {}),
        "open to operators": check(["--admin", "tcp:9090"], {}),
        **{number: check(options, {}) for number, (options, _) in enumerate(MISTAKES)},
    }


def ended(checks, name):
    done, directory = checks[name]
    return done.result(), directory


def test_what_is_right_is_shown_without_a_look_at_the_broker(checks):
    done, directory = ended(checks, "right")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "sampleapp would start with this configuration:",
        "--broker kafka://127.0.0.1:1",
        "--listen tcp:1 (SAMPLEAPP_LISTEN)",
        "--open-to-everybody (SAMPLEAPP_OPEN_TO_EVERYBODY)",
        (
            "sampleapp: SAMPLEAPP_MAX_BODDY is no variable of the service, and has no effect; did you mean "
            "SAMPLEAPP_MAX_BODY?"
        ),
    ]
    assert list(directory.iterdir()) == []


def test_no_file_is_made(checks):
    done, directory = ended(checks, "SQLite")
    assert done.returncode == 0
    assert list(directory.iterdir()) == []


def test_what_a_start_would_warn_of_is_said(checks):
    done, _ = ended(checks, "open to operators")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == (
        "sampleapp: What is for operators (--admin) can be reached over the network, and asks nobody for "
        "credentials: let nobody else reach tcp:9090, by a firewall or a network policy."
    )


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[sentence for _, sentence in MISTAKES])
def test_what_would_keep_it_from_starting_is_said_as_a_start_says_it(checks, number):
    done, directory = ended(checks, number)
    assert done.returncode == 1
    assert MISTAKES[number][1] in done.stdout
    assert done.stdout.count("\n") == 1
    assert list(directory.iterdir()) == []
