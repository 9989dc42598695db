"""Secrets that were written in the wrong place: no message about the configuration repeats them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.testing import MemoryReactorClock
from twisted.python.usage import UsageError

from sampleapp.access.callers_file_tables import (
    CallerTable,
    HookTable,
    IssuerTable,
    TokenTable,
)
from sampleapp.access.current_callers import CurrentCallers
from sampleapp.client import parse_base_url
from sampleapp.errors import StartUpError
from sampleapp.service.assembly import build
from sampleapp.service.command_line import CommandLine
from tests.support.examples import examples
from tests.support.logs import logged_lines

LETTERS = string.ascii_letters + string.digits
SECRETS = st.builds(
    lambda start, digit, end: f"{start}{digit}{end}",
    st.text(string.ascii_letters, min_size=6, max_size=30),
    st.sampled_from(string.digits),
    st.text(LETTERS + "_-", min_size=6, max_size=30),
)
ENDPOINTS = (
    "SECRET",
    "tcp:SECRET",
    "tcp:80:interface=SECRET",
    "tcp:80:SECRET=1:interface=SECRET",
    "tcp6:80:interface=::1:SECRET",
    "https:0:SECRET",
    "https:0:privateKey=SECRET",
    "https:0:privateKey=key.pem:certKey=SECRET",
    "https:0:privateKey=SECRET:clientCA=SECRET",
    "https:0:privateKey=key.pem:minimum=SECRET",
    "https:0:a:b:c:d:e:f:SECRET",
    "https:0:privateKey=-----BEGIN PRIVATE KEY-----\\nSECRET",
    "ssl:0:privateKey=SECRET",
    "ssl:0:privateKey=SECRET:certKey=/nowhere/SECRET",
    "tls:/nowhere/SECRET:0",
    "systemd:domain=INET:name=SECRET",
    "haproxy:tcp:SECRET",
)
URLS = (
    "SECRET",
    "https://u:SECRET@x",
    "https://SECRET@x/",
    "https://x/SECRET",
    "https://x?SECRET=1",
    "x#SECRET",
)
OPTIONS = {
    "listen": ENDPOINTS,
    "admin": ENDPOINTS,
    "allow-origin": (
        *URLS,
        "HTTPS://u:SECRET@X",
        "https://x:SECRET",
        "https://u:SECRET@x:443",
        "https://[SECRET]",
    ),
    "allow-host": (*URLS[1:], "u:SECRET@x", "[SECRET", "x/SECRET", "u:SECRET@x:80", "\xe9SECRET"),
    "allow-webhook-origin": (*URLS[1:], "SECRET@x", "x:SECRET"),
    "record-header": ("Authorization: Bearer SECRET", "X-Token:SECRET", "SECRET ", "SECRET*x"),
    "record-query": ("event=SECRET", "SECRET ", "SECRET*x", "?SECRET"),
    "callers": ("SECRET", "/nowhere/SECRET", "SECRET/SECRET", "[callers.x]\nread = SECRET"),
    "broker": (
        "SECRET",
        "SECRET://x",
        "memory:SECRET",
        "kafka://u:SECRET@h:1",
        "kafka://h:SECRET",
        "kafka://h/SECRET",
        "kafka://h#SECRET",
        "kafka://h?SECRET",
        "kafka://h?SECRET=1",
        "kafka://h?password=SECRET",
        "kafka://h?client_id=%ffSECRET",
        "kafka://h?compression=SECRET",
        "kafka+tls://h?ca=SECRET",
        "kafka+tls://h?certificate=SECRET&key=SECRET",
        "kafka+tls://h?sasl=PLAIN&credentials=SECRET",
        "kafka+tls://h?sasl=OAUTHBEARER&token_file=SECRET",
        "kafka+tls://h?sasl=OAUTHBEARER&token_file=/nowhere/SECRET",
    ),
}


def said_about(arguments, environ):
    """What the service says when it starts with a configuration."""
    with logged_lines() as lines:
        try:
            options = CommandLine(environ)
            options.parseOptions(arguments)
            service = build(options.config, reactor=MemoryReactorClock())
            service.privilegedStartService()
        except (UsageError, StartUpError) as error:
            lines.append(str(error))
    return "\n".join(lines)


@given(
    secret=SECRETS,
    option_and_form=st.sampled_from([(option, form) for option, forms in OPTIONS.items() for form in forms]),
)
@examples(400)
def test_no_rejection_of_an_option_repeats_a_secret_in_it(secret, option_and_form):
    option, form = option_and_form
    value = form.replace("SECRET", secret)
    rest = [] if option == "broker" else ["--broker=memory:"]
    said = said_about([f"--{option}={value}", *rest], {})
    assert secret not in said
    assert f"--{option}" in said or option in {"admin", "broker"}


@given(secret=SECRETS, option=st.sampled_from(["allow-origin", "allow-host", "listen"]))
def test_no_rejection_of_a_variable_repeats_a_secret_in_it(secret, option):
    variable = f"SAMPLEAPP_{option.upper().replace('-', '_')}"
    said = said_about(["--broker=memory:"], {variable: f"https://u:{secret}@x,https://y"})
    assert variable in said
    assert secret not in said


TABLES = {
    "hooks.x": (
        HookTable,
        {"topic": '"t"', "scheme": '"hmac"', "secret_files": '["x.secret"]', "header": '"X-S"'},
    ),
    "callers.x": (CallerTable, {"certificates": '["dns:x"]'}),
    "issuers.x": (
        IssuerTable,
        {"issuer": '"i"', "audience": '"a"', "jwks": '"x.json"', "caller_claim": '"sub"'},
    ),
}
VALUES = (
    '"SECRET"',
    '["SECRET"]',
    '["SECRET", 1]',
    '{ x = "SECRET" }',
    '"https://u:SECRET@x/"',
    '["/nowhere/SECRET"]',
    '"HMAC SECRET"',
    "SECRET",
    '"SECRET',
    '"""SECRET',
    '"\\\\SECRET"',
)


