"""The callers file, and the message for each mistake."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.access import Caller, CallersFileError, callers_file_tables, load_callers, parse_callers
from sampleapp.access.caller import TopicPatterns, digest_of, new_token
from sampleapp.access.callers_file import callers_document, callers_in
from sampleapp.access.callers_file_tables import TOMLDocument
from sampleapp.concurrency.rates import Rate
from tests.support.callers import caller

A, B, C = "a" * 64, "b" * 64, "c" * 64

WHOLE = f"""\
# Who may call.
[callers.thermometer]
publish = ["readings", "sensors.*"]
consume = ["readings"]
work = ["orders/billing", "invoices/*"]
certificates = [
    "subject:CN=thermometer,O=Example",  # as OpenSSL shows it
    "dns:Thermometer.Example",
    "email:t@Example.org",
    "uri:spiffe://example.org/t",
    "ip:2001:db8::1",
]
requests_per_second = 50
bytes_per_second = 100_000
max_streams = 20
bytes_burst = 1e6

[[callers.thermometer.tokens]]
sha256 = "{A}"
until = 2027-01-31

[[callers.thermometer.tokens]]
sha256 = "{B.upper()}"
until = 2027-01-31T12:00:00+01:00

[callers."alice@example.org"]
read = true
metrics = true
tokens = [
    {{ sha256 = "{C}" }},
]
"""


def parse(text):
    return parse_callers(text.encode(), name="callers.toml")


def test_it_names_callers_their_credentials_and_their_rights():
    callers = parse(WHOLE)
    thermometer = Caller(
        name="thermometer",
        publish=TopicPatterns(["readings", "sensors.*"]),
        consume=TopicPatterns(["readings"]),
        work=TopicPatterns(["orders/billing", "invoices/*"]),
        requests=Rate(50, 50),
        bytes=Rate(100_000, 1_000_000),
        max_streams=20,
    )
    alice = Caller(name="alice@example.org", read=True, metrics=True)
    assert callers.by_name == {"thermometer": thermometer, "alice@example.org": alice}
    assert callers.tokens == {
        bytes.fromhex(A): (thermometer, datetime(2027, 2, 1, tzinfo=UTC).timestamp()),
        bytes.fromhex(B): (thermometer, datetime(2027, 1, 31, 11, tzinfo=UTC).timestamp()),
        bytes.fromhex(C): (alice, None),
    }
    names = dict([*callers.certificates])
    assert names.pop("subject").rfc4514_string() == "CN=thermometer,O=Example"
    assert names == {
        "dns": "thermometer.example",
        "email": "t@example.org",
        "uri": "spiffe://example.org/t",
        "ip": ip_address("2001:db8::1"),
    }


def mistakes(text):
    with pytest.raises(CallersFileError) as caught:
        parse(text)
    return str(caught.value).split("\n")


TOKENS = f"""
[[callers.t.tokens]]
sha256 = "{A}"
"""

HASHED = "as printf %s TOKEN | sha256sum gives"


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (
            "",
            1,
            (
                "names no caller, so every request would be rejected; "
                "begin one with a line such as [callers.thermometer]."
            ),
        ),
        ("callers = 3", 1, "callers must be a table, not a number; begin it with [callers.NAME]."),
        (
            "[callers]\nt = 3",
            2,
            "callers.t must be a table, not a number; begin it with [callers.t].",
        ),
        (
            f"[caller.t]{TOKENS}",
            1,
            "caller is not known here; did you mean callers?",
        ),
        (f"[callers.t]\nraed = true{TOKENS}", 2, "callers.t.raed is not known here; did you mean read?"),
        (
            f"[callers.t]{TOKENS}untill = 2027-01-01",
            4,
            "callers.t.tokens[1].untill is not known here; did you mean until?",
        ),
        (
            f"[callers.t]{TOKENS}x = 1",
            4,
            "callers.t.tokens[1].x is not known here; use one of sha256, until.",
        ),
        (
            f'[callers.t]\nread = "yes"{TOKENS}',
            2,
            "callers.t.read must be true or false, not a string; for example read = true.",
        ),
        (
            f"[callers.t]\nread = 1{TOKENS}",
            2,
            "callers.t.read must be true or false, not a number; for example read = true.",
        ),
        (
            f'[callers.t]\npublish = "readings"{TOKENS}',
            2,
            (
                "callers.t.publish must be an array, not a string; for example "
                'publish = ["readings", "sensors.*"].'
            ),
        ),
        (
            f'[callers.t]\npublish = [\n  "a",\n  2,\n]{TOKENS}',
            4,
            (
                "callers.t.publish[2] must be a string, not a number; for example "
                'publish = ["readings", "sensors.*"].'
            ),
        ),
        (
            f'[callers.t]\npublish = [\n  "a",  # ]\n  # none\n  "b c",\n  "d"\n]{TOKENS}',
            5,
            (
                "callers.t.publish[2] matches no topic: names of topics have 1 to 249 characters of "
                "A-Z a-z 0-9 . _ -, and in a pattern * is any run of them."
            ),
        ),
        (
            f'[callers.t]\nwork = ["*", "orders"]{TOKENS}',
            2,
            (
                "callers.t.work[2] matches no group of workers: write TOPIC/GROUP, such as orders/billing "
                "or orders/*, with 1 to 249 characters of A-Z a-z 0-9 . _ - * on each side, or * for every "
                "group."
            ),
        ),
        (
            f"[callers.t]\nrequests_per_second = 0{TOKENS}",
            2,
            "callers.t.requests_per_second must be a finite number above zero, such as 50 or 0.5.",
        ),
        (
            f"[callers.t]\nbytes_per_second = inf{TOKENS}",
            2,
            "callers.t.bytes_per_second must be a finite number above zero, such as 50 or 0.5.",
        ),
        (
            f"[callers.t]\nbytes_per_second = true{TOKENS}",
            2,
            (
                "callers.t.bytes_per_second must be a number, not true or false; for example "
                "bytes_per_second = 100_000."
            ),
        ),
        (
            f"[callers.t]\nrequests_per_second = {'9' * 400}{TOKENS}",
            2,
            "callers.t.requests_per_second is too large: a number may have 63 bits.",
        ),
        (
            f"[callers.t]\nbytes_burst = 5{TOKENS}",
            2,
            (
                "callers.t.bytes_burst is the most that may come at once, and needs bytes_per_second beside "
                "it."
            ),
        ),
        (
            f"[callers.t]\nrequests_per_second = 5\nrequests_burst = 0.5{TOKENS}",
            3,
            "callers.t.requests_burst must be at least 1.",
        ),
        (
            "\n\n[callers.t]\nread = true",
            3,
            "callers.t has no credentials; add tokens with [[callers.t.tokens]], certificates or subjects.",
        ),
        (
            "[callers.t]\n[[callers.t.tokens]]\nuntil = 2027-01-01",
            2,
            f"callers.t.tokens[1] has no sha256: 64 hexadecimal digits, {HASHED} them.",
        ),
        (
            '[[callers.t.tokens]]\nsha256 = "123"',
            2,
            (
                f"callers.t.tokens[1].sha256 must be 64 hexadecimal digits, {HASHED} them; it has 3 "
                "characters."
            ),
        ),
        (
            f"[callers.t]{TOKENS}until = 2027-01-31T12:00:00",
            4,
            (
                "callers.t.tokens[1].until is a date-time without an offset; write one such as "
                "2027-01-31T12:00:00Z."
            ),
        ),
        (
            f'[callers.t]{TOKENS}until = "2027-01-31"',
            4,
            "callers.t.tokens[1].until must be a date such as 2027-01-31, without quotes.",
        ),
        (
            "[callers.t]\ntokens = [1]",
            2,
            "callers.t.tokens[1] must be a table, not a number; begin it with [[callers.t.tokens]].",
        ),
        (
            f'[callers.t]{TOKENS}\n[callers.u]\n[[callers.u.tokens]]\nsha256 = "{A.upper()}"',
            7,
            (
                "callers.u.tokens[1].sha256 is already at callers.t.tokens[1].sha256; each credential "
                "belongs to one caller, once."
            ),
        ),
        (
            '[callers.t]\ncertificates = ["dns:a.example"]\n[callers.u]\ncertificates = [\n"dns:A.example"]',
            5,
            (
                "callers.u.certificates[1] is already at callers.t.certificates[1]; each credential "
                "belongs to one caller, once."
            ),
        ),
        (
            f'[callers."a b"]\n[[callers."a b".tokens]]\nsha256 = "{A}"',
            1,
            'callers."a b" is not a name for a caller: that is 1 to 100 characters of A-Z a-z 0-9 . _ - @.',
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_would_be_right(text, line, sentence):
    assert mistakes(text) == [f"--callers: callers.toml, line {line}: {sentence}"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[callers.t", 1),
        ("a = 1\n\nb = \n", 3),
        ("a = 1\na = 2", 2),
        ("\n\na = [1,\n2,", 4),
        ("\n\nx = " + "[" * 5000, 3),
        ("\n\nx = " + "1" * 5000, 3),
        ("\n\nx = " + "1" * 5000 + "\ny = 1\n\nz = 2\n", 3),
    ],
)
def test_what_is_no_toml_is_told_with_its_line(text, line):
    # The words are those of the parser, which differ between versions.
    (told,) = mistakes(text)
    assert told.startswith(f"--callers: callers.toml, line {line}: ")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("thermometer", "must begin with the kind of name: "),
        ("cn:thermometer", "must begin with the kind of name: "),
        ("subject:thermometer", "must have a subject in the form of RFC 4514, "),
        ("subject:", "has an empty subject."),
        ("dns:", "must have a DNS name after dns:, "),
        ("dns:a b", "must have a DNS name after dns:, "),
        ("email:x", "must have an address after email:, "),
        ("uri:x", "must have a whole URI after uri:, "),
        ("ip:1.2.3", "must have an IP address after ip:, "),
    ],
)
def test_a_name_for_a_certificate_is_one_of_these_kinds(name, sentence):
    (told,) = mistakes(f'[callers.t]\ncertificates = ["{name}"]')
    assert told.startswith(f"--callers: callers.toml, line 2: callers.t.certificates[1] {sentence}")


def test_of_several_mistakes_one_is_told():
    (told,) = mistakes("[callers.t]\nread = 1\nmetrics = 2\n[callers.u]\nraed = true\n")
    assert told.startswith("--callers: callers.toml, line 2: callers.t.read must be true or false")


def test_a_token_in_the_place_of_its_hash_is_not_repeated():
    token = new_token()
    (told,) = mistakes(f'[[callers.t.tokens]]\nsha256 = "{token}"')
    assert "seems to be a token itself, which must not be used any more" in told
    assert token not in told
    for elsewhere in (f'{token} = "x"', f"[callers.t]\n{token} = 1{TOKENS}", f'"x {token}" = 2'):
        assert token not in "\n".join(mistakes(elsewhere))


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(CallersFileError) as caught:
        load_callers(tmp_path / "none.toml")
    assert str(caught.value) == f"--callers: cannot read {tmp_path / 'none.toml'}: No such file or directory."


def test_what_is_no_regular_file_or_a_huge_one_is_told_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    for name, reason in [
        ("pipe", "It is not a regular file"),
        ("huge", "It has more than 4194304 bytes"),
        (".", "Is a directory"),
    ]:
        with pytest.raises(CallersFileError) as caught:
            load_callers(tmp_path / name)
        assert str(caught.value) == f"--callers: cannot read {tmp_path / name}: {reason}."


def test_a_file_that_every_user_may_write_to_is_rejected(tmp_path):
    path = tmp_path / "callers.toml"
    path.write_text(WHOLE)
    for mode in (0o600, 0o640, 0o644, 0o664, 0o440):
        path.chmod(mode)
        assert load_callers(path).by_name
    (tmp_path / "link.toml").symlink_to(path)
    for mode in (0o666, 0o646, 0o602, 0o777):
        path.chmod(mode)
        for name in ("callers.toml", "link.toml"):
            with pytest.raises(CallersFileError) as caught:
                load_callers(tmp_path / name)
            assert str(caught.value) == (
                f"--callers: cannot read {tmp_path / name}: Every user of this machine may write to it; "
                "remove that permission (chmod o-w)."
            )


def test_a_file_in_a_directory_that_every_user_may_write_to_is_rejected(tmp_path):
    path = tmp_path / "callers.toml"
    path.write_text(WHOLE)
    tmp_path.chmod(0o777)
    with pytest.raises(CallersFileError) as caught:
        load_callers(path)
    assert str(caught.value) == (
        f"--callers: cannot read {path}: Every user of this machine may replace it, since they may write to "
        f"the directory {tmp_path}; remove that permission (chmod o-w), or mount the directory read-only."
    )


def test_what_is_not_utf_8_is_told_with_its_line():
    with pytest.raises(CallersFileError) as caught:
        parse_callers(b"a = 1\nb = '\xff'\n", name="f")
    assert str(caught.value) == "--callers: f, line 2: is not UTF-8."


@given(st.binary(max_size=60) | st.text("[]{}=.\"'#\n abc1\\tokens", max_size=40).map(str.encode))
def test_no_content_is_a_fault_of_the_service(data):
    try:
        parse_callers(data, name="f")
    except CallersFileError as error:
        lines = data.count(b"\n") + 1
        for told in str(error).split("\n"):
            place = told.removeprefix("--callers: f, line ").partition(":")[0]
            assert place.isdigit(), told
            assert 1 <= int(place) <= lines


@st.composite
def headers(draw):
    """Headers of tables and of arrays of tables, and the path of the table that each begins."""
    return list(_headers(draw))


def _headers(draw):
    many, of = -1, -1
    for number in range(draw(st.integers(0, 5))):
        kinds = ["[t]", "[ 'a b' . t ]", "[[many]]"]
        kind = draw(st.sampled_from([*kinds, "[[many.of]]", "[many.of.t]"] if of >= 0 else kinds))
        if kind == "[[many]]":
            many, of = many + 1, -1
            yield f"{kind} # [x]", ("many", many)
            yield "\t[[many.of]]", ("many", many, "of", 0)
            of = 0
        elif kind == "[[many.of]]":
            of += 1
            yield kind, ("many", many, "of", of)
        elif kind == "[many.of.t]":
            yield f"[many.of.t{number}]", ("many", many, "of", of, f"t{number}")
        elif kind == "[t]":
            yield f"[t{number}]", (f"t{number}",)
        else:
            yield f"[ 'a b' . t{number} ]", ("a b", f"t{number}")


@st.composite
def documents(draw):
    """A document, and the line of each of its values: made together."""
    lines, places = [], []
    # The lines above all headers are a table as well.
    for header, table in [(None, ()), *draw(headers())]:
        lines += draw(st.lists(st.sampled_from(["", "# [x]", "  "]), max_size=2))
        if header is not None:
            lines.append(header)
            places.append((table, len(lines)))
        for member in range(draw(st.integers(0, 4))):
            kind = draw(st.sampled_from(["number", "text", "array", "table"]))
            path = (*table, f"m{member}")
            begin = {"number": "1", "text": '"""', "array": "[", "table": "{ a.b = [ 1 ] }"}[kind]
            lines.append(f"m{member} = {begin}")
            places.append((path, len(lines)))
            if kind == "text":
                lines += [*draw(st.lists(st.sampled_from(["[t0]", "m0 = 1", "x"]), max_size=3)), '"""']
            if kind == "array":
                for element in range(draw(st.integers(0, 3))):
                    lines += draw(st.lists(st.sampled_from(["# ]", ""]), max_size=1))
                    lines.append(f'"] = {element}",')
                    places.append(((*path, element), len(lines)))
                lines.append("]")
            if kind == "table":
                places.append(((*path, "a", "b", 0), len(lines)))
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines), places


