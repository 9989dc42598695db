"""Groups of workers over HTTP: pull, acknowledge and extend."""

from __future__ import annotations

import json
from functools import partial

import pytest
from twisted.internet.defer import succeed

from sampleapp import errors
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import ALL, Acknowledged, Extended, Record, Verdicts
from tests.support.callers import by, caller
from tests.support.in_memory import InMemoryService
from tests.support.work import JSON, NOW_MS, WorkService, lease_of, leased, pull_request, token_in
from tests.web.http import assert_problem

LEASE = "bGVhc2U"
"""The token of the tests."""
DONE = Acknowledged(accepted=1, released=2, rejected=3)


@pytest.fixture
def service():
    return WorkService()


def problem(response, status, kind=None):
    assert_problem(response, status)
    document = json.loads(response.body)
    if kind is not None:
        assert document["type"] == f"urn:sampleapp:problem:{kind}"
    return document


def pointers(response):
    return [fault["pointer"] for fault in problem(response, 422)["errors"]]


def asked(service):
    return [(each.method, *each.arguments) for each in service.broker.asked]


# Pull


def test_a_pull_gets_messages_with_their_ids_and_attempts_under_a_lease(service):
    response = service.pull(leased(42), leased(43, attempts=3, value=b"\xff"))
    assert response.status == 200
    assert response.headers[b"content-type"] == b"application/json"
    assert response.headers[b"cache-control"] == b"no-store"
    assert response.body == (
        b'{"lease":"bGVhc2U","expires":"2023-11-14T22:13:50.123Z","messages":['
        b'{"id":"0-42","attempts":1,"topic":"orders","partition":0,"offset":42,"timestamp":5,"content":"v",'
        b'"headers":{}},'
        b'{"id":"0-43","attempts":3,"topic":"orders","partition":0,"offset":43,"timestamp":5,'
        b'"content_base64":"/w==","headers":{}}]}\n'
    )


@pytest.mark.parametrize("body", [None, b"{}", b" \n"])
def test_a_pull_without_a_body_asks_for_one_message_and_does_not_wait(service, body):
    service.pull(body=body)
    assert asked(service) == [("pull", "orders", "billing", 1, 0)]


def test_a_pull_without_a_body_needs_no_content_type(service):
    assert service.pull(headers=()).status == 200


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_pull_without_a_body_needs_no_length(service, version):
    connection = service.connect()
    head = b"POST /topics/orders/groups/billing/pull HTTP/%b\r\nHost: h\r\n"
    connection.send(head % version + b"\r\n")
    service.answer(None)
    assert connection.sent.startswith(b"HTTP/1.1 204 ")
    for lost in (b"Content-Type: application/json\r\n\r\n", b"Connection: close\r\n\r\n{}"):
        connection = service.connect()
        connection.send(head % version + lost)
        assert connection.sent.split(b" ")[1] in {b"411", b"400"}
    assert len(service.broker.asked) == 1


def test_a_pull_says_how_many_messages_and_how_long_it_waits_for_the_first(service):
    service.pull(body={"max": 500.0, "wait": 60})
    assert asked(service) == [("pull", "orders", "billing", 500, 60)]


def test_without_a_message_the_answer_to_a_pull_is_204(service):
    connection = service.begin("pull", {"wait": 20})
    service.answer(None)
    (response,) = connection.responses(["POST"])
    assert (response.status, response.body) == (204, b"")
    assert response.headers[b"cache-control"] == b"no-store"


def test_many_messages_are_encoded_in_several_turns_of_the_reactor():
    service = WorkService()
    connection = service.begin("pull", {"max": 3})
    service.answer(lease_of(*(leased(offset, value=b"x" * 300_000) for offset in range(3))))
    assert connection.sent == b""
    service.clock.pump([0] * 6)
    (response,) = connection.responses(["POST"])
    assert [message["id"] for message in json.loads(response.body)["messages"]] == ["0-0", "0-1", "0-2"]


