"""Each option may come from the environment, and means what it would mean on the command line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.python.usage import UsageError

from sampleapp.brokers.kafka.connections.security import PASSWORD_VARIABLE, USERNAME_VARIABLE
from sampleapp.service.command_line import CommandLine, is_made_by_kubernetes

DECLARED = CommandLine({}).declared
every_option = pytest.mark.parametrize("option", DECLARED, ids=[option.name for option in DECLARED])

NUMBERS = {option.name: "7" for option in DECLARED if re.fullmatch(r"[0-9.]+", option.default)}
VALUES = {
    **{option.name: ["some.value"] for option in DECLARED if option.kind},
    **{name: [value] for name, value in NUMBERS.items()},
    "admin": ["tcp:9090:interface=127.0.0.1"],
    "allow-host": ["gate.example.org", "192.0.2.7"],
    "allow-origin": ["https://example.org", "http://localhost:3000"],
    "allow-webhook-origin": ["eventgrid.azure.net", "events.example.org"],
    "broker": ["memory:"],
    "access-log-format": ["json"],
    "log-format": ["json"],
    "log-level": ["error"],
    "readings-topic": ["temperatures"],
    "listen": ["tcp:1:interface=127.0.0.1", "unix:/run/sampleapp.sock"],
}
"""For each option that takes a value, one that is right; two, if it may be given more than once."""


def parsed(arguments=(), environ=None):
    options = CommandLine(environ or {})
    options.parseOptions(list(arguments))
    return options


def values_of(option):
    assert not option.kind or option.name in VALUES, f"a right value of --{option.name} is missing"
    return VALUES.get(option.name, [])


def as_arguments(option):
    return [f"--{option.name}={value}" for value in values_of(option)] or [f"--{option.name}"]


def as_variables(option):
    return {option.variable: " \n".join(values_of(option)) or "1"}


@every_option
def test_an_option_from_the_environment_means_what_it_does_on_the_command_line(option):
    from_environment = parsed(environ=as_variables(option))
    from_command_line = parsed(as_arguments(option))
    assert from_environment.config == from_command_line.config
    assert from_environment.config != parsed().config
    assert from_environment.unknown_variables == []


@every_option
def test_the_command_line_wins_over_the_environment(option):
    nonsense = {option.variable: "non sense"}
    assert parsed(as_arguments(option), nonsense).config == parsed(as_arguments(option)).config


@every_option
def test_help_names_each_variable(option):
    assert f"  {option.variable}" in CommandLine({}).getUsage().splitlines()


@every_option
def test_a_variable_without_anything_in_it_is_as_none(option):
    for text in ("", " ", "\n"):
        assert parsed(environ={option.variable: text}).config == parsed().config


@every_option
def test_no_variable_of_an_option_is_one_that_kubernetes_makes(option):
    for value in ("8080", "tcp://10.0.0.1:8080"):
        assert not is_made_by_kubernetes(option.variable, value)


@pytest.mark.parametrize("option", [o for o in DECLARED if not o.kind], ids=lambda o: o.name)
def test_a_flag_is_on_or_off_in_the_usual_words(option):
    for word in ("1", "true", "yes", "on", "TRUE", " yes\n"):
        assert parsed(environ={option.variable: word}).config == parsed([f"--{option.name}"]).config
    for word in ("0", "false", "no", "off", "No"):
        assert parsed(environ={option.variable: word}).config == parsed().config
    with pytest.raises(UsageError) as caught:
        parsed(environ={option.variable: "maybe"})
    assert str(caught.value) == (
        f"{option.variable} takes 1, true, yes or on; or 0, false, no or off to leave --{option.name} out; "
        "not 'maybe'."
    )


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        (
            "SAMPLEAPP_MAX_BODY",
            "1k",
            "SAMPLEAPP_MAX_BODY takes a whole number of bytes above zero, such as 1048576, not '1k'.",
        ),
        (
            "SAMPLEAPP_DRAIN_TIMEOUT",
            "soon",
            (
                "SAMPLEAPP_DRAIN_TIMEOUT takes a number of seconds that is not negative, such as 10 or 2.5, "
                "not 'soon'."
            ),
        ),
        (
            "SAMPLEAPP_LISTEN",
            "tcp:80 8080",
            ("SAMPLEAPP_LISTEN takes a Twisted endpoint, such as tcp:8080:interface=127.0.0.1, not '8080'."),
        ),
        (
            "SAMPLEAPP_LISTEN",
            "tcp:80, tcp:81",
            (
                "SAMPLEAPP_LISTEN takes values separated by spaces or line breaks, without commas; "
                "give a value that has a comma in it with --listen."
            ),
        ),
    ],
)
def test_a_mistake_in_a_variable_is_rejected_by_the_name_of_the_variable(variable, value, sentence):
    with pytest.raises(UsageError) as caught:
        parsed(environ={variable: value})
    assert str(caught.value) == sentence


def test_an_option_that_a_rejection_speaks_of_is_said_to_come_from_a_variable():
    options = parsed(environ={"SAMPLEAPP_LISTEN": "tcp:80", "SAMPLEAPP_MAX_BODY": "1"})
    assert options.with_origins("Cannot listen. Give another --listen.") == (
        "Cannot listen. Give another --listen. (--listen comes from SAMPLEAPP_LISTEN.)"
    )
    assert options.with_origins("--max-body and --broker do not go together.") == (
        "SAMPLEAPP_MAX_BODY and --broker do not go together."
    )
    assert options.with_origins("--max-body-size is no option.") == "--max-body-size is no option."
    assert options.with_origins("--max-body: a\n--max-body: b") == (
        "SAMPLEAPP_MAX_BODY: a\nSAMPLEAPP_MAX_BODY: b"
    )
    assert parsed(["--listen", "tcp:80"]).with_origins("Give --listen.") == "Give --listen."


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        ("SAMPLEAPP_MAX_BODDY", "1", "; did you mean SAMPLEAPP_MAX_BODY?"),
        ("SAMPLEAPP_listen", "tcp:1", "; did you mean SAMPLEAPP_LISTEN?"),
        ("SAMPLEAPP_COLOUR", "1", "."),
        ("SAMPLEAPP_KAFKA_USER", "me", "; did you mean SAMPLEAPP_KAFKA_USERNAME?"),
        ("SAMPLEAPP_CHECK", "1", "."),
        ("SAMPLEAPP_", "1", "."),
        (
            "SAMPLEAPP_PORT",
            "8080",
            "; give the port with SAMPLEAPP_LISTEN, such as tcp:9090:interface=127.0.0.1.",
        ),
    ],
)
def test_a_variable_that_means_nothing_is_named_with_the_one_that_was_meant(variable, value, hint):
    assert parsed(environ={variable: value, "PATH": "/bin"}).unknown_variables == [(variable, hint)]


@pytest.mark.parametrize("service", ["SAMPLEAPP", "SAMPLEAPP_ADMIN", "SAMPLEAPP_2_LISTEN"])
@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
def test_what_kubernetes_makes_for_a_service_is_left_alone(service, protocol):
    port = f"{service}_PORT_8080_{protocol.upper()}"
    made = {
        f"{service}_SERVICE_HOST": "10.0.0.11",
        f"{service}_SERVICE_PORT": "8080",
        f"{service}_SERVICE_PORT_HTTP": "8080",
        f"{service}_PORT": f"{protocol}://10.0.0.11:8080",
        port: f"{protocol}://10.0.0.11:8080",
        f"{port}_PROTO": protocol,
        f"{port}_PORT": "8080",
        f"{port}_ADDR": "10.0.0.11",
    }
    options = parsed(environ=made)
    assert options.unknown_variables == []
    assert options.config == parsed().config


@pytest.mark.parametrize(
    "variable",
    [
        "SAMPLEAPP_URL",
        "SAMPLEAPP_TOKEN",
        "SAMPLEAPP_TOKEN_FILE",
        "SAMPLEAPP_CLIENT_CERTIFICATE",
        "SAMPLEAPP_CLIENT_KEY",
        USERNAME_VARIABLE,
        PASSWORD_VARIABLE,
    ],
)
def test_the_variables_of_the_commands_and_of_kafka_are_left_alone(variable):
    assert parsed(environ={variable: "anything"}).unknown_variables == []


@given(
    st.dictionaries(st.text("SAMPLEAPP_BODYX2", max_size=12).map("SAMPLEAPP_".__add__), st.text(max_size=8))
)
def test_no_environment_is_met_with_anything_but_a_sentence(environ):
    try:
        options = parsed(environ=environ)
    except UsageError as error:
        assert str(error).startswith("SAMPLEAPP_")  # noqa: PT017 -- most environments are no mistake
        return
    assert {variable for variable, _ in options.unknown_variables} <= environ.keys()


def test_the_summary_says_what_was_given_and_where():
    options = parsed(
        ["-l", "tcp:1", "--max-body=5"], {"SAMPLEAPP_MAX_BODY": "9", "SAMPLEAPP_BROKER": "memory:"}
    )
    assert options.summary.splitlines() == [
        "--broker memory: (SAMPLEAPP_BROKER)",
        "--listen tcp:1",
        "--max-body 5",
    ]
    assert parsed().summary.splitlines() == [
        "--listen tcp:8080:interface=127.0.0.1 (by default)",
        "--broker sqlite:sampleapp.sqlite3 (by default)",
    ]
