"""What is wrong with the command line of the service is said with what would be right."""

from __future__ import annotations

import pytest
from msgspec import Struct
from msgspec.structs import fields
from twisted.python.usage import UsageError

from sampleapp.service.command_line import CommandLine
from sampleapp.service.config import DEFAULTS
from sampleapp.service.options import OPTIONS
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
        (["extra"], "Unexpected argument 'extra': the service takes only options."),
        (
            ["--broker=memory:", "tcp:80", "--check"],
            "Unexpected argument 'tcp:80': the service takes only options.",
        ),
    ],
)
def test_an_unknown_argument_is_rejected_with_the_one_that_was_meant(arguments, sentence):
    with pytest.raises(UsageError) as caught:
        CommandLine().parseOptions(arguments)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("option", "kind", "example", "zero_is_allowed"),
    [
        ("--max-body", "a whole number of bytes above zero", "1048576", False),
        ("--max-body-memory", "a whole number of bytes above zero", "268435456", False),
        ("--header-timeout", "a number of seconds above zero", "10 or 2.5", False),
        ("--min-body-rate", "a whole number of bytes a second above zero", "1024", False),
        ("--body-grace", "a number of seconds that is not negative", "10 or 2.5", True),
        ("--body-idle-timeout", "a number of seconds above zero", "10 or 2.5", False),
        ("--idle-timeout", "a number of seconds above zero", "10 or 2.5", False),
        ("--send-timeout", "a number of seconds above zero", "10 or 2.5", False),
        ("--max-connections", "a whole number above zero", "10000", False),
        ("--max-waiting", "a whole number above zero", "10000", False),
        ("--max-streams", "a whole number, 0 or more", "10000", True),
        ("--max-streams-per-caller", "a whole number, 0 or more", "5000", True),
        ("--max-followed-topics", "a whole number above zero", "1000", False),
        ("--max-leases", "a whole number above zero", "200", False),
        ("--idempotency-window", "a number of seconds above zero", "10 or 2.5", False),
        ("--idempotency-rate", "a whole number of records a second above zero", "20", False),
        ("--work-lease", "a number of seconds above zero", "10 or 2.5", False),
        ("--work-attempts", "a whole number above zero", "5", False),
        ("--drain-timeout", "a number of seconds that is not negative", "10 or 2.5", True),
    ],
)
def test_a_limit_that_is_no_such_number_is_rejected_with_what_would_be_right(
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
            CommandLine().parseOptions([f"{option}={nonsense}"])
        assert str(caught.value) == f"{option} takes {kind}, such as {example}, not {nonsense!r}."
    if zero_is_allowed:
        CommandLine().parseOptions([f"{option}=0"])


def test_seconds_may_be_written_in_each_usual_way():
    for text, seconds in (("10", 10), ("2.5", 2.5), ("2.", 2), (".5", 0.5), ("1e3", 1000), ("25E-1", 2.5)):
        options = CommandLine()
        options.parseOptions([f"--drain-timeout={text}"])
        assert options.config.drain_timeout_s == seconds


def test_topics_and_patterns_for_idempotency_keys_are_given_one_by_one():
    options = CommandLine(
        {"SAMPLEAPP_IDEMPOTENT_TOPIC": "orders.* payments", "SAMPLEAPP_IDEMPOTENCY_RATE": "7"}
    )
    options.parseOptions(["--idempotency-window=3600"])
    topics = options.config.idempotent_topics
    assert [topic in topics for topic in ("orders.a.b", "payments", "orders", "payments2")] == [
        True,
        True,
        False,
        False,
    ]
    assert (options.config.idempotency_window_s, options.config.idempotency_rate) == (3600, 7)


@pytest.mark.parametrize(
    "pattern", ["", "a b", "a/*", "..", "[a]", "x" * 250, "\N{LATIN SMALL LETTER E WITH ACUTE}"]
)
def test_a_pattern_that_no_topic_can_match_is_rejected(pattern):
    with pytest.raises(UsageError) as caught:
        CommandLine({}).parseOptions([f"--idempotent-topic={pattern}"])
    assert str(caught.value) == (
        "--idempotent-topic takes the name of a topic, or a pattern such as orders.*: 1 to 249 characters "
        f"out of A-Z, a-z, 0-9, '.', '_', '-' and '*'; not {pattern!r}."
    )


def test_headers_for_records_are_given_one_by_one():
    options = CommandLine({"SAMPLEAPP_RECORD_HEADER": "X-GitHub-* User-Agent user-agent"})
    options.parseOptions([])
    config = options.config
    assert (config.record_headers, config.has_record_content_type) == (("x-github-*", "user-agent"), True)
    options = CommandLine({"SAMPLEAPP_RECORD_QUERY": "event DevEUI event"})
    options.parseOptions([])
    assert options.config.record_queries == ("event", "DevEUI")
    options = CommandLine({})
    options.parseOptions(["--no-record-content-type"])
    assert not options.config.has_record_content_type


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--record-header=X A"],
            (
                "--record-header takes the name of a header, such as X-GitHub-Event, or the beginning of "
                "names, such as X-GitHub-*."
            ),
        ),
        (
            ["--record-header=Cookie"],
            "--record-header cannot take Cookie: it may have credentials, which no record gets.",
        ),
        (
            ["--no-record-content-type", "--record-header=content-type"],
            "--no-record-content-type contradicts --record-header Content-Type; give one of them.",
        ),
        (
            ["--record-query=a b"],
            (
                "--record-query takes the name of a parameter, such as event, which becomes the name of a "
                "header: 1 to 256 characters out of A-Z, a-z, 0-9, '-', '.', '_' and '~'."
            ),
        ),
        (
            ["--record-query=key"],
            "--record-query cannot take key: the parameter key is reserved for the service itself.",
        ),
        (
            ["--record-query=event", "--record-query=Event"],
            (
                "--record-query Event contradicts --record-query event: both would become the header event "
                "of a record; give one of them."
            ),
        ),
        *(
            (
                [f"--record-header={header}", "--record-query=X-Event"],
                (
                    "--record-query X-Event contradicts --record-header, which keeps the header x-event of "
                    "requests: a record has one header of this name; give one of them."
                ),
            )
            for header in ("x-event", "X-*", "*")
        ),
    ],
)
def test_headers_that_records_cannot_have_are_rejected(arguments, said):
    with pytest.raises(UsageError) as caught:
        CommandLine({}).parseOptions(arguments)
    assert str(caught.value) == said


def paths(settings, prefix=""):
    """The paths of all settings, in the form in which options name them."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Struct):
            yield from paths(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def test_each_setting_has_one_option_and_each_option_a_setting():
    not_for_operators = {"limits.kept_for_admin", "limits.kept_for_loopback", "limits.max_rejected"}
    assert sorted(each.setting for each in OPTIONS if each.setting) == sorted(
        set(paths(DEFAULTS)) - not_for_operators
    )
    assert {each.name for each in OPTIONS if not each.setting} == {"check", "version", "help"}


def test_each_limit_has_an_option():
    options = CommandLine()
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
            "--max-body-memory=10",
            "--body-idle-timeout=11",
            "--max-streams=12",
            "--max-streams-per-caller=13",
            "--max-followed-topics=14",
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
        max_body_memory=10,
        body_idle_timeout_s=11,
        max_streams=12,
        max_streams_per_caller=13,
        max_followed_topics=14,
    )