def test_workers_share_what_was_published_to_a_topic():
    service = WorkService()
    service = WorkService(broker=MemoryBroker(clock=service.clock))
    service.request("POST", "/topics/orders", (), b"first")
    service.request("POST", "/topics/orders", (), b"second")
    one, two, none = (service.ask("pull") for _ in range(3))
    assert (one.status, two.status, none.status) == (200, 200, 204)
    (first,), (second,) = (json.loads(each.body)["messages"] for each in (one, two))
    assert (first["content"], second["content"]) == ("first", "second")
    lease = json.loads(one.body)["lease"]
    assert service.ask("ack", {"lease": lease, "accept": [first["id"]]}).status == 200
    problem(service.ask("ack", {"lease": lease, "accept": [first["id"]]}), 409, "lease-lost")
    lease = json.loads(two.body)["lease"]
    assert pointers(service.ask("ack", {"lease": lease, "accept": [first["id"]]})) == ["/accept/0"]
    lease = json.loads(service.ask("extend", {"lease": lease}).body)["lease"]
    assert json.loads(service.ask("ack", {"lease": lease}).body)["released"] == 1
    assert json.loads(service.ask("pull").body)["messages"] == [{**second, "attempts": 2}]
    backlog = json.loads(service.request("GET", "/topics/orders/groups/billing").body)
    assert backlog == {"topic": "orders", "group": "billing", "backlog": 1}


# Acknowledge, extend and the backlog


def test_the_results_of_a_worker_reach_the_broker(service):
    service.ask(
        "ack", {"lease": LEASE, "accept": ["0-42", "3-0"], "release": ["0-43"], "reject": []}, answer=DONE
    )
    verdicts = Verdicts(accept=frozenset({(0, 42), (3, 0)}), release=frozenset({(0, 43)}))
    assert asked(service) == [("acknowledge", "orders", "billing", b"lease", verdicts)]


@pytest.mark.parametrize("result", ["accept", "release", "reject"])
def test_one_of_the_results_may_be_for_all_messages(service, result):
    service.ask("ack", {"lease": LEASE, result: "all"}, answer=DONE)
    assert service.broker.asked[0].arguments[-1] == Verdicts(**{result: ALL})


def test_an_acknowledgement_is_answered_with_the_numbers_of_messages(service):
    response = service.ask("ack", {"lease": LEASE}, answer=DONE)
    assert (response.status, response.body) == (200, b'{"accepted":1,"released":2,"rejected":3}\n')


def test_an_extension_is_answered_with_a_new_lease(service):
    response = service.ask("extend", {"lease": LEASE}, answer=Extended(token=b"\xff" * 4, ends_ms=NOW_MS))
    assert response.status == 200
    assert response.body == b'{"lease":"_____w","expires":"2023-11-14T22:13:20.000Z"}\n'
    assert asked(service) == [("extend", "orders", "billing", b"lease")]
    assert token_in(response) == b"\xff" * 4


def test_the_backlog_of_a_group_is_told(service):
    service.broker.backlog = lambda topic, group: succeed(17)
    response = service.request("GET", "/topics/orders/groups/billing")
    assert (response.status, response.body) == (200, b'{"topic":"orders","group":"billing","backlog":17}\n')
    head = service.request("HEAD", "/topics/orders/groups/billing")
    assert (head.status, head.headers[b"content-length"]) == (200, b"50")


def test_a_group_in_which_no_worker_has_pulled_yet_is_404(service):
    service.broker.backlog = lambda topic, group: succeed(None)
    found = problem(service.request("GET", "/topics/orders/groups/billing"), 404, "unknown-group")
    assert "the topic orders in the group billing" in found["detail"]


# Rejections


