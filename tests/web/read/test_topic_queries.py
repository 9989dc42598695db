"""``GET /topics…``: one query to the broker serves all requests that wait for it."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred, succeed

from sampleapp import errors
from sampleapp.model import PartitionDescription, TopicDescription
from sampleapp.web.read.topics import KEPT_S
from tests.support.callers import FULL, by, caller
from tests.support.in_memory import InMemoryService, PromptBroker, request_bytes
from tests.web.publish.test_batches import ServiceInTurns

CALLERS = "".join(
    [FULL, caller("publisher", 'publish = ["t*", "a*b*c"]'), caller("metrics", "metrics = true")]
)


class Asked(PromptBroker):
    """A broker that answers about topics when the test says so."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def _ask(self, topics):
        self.asked.append((topics, Deferred()))
        return self.asked[-1][1]

    def list_topics(self):
        return self._ask(None)

    def describe_topics(self, topics):
        return self._ask(sorted(topics))

    def questions(self):
        return [topics for topics, _ in self.asked]


class Prompt(PromptBroker):
    """A broker with these topics, each with the given number of partitions."""

    def __init__(self, names, *, partitions=1):
        super().__init__()
        self.names = names
        self.loads = 0
        self.partitions = [
            PartitionDescription(partition=number, leader=1, replicas=(1, 2), in_sync=(1,))
            for number in range(partitions)
        ]

    def list_topics(self):
        self.loads += 1
        return succeed(self.names)

    def describe_topics(self, topics):
        return succeed([TopicDescription(name=each, partitions=tuple(self.partitions)) for each in topics])


def get(service, target="/topics", headers=()):
    connection = service.connect()
    connection.send(request_bytes("GET", target, headers))
    return connection


def answers(connections):
    return [connection.responses(["GET"])[0] for connection in connections]


def test_many_requests_at_once_make_one_question_whose_answer_is_kept_for_two_seconds():
    service = InMemoryService(broker=Asked(), callers=CALLERS)
    waiting = [get(service, headers=[by(name)]) for name in ("full", "publisher") * 30]
    assert service.broker.questions() == [None]
    assert service.request("GET", "/live").status == 200
    service.broker.asked[0][1].callback(["other", "t", "t2"])
    found = [json.loads(answer.body) for answer in answers(waiting)]
    assert found == [["other", "t", "t2"], ["t", "t2"]] * 30
    service.clock.advance(KEPT_S - 0.001)
    assert json.loads(service.request("GET", "/topics", [by("full")]).body) == ["other", "t", "t2"]
    assert service.broker.questions() == [None]
    service.clock.advance(0.001)
    last = get(service, headers=[by("full")])
    assert service.broker.questions() == [None, None]
    service.broker.asked[1][1].callback([])
    assert answers([last])[0].body == b"[]\n"


def test_a_caller_sees_the_topics_that_it_may_publish_to_or_read():
    callers = CALLERS + caller("consumer", 'publish = ["a"]', 'consume = ["b", "c.*"]')
    service = InMemoryService(broker=Prompt(["a", "b", "c", "c.1", "d"]), callers=callers)
    assert json.loads(service.request("GET", "/topics", [by("consumer")]).body) == ["a", "b", "c.1"]
    statuses = {each: service.request("GET", f"/topics/{each}", [by("consumer")]).status for each in "abcd"}
    assert statuses == {"a": 200, "b": 200, "c": 403, "d": 403}


def test_all_who_wait_are_told_that_the_broker_cannot_be_asked_and_the_next_one_asks_again():
    service = InMemoryService(broker=Asked())
    for target, question in (("/topics", None), ("/topics/t", ["t"])):
        del service.broker.asked[:]
        waiting = [get(service, target) for _ in range(3)]
        service.broker.asked[0][1].errback(errors.BrokerUnavailable("It does not answer."))
        assert [answer.status for answer in answers(waiting)] == [503] * 3
        get(service, target)
        assert service.broker.questions() == [question] * 2


