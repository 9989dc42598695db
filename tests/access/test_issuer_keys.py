"""The keys of issuers: when they are fetched, and what counts until they are."""

from __future__ import annotations

import gc
import gzip
import tracemalloc
from itertools import pairwise

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.web.server import Site

from sampleapp.access import parse_callers
from sampleapp.access.callers_file_tables import Mistake
from sampleapp.access.errors import InvalidCredentials, IssuerKeysNotKnown
from sampleapp.access.issuer_keys import (
    ASK_AGAIN_S,
    FETCH_TIMEOUT_S,
    LONGEST_RETRY_S,
    MAX_BYTES,
    MOST_UNKNOWN,
    REFRESH_S,
    FetchFailed,
    IssuerKeys,
    RemoteKeys,
    fetch_with,
    load_keys,
)
from tests.support.client_servers import CannedResource, Listener, SilentResource, listening, talker
from tests.support.files import written
from tests.support.free_ports import rejecting_port
from tests.support.issuer import ISSUER, NOW_S, jwk, jwks, signed
from tests.support.logs import logged, logged_lines

JWKS = "application/jwk-set+json"
URL = "https://login.example/jwks.json?secret=1"
KNOWN, OTHER = "ES256-0", "ES256-1"


class Remote:
    """An issuer's URL that answers when a test says so, and the keys that come from it."""

    def __init__(self, *, url=URL):
        self.clock = Clock()
        self.clock.rightNow = NOW_S
        self.fetches = []
        self.asked_at_s = []
        self.withdrawn = 0
        self.keys = RemoteKeys(url, fetch=self.fetch, clock=self.clock, on_withdrawn=self._withdraw)

    def _withdraw(self):
        self.withdrawn += 1

    def fetch(self, url):
        assert url == URL
        # One at a time.
        assert [fetch for fetch in self.fetches if not fetch.called] == []
        self.fetches.append(Deferred())
        self.asked_at_s.append(self.clock.seconds())
        return self.fetches[-1]

    @property
    def is_asked(self):
        return bool(self.fetches) and not self.fetches[-1].called

    def answer(self, *keys):
        self.fetches[-1].callback(jwks(*keys))

    def fail(self, reason="cannot be reached"):
        self.fetches[-1].errback(FetchFailed(reason))

    def find(self, kid=KNOWN):
        """Return the outcome for a token with this key: the key, "401", or "503" and the delay."""
        try:
            (found,) = self.keys.find(kid, "ES256", now_s=self.clock.seconds())
        except InvalidCredentials:
            return "401"
        except IssuerKeysNotKnown as error:
            return "503", error.retry_after_s
        return found.kid

    def advance(self, seconds):
        self.clock.advance(seconds)


@pytest.fixture
def remote():
    made = Remote()
    made.keys.start()
    yield made
    made.keys.stop()
    assert made.clock.getDelayedCalls() == []


@pytest.fixture
def known(remote):
    """One that has answered once, with one key."""
    remote.answer(jwk())
    return remote


def test_who_comes_before_the_keys_is_asked_to_come_again(remote):
    assert remote.is_asked
    assert remote.find() == ("503", 1.0)
    remote.answer(jwk())
    assert remote.find() == KNOWN


def test_who_comes_before_the_issuer_is_up_is_told_when_it_is_asked_again(remote):
    for pause_s in (1, 2, 4, 8, 16, 32, LONGEST_RETRY_S, LONGEST_RETRY_S):
        remote.fail()
        assert remote.find() == ("503", pause_s)
        assert not remote.is_asked
        remote.advance(pause_s)
        assert remote.is_asked
    remote.answer(jwk())
    assert remote.find() == KNOWN


def test_keys_are_fetched_again_in_the_background(known):
    for _ in range(3):
        known.advance(REFRESH_S - 1)
        assert not known.is_asked
        known.advance(1)
        assert known.is_asked
        assert known.find() == KNOWN
        known.answer(jwk())
    assert len(known.fetches) == 4


def test_a_key_that_is_not_known_makes_the_service_ask_at_most_once_a_minute(known):
    assert known.find(OTHER) == ("503", 1.0)
    assert known.is_asked
    assert known.find(OTHER) == ("503", 1.0)
    known.answer(jwk())
    assert known.find(OTHER) == "401"
    assert not known.is_asked
    known.advance(ASK_AGAIN_S - 0.1)
    assert known.find(OTHER) == "401"
    assert not known.is_asked
    known.advance(0.1)
    assert known.find(OTHER) == ("503", 1.0)
    known.answer(jwk(), jwk(number=1))
    assert known.find(OTHER) == OTHER
    assert known.find() == KNOWN