@pytest.mark.parametrize(
    ("action", "body", "expected"),
    [
        ("pull", [], [""]),
        ("pull", "x", [""]),
        ("pull", {"max": 0}, ["/max"]),
        ("pull", {"max": 501, "wait": 61}, ["/max", "/wait"]),
        ("pull", {"wait": -1, "a/b": 1, "max": "1"}, ["/a~1b", "/max", "/wait"]),
        ("pull", {"max": True}, ["/max"]),
        ("pull", {"max": 1.5}, ["/max"]),
        ("pull", {"max": None}, ["/max"]),
        ("pull", b'{"max":1,"max":2}', ["/max"]),
        ("pull", {"max": {}}, ["/max"]),
        ("pull", b'{"max":1e400}', ["/max"]),
        ("ack", None, ["/lease"]),
        ("ack", {"lease": 1, "accept": {}, "release": "every"}, ["/lease", "/accept", "/release"]),
        ("ack", {"lease": LEASE, "accept": ["0-1", 2, "0-2", None]}, ["/accept/1", "/accept/3"]),
        ("ack", {"lease": LEASE, "reject": ["0-1", "0-1-2"]}, ["/reject/1"]),
        ("ack", {"lease": LEASE, "accept": ["00-1"]}, ["/accept/0"]),
        (
            "ack",
            {"lease": LEASE, "accept": ["0-1\n", "0-1"], "reject": ["", "a"]},
            ["/accept/0", "/reject/0", "/reject/1"],
        ),
        ("ack", {"lease": LEASE, "accept": [["0-1"]]}, ["/accept/0"]),
        ("ack", {"lease": LEASE, "accept": ["0-1"] * 501}, ["/accept"]),
        ("ack", {"lease": LEASE, "accept": [1] * 20_000}, [f"/accept/{n}" for n in range(100)]),
        ("ack", {"lease": LEASE, "release": ["a"] * 400}, [f"/release/{n}" for n in range(100)]),
        ("pull", {f"a{n}": 1 for n in range(5000)}, [f"/a{n}" for n in range(100)]),
        ("ack", {"lease": "x" * 17_000}, ["/lease"]),
        ("ack", {"lease": LEASE, "accept": ["0-1", "0-2"], "reject": ["0-2"]}, ["/accept/1", "/reject/0"]),
        ("ack", {"lease": LEASE, "accept": "all", "reject": ["0-2"]}, ["/accept"]),
        ("ack", {"lease": LEASE, "accept": "all", "release": "all"}, ["/accept"]),
        ("extend", {}, ["/lease"]),
        ("extend", {"lease": LEASE, "accept": []}, ["/accept"]),
    ],
)
def test_a_body_that_is_wrong_is_422_which_names_all_faults_and_the_broker_is_not_asked(
    service, action, body, expected
):
    response = service.ask(action, body)
    assert pointers(response) == expected
    assert problem(response, 422, "invalid-work-request")
    assert service.broker.asked == []


def test_a_fault_says_what_would_be_right(service):
    document = problem(service.ask("pull", {"max": 0, "most": 3}), 422)
    assert [fault["detail"] for fault in document["errors"]] == [
        'There is no "most" here, only: max, wait.',
        '"max" must be an integer from 1 to 500.',
    ]


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 5000, b"{} {}"])
def test_a_body_that_is_not_json_is_400(service, body):
    problem(service.ask("pull", body), 400, "malformed-message")


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([(b"Content-Type", b"text/plain")], b""),
        ([(b"Content-Type", b"application/x-www-form-urlencoded")], b"max=1"),
        ([JSON, (b"Content-Type", b"text/plain")], b"{}"),
        ([], b"{}"),
    ],
)
@pytest.mark.parametrize("action", ["pull", "ack", "extend"])
def test_another_type_than_json_is_415(service, action, headers, body):
    response = service.ask(action, body, headers=headers)
    problem(response, 415)
    assert response.headers[b"accept"] == b"application/json"


def test_a_body_of_more_than_64_kib_is_413(service):
    problem(service.ask("ack", b" " * 65_537), 413, "body-too-large")


def test_a_topic_and_a_group_that_are_no_names_are_both_named(service):
    for action in ("pull", "ack", "extend"):
        assert pointers(service.ask(action, group="a:b/c:d")) == ["/topic", "/group"]
    assert pointers(service.request("GET", "/topics/t/groups/c%20d")) == ["/group"]


@pytest.mark.parametrize("field", [b"X-HTTP-Method-Override", b"Content-Range", b"If-Match"])
def test_what_would_change_the_meaning_of_a_request_is_rejected(service, field):
    assert service.ask("pull", headers=[JSON, (field, b"*")]).status in {400, 412}
    assert service.broker.asked == []


def test_parameters_are_in_the_body_only(service):
    response = service.request("POST", "/topics/orders/groups/billing/pull?max=3", [JSON])
    assert pointers(response) == ["/max"]
    assert "is in the body" in problem(response, 422)["detail"]