def said_about_file(directory, text):
    """What the service says of a callers file; empty if there is no mistake in it."""
    path = directory / "callers.toml"
    path.write_text(text)
    with logged_lines() as lines:
        try:
            CurrentCallers(path, reactor=MemoryReactorClock())
        except StartUpError as error:
            lines.append(str(error))
    return "\n".join(lines)


@given(
    secret=SECRETS,
    value=st.sampled_from(VALUES),
    place=st.sampled_from(
        [(name, member) for name in TABLES for member in TABLES[name][0].__struct_fields__]
    ),
)
@examples(400)
def test_no_mistake_in_the_callers_file_repeats_a_secret(tmp_path_factory, secret, value, place):
    name, member = place
    members = TABLES[name][1]
    written = {**members, member: value.replace("SECRET", secret)}
    lines = [f"{key} = {each}" for key, each in written.items()]
    said = said_about_file(tmp_path_factory.mktemp("callers"), "\n".join([f"[{name}]", *lines, ""]))
    assert secret not in said
    assert said == "" or "callers.toml, line " in said


@given(secret=SECRETS, value=st.sampled_from(VALUES), member=st.sampled_from(TokenTable.__struct_fields__))
def test_no_mistake_in_a_token_repeats_it(tmp_path_factory, secret, value, member):
    text = f"[callers.x]\n[[callers.x.tokens]]\n{member} = {value.replace('SECRET', secret)}\n"
    said = said_about_file(tmp_path_factory.mktemp("callers"), text)
    assert secret not in said
    assert "callers.toml, line " in said


@given(
    secret=SECRETS,
    form=st.sampled_from(["https://u:SECRET@x", "SECRET", "http://x/?SECRET", "http://x:SECRET"]),
)
def test_no_rejection_of_a_url_of_the_service_repeats_a_secret(secret, form):
    with pytest.raises(ValueError, match="URL") as caught:
        parse_base_url(form.replace("SECRET", secret))
    assert secret not in str(caught.value)