def test_a_fault_of_the_broker_is_a_fault_for_all_who_wait_and_for_nobody_after_them(no_failure_is_lost):
    service = InMemoryService(broker=Asked())
    for target in ("/topics", "/topics/t"):
        del service.broker.asked[:]
        waiting = [get(service, target) for _ in range(3)]
        service.broker.asked[0][1].errback(ZeroDivisionError())
        assert [answer.status for answer in answers(waiting)] == [500] * 3
        last = get(service, target)
        service.broker.asked[1][1].callback([])
        assert answers([last])[0].status in (200, 404)
    assert len(no_failure_is_lost) == 6
    no_failure_is_lost.clear()


def test_who_goes_away_keeps_nobody_else_from_the_answer():
    service = InMemoryService(broker=Asked())
    gone, stays = get(service), get(service)
    gone.lose()
    service.broker.asked[0][1].callback(["t"])
    assert answers([stays])[0].body == b'["t"]\n'


def test_topics_are_asked_for_together_while_the_broker_is_being_asked():
    service = InMemoryService(broker=Asked())
    first = get(service, "/topics/a")
    waiting = [get(service, f"/topics/{name}{end}") for name in "abc" for end in ("", "/partitions") * 10]
    assert service.broker.questions() == [["a"]]
    service.broker.asked[0][1].callback([TopicDescription(name="a", partitions=())])
    assert answers([first])[0].status == 200
    assert service.broker.questions() == [["a"], ["b", "c"]]
    service.broker.asked[1][1].callback([TopicDescription(name="b", partitions=())])
    assert [answer.status for answer in answers(waiting)] == [200] * 40 + [404] * 20
    assert len(service.broker.asked) == 2


def test_for_a_caller_without_a_right_on_topics_the_broker_is_not_asked():
    service = InMemoryService(broker=Asked(), callers=CALLERS)
    answer = service.request("GET", "/topics", [by("metrics")])
    assert (answer.status, answer.body) == (200, b"[]\n")
    for end in ("", "/partitions", "/partitions/0"):
        assert service.request("GET", f"/topics/t{end}", [by("metrics")]).status == 403
        assert service.request("GET", f"/topics/other{end}", [by("publisher")]).status == 403
    assert service.broker.asked == []


def test_a_hundred_thousand_topics_are_told_in_turns_in_between_others_are_served():
    names = [f"topic-{number:06}" for number in range(100_000)]
    for name, seen in (("full", names), ("publisher", names)):
        service = ServiceInTurns(broker=Prompt(names), callers=CALLERS)
        waiting = [get(service, headers=[by(name)]) for _ in range(3)]
        assert served_in_between(service, waiting) >= 50
        assert [json.loads(answer.body) for answer in answers(waiting)] == [seen] * 3
        assert service.broker.loads == 1


def test_ten_thousand_partitions_are_told_in_turns_in_between_others_are_served():
    service = ServiceInTurns(broker=Prompt([], partitions=10_000))
    waiting = [get(service, "/topics/t"), get(service, "/topics/t/partitions")]
    assert served_in_between(service, waiting) >= 20
    topic, partitions = (json.loads(answer.body) for answer in answers(waiting))
    assert (topic["name"], topic["configs"], topic["partitions"]) == ("t", {}, partitions)
    assert [each["partition"] for each in partitions] == list(range(10_000))


def test_no_turn_looks_at_more_than_two_thousand_patterns():
    patterns = ", ".join(f'"p{number}*x"' for number in range(99))
    file = caller("many", f'publish = [{patterns}, "t"]')
    service = ServiceInTurns(broker=Prompt([*(f"p{n}" for n in range(500)), "t"]), callers=file)
    waiting = [get(service, headers=[by("many")])]
    assert served_in_between(service, waiting) >= 501 * 100 // 2000
    assert answers(waiting)[0].body == b'["t"]\n'


def served_in_between(service, waiting):
    """In how many turns another request is answered at once, until those that wait are answered."""
    turns = 0
    while not all(connection.sent for connection in waiting):
        assert service.request("GET", "/live").status == 200
        service.clock.take()
        turns += 1
        assert turns < 1000
    return turns
