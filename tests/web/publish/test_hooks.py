"""``/hooks/{hook}``: records from senders that sign their requests."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
from collections import Counter
from contextlib import contextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from sampleapp.access import signatures
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import Record
from tests.support.callers import FULL, by
from tests.support.in_memory import InMemoryService, PromptBroker, request_bytes
from tests.support.secrets import secret
from tests.web.http import assert_problem, chunked

NOW = 1_700_000_000
SECRETS = {
    name: [secret(f"{name}-secret-{number}", "the secret of a hook").encode() for number in (1, 2)]
    for name in ("github", "stripe", "slack", "standard", "meters", "grafana")
}
FILE = (
    FULL
    + """
[hooks.github]
topic = "t"
scheme = "github"
secret_files = ["1", "2"]

[hooks.stripe]
topic = "t"
scheme = "stripe"
secret_files = ["1", "2"]

[hooks.slack]
topic = "t"
scheme = "slack"
secret_files = ["1", "2"]

[hooks.standard]
topic = "t"
scheme = "standard"
secret_files = ["1", "2"]
idempotency_header = "Webhook-Id"
tolerance = 60

[hooks.meters]
topic = "t"
scheme = "hmac"
header = "X-Meter-Signature"
encoding = "base64"
secret_files = ["1", "2"]
key_header = "X-Meter"