def test_an_idempotency_key_is_rejected_since_it_would_have_no_effect(service):
    response = service.ask("ack", {"lease": LEASE}, headers=[JSON, (b"Idempotency-Key", b"k")])
    assert pointers(response) == ["/Idempotency-Key"]


def test_ids_that_the_lease_does_not_have_are_named_and_it_goes_on(service):
    service.pull()
    body = {"lease": LEASE, "accept": ["0-1", "0-2"], "reject": ["0-3"]}
    response = service.ask("ack", body, answer=errors.UnknownIds([(0, 2), (0, 3)]))
    assert pointers(response) == ["/accept/1", "/reject/0"]


@pytest.mark.parametrize("action", ["ack", "extend"])
def test_a_lease_that_has_ended_is_409_which_says_what_is_done(service, action):
    service.pull()
    lost = errors.LeaseLost("The time of the lease is over.", done=[(0, 43), (0, 42)])
    document = problem(service.ask(action, {"lease": LEASE}, answer=lost), 409, "lease-lost")
    assert (document["detail"], document["done"]) == ("The time of the lease is over.", ["0-42", "0-43"])


@pytest.mark.parametrize("lease", ["", "x", "bGVh!!!!", "\ud800", "\u00e9"])
@pytest.mark.parametrize("action", ["ack", "extend"])
def test_what_was_never_a_lease_is_409(service, action, lease):
    connection = service.begin(action, {"lease": lease})
    if lease:
        assert service.broker.asked == []
    else:
        service.answer(errors.LeaseLost("There is no such lease."))
    problem(connection.responses(["POST"])[0], 409, "lease-lost")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.UnknownTopic, 404, "unknown-topic"),
        (errors.TopicNotAuthorized, 403, "topic-not-authorized"),
        (errors.BrokerUnavailable, 503, "broker-unavailable"),
        (errors.BrokerStopped, 503, "stopping"),
        (errors.WorkNotSupported, 501, "work-not-supported"),
        (errors.OutcomeUnknown, 504, "outcome-unknown"),
    ],
)
@pytest.mark.parametrize("action", ["pull", "ack", "extend"])
def test_an_error_of_the_broker_is_answered_with_its_status(service, action, error, status, kind):
    response = service.ask(action, None if action == "pull" else {"lease": LEASE}, answer=error("Its words."))
    assert problem(response, status, kind)["detail"] == "Its words."


def test_a_broker_without_groups_of_workers_is_501():
    service = InMemoryService()
    for method, path in (("GET", ""), ("POST", "/pull")):
        response = service.request(method, f"/topics/orders/groups/billing{path}")
        document = problem(response, 501, "work-not-supported")
        assert document["detail"] == "The broker of this service has no groups of workers."


@pytest.mark.parametrize("action", ["pull", "ack", "extend"])
def test_a_page_of_another_site_may_not_work(service, action):
    response = service.ask(action, headers=[JSON, (b"Origin", b"https://other.example")])
    problem(response, 403, "cross-site")
    assert service.broker.asked == []


# Rights


@pytest.mark.parametrize("pattern", ["orders/billing", "orders/*", "*/billing", "*"])
def test_a_caller_may_work_in_the_groups_that_it_is_granted(pattern):
    service = WorkService(callers=caller("one", f'work = ["{pattern}"]'))
    assert service.pull(headers=[JSON, by("one")]).status == 200


@pytest.mark.parametrize(
    "right", ['work = ["orders/shipping", "invoices/*"]', 'work = ["billing/orders"]', 'work = ["Orders/*"]']
)
@pytest.mark.parametrize("action", ["pull", "ack", "extend"])
def test_a_caller_may_not_work_in_other_groups(right, action):
    service = WorkService(callers=caller("one", right))
    response = service.ask(action, {"lease": LEASE} if action != "pull" else {}, headers=[JSON, by("one")])
    found = problem(response, 403, "not-granted")
    assert found["detail"] == "This caller may not work in this group of the topic orders."
    assert service.broker.asked == []