@given(documents())
def test_the_line_of_each_value_is_found(document):
    text, places = document
    parsed = TOMLDocument(text.encode())
    assert [(path, parsed.line_of(path)) for path, _ in places] == places


def test_the_first_table_inside_another_is_where_that_begins():
    document = TOMLDocument(b"# one\n[a.b.c]\nd = 1\n[a]\ne = 1\n")
    paths = [(), ("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d"), ("a", "e")]
    assert [document.line_of(path) for path in paths] == [1, 2, 2, 2, 3, 5]


def test_a_mistake_in_a_long_file_is_found_without_parsing_it_again_and_again(monkeypatch):
    parsed = []
    loads = callers_file_tables.tomllib.loads

    def counting(text):
        parsed.append(len(text))
        return loads(text)

    monkeypatch.setattr(callers_file_tables.tomllib, "loads", counting)
    topics = '",\n"'.join(f"topic-{number}" for number in range(500))
    callers = (caller(f"c{number}", "read = true", f'publish = ["{topics}"]') for number in range(20))
    text = "\n".join(callers).replace("topic-250", "topic 250").replace("read", "raed")
    (told,) = mistakes(text)
    assert "callers.c0.raed is not known here" in told
    assert sum(parsed) < 20 * len(text)


def test_a_byte_order_mark_is_said_to_be_too_much():
    with pytest.raises(CallersFileError) as caught:
        parse_callers(b"\xef\xbb\xbf[callers.t]\nread = true\n", name="f")
    assert str(caught.value) == (
        "--callers: f, line 1: begins with a byte order mark, which is not a part of TOML; save it as UTF-8 "
        "without one."
    )


def test_a_token_is_known_by_its_hash_only():
    token = new_token()
    assert token.startswith("sampleapp_")
    assert len(token) == len("sampleapp_") + 43
    callers = parse(f'[[callers.t.tokens]]\nsha256 = "{digest_of(token.encode()).hex()}"')
    assert token not in repr(callers)
    assert digest_of(token.encode()) in callers.tokens
    assert token != new_token()


def test_the_tables_of_a_document_are_freed_one_by_one_once_it_was_used():
    with callers_document(WHOLE.encode(), name="callers.toml") as document:
        tables = document.value["callers"]
        callers = callers_in(document)
    assert tables == {}
    assert callers == parse_callers(WHOLE.encode(), name="callers.toml")