[hooks.grafana]
topic = "t"
scheme = "hmac"
header = "X-Grafana-Alerting-Signature"
signed = "{timestamp}:{body}"
timestamp_header = "X-Grafana-Alerting-Timestamp"
secret_files = ["1", "2"]
"""
)
TIMED = {"stripe", "slack", "standard", "grafana"}
"""The hooks whose senders sign a time."""
BODY = b'{"action": "opened", "note": "caf\xc3\xa9"}'


def signed(name, body, *, key=None, now=NOW, id_="msg_1"):
    """The header with which a sender signs a body."""
    key = SECRETS[name][1] if key is None else key

    def digest(data):
        return hmac.digest(key, data, hashlib.sha256)

    time = b"%d" % now
    return {
        "github": [(b"X-Hub-Signature-256", b"sha256=" + digest(body).hex().encode())],
        "stripe": [(b"Stripe-Signature", b"t=%b,v1=%b" % (time, digest(time + b"." + body).hex().encode()))],
        "slack": [
            (b"X-Slack-Request-Timestamp", time),
            (b"X-Slack-Signature", b"v0=" + digest(b"v0:%b:%b" % (time, body)).hex().encode()),
        ],
        "standard": [
            (b"webhook-id", id_.encode()),
            (b"webhook-timestamp", time),
            (
                b"webhook-signature",
                b"v1," + base64.b64encode(digest(b"%b.%b.%b" % (id_.encode(), time, body))),
            ),
        ],
        "meters": [(b"X-Meter-Signature", base64.b64encode(digest(body)))],
        "grafana": [
            (b"X-Grafana-Alerting-Timestamp", time),
            (b"X-Grafana-Alerting-Signature", digest(time + b":" + body).hex().encode()),
        ],
    }[name]


@pytest.fixture
def service():
    return made()


def made(**options):
    options = {"broker": PromptBroker(), "callers": FILE, "secrets": SECRETS, **options}
    return InMemoryService(**options)


def post(service, name, headers=(), body=BODY, *, query=""):
    return service.request("POST", f"/hooks/{name}{query}", [*headers], body)


def record_of(**members):
    return Record(
        **{"topic": "t", "key": None, "value": BODY, "timestamp_ms": NOW * 1000, "headers": (), **members}
    )


def without_identity(records):
    return [
        Record(
            topic=each.topic,
            key=each.key,
            value=each.value,
            timestamp_ms=each.timestamp_ms,
            headers=each.headers,
        )
        for each in records
    ]


@pytest.mark.parametrize("name", SECRETS)
def test_a_signed_body_becomes_one_record_byte_for_byte_with_either_secret(service, name):
    for offset, key in enumerate(SECRETS[name]):
        response = post(service, name, signed(name, BODY, key=key, id_=f"msg_{offset}"))
        assert response.status == 200
        place = {"topic": "t", "partition": 0, "offset": offset}
        assert response.body == b"" if name == "slack" else json.loads(response.body) == place
    assert without_identity(service.broker.records) == [record_of(), record_of()]
    assert service.hooks.results[name, "accepted"] == 2


PUBLIC_KEY = b"whpk_" + base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw())


@contextmanager
def counted_work():
    """What the verification of signatures does: it reads the header, and passes over the body."""
    work = Counter()

    def counted(kind, function):
        def call(*arguments):
            work[kind] += 1
            return function(*arguments)

        return call

    def counted_claim(claim):
        def call(self, fields, **options):
            work["header"] += 1
            return claim(self, fields, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures.hmac, "new", counted("HMAC", hmac.new))
        patch.setattr(signatures, "_is_signed", counted("Ed25519", signatures._is_signed))  # noqa: SLF001
        for scheme in (
            signatures.HMACScheme,
            signatures.Stripe,
            signatures.Slack,
            signatures.StandardWebhooks,
        ):
            patch.setattr(scheme, "claim", counted_claim(scheme.claim))
        yield work


def rejected(response):
    assert_problem(response, 401)
    assert response.headers[b"www-authenticate"] == b'Signature realm="sampleapp"'
    problem = json.loads(response.body)
    assert problem["type"] == "urn:sampleapp:problem:invalid-signature"
    return problem


@pytest.mark.parametrize("name", SECRETS)
def test_without_a_right_signature_nothing_is_published_and_no_answer_says_why(service, name):
    right = dict(signed(name, BODY))
    field = next(each for each in right if b"ignature" in each)
    wrong = [
        {},
        {**right, field: b""},
        {**right, field: right[field][:-2]},
        {**right, field: b"\xff" * 3000},
        dict(signed(name, BODY, key=b"another")),
        dict(signed(name, BODY + b" ")),
        dict(signed("github" if name == "stripe" else "stripe", BODY)),
    ]
    if name in TIMED:
        wrong += [dict(signed(name, BODY, now=NOW + by_s)) for by_s in (-301, 301, -(10**9))]
    problems = [rejected(post(service, name, headers.items())) for headers in wrong]
    # Not even that there is such a hook.
    problems.append(rejected(post(service, "unknown", right.items())))
    assert all(problem == problems[0] for problem in problems)
    assert service.broker.records == []
    counts = {result: count for (hook, result), count in service.hooks.results.items() if hook == name}
    assert counts["accepted"] == 0
    assert sum(counts.values()) == len(wrong)
    assert service.hooks.results["", "unknown"] == 1


def test_the_reasons_are_counted_for_operators(service):
    post(service, "stripe")
    post(service, "stripe", [(b"Stripe-Signature", b"?")])
    post(service, "stripe", signed("stripe", BODY, now=NOW - 301))
    post(service, "stripe", signed("stripe", BODY, now=NOW + 301))
    post(service, "stripe", signed("stripe", b"other"))
    assert {result: count for (hook, result), count in service.hooks.results.items() if hook == "stripe"} == {
        **dict.fromkeys(("accepted", "rate"), 0),
        **dict.fromkeys(("missing", "malformed", "old", "early", "wrong"), 1),
    }


@pytest.mark.parametrize("name", [*SECRETS, "unknown"])
def test_without_the_header_or_with_an_old_time_the_body_is_not_taken(service, name):
    heads = [[]]
    if name in TIMED:
        heads.append(signed(name, BODY, now=NOW - 10_000))
    for headers in heads:
        connection = service.connect()
        expect = [(b"Content-Length", b"1000000"), (b"Expect", b"100-continue")]
        connection.send(request_bytes("POST", f"/hooks/{name}", [*headers, *expect]))
        (response,) = connection.responses(["POST"])
        rejected(response)


def test_the_tolerance_is_that_of_the_hook(service):
    statuses = [
        post(service, "standard", signed("standard", BODY, now=NOW + s, id_=f"m{s}")).status
        for s in (-61, -60, 60, 61)
    ]
    assert statuses == [401, 200, 200, 401]


def test_a_hook_needs_no_token_and_a_token_does_not_help():
    service = made()
    rejected(post(service, "github", [by("full")]))
    assert post(service, "github", [*signed("github", BODY), by("full")]).status == 200
    assert post(service, "github", [*signed("github", BODY), (b"Authorization", b"Bearer x")]).status == 200


def test_other_methods_and_paths_need_credentials_as_ever(service):
    for method, target in (("OPTIONS", "/hooks/github"), ("POST", "/hooks"), ("POST", "/hooks/a/b")):
        response = service.request(method, target, signed("github", b""))
        assert_problem(response, 401)
        assert response.headers[b"www-authenticate"].startswith(b"Bearer")


@pytest.mark.parametrize("callers", [FILE, None])
def test_a_sender_that_checks_its_url_is_answered_as_by_post_and_nothing_is_published(callers):
    service = made(callers=callers)
    if callers is None:
        service.use_hooks(FILE)
    for name in (*SECRETS, "unknown"):
        for method in ("GET", "HEAD"):
            for headers in (
                [],
                [by("full")],
                signed("meters", b"other"),
                signed("stripe", b"", now=NOW - 900),
            ):
                response = service.request(method, f"/hooks/{name}", headers)
                assert response.status == 401
                assert response.headers[b"www-authenticate"] == b'Signature realm="sampleapp"'
                if method == "GET":
                    assert response.body == post(service, name, headers).body
            # The sender itself is told the methods.
            response = service.request(method, f"/hooks/{name}", signed(name, b"") if name in SECRETS else [])
            assert response.status == (405 if name in SECRETS else 401)
            assert response.headers.get(b"allow") == (b"POST, OPTIONS" if name in SECRETS else None)
    # A compressed body of a GET does not change that.
    coded = [*signed("github", b""), (b"Content-Encoding", b"gzip")]
    assert_problem(service.request("GET", "/hooks/github", coded, gzip.compress(b"")), 405)
    assert service.broker.records == []


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("callers", [FILE, None])
def test_the_check_of_a_certificate_by_slack_needs_no_signature_in_the_query(method, callers):
    """Slack's documentation: a simple GET request with ssl_check=1, to be answered with 200."""
    service = made(callers=callers)
    for name in ("slack", "github", "unknown"):
        for query in ("ssl_check=1", "token=x&ssl_check=1"):
            response = service.request(method, f"/hooks/{name}?{query}")
            assert (response.status, response.body) == (200, b"")
        for query in ("ssl_check=0", "ssl_check", "x=ssl_check=1", "Ssl_check=1"):
            assert service.request(method, f"/hooks/{name}?{query}").status == 401
        # Such a query makes no difference to a record.
        rejected(post(service, name, query="?ssl_check=1"))
    assert service.broker.records == []