def test_a_token_with_a_new_key_is_not_given_up_when_another_has_made_the_service_ask(known):
    """Any client can send tokens that name a key that never existed."""
    for _ in range(3):
        assert known.find("made-up") == ("503", 1.0)
        known.answer(jwk())
        assert known.find("made-up") == "401"
        known.advance(ASK_AGAIN_S)
    assert known.find("made-up") == ("503", 1.0)
    known.answer(jwk())
    known.advance(1)
    # The issuer has this key by now.
    assert known.find(OTHER) == ("503", ASK_AGAIN_S - 1)
    assert known.find("made-up") == "401"
    known.advance(ASK_AGAIN_S - 2)
    assert known.find(OTHER) == ("503", 1.0)
    assert not known.is_asked
    known.advance(1)
    assert known.find(OTHER) == ("503", 1.0)
    known.answer(jwk(), jwk(number=1))
    assert known.find(OTHER) == OTHER


def test_a_key_that_is_named_while_the_keys_are_fetched_may_be_newer_than_the_answer(known):
    known.advance(REFRESH_S)
    assert known.find(OTHER) == ("503", 1.0)
    known.answer(jwk())
    assert known.find(OTHER) == ("503", 1.0)
    assert known.is_asked
    known.answer(jwk())
    assert known.find(OTHER) == "401"


def test_a_fetch_that_fails_says_nothing_of_the_keys_that_are_looked_for(known):
    assert known.find(OTHER) == ("503", 1.0)
    known.fail()
    assert known.find(OTHER) == ("503", 1.0)
    known.advance(1)
    known.answer(jwk())
    assert known.find(OTHER) == "401"


def test_a_token_without_a_kid_is_not_given_up_either_when_its_algorithm_may_be_new(known):
    with pytest.raises(IssuerKeysNotKnown):
        known.keys.find(None, "EdDSA", now_s=known.clock.seconds())
    known.answer(jwk())
    with pytest.raises(InvalidCredentials):
        known.keys.find(None, "EdDSA", now_s=known.clock.seconds())
    # One with that name is another.
    assert known.find("EdDSA") == ("503", ASK_AGAIN_S)


def test_any_number_of_keys_that_there_never_were_takes_little_memory_and_locks_nobody_out(known):
    gc.collect()
    tracemalloc.start()
    for _ in range(2):
        for number in range(5 * MOST_UNKNOWN):
            assert known.find(f"{number}{'x' * 2000}")[0] == "503"
        known.answer(jwk())
        known.advance(ASK_AGAIN_S)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 500_000
    assert known.find(OTHER) == ("503", 1.0)
    known.answer(jwk(number=1))
    assert known.find(OTHER) == OTHER


def test_an_issuer_that_is_down_locks_nobody_out_whose_key_is_known(known):
    known.advance(REFRESH_S)
    for _ in range(10):
        known.fail()
        assert known.find() == KNOWN
        assert known.find(OTHER)[0] == "503"
        known.advance(LONGEST_RETRY_S)
    assert known.find() == KNOWN


@pytest.mark.parametrize("answer", [b"", b"<html>", b"{}", b'{"keys": []}', b'{"keys": [{"kty": "oct"}]}'])
def test_a_bad_answer_changes_nothing_and_is_logged(known, answer):
    known.advance(REFRESH_S)
    with logged(LogLevel.warn) as events:
        known.fetches[-1].callback(answer)
    assert known.find() == KNOWN
    (event,) = events
    assert event["url"] == "https://login.example/jwks.json"
    assert event["consequence"] == "The keys that were fetched before stay in use."


def test_what_goes_wrong_again_and_again_is_logged_once_and_so_is_its_end(known):
    known.advance(REFRESH_S)
    with logged_lines() as lines:
        for reason in ["cannot be reached"] * 3 + ["answers with the status 500, not 200"] * 3:
            known.fail(reason)
            known.advance(LONGEST_RETRY_S)
        known.answer(jwk())
        known.advance(REFRESH_S)
        known.answer(jwk())
    assert lines[-1].startswith("Fetched 1 key(s) of an issuer from https://login.example/jwks.json")
    assert [line.partition("json")[2] for line in lines] == [
        " cannot be reached. The keys that were fetched before stay in use.",
        " answers with the status 500, not 200. The keys that were fetched before stay in use.",
        ".",
    ]


def test_keys_that_cannot_be_used_are_counted_in_the_log(remote):
    with logged_lines() as lines:
        remote.answer(jwk(), {"kty": "oct", "k": "AAAA"}, jwk("RS256", n="AAAA"))
    assert [line.partition("json")[2] for line in lines] == ["; 2 more cannot be used here."]


