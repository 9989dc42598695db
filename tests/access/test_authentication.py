"""Authentication by certificates and tokens, and the cache of verified credentials."""

from __future__ import annotations

import base64
import datetime as dt
import gc
import string
import tracemalloc
import weakref
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sampleapp.access import (
    AmbiguousCredentials,
    Authenticator,
    Caller,
    InvalidCredentials,
    NoCredentials,
    RateExceeded,
    parse_callers,
)
from sampleapp.access.caller import TopicPatterns
from sampleapp.concurrency.rates import Rate
from tests.support.callers import by, caller, token_of

NOW = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
KEY = ec.generate_private_key(ec.SECP256R1())
EXAMPLE = [(NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "thermometer")]


def certificate(subject=EXAMPLE, names=(), *, end=NOW + dt.timedelta(days=1)):
    name = x509.Name([x509.NameAttribute(*each) for each in subject])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(end)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    return builder.sign(KEY, hashes.SHA256())


class Clock:
    def __init__(self):
        self.now_s = NOW.timestamp()

    def __call__(self):
        return self.now_s


def authenticator(*names, more="", verifiers=(), clock=None):
    quoted = ", ".join(f'"{name}"' for name in names)
    text = f"[callers.t]\ncertificates = [{quoted}]\n" if names else ""
    callers = parse_callers((text + more + caller("other")).encode(), name="f")
    clock = clock or Clock()
    return Authenticator(callers, *verifiers, seconds=clock, now=clock)


def who(authenticator, shown, *authorization):
    return authenticator.identify(authorization, lambda: shown).caller.name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("subject:CN=thermometer,O=Example", certificate()),
        ("dns:a.example", certificate(names=[x509.DNSName("b.example"), x509.DNSName("A.Example")])),
        ("email:a@example.org", certificate(names=[x509.RFC822Name("a@Example.ORG")])),
        ("uri:spiffe://e/a", certificate(names=[x509.UniformResourceIdentifier("spiffe://e/a")])),
        ("ip:192.0.2.1", certificate(names=[x509.IPAddress(ip_address("192.0.2.1"))])),
        ("ip:2001:db8:0::1", certificate(names=[x509.IPAddress(ip_address("2001:db8::1"))])),
        ("dns:*.example", certificate(names=[x509.DNSName("*.example")])),
    ],
)
def test_a_certificate_is_known_by_one_of_its_names(name, shown):
    assert who(authenticator(name), shown) == "t"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("subject:O=Example,CN=thermometer", certificate()),
        ("subject:CN=thermometer", certificate()),
        ("subject:CN=Thermometer,O=Example", certificate()),
        ("dns:thermometer", certificate()),
        ("dns:a.example", certificate(names=[x509.DNSName("*.example")])),
        ("dns:a.example", certificate(names=[x509.DNSName("b.a.example")])),
        ("email:A@example.org", certificate(names=[x509.RFC822Name("a@example.org")])),
        ("dns:192.0.2.1", certificate(names=[x509.IPAddress(ip_address("192.0.2.1"))])),
        ("uri:spiffe://e/a", certificate(names=[x509.DNSName("a"), x509.RFC822Name("spiffe://e/a@x")])),
    ],
)
def test_a_certificate_is_not_known_by_what_only_looks_like_one_of_its_names(name, shown):
    with pytest.raises(NoCredentials):
        who(authenticator(name), shown)


def test_a_certificate_with_the_names_of_two_callers_is_of_neither():
    more = '[callers.u]\ncertificates = ["dns:a.example"]\n'
    shown = certificate(names=[x509.DNSName("a.example")])
    with pytest.raises(AmbiguousCredentials):
        who(authenticator("subject:CN=thermometer,O=Example", more=more), shown)


def test_two_names_of_the_same_caller_are_no_contradiction():
    shown = certificate(names=[x509.DNSName("a.example")])
    assert who(authenticator("subject:CN=thermometer,O=Example", "dns:a.example"), shown) == "t"


def test_a_certificate_is_valid_to_its_last_second_also_when_it_was_seen_before():
    clock = Clock()
    asked = authenticator("subject:CN=thermometer,O=Example", clock=clock)
    shown = certificate(end=NOW + dt.timedelta(seconds=10))
    for elapsed_s in (0, 10, 10.999):
        clock.now_s = NOW.timestamp() + elapsed_s
        assert who(asked, shown) == "t"
    clock.now_s = NOW.timestamp() + 11
    with pytest.raises(NoCredentials):
        who(asked, shown)