@pytest.mark.parametrize("callers", [FILE, None])
def test_a_trailing_slash_and_a_wrong_method_are_named_without_credentials_for_all_names(callers):
    service = made(callers=callers)
    for name in ("github", "unknown", "caf%C3%A9"):
        for headers in ([], [by("full")], [(b"Authorization", b"Bearer wrong")], signed("github", BODY)):
            for method in ("POST", "GET", "HEAD", "PUT"):
                response = service.request(method, f"/hooks/{name}/", headers, BODY)
                assert response.status == 404
                if method != "HEAD":
                    assert json.loads(response.body)["detail"].startswith(
                        "A trailing slash makes a different path: use /hooks/{hook}."
                    )
            response = service.request("PUT", f"/hooks/{name}", headers, BODY)
            assert_problem(response, 405)
            assert response.headers[b"allow"] == b"GET, HEAD, POST, OPTIONS"
    assert service.broker.records == []


def test_only_paths_that_need_no_credentials_are_named_without_them(service):
    public = ["/live", "/ready", "/docs", "/openapi.json", "/docs/readings"]
    for path in public:
        assert_problem(service.request("POST", path), 405)
        assert_problem(service.request("GET", f"{path}/"), 404)
    secret = ["/messages", "/topics", "/topics/t", "/", "/metrics", "/changes", "/hooks", "/nothing"]
    for path in [
        *secret,
        "//hooks/github",
        "/hooks/github//",
        "/hooks//",
        "/hooks/a/b/",
        "/hooks/%2F/",
        "/Hooks/a/",
    ]:
        for each in (path, f"{path}/"):
            response = service.request("BREW", each)
            assert_problem(response, 401)
            assert response.headers[b"www-authenticate"].startswith(b"Bearer")


