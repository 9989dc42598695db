"""Issuers of JSON Web Tokens in the callers file."""

from __future__ import annotations

import re

import pytest

from sampleapp.access import CallersFileError, parse_callers
from sampleapp.access.issuers import Issuer, Subject
from sampleapp.access.jwks import ALGORITHMS
from sampleapp.concurrency.rates import Rate

WHOLE = """\
[callers.kitchen]
publish = ["readings"]
subjects = ["example:system:serviceaccount:default:kitchen"]

[issuers.example]
issuer = "https://login.example/"
audience = "sampleapp"
jwks = "https://login.example/jwks.json"
algorithms = ["RS256", "ES256"]
caller_claim = "sub"

[issuers.file]
issuer = "other"
audience = "sampleapp"
jwks = "keys/other.json"
publish_claim = "topics"
read = true
"""


def parse(text):
    return parse_callers(text.encode(), name="callers.toml")


def test_it_names_issuers_and_what_their_tokens_say():
    assert parse(WHOLE).issuers == {
        "example": Issuer(
            name="example",
            issuer="https://login.example/",
            audience="sampleapp",
            jwks="https://login.example/jwks.json",
            algorithms=("RS256", "ES256"),
            caller_claim="sub",
        ),
        "file": Issuer(
            name="file",
            issuer="other",
            audience="sampleapp",
            jwks="keys/other.json",
            algorithms=ALGORITHMS,
            publish_claim="topics",
            read=True,
        ),
    }


def test_no_symmetric_algorithm_is_among_those_that_are_taken_by_default():
    assert [name for name in ALGORITHMS if name.startswith("HS") or name.lower() == "none"] == []


def test_a_caller_needs_credentials_of_its_own_only_where_no_token_may_name_it():
    assert parse(WHOLE).by_name["kitchen"]
    without = re.sub("subjects.*", "", WHOLE)
    with pytest.raises(CallersFileError, match=r"callers\.kitchen has no credentials"):
        parse(without)
    named = without.replace('caller_claim = "sub"', 'caller_claim = "sub"\nnames_callers = true')
    assert parse(named).by_name["kitchen"]


def test_one_issuer_at_most_may_name_callers_by_their_own_names():
    named = WHOLE.replace('caller_claim = "sub"', 'caller_claim = "sub"\nnames_callers = true')
    assert parse(named).issuers["example"].names_callers
    assert not parse(WHOLE).issuers["example"].names_callers
    second = named.replace(
        'publish_claim = "topics"\nread = true', 'caller_claim = "email"\nnames_callers = true'
    )
    with pytest.raises(CallersFileError) as caught:
        parse(second)
    assert "line 18: issuers.file.names_callers is true for issuers.example already" in str(caught.value)
    assert parse(second.replace("= true", "= false", 1)).issuers["file"].names_callers
    without_claim = WHOLE.replace("read = true", "names_callers = true")
    with pytest.raises(CallersFileError, match=r"line 17: issuers\.file\.names_callers needs a caller_claim"):
        parse(without_claim)


def test_callers_that_are_not_in_the_file_have_the_rates_of_their_issuer():
    text = WHOLE.replace(
        "read = true", "requests_per_second = 5\nrequests_burst = 9\nbytes_per_second = 1000"
    )
    issuer = parse(text).issuers["file"]
    assert (issuer.requests, issuer.bytes) == (Rate(5, 9), Rate(1000, 1000))


def test_a_file_may_name_issuers_only():
    assert parse(WHOLE[WHOLE.index("[issuers.file]") :]).issuers


def test_a_caller_may_be_called_in_another_way_by_tokens():
    callers = parse(WHOLE)
    kitchen = callers.by_name["kitchen"]
    assert callers.subjects == {Subject("example", "system:serviceaccount:default:kitchen"): kitchen}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/jwks", "http://[::1]/jwks", "http://localhost:1/jwks"]
)
def test_keys_on_this_machine_may_come_without_encryption(url):
    assert parse(WHOLE.replace("https://login.example/jwks.json", url)).issuers["example"].jwks == url


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('issuer = "other"\n', "", "line 12: issuers.file has no issuer; add one, such as issuer ="),
        ('audience = "sampleapp"\njwks = "k', 'jwks = "k', "issuers.file has no audience"),
        ('jwks = "keys/other.json"\n', "", "issuers.file has no jwks"),
        ('issuer = "other"', 'issuer = ""', "line 13: issuers.file.issuer may not be empty"),
        ('issuer = "other"', 'issuer = "https://login.example/"', "is that of issuers.example already"),
        ("[issuers.file]", '[issuers."a b"]', 'issuers."a b" is not a name for an issuer'),
        # Its callers would have the names of hooks, and share their idempotency keys.
        (
            "[issuers.file]",
            "[issuers.hook]",
            "issuers.hook needs another name: callers whose names",
        ),
        ('publish_claim = "topics"\n', "", "needs either caller_claim"),
        ('publish_claim = "topics"', 'publish_claim = "a"\ncaller_claim = "b"', "needs either caller_claim"),
        ('publish_claim = "topics"', 'consume_claim = "a"\ncaller_claim = "b"', "needs either caller_claim"),
        ('publish_claim = "topics"', 'work_claim = "a"\ncaller_claim = "b"', "needs either caller_claim"),
        ('publish_claim = "topics"', 'caller_claim = "sub"', "read goes with publish_claim, consume"),
        (
            '"RS256"',
            '"HS256"',
            "algorithms[1] is symmetric, so that every verifier of such a token could also make",
        ),
        ('"RS256"', '"none"', "algorithms[1] is not known here; use one of RS256"),
        ('["RS256", "ES256"]', "[]", "algorithms must name an algorithm, or be left out"),
        ("https://login.example/jwks", "http://login.example/jwks", "must begin with https://, since"),
        ("https://login.example/jwks", "http://10.0.0.1/jwks", "must begin with https://, since"),
        ("https://login.example/jwks", "https:///jwks", "must be a whole URL"),
        ("https://login.example/jwks", "https://[/jwks", "must be a whole URL"),
        ("https://login.example/jwks", "https://login.example:x/jwks", "must be a whole URL"),
        ("https://login.example/jwks", "https://login.example:0/jwks", "must be a whole URL"),
        ("https://login.example/jwks", "https://login.example/ jwks", "must be a whole URL"),
        ("https://login.example/jwks", "https://me:pass@login.example/", "may have no user, password"),
        (
            "https://login.example/jwks",
            "ftp://login.example/jwks",
            "must be a URL that begins with https://",
        ),
        ('["example:system', '["file:system', "kitchen.subjects[1] must begin with the name of an issuer"),
        ('["example:system', '["system', "and a colon; there is example"),
        (
            "serviceaccount:default:kitchen",
            'a", "example:system:a',
            "is already at callers.kitchen.subjects[1]",
        ),
        ("read = true", "raed = true", "did you mean read?"),
        ("read = true", "requests_burst = 9", "needs requests_per_second beside it"),
        (
            'caller_claim = "sub"',
            'caller_claim = "sub"\nbytes_per_second = 9',
            "issuers.example.bytes_per_second goes with publish_claim",
        ),
        (
            'caller_claim = "sub"',
            'caller_claim = "sub"\nnames_callers = "yes"',
            "issuers.example.names_callers must be true or false, not a string",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_would_be_right(old, new, said):
    assert old in WHOLE
    with pytest.raises(CallersFileError) as caught:
        parse(WHOLE.replace(old, new))
    assert said in str(caught.value)
    assert "pass" not in str(caught.value).replace("password", "")
