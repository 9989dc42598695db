"""What is wrong with the command line of the service is said with what would be right."""

from __future__ import annotations

import pytest
from twisted.python.usage import UsageError

from sampleapp.options import Options
from sampleapp.web import Limits


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--port", "9090"],
            (
                "option --port not recognized; give the port with --listen, such as "
                "--listen tcp:9090:interface=127.0.0.1"
            ),
        ),
        (
            ["-p", "9090"],
            (
                "option -p not recognized; give the port with --listen, such as "
                "--listen tcp:9090:interface=127.0.0.1"
            ),
        ),
        (["--reading-topic=r"], "option --reading-topic not recognized; did you mean --readings-topic?"),
        (["--colour"], "option --colour not recognized"),
        (["--broker"], "option --broker requires argument"),
    ],
)
def test_an_option_that_is_not_known_is_refused_with_the_one_that_was_meant(arguments, sentence):
    with pytest.raises(UsageError) as caught:
        Options().parseOptions(arguments)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("option", "kind", "example", "zero_is_allowed"),
    [
        ("--max-body", "a whole number of bytes above zero", "1048576", False),
        ("--header-timeout", "a number of seconds above zero", "10 or 2.5", False),
        ("--min-body-rate", "a whole number of bytes a second above zero", "1024", False),
        ("--body-grace", "a number of seconds that is not negative", "10 or 2.5", True),
        ("--idle-timeout", "a number of seconds above zero", "10 or 2.5", False),
        ("--send-timeout", "a number of seconds above zero", "10 or 2.5", False),
        ("--max-connections", "a whole number above zero", "10000", False),
        ("--max-waiting", "a whole number above zero", "10000", False),
        ("--drain-timeout", "a number of seconds that is not negative", "10 or 2.5", True),
    ],
)
def test_a_limit_that_is_no_such_number_is_refused_with_what_would_be_right(
    option, kind, example, zero_is_allowed
):
    for nonsense in (
        "",
        "many",
        "-1",
        "nan",
        "inf",
        "1 h",
        "10s",
        "1e400",
        "1_0",
        " 10",
        "10\n",
        "\N{ARABIC-INDIC DIGIT ONE}",
        *([] if zero_is_allowed else ["0"]),
    ):
        with pytest.raises(UsageError) as caught:
            Options().parseOptions([f"{option}={nonsense}"])
        assert str(caught.value) == f"{option} takes {kind}, such as {example}, not {nonsense!r}."
    if zero_is_allowed:
        Options().parseOptions([f"{option}=0"])


def test_seconds_may_be_written_in_each_usual_way():
    for text, seconds in (("10", 10), ("2.5", 2.5), ("2.", 2), (".5", 0.5), ("1e3", 1000), ("25E-1", 2.5)):
        options = Options()
        options.parseOptions([f"--drain-timeout={text}"])
        assert options.config.drain_timeout_s == seconds


def test_each_limit_has_an_option():
    options = Options()
    options.parseOptions(
        [
            "--max-body=1",
            "--header-timeout=2",
            "--min-body-rate=3",
            "--body-grace=4.5",
            "--idle-timeout=5",
            "--send-timeout=6",
            "--max-connections=7",
            "--max-waiting=8",
            "--drain-timeout=9",
        ]
    )
    assert options.config.drain_timeout_s == 9
    assert options.config.limits == Limits(
        max_body=1,
        header_timeout_s=2,
        body_rate=3,
        body_grace_s=4.5,
        idle_timeout_s=5,
        send_timeout_s=6,
        max_connections=7,
        max_waiting=8,
    )