def test_without_a_callers_file_there_is_no_hook():
    service = InMemoryService(broker=PromptBroker())
    rejected(post(service, "github", signed("github", BODY)))


def test_a_signature_is_over_the_bytes_that_came_and_a_compressed_body_is_decoded_after_it(service):
    coding = (b"Content-Encoding", b"gzip")
    packed = gzip.compress(BODY)
    assert post(service, "github", [*signed("github", packed), coding], packed).status == 200
    assert service.broker.records == [record_of()]
    rejected(post(service, "github", [*signed("github", BODY), coding], packed))
    # Who does not know the secret cannot make the service decode anything.
    rejected(post(service, "github", [*signed("github", BODY), coding], b"no gzip"))
    assert_problem(post(service, "github", [*signed("github", b"no gzip"), coding], b"no gzip"), 400)
    bomb = gzip.compress(bytes(2 * 1024 * 1024))
    large = gzip.compress(bytes(1024 * 1024))
    for packed, status in ((bomb, 413), (large, 200)):
        connection = service.connect()
        connection.send(request_bytes("POST", "/hooks/github", [*signed("github", packed), coding], packed))
        service.clock.pump([0.0] * 50)
        assert [response.status for response in connection.responses(["POST"])] == [status]
    assert service.broker.records[-1] == record_of(value=bytes(1024 * 1024))
    brotli = [*signed("github", b"x"), (b"Content-Encoding", b"br")]
    assert_problem(post(service, "github", brotli, b"x"), 415)
    assert len(service.broker.records) == 2


def test_a_body_in_chunks_and_in_any_segments_is_verified_whole(service):
    for size in (1, 7, 1000):
        head = [*signed("stripe", BODY), (b"Transfer-Encoding", b"chunked")]
        data = request_bytes("POST", "/hooks/stripe", head) + chunked(BODY, size)
        connection = service.connect()
        connection.send(*(data[place : place + 5] for place in range(0, len(data), 5)))
        assert [response.status for response in connection.responses(["POST"])] == [200]
    connection = service.connect()
    connection.send(data[: -len(b"0\r\n\r\n")])
    connection.lose()
    assert service.broker.records == [record_of()] * 3


def test_an_empty_body_can_be_signed(service):
    assert post(service, "github", signed("github", b""), b"").status == 200
    assert service.broker.records == [record_of(value=b"")]


def test_a_body_over_the_limit_is_rejected_whatever_its_signature(service):
    body = bytes(1024 * 1024 + 1)
    assert_problem(post(service, "github", signed("github", body), body), 413)
    assert service.broker.records == []


def test_slack_gets_its_challenge_and_nothing_is_published(service):
    body = json.dumps({"token": "x", "challenge": "3eZbrw1a\u00e9", "type": "url_verification"}).encode()
    response = post(service, "slack", signed("slack", body), body)
    assert (response.status, response.body) == (200, "3eZbrw1a\u00e9".encode())
    assert response.headers[b"content-type"] == b"text/plain; charset=utf-8"
    rejected(post(service, "slack", signed("slack", body, key=b"another"), body))
    assert service.broker.records == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"type": "event_callback", "event": {"text": "url_verification"}}',
        b'{"type": "url_verification"}',
        b'{"type": "url_verification", "challenge": 1}',
        b'[{"type": "url_verification"}]',
        b"payload=url_verification",
        b'"url_verification\xff"',
        b'{"type": "url_verification", "challenge": "x", "y": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
)
def test_only_a_challenge_is_answered_as_one(service, body):
    response = post(service, "slack", signed("slack", body), body)
    assert (response.status, response.body) == (200, b"")
    assert b"content-type" not in response.headers
    assert service.broker.records == [record_of(value=body)]


def test_the_challenge_of_slack_means_nothing_to_others(service):
    body = b'{"type": "url_verification", "challenge": "x"}'
    post(service, "github", signed("github", body), body)
    assert service.broker.records == [record_of(value=body)]