def test_a_token_decides_whatever_the_certificate_says():
    asked = authenticator("subject:CN=thermometer,O=Example")
    shown = certificate()
    assert who(asked, shown, by("other")[1]) == "other"
    for wrong in (b"Bearer x", b"Basic eDp5", b"Digest x", b""):
        with pytest.raises((InvalidCredentials, NoCredentials)):
            who(asked, shown, wrong)
    with pytest.raises(AmbiguousCredentials):
        who(asked, shown, by("other")[1], by("other")[1])


def basic(pair):
    return b"Basic " + base64.b64encode(pair)


def decoded(basic):
    return base64.b64decode(basic.removeprefix(b"Basic "))


OTHER = token_of("other").encode()
PADDED = next(text for text in map(basic, (b"u" * n + b":" + OTHER for n in range(3))) if text.endswith(b"="))


@pytest.mark.parametrize("user", [b"", b"other", b"sensor-7", b"caf\xc3\xa9", b"x" * 5000, OTHER])
@pytest.mark.parametrize("scheme", [b"Basic ", b"basic ", b"BASIC   "])
def test_a_token_can_be_the_password_of_any_user(user, scheme):
    asked = authenticator()
    for _ in range(2):
        assert who(asked, None, scheme + base64.b64encode(user + b":" + OTHER)) == "other"


@pytest.mark.parametrize(
    "value",
    [
        *map(basic, [b"", b":", b"other", OTHER, OTHER + b":", b"other:", b"other:x", b"a:b:" + OTHER]),
        *map(basic, [b"u: " + OTHER, b"u:" + OTHER + b" ", b"u:" + OTHER + b"\n", b"u:" + OTHER + b"x"]),
        *map(basic, [b"\xe9:" + OTHER, b"\0:" + OTHER, b"a\x7f:" + OTHER, b"u:" + OTHER[:-1] + b"\xe9"]),
        # Not base64, or not the only text in base64 for these bytes.
        PADDED.rstrip(b"="),
        PADDED + b"=",
        PADDED + b"!",
        PADDED.replace(b"Basic ", b"Basic\t"),
        b"Basic u:" + OTHER,
        b"Basic " + OTHER,
        b"Basic",
        b"Basic ",
        b"Basic \xff",
    ],
)
def test_a_password_that_is_not_the_token_of_a_caller_is_of_nobody(value):
    asked = authenticator()
    with pytest.raises((InvalidCredentials, NoCredentials)) as caught:
        who(asked, None, value)
    assert token_of("other") not in str(caught.value)


def test_only_one_text_in_base64_stands_for_a_user_and_a_token():
    assert who(authenticator(), None, PADDED) == "other"
    place = PADDED.index(b"=") - 1
    digits = string.ascii_letters.encode() + string.digits.encode() + b"+/"
    others = {PADDED[:place] + bytes([digit]) + PADDED[place + 1 :] for digit in digits} - {PADDED}
    assert any(decoded(each) == decoded(PADDED) for each in others)
    for each in others:
        with pytest.raises(InvalidCredentials):
            who(authenticator(), None, each)


def test_who_shows_nothing_is_nobody():
    with pytest.raises(NoCredentials):
        who(authenticator(), None)


class Verifier:
    """Knows tokens that begin with its letter, each for ten seconds, and counts how often it is asked."""

    def __init__(self, letter):
        self.letter = letter
        self.asked = 0

    def verify(self, token, *, now_s):
        self.asked += 1
        if not token.startswith(self.letter):
            return None
        if token.endswith(b"wrong"):
            raise InvalidCredentials("Wrong.")
        return Caller(name=token.decode()), now_s + 10


def test_further_kinds_of_tokens_are_verified_once_for_as_long_as_they_are_valid():
    clock = Clock()
    first, second = Verifier(b"a"), Verifier(b"b")
    asked = authenticator(verifiers=(first, second), clock=clock)
    for _ in range(3):
        assert who(asked, None, b"Bearer b1") == "b1"
    assert (first.asked, second.asked) == (1, 1)
    clock.now_s += 9.999
    assert who(asked, None, b"Bearer b1") == "b1"
    assert (first.asked, second.asked) == (1, 1)
    clock.now_s += 0.001
    assert who(asked, None, b"Bearer b1") == "b1"
    assert (first.asked, second.asked) == (2, 2)
    asked.forget()
    assert who(asked, None, b"Bearer b1") == "b1"
    assert (first.asked, second.asked) == (3, 3)