def test_a_mistake_of_the_program_is_no_end_of_fetching(known, no_failure_is_lost):
    known.advance(REFRESH_S)
    known.fetches[-1].errback(ZeroDivisionError())
    known.advance(LONGEST_RETRY_S)
    assert known.is_asked
    (failure,) = no_failure_is_lost
    assert failure.check(ZeroDivisionError)
    no_failure_is_lost.clear()


def test_it_is_told_when_a_key_is_withdrawn(known):
    for keys, withdrawn in [((jwk(), jwk(number=1)), 0), ((jwk(number=1),), 1), ((jwk(number=1),), 1)]:
        known.advance(REFRESH_S)
        known.answer(*keys)
        assert known.withdrawn == withdrawn
    assert known.find() == ("503", 1.0)


def test_what_is_stopped_asks_no_more(remote):
    remote.keys.stop()
    remote.fetches[-1].addErrback(lambda _: None)
    remote.advance(10 * REFRESH_S)
    assert len(remote.fetches) == 1
    remote.keys.start()
    remote.answer(jwk())
    assert remote.find() == KNOWN


STEPS = st.lists(
    st.tuples(st.just("advance"), st.floats(0, 2 * REFRESH_S))
    | st.tuples(st.just("answer"), st.lists(st.sampled_from([0, 1, 2]), max_size=2, unique=True))
    | st.tuples(st.just("fail"), st.none())
    | st.tuples(st.just("find"), st.sampled_from([KNOWN, OTHER, "made-up"])),
    max_size=60,
)


@given(STEPS)
def test_whatever_issuers_and_callers_do_known_keys_count_and_the_issuer_is_left_in_peace(steps):
    remote, published = Remote(), None
    remote.keys.start()
    because_of_callers_s = []
    for what, value in steps:
        if what == "advance":
            remote.advance(value)
        elif what == "fail" and remote.is_asked:
            remote.fail()
        elif what == "answer" and remote.is_asked:
            remote.answer(*(jwk(number=number) for number in value))
            published = [f"ES256-{number}" for number in value] or published
        elif what == "find":
            fetches = len(remote.fetches)
            found = remote.find(value)
            if len(remote.fetches) > fetches:
                because_of_callers_s.append(remote.clock.seconds())
            assert (found == value) == (value in (published or []))
            if remote.is_asked or published is None:
                assert found == value or (found[0] == "503" and found[1] > 0)
        # It goes on.
        assert remote.is_asked or remote.clock.getDelayedCalls()
    pauses = [b - a for a, b in pairwise(because_of_callers_s)]
    assert all(pause_s >= ASK_AGAIN_S for pause_s in pauses)
    remote.keys.stop()


FILE = f"""\
[callers.kitchen]
read = true
[issuers.example]
issuer = "{ISSUER}"
audience = "sampleapp"
jwks = "keys.json"
caller_claim = "sub"
names_callers = true
"""


class Files:
    """Issuers of a callers file in a directory, with keys that were fetched at once."""

    def __init__(self, directory):
        self.directory = directory
        self.fetched = []
        self.clock = Clock()
        self.clock.rightNow = NOW_S
        self.keys = IssuerKeys(fetch=self._fetch, clock=self.clock, on_withdrawn=lambda: None)

    def _fetch(self, url):
        self.fetched.append(url)
        answer = Deferred()
        answer.callback(jwks(jwk()))
        return answer

    def use(self, text):
        callers = parse_callers(text.encode(), name="callers.toml")
        return self.keys.use(callers, load_keys(callers, directory=self.directory))


@pytest.fixture
def files(tmp_path):
    made = Files(tmp_path)
    yield made
    made.keys.stop()
    assert made.clock.getDelayedCalls() == []


def test_keys_may_be_in_a_file_beside_that_of_the_callers(files, tmp_path):
    (tmp_path / "keys.json").write_bytes(jwks(jwk()))
    verifier = files.use(FILE)
    caller, _ = verifier.verify(signed(), now_s=NOW_S)
    assert caller.name == "kitchen"
    with pytest.raises(InvalidCredentials, match="does not have its key"):
        verifier.verify(signed(number=1), now_s=NOW_S)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"[]", "is not a JSON Web Key Set"),
        (
            jwks(*[jwk(number=number, kid="a") for number in range(5)]),
            "has 5 different keys for ES256 with the kid 'a'; at most 4 are allowed\\.$",
        ),
    ],
)
def test_a_file_that_has_no_keys_is_a_mistake_in_that_of_the_callers(files, tmp_path, content, reason):
    if content is not None:
        (tmp_path / "keys.json").write_bytes(content)
    with pytest.raises(Mistake, match=f"^issuers.example.jwks names a file that {reason}"):
        files.use(FILE)