def test_chosen_headers_are_kept_but_never_the_signature():
    service = made(record_headers=("x-*", "webhook-*", "stripe-*"))
    own = [(b"Content-Type", b"application/json"), (b"X-GitHub-Event", b"push"), (b"Cookie", b"c")]
    for name in SECRETS:
        assert post(service, name, [*signed(name, BODY), *own]).status == 200
    kept = [record.headers for record in service.broker.records]
    event = ("x-github-event", b"push")
    content_type = ("content-type", b"application/json")
    assert sorted(kept[0]) == [content_type, event]
    assert sorted(kept[1]) == [content_type, event]
    assert sorted(kept[2]) == [content_type, event, ("x-slack-request-timestamp", b"%d" % NOW)]
    assert sorted(kept[3]) == [
        *[content_type, ("webhook-id", b"msg_1"), ("webhook-timestamp", b"%d" % NOW)],
        event,
    ]
    assert sorted(kept[4]) == [content_type, event]


def test_no_record_has_a_signature_for_another_hook():
    service = made(record_headers=("x-*",))
    headers = [*signed("meters", BODY), (b"X-Own", b"1")]
    assert post(service, "github", [*signed("github", BODY), *headers]).status == 200
    token = by("full")
    for method in ("POST", "DELETE"):
        body = BODY if method == "POST" else b""
        assert service.request(method, "/topics/t?key=k", [token, *headers], body).status == 200
    assert [record.headers for record in service.broker.records] == [(("x-own", b"1"),)] * 3


def test_a_header_can_have_the_key(service):
    right = signed("meters", BODY)
    assert post(service, "meters", [*right, (b"x-meter", b"k\xff")]).status == 200
    assert post(service, "meters", [*right, (b"X-Meter", b"")]).status == 200
    assert post(service, "meters", right).status == 200
    assert [record.key for record in service.broker.records] == [b"k\xff", b"", None]
    response = post(service, "meters", [*right, (b"X-Meter", b"1"), (b"X-Meter", b"2")])
    assert_problem(response, 422)
    assert json.loads(response.body)["errors"][0]["pointer"] == "/X-Meter"


def test_the_challenge_of_slack_is_rejected_with_a_query_as_its_events_would_be(service):
    body = b'{"type": "url_verification", "challenge": "x"}'
    assert_problem(post(service, "slack", signed("slack", body), body, query="?team=1"), 422)


def test_a_query_means_nothing_and_is_rejected(service):
    response = post(service, "github", signed("github", BODY), query="?key=1&x")
    assert_problem(response, 422)
    assert [each["pointer"] for each in json.loads(response.body)["errors"]] == ["/key", "/x"]
    rejected(post(service, "github", query="?key=1"))
    assert service.broker.records == []


def test_chosen_parameters_become_headers_of_the_record_and_are_not_signed():
    service = made(record_queries=("event",), record_headers=("x-own",))
    more = [(b"X-Own", b"1")]
    assert post(service, "github", [*signed("github", BODY), *more], query="?event=up").status == 200
    assert post(service, "slack", signed("slack", BODY), query="?event=").status == 200
    challenge = b'{"type": "url_verification", "challenge": "x"}'
    answer = post(service, "slack", signed("slack", challenge), challenge, query="?event=up")
    assert (answer.status, answer.body) == (200, b"x")
    kept = [record.headers for record in service.broker.records]
    assert kept == [(("x-own", b"1"), ("event", b"up")), (("event", b""),)]
    for query in ("?event=a&event=b", "?Event=up", "?event=up&key=k"):
        # Without a right signature, nobody learns which parameters there are.
        rejected(post(service, "github", signed("stripe", BODY), query=query))
        response = post(service, "github", signed("github", BODY), query=query)
        assert_problem(response, 422)
    (fault,) = json.loads(response.body)["errors"]
    assert fault["detail"] == (
        'There is no parameter "key" here; a hook takes none, besides those that the service\'s option '
        "--record-query names."
    )
    assert len(service.broker.records) == 2