def test_what_is_not_valid_is_asked_about_each_time():
    verifier = Verifier(b"a")
    asked = authenticator(verifiers=(verifier,))
    for _ in range(3):
        for wrong in (b"Bearer a-wrong", b"Bearer c"):
            with pytest.raises(InvalidCredentials):
                who(asked, None, wrong)
    assert verifier.asked == 6


def test_a_token_of_the_file_asks_nobody_else():
    verifier = Verifier(b"sampleapp")
    asked = authenticator(verifiers=(verifier,))
    assert who(asked, None, f"Bearer {token_of('other')}".encode()) == "other"
    assert verifier.asked == 0


def test_however_many_are_verified_the_memory_for_them_has_an_end():
    verifier = Verifier(b"a")
    asked = authenticator(verifiers=(verifier,))
    for number in range(10_050):
        who(asked, None, b"Bearer a%d" % number)
    assert verifier.asked == 10_050
    # The latest are remembered, the first are not.
    who(asked, None, b"Bearer a10049")
    assert verifier.asked == 10_050
    who(asked, None, b"Bearer a0")
    assert verifier.asked == 10_051


def test_one_token_in_many_spellings_takes_no_place_of_others():
    verifier = Verifier(b"a")
    asked = authenticator(verifiers=(verifier,))
    assert who(asked, None, b"Bearer a1") == "a1"
    for number in range(10_050):
        assert who(asked, None, b"BEARER" + b" " * (1 + number % 200) + b"a2") == "a2"
        assert who(asked, None, b"Bearer" + b" " * (2 + number) + b"a2") == "a2"
        assert who(asked, None, basic(b"%d:a2" % number)) == "a2"
    before = verifier.asked
    assert who(asked, None, b"Bearer a1") == who(asked, None, basic(b"u:a1")) == "a1"
    assert verifier.asked == before


class Claims:
    """Verifies tokens whose text is a name, a hyphen, and as many patterns of 249 characters as it says."""

    def __init__(self, requests=None):
        self.asked = 0
        self.requests = requests

    def verify(self, token, *, now_s):
        self.asked += 1
        name, _, count = token.decode().partition("-")
        patterns = [f"{number:*>249}" for number in range(int(count or 0))]
        caller = Caller(name=f"issuer:{name}", publish=TopicPatterns(patterns), requests=self.requests)
        return caller, now_s + 3600


def test_callers_with_many_patterns_are_remembered_only_as_far_as_there_is_memory():
    verifier = Claims()
    asked = authenticator(verifiers=(verifier,))
    for number in range(50):
        who(asked, None, b"Bearer a%d-100" % number)
    tracemalloc.start()
    try:
        for number in range(100, 400):
            who(asked, None, b"Bearer a%d-100" % number)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 40 * 1024 * 1024
    before = verifier.asked
    who(asked, None, b"Bearer a399-100")
    assert verifier.asked == before
    who(asked, None, b"Bearer a0-100")
    assert verifier.asked == before + 1


def test_a_caller_of_an_issuer_has_one_rate_for_all_of_its_tokens_also_after_the_file_was_read_again():
    clock = Clock()
    verifier = Claims(requests=Rate(1, 2))
    asked = authenticator(verifiers=(verifier,), clock=clock)

    def call(token):
        asked.identify([b"Bearer " + token], lambda: None).limiter.admit(0, now_s=clock())

    call(b"a-0")
    call(b"a-1")
    asked.use(parse_callers(caller("other").encode(), name="f"), verifier)
    for token in (b"a-0", b"a-1", b"a-2"):
        with pytest.raises(RateExceeded):
            call(token)
    call(b"b-0")
    # With another rate, it begins again with a full burst.
    asked.use(parse_callers(caller("other").encode(), name="f"), Claims(requests=Rate(1, 3)))
    call(b"a-0")


def test_the_rates_of_ever_more_callers_of_an_issuer_take_bounded_memory():
    verifier = Claims(requests=Rate(1, 1))
    asked = authenticator(verifiers=(verifier,))
    limiters = [
        weakref.ref(asked.identify([b"Bearer a%d" % number], lambda: None).limiter)
        for number in range(10_100)
    ]
    gc.collect()
    assert sum(limiter() is not None for limiter in limiters) == 10_000