@pytest.mark.parametrize(
    ("patterns", "seen"),
    [
        ('"orders/billing"', ["orders"]),
        ('"o*/x", "other/y"', ["orders", "other"]),
        ('"*"', ["orders", "other", "paid"]),
    ],
)
def test_a_caller_sees_the_topics_of_its_groups(patterns, seen):
    service = WorkService()
    broker = MemoryBroker(clock=service.clock)
    service = WorkService(broker=broker, callers=caller("one", f"work = [{patterns}]"))
    for topic in ("orders", "other", "paid"):
        broker.publish(Record(topic=topic, key=None, value=b"v", timestamp_ms=5))
    assert json.loads(service.request("GET", "/topics", [by("one")]).body) == seen
    found = {
        topic: service.request("GET", f"/topics/{topic}", [by("one")]).status
        for topic in ("orders", "other", "paid")
    }
    assert found == {topic: 200 if topic in seen else 403 for topic in found}


def test_the_rights_to_publish_and_to_read_do_not_include_work():
    service = WorkService(callers=caller("one", 'publish = ["*"]', 'consume = ["*"]', "read = true"))
    response = service.request("GET", "/topics/orders/groups/billing", [by("one")])
    assert problem(response, 403, "not-granted")["detail"] == "This caller may not work in any group."


def test_a_pull_that_waits_ends_when_its_caller_loses_the_right():
    service = WorkService(callers=caller("one", 'work = ["orders/*"]'))
    connection = service.begin("pull", {"wait": 20}, headers=[JSON, by("one")])
    service.use_callers(caller("one", 'work = ["orders/shipping"]'))
    service.clock.pump([0.5] * 6)
    (response,) = connection.responses(["POST"])
    problem(response, 403, "not-granted")
    assert len(service.broker.cancelled) == 1


# Limits


def test_pulls_that_wait_are_long_polls_like_the_pages_that_wait():
    service = WorkService(max_streams=1)
    connection = service.begin("pull", {"wait": 20})
    document = problem(service.ask("pull", {"wait": 20}), 503, "too-many-streams")
    assert document["detail"].startswith("1 waiting pages and pulls are open, the maximum")
    problem(service.request("GET", "/topics/t/records?wait=5"), 503, "too-many-streams")
    assert service.pull(token=b"other").status == 200
    service.broker.asked[0].answer.callback(None)
    assert connection.responses(["POST"])[0].status == 204
    assert service.begin("pull", {"wait": 20}).sent == b""


def test_a_pull_that_fails_at_once_keeps_no_slot(monkeypatch):
    service = WorkService(max_streams=1)

    def fail(*_, **__):
        raise errors.WorkNotSupported("Its words.")

    with monkeypatch.context() as patch:
        patch.setattr(service.broker, "pull", fail)
        assert [service.ask("pull", {"wait": 20}).status for _ in range(2)] == [501, 501]
    assert service.begin("pull", {"wait": 20}).sent == b""


def test_pulls_that_wait_do_not_count_as_topics_that_are_followed():
    service = WorkService(max_followed_topics=0)
    assert service.begin("pull", {"wait": 20}).sent == b""


def test_one_caller_cannot_take_all_long_polls():
    one, two = (caller(name, 'work = ["*"]') for name in ("one", "two"))
    service = WorkService(callers=one + two, max_streams_per_caller=1)
    ask = partial(service.begin, "pull", {"wait": 20})
    assert ask(headers=[JSON, by("one")]).sent == b""
    (response,) = ask(headers=[JSON, by("one")]).responses(["POST"])
    problem(response, 429, "too-many-streams-of-caller")
    assert ask(headers=[JSON, by("two")]).sent == b""


@pytest.mark.parametrize("body", [{}, {"wait": 20}])
def test_no_more_leases_are_given_than_the_maximum(service, body):
    response = service.ask("pull", body, answer=errors.TooManyLeases(7))
    document = problem(response, 503, "too-many-leases")
    assert response.headers[b"retry-after"] == b"1"
    assert document["detail"].startswith("Workers have 7 leases of this instance")
    assert service.gateway.work.rejections == 1
    assert service.pull().status == 200