def test_what_is_sent_again_with_the_header_of_its_id_is_published_once():
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    service = made(broker=broker)

    def ask(name, *headers, body=BODY, brand=b"webhook-", **options):
        connection = service.connect()
        head = [*signed(name, body, **options), *headers]
        head = [(field.replace(b"webhook-", brand), value) for field, value in head]
        connection.send(request_bytes("POST", f"/hooks/{name}", head, body))
        clock.pump([0.1] * 3)
        (response,) = connection.responses(["POST"])
        return response

    first, again = ask("standard"), ask("standard", now=NOW + 30)
    assert (first.status, again.status) == (200, 200)
    assert (first.body, again.headers[b"idempotent-replayed"]) == (again.body, b"true")
    assert b"idempotent-replayed" not in ask("standard", id_="msg_2").headers
    other = ask("standard", body=b"other")
    assert_problem(other, 422)
    assert json.loads(other.body)["type"] == "urn:sampleapp:problem:idempotency-key-reused"
    # The same delivery under the names of the other brand, which signs in the same way.
    renamed = ask("standard", brand=b"svix-")
    assert (renamed.body, renamed.headers[b"idempotent-replayed"]) == (first.body, b"true")
    # The hook names another header, so this one is not looked at.
    assert b"idempotent-replayed" in ask("standard", (b"Idempotency-Key", b"new")).headers
    assert_problem(ask("standard", (b"webhook-id", b"second")), 401)
    # A hook that names none has the usual one.
    for replayed in (False, True):
        response = ask("slack", (b"Idempotency-Key", b"k"))
        assert (response.status, b"idempotent-replayed" in response.headers) == (200, replayed)
        assert response.body == b""
    assert_problem(ask("slack", (b"Idempotency-Key", b'"')), 400)
    broker.stop(deadline_s=0)


def test_an_id_that_is_no_key_is_named_by_its_header():
    file = FILE.replace("[hooks.stripe]", 'idempotency_header = "X-GitHub-Delivery"\n[hooks.stripe]')
    service = made(callers=file)
    response = post(service, "github", [*signed("github", BODY), (b"x-github-delivery", b"a b")])
    assert_problem(response, 400)
    assert "X-GitHub-Delivery" in json.loads(response.body)["detail"]
    assert post(service, "github", signed("github", BODY)).status == 200
    assert service.broker.records[0].identity is None


RATES = FILE.replace("[hooks.stripe]", "requests_per_second = 1\nrequests_burst = 2\n[hooks.stripe]")


def test_only_verified_requests_use_the_rate_of_a_hook():
    service = made(callers=RATES)
    for _ in range(5):
        rejected(post(service, "github", signed("github", b"other")))
        rejected(post(service, "github"))
    assert [post(service, "github", signed("github", BODY)).status for _ in range(3)] == [200, 200, 429]
    assert service.hooks.results["github", "rate"] == 1
    service.clock.advance(1)
    assert post(service, "github", signed("github", BODY)).status == 200
    # Not before the signature is verified: that would tell who has no secret that there is such a hook.
    for _ in range(2):
        rejected(post(service, "github", signed("github", b"other")))
    response = post(service, "github", signed("github", BODY))
    assert (response.status, response.headers[b"retry-after"]) == (429, b"1")


