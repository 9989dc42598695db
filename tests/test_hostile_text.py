"""
Texts at which a careless pattern would go on for years: they are read, or rejected, in no time.

Where a pattern can match the same characters in several ways, it tries all of them before it gives up. The
limit of time is only there so that a failure ends.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from twisted.python.usage import UsageError

from sampleapp.cli._options import NEGATIVE_NUMBER
from sampleapp.errors import SampleAppError, StartUpError
from sampleapp.service.command_line import CommandLine, is_made_by_kubernetes
from sampleapp.tls.https_arguments import HTTPSArguments
from sampleapp.web.server.body import ChunkedBody
from sampleapp.web.server.head import MAX_HEAD
from tests.support.in_memory import InMemoryService, PromptBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60, method="signal")]

MANY = 20_000
REPEATED = [
    "a",
    "a.",
    "a-",
    "-",
    ".",
    "a-.",
    ":",
    "[",
    "[:",
    "1",
    "0",
    "1.",
    "e1",
    "_",
    "/",
    "--a",
    " ",
    "\t",
    ",",
    ";",
]
"""What may be repeated, and then be followed by what is not allowed."""
ENDS = ["", "/", "!", "-", ".", "x", "]", ":", " "]


@pytest.mark.parametrize(
    "option", ["--allow-origin", "--header-timeout", "--max-body", "--listen", "--log-level"]
)
@pytest.mark.parametrize("repeated", REPEATED)
def test_options_are_rejected_at_once_however_long_they_are(option, repeated):
    for start in ("", "https://", "https://[", "https://a:"):
        for end in ENDS:
            with suppress(UsageError):
                CommandLine({"SAMPLEAPP_CALLERS": "x"}).parseOptions(
                    [option, start + repeated * (MANY // len(repeated)) + end]
                )


@pytest.mark.parametrize("repeated", REPEATED)
def test_an_unknown_option_is_rejected_at_once_however_long_it_is(repeated):
    for end in ENDS:
        with suppress(UsageError):
            CommandLine({}).parseOptions([f"--{repeated * (MANY // len(repeated))}{end}"])


@pytest.mark.parametrize(
    "repeated", ["_SERVICE_PORT_a", "_PORT_1_TCP", "_PORT_1_TCP_", "_", "1", "_SERVICE_HOST"]
)
def test_variables_of_kubernetes_are_told_apart_at_once_however_long_they_are(repeated):
    variable = f"SAMPLEAPP{repeated * (MANY // len(repeated))}"
    for end in ENDS:
        assert not is_made_by_kubernetes(f"{variable}{end}", "")


@pytest.mark.parametrize("repeated", REPEATED)
def test_numbers_of_the_command_line_are_told_apart_at_once(repeated):
    for end in ENDS:
        NEGATIVE_NUMBER.fullmatch(f"-{repeated * (MANY // len(repeated))}{end}")


@pytest.mark.parametrize("repeated", REPEATED)
def test_arguments_of_endpoints_are_rejected_at_once(repeated):
    with pytest.raises(StartUpError):
        HTTPSArguments.parse(["443"], {repeated * (MANY // len(repeated)): "1"})


FIELDS = [
    *(b"Host", b"X-Request-Id", b"Accept", b"Content-Type", b"Content-Length", b"Origin", b"Authorization"),
    *(b"traceparent", b"tracestate", b"Content-Encoding", b"Connection", b"Expect", b"ce-id", b"If-Match"),
]


@pytest.mark.parametrize("target", [b"/messages", b"/topics/t"])
@pytest.mark.parametrize("name", FIELDS)
def test_a_header_field_is_read_at_once_whatever_is_repeated_in_it(target, name):
    service = InMemoryService(broker=PromptBroker(), allowed_origins=["https://example.org"])
    for repeated in [*REPEATED, "a/a;", "a/a;a=", 'a/a;a="\\a', '"', "\\a", "=", "a=a,", "a "]:
        value = (repeated * MAX_HEAD)[: MAX_HEAD - 200].encode()
        for end in ENDS:
            field = b"%b:%b%b\r\n" % (name, value, end.encode())
            for fields in (field, b"Host: a\r\nContent-Type: application/json\r\n%b" % field):
                # The last two are no whole header, which is looked at as it comes, and when its time is over.
                for rest in (b"Content-Length: 2\r\n\r\n{}", b"no field\r\n", b""):
                    connection = service.connect()
                    connection.send(b"POST %b HTTP/1.1\r\n%b%b" % (target, fields, rest))
    service.clock.pump([1] * 12)


@pytest.mark.parametrize(
    "repeated", [b";a", b" ;\ta =", b';a="', b'\\"', b";", b" ", b"0", b"f", b';a="\\"', b"a"]
)
def test_a_chunk_is_read_at_once_whatever_is_repeated_before_it(repeated):
    for start in (b"", b"1", b"1;a", b'1;a="', b"1;a="):
        for end in (b"\r\n", b"!\r\n", b'"\r\n', b" \r\n"):
            with suppress(SampleAppError):
                ChunkedBody(10, keep=True).receive(start + (repeated * MAX_HEAD)[: MAX_HEAD - 100] + end)