def test_a_file_without_a_key_for_the_algorithms_of_its_issuer_is_a_mistake(files, tmp_path):
    (tmp_path / "keys.json").write_bytes(jwks(jwk()))
    with pytest.raises(Mistake) as caught:
        files.use(FILE.replace("jwks =", 'algorithms = ["RS256", "ES384"]\njwks ='))
    assert str(caught.value) == (
        "issuers.example.jwks names a file with keys for ES256 only, so every token would be rejected: the "
        "issuer's algorithms are RS256, ES384."
    )
    assert files.use(FILE.replace("jwks =", 'algorithms = ["RS256", "ES256"]\njwks ='))


def test_a_file_of_keys_that_every_user_may_write_to_is_rejected(files, tmp_path):
    written(tmp_path / "keys.json", jwks(jwk()), mode=0o646)
    with pytest.raises(Mistake, match=r"names a file that cannot be read: Every user .* \(chmod o-w\)"):
        files.use(FILE)


def test_keys_that_were_fetched_are_kept_when_the_file_of_callers_is_read_again(files):
    files.keys.start()
    text = FILE.replace("keys.json", "https://one.example/keys")
    files.use(text)
    assert files.use(text).verify(signed(), now_s=NOW_S)
    assert files.fetched == ["https://one.example/keys"]
    assert files.use(text.replace("one", "two")).verify(signed(), now_s=NOW_S)
    assert files.fetched == ["https://one.example/keys", "https://two.example/keys"]
    files.clock.advance(REFRESH_S)
    assert files.fetched[2:] == ["https://two.example/keys"]


def test_nothing_is_fetched_before_the_start(files):
    files.use(FILE.replace("keys.json", "https://one.example/keys"))
    assert files.fetched == []
    files.keys.start()
    assert len(files.fetched) == 1


async def fetched(factory, *, clock=reactor):
    port, url = await listening(factory)
    try:
        return await fetch_with(clock)(f"{url}jwks.json?a=b")
    finally:
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_keys_come_over_http():
    assert await fetched(Site(CannedResource(200, JWKS, jwks(jwk())))) == jwks(jwk())


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (lambda: Site(CannedResource(404, "text/html", b"?")), "answers with the status 404, not 200"),
        (
            lambda: Site(CannedResource(302, "text/html", b"", [("location", "http://127.0.0.1:1/")])),
            r"answers with a redirect \(302\), which is not followed; write the URL of the keys into jwks",
        ),
        (lambda: Site(CannedResource(200, JWKS, b" " * (MAX_BYTES + 1))), f"more than {MAX_BYTES} bytes"),
        (
            lambda: Site(CannedResource(200, JWKS, gzip.compress(b"{}"), [("content-encoding", "gzip")])),
            "answers with a Content-Encoding, although none is accepted",
        ),
        (lambda: talker(b"SSH-2.0-x\r\n"), "does not answer in valid HTTP"),
        (lambda: talker(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{"), "in valid HTTP|before the end"),
        (lambda: talker(b""), "does not answer in valid HTTP"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_none_is_a_failure(factory, reason):
    with pytest.raises(FetchFailed, match=reason):
        await fetched(factory())


@pytest_twisted.ensureDeferred
async def test_where_nothing_listens_nothing_can_be_reached():
    with rejecting_port() as port, pytest.raises(FetchFailed, match="cannot be reached"):
        await fetch_with(reactor)(f"http://127.0.0.1:{port}/")


class FastReactor:
    """The real reactor, whose timers a test fires."""

    def __init__(self):
        self.clock = Clock()

    def callLater(self, *args, **kwargs):
        return self.clock.callLater(*args, **kwargs)

    def seconds(self):
        return self.clock.seconds()

    def __getattr__(self, name):
        return getattr(reactor, name)


@pytest.mark.parametrize("beginning", [b"", b"{"])
@pytest_twisted.ensureDeferred
async def test_an_answer_that_never_ends_is_waited_for_only_so_long(beginning):
    fast, resource = FastReactor(), SilentResource(beginning)
    port, url = await listening(Site(resource))
    fetching = fetch_with(fast)(url)
    await resource.asked
    fast.clock.advance(FETCH_TIMEOUT_S)
    with pytest.raises(FetchFailed, match="does not answer within 10 seconds"):
        await fetching
    # The connection does not stay.
    await resource.gone
    await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_a_listener_that_speaks_no_tls_is_a_failure():
    factory = Factory.forProtocol(Listener)
    factory.heard = Deferred()
    port, url = await listening(factory)
    fast = FastReactor()
    fetching = fetch_with(fast)(url.replace("http:", "https:"))
    await factory.heard
    fast.clock.advance(FETCH_TIMEOUT_S)
    with pytest.raises(FetchFailed):
        await fetching
    await port.stopListening()