class TestNames:
    """Without a right signature, no answer depends on the name of the hook."""

    FIELDS = st.one_of(
        st.just([]),
        *(
            st.builds(
                lambda own, at: signed(own, b"other", now=NOW + at),
                st.just(own),
                st.sampled_from([0, 61, -61, 301, -10_000]),
            )
            for own in SECRETS
        ),
        st.just([*signed("github", b"other"), *signed("standard", b"other")]),
        st.just([(b"svix-id", b"1"), *signed("standard", b"other")]),
        st.just([(b"X-Hub-Signature-256", b"?")]),
        st.just([*signed("github", b"other"), *signed("github", b"other")]),
    )
    MORE = st.lists(
        st.sampled_from(
            [
                (b"Expect", b"100-continue"),
                (b"Expect", b"200-ok"),
                (b"Content-Encoding", b"gzip"),
                (b"Content-Encoding", b"br"),
                (b"Content-Type", b"application/json"),
                (b"Connection", b"close"),
                (b"Origin", b"https://other.example"),
                (b"Origin", b"https://own.example"),
                (b"Access-Control-Request-Method", b"POST"),
                (b"WebHook-Request-Origin", b"own.example"),
                (b"Idempotency-Key", b'"'),
                by("full"),
                by("nobody"),
            ]
        ),
        unique_by=lambda field: field[0],
        max_size=4,
    )
    BODIES = st.one_of(
        st.binary(max_size=20).map(lambda body: ([(b"Content-Length", b"%d" % len(body))], body)),
        st.just(([(b"Content-Length", b"3")], b"")),
        st.just(([(b"Content-Length", b"5")], b"abcde" + b"GET / HTTP/1.1\r\n")),
        st.just(([(b"Content-Length", b"1048577")], b"abc")),
        st.just(([(b"Transfer-Encoding", b"chunked")], b"3\r\nabc\r\n0\r\n\r\n")),
        st.just(([(b"Transfer-Encoding", b"chunked")], b"3\r\nab")),
        st.just(([(b"Transfer-Encoding", b"chunked")], b"?\r\n")),
        st.just(([(b"Transfer-Encoding", b"chunked")], chunked(bytes(70_000), 5000))),
        st.just(([], b"")),
    )

    @given(
        known=st.sampled_from(sorted(SECRETS)),
        target=st.tuples(
            st.sampled_from(["POST", "POST", "POST", "GET", "HEAD", "PUT", "OPTIONS", "post"]),
            st.sampled_from(["", "?a=1", "?%", "/", "/?a=1", "?ssl_check=1"]),
        ),
        fields=st.tuples(FIELDS, MORE),
        body=BODIES,
        is_over_rate=st.booleans(),
    )
    def test_the_answers_for_a_hook_and_for_none_are_the_same_bytes(
        self, known, target, fields, body, is_over_rate
    ):
        (method, query), (framing, content) = target, body
        own, more = fields
        seen = []
        for name in (known, "unknown", "x" * 200):
            service = made(
                callers=FILE.replace('topic = "t"', 'topic = "t"\nrequests_per_second = 1'),
                allowed_origins=["https://own.example"],
                max_body=65_536,
            )
            service.give_same_request_ids()
            if is_over_rate:
                for place in range(2):
                    post(service, known, signed(known, BODY, id_=f"m{place}"))
                records = len(service.broker.records)
                assert records == 1
            connection = service.connect()
            head = request_bytes(method, f"/hooks/{name}{query}", [*own, *framing, *more])
            connection.send(head)
            first = connection.sent
            connection.send(content)
            second = connection.sent
            service.clock.pump([0.0, 0.1, 31.0, 1.0])
            connection.settle()
            seen.append(
                (first, second, connection.sent, connection.is_closed_for_reading, connection.is_lost)
            )
            assert len(service.broker.records) == is_over_rate
        assert seen[0] == seen[1]
        assert seen[2] == seen[1]

    @given(
        st.lists(st.sampled_from(list(SECRETS)), unique=True, max_size=3),
        st.dictionaries(st.sampled_from(list(SECRETS)), st.integers(1, 4), min_size=1),
        st.integers(0, 2),
        st.integers(0, 3),
    )
    def test_a_rejection_takes_the_same_work_for_all_names(self, forms, secrets, public_keys, signed_with):
        keys = {name: [b"s%d" % number for number in range(count)] for name, count in secrets.items()}
        if "standard" in keys:
            keys["standard"] += [PUBLIC_KEY] * public_keys
        service = made(callers=None, secrets=keys)
        tables = FILE.split("[hooks.")[1:]
        service.use_hooks("".join(f"[hooks.{each}" for each in tables if each.partition("]")[0] in keys))
        more = b" v1a,%b" % base64.b64encode(bytes(64)) * signed_with
        fields = [
            (name, value + more if name == b"webhook-signature" else value)
            for form in forms
            for name, value in signed(form, b"other")
        ]
        is_well_formed = not secrets.keys().isdisjoint(forms)
        is_standard = "standard" in forms and "standard" in secrets
        for name in [*secrets, "unknown"]:
            with counted_work() as work:
                rejected(post(service, name, fields))
            assert work["header"] == len(secrets), name
            assert work["HMAC"] == (max(secrets.values()) if is_well_formed else 0), name
            assert work["Ed25519"] == (public_keys * signed_with if is_standard else 0), name

    @pytest.mark.parametrize("name", [*SECRETS, "unknown"])
    def test_the_body_is_read_if_the_header_has_the_form_of_any_hook(self, service, name):
        for own in SECRETS:
            connection = service.connect()
            expect = [(b"Content-Length", b"%d" % len(BODY)), (b"Expect", b"100-continue")]
            connection.send(request_bytes("POST", f"/hooks/{name}", [*signed(own, b"other"), *expect]))
            assert connection.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.send(BODY)
            (response,) = connection.responses(["POST"])
            rejected(response)