def test_an_extension_that_would_be_one_lease_more_is_counted_as_well(service):
    response = service.ask("extend", {"lease": LEASE}, answer=errors.TooManyLeases(7))
    document = problem(response, 503, "too-many-leases")
    assert document["detail"].endswith("Send the request again later, or to another instance.")
    assert service.gateway.work.rejections == 1


def test_no_messages_are_taken_while_there_is_no_memory_for_them():
    service = WorkService()
    service.site.body_memory.add("", service.site.body_memory.limit - 1_000_000)
    problem(service.ask("pull"), 503, "body-memory-full")
    assert service.broker.asked == []


def test_messages_for_which_there_is_no_memory_any_more_are_given_back():
    service = WorkService()
    connection = service.begin("pull", {"wait": 20})
    service.site.body_memory.add("", service.site.body_memory.limit - 1_000_000)
    service.answer(lease_of(leased(0, value=b"x" * 500_000)))
    problem(connection.responses(["POST"])[0], 503, "body-memory-full")
    released = ("acknowledge", "orders", "billing", b"lease", Verdicts(release=ALL))
    assert asked(service)[1:] == [released]


def test_a_service_with_little_memory_gives_small_messages():
    assert WorkService(max_body_memory=100_000).pull().status == 200


# Clients that go, and the end of the service


def test_a_client_that_goes_while_it_waits_ends_the_pull(service):
    connection = service.begin("pull", {"wait": 20})
    connection.lose()
    assert len(service.broker.cancelled) == 1
    assert service.pull().status == 200


def test_a_client_that_goes_before_the_answer_gives_its_messages_back():
    service = WorkService()
    connection = service.begin("pull", {"max": 3})
    service.answer(lease_of(*(leased(offset, value=b"x" * 300_000) for offset in range(3))))
    connection.lose()
    assert asked(service)[1:] == [("acknowledge", "orders", "billing", b"lease", Verdicts(release=ALL))]


def test_messages_that_cannot_be_given_back_wait_for_the_end_of_their_lease(service, no_failure_is_lost):
    connection = service.begin("pull", {"max": 3})
    service.answer(lease_of(*(leased(offset, value=b"x" * 300_000) for offset in range(3))))
    connection.lose()
    service.answer(errors.BrokerUnavailable("It cannot be reached."))
    # An error that nothing handles is logged when its Deferred is freed.
    service.broker.asked.clear()
    assert no_failure_is_lost == []


def test_a_client_that_closes_its_side_is_answered_at_once(service):
    connection = service.begin("pull", {"wait": 20})
    connection.channel.readConnectionLost()
    (response,) = connection.responses(["POST"])
    assert response.status == 204
    assert len(service.broker.cancelled) == 1


def test_a_client_that_has_closed_its_side_is_not_waited_for(service):
    connection = service.begin("pull", {"wait": 20})
    connection.send(pull_request({"wait": 20}))
    connection.channel.readConnectionLost()
    service.answer(lease_of())
    assert [each.arguments[-1] for each in service.broker.asked] == [20, 0]
    assert [response.status for response in connection.responses(["POST", "POST"])] == [204, 200]


def test_an_acknowledgement_goes_on_without_its_client(service):
    connection = service.begin("ack", {"lease": LEASE, "accept": "all"})
    connection.lose()
    assert service.broker.cancelled == []
    service.answer(DONE)
    assert service.gateway.work.counts.messages["orders", "billing", "accepted"] == 1


def test_when_the_service_stops_pulls_that_wait_get_204_and_later_ones_503(service):
    connections = [service.begin("pull", {"wait": 20}) for _ in range(50)]
    service.gateway.end_waits()
    service.clock.pump([0] * 20)
    assert {connection.responses(["POST"])[0].status for connection in connections} == {204}
    problem(service.ask("pull"), 503, "stopping")


def test_when_the_service_stops_leases_stay_until_they_have_ended(service):
    service.broker.leases = 1
    stopped = service.gateway.end_waits()
    service.clock.pump([0.5] * 4)
    assert not stopped.called
    assert service.ask("ack", {"lease": LEASE, "accept": "all"}, answer=DONE).status == 200
    service.broker.leases = 0
    service.clock.advance(0.5)
    assert stopped.called


def test_a_service_without_leases_stops_at_once(service):
    assert service.gateway.end_waits().called