def test_requests_that_come_at_once_do_not_pass_the_rate_together():
    service = made(callers=RATES)
    connections = [service.connect() for _ in range(4)]
    data = request_bytes("POST", "/hooks/github", signed("github", BODY), BODY)
    for connection in connections:
        connection.send(data[:-1])
    for connection in connections:
        connection.send(data[-1:])
    statuses = [each.status for connection in connections for each in connection.responses(["POST"])]
    assert statuses == [200, 200, 429, 429]
    assert len(service.broker.records) == 2


def test_the_bytes_of_a_body_count_decoded():
    file = FILE.replace("[hooks.stripe]", "bytes_per_second = 100\nbytes_burst = 1000\n[hooks.stripe]")
    service = made(callers=file)
    packed = gzip.compress(bytes(1000))
    coding = (b"Content-Encoding", b"gzip")
    assert post(service, "github", [*signed("github", packed), coding], packed).status == 200
    assert post(service, "github", signed("github", BODY)).status == 429


def test_a_body_over_the_limit_is_not_rejected_for_its_rate():
    file = FILE.replace("[hooks.stripe]", "bytes_per_second = 100\nbytes_burst = 1000\n[hooks.stripe]")
    service = made(callers=file)
    assert post(service, "github", signed("github", BODY)).status == 200
    body = bytes(1024 * 1024 + 1)
    assert_problem(post(service, "github", signed("github", body), body), 413)


def test_another_version_of_the_file_counts_from_the_next_request():
    service = made()
    right = signed("github", BODY)
    service.secrets["github"], kept = SECRETS["github"][:1], service.secrets["github"]
    try:
        service.use_callers(FILE)
    finally:
        service.secrets["github"] = kept
    rejected(post(service, "github", right))
    service.use_callers(FILE.replace('topic = "t"', 'topic = "u"', 1))
    assert post(service, "github", right).status == 200
    assert service.broker.records[0].topic == "u"
    service.use_callers(FULL)
    rejected(post(service, "github", right))


def test_a_hook_is_a_caller_of_its_own_in_the_log(service):
    seen = []
    service.site.on_response = lambda exchange, _: seen.append((exchange.caller, exchange.route))
    post(service, "github", signed("github", BODY))
    post(service, "github", signed("github", b"other"))
    assert seen == [("hook:github", "/hooks/{hook}"), ("", "/hooks/{hook}")]


def test_what_pages_of_other_sites_send_is_not_published(service):
    headers = [*signed("github", BODY), (b"Origin", b"https://other.example")]
    assert_problem(post(service, "github", headers), 403)
    assert service.broker.records == []


def test_a_header_that_is_too_large_is_rejected_before_anything_else(service):
    response = post(service, "github", [(b"X-Hub-Signature-256", b"sha256=" + b"0" * 20_000)])
    assert response.status == 431


def test_the_check_of_a_certificate_by_slack_is_answered_and_not_published(service):
    body = b"ssl_check=1&token=x"
    response = post(service, "slack", signed("slack", body), body)
    assert (response.status, response.body) == (200, b"")
    rejected(post(service, "slack", signed("slack", body, key=b"another"), body))
    assert service.broker.records == []
    event = b'{"text": "a&ssl_check=1&b"}'
    assert post(service, "slack", signed("slack", event), event).status == 200
    assert service.broker.records == [record_of(value=event)]
