"""The checker of work finds each promise that a history breaks, and nothing in one that keeps all of them."""

from __future__ import annotations

import pytest

from tests.chaos.history import Topic
from tests.chaos.test_checker import log, stored
from tests.chaos.work_checker import check_work, count_work
from tests.chaos.work_history import (
    ACCEPT,
    JAVA,
    REJECT,
    RELEASE,
    Acknowledgement,
    Given,
    Held,
    Trouble,
    WorkHistory,
)

ONE, TWO = "http://one/", "http://two/"
LEASE_S, ATTEMPTS = 5.0, 2
VALUES = "abcdefghi"
A, B, C, D, E, F, G, H, K = ((0, n) for n in range(len(VALUES)))


def held(begun_s, attempts, *places, gateway=ONE, is_timed=True):
    """A lease that was given within a tenth of a second."""
    messages = {place: Given(attempts, "k", VALUES[place[1]], {}) for place in places}
    expires_s = begun_s + LEASE_S if is_timed else None
    return Held(f"worker {begun_s}", [gateway], begun_s, begun_s + 0.1, messages, expires_s)


def acknowledged(lease, after_s, status=200, verdict=ACCEPT, *, gateway=TWO, done=None, is_replaced=False):
    """Acknowledge all of a lease, some time after its pull."""
    begun_s = lease.begun_s + after_s
    verdicts = verdict if isinstance(verdict, dict) else dict.fromkeys(lease.messages, verdict)
    done = frozenset(verdicts if status == 200 and done is None else done or ())
    lease.acknowledgements.append(
        Acknowledgement(
            begun_s,
            gateway,
            verdicts,
            None if status == "killed" else begun_s + 0.1,
            None if status == "killed" else status,
            done,
            is_replaced=is_replaced,
            expires_s=lease.expires_s,
        )
    )
    return lease


def ordinary():
    """A run in which every promise was kept."""
    extended = acknowledged(held(0, 1, C), 1, 409, is_replaced=True)
    extended.expires_s += 3
    return {
        "mixed": acknowledged(held(0, 1, A, B), 1, verdict={A: ACCEPT, B: RELEASE}),
        "again": acknowledged(held(2, 2, B), 1, verdict=REJECT),
        "extended": acknowledged(extended, 6),
        "abandoned": held(0, 1, D),
        "late": acknowledged(acknowledged(held(5.5, 2, D), 6, 409), 7, 409),
        "java": acknowledged(held(0, 1, E, gateway=JAVA, is_timed=False), 1, gateway=JAVA),
        "java, late": acknowledged(held(0, 1, F, gateway=JAVA, is_timed=False), 6, gateway=JAVA),
        "after java": acknowledged(held(5.5, 2, F), 0.4),
        "no answer": acknowledged(held(0, 1, G), 1, None),
        "killed": acknowledged(held(0, 1, H, gateway=JAVA, is_timed=False), 1, "killed", gateway=JAVA),
        "last": acknowledged(held(20, 1, K), 1),
    }


def run(leases, *, values=VALUES, **more):
    topic = Topic(generations=[log(*(stored(0, n, value) for n, value in enumerate(values)))])
    history = WorkHistory(lease_s=LEASE_S, most_attempts=ATTEMPTS, held=[*leases.values()], **more)
    return history, topic


def test_nothing_is_found_where_all_is_well():
    assert check_work(*run(ordinary())) == []


def test_the_end_of_each_message_is_counted():
    counts = count_work(*run(ordinary()))
    assert {name: count for name, count in counts.items() if name.startswith("messages: ")} == {
        "messages: accepted": 5,
        "messages: rejected": 1,
        "messages: given up": 1,
        "messages: perhaps done": 2,
    }
    assert counts["messages given by Java"] == 3
    assert counts["seconds until a message came again, at most"] == 6
    assert counts["acknowledgements of gateways: 409"] == 3


BROKEN = {
    "was acknowledged again": lambda it: acknowledged(it["last"], 2),
    "was acknowledged by a lease that was replaced": lambda it: acknowledged(
        it["abandoned"], 1, is_replaced=True
    ),
    "was acknowledged late": lambda it: acknowledged(it["abandoned"], 5.01),
    "has other counts than verdicts": lambda it: acknowledged(it["abandoned"], 1, done=[A]),
    "was lost before its end": lambda it: acknowledged(it["abandoned"], 1, 409),
    "was done 2 times": lambda it: acknowledged(it["late"], 1),
    "was given after it was done": lambda it: it.update(again_a=held(8, 2, A)),
    "was given to two within a lease": lambda it: it.update(twice=held(3, 2, K), last=held(0, 1, K)),
    "was given again as the same attempt": lambda it: it.update(again_d=held(5.7, 1, D)),
    "is lost: []": lambda it: it.pop("last"),
    "is lost: ['attempt 1": lambda it: it["last"].acknowledgements.clear(),
    "was given with a wrong number of attempts: attempt 3": lambda it: it.update(third=held(11, 3, D)),
    "was given with a wrong number of attempts: attempt 0": lambda it: it.update(last=held(20, 0, K)),
    "was altered": lambda it: it["last"].messages.update({K: Given(1, "k", "other", {})}),
    "was altered: given Given(attempts=1, key='other'": lambda it: it["last"].messages.update(
        {K: Given(1, "other", "i", {})}
    ),
    "is not in the topic": lambda it: it["last"].messages.update({(9, 9): Given(1, "k", "x", {})}),
}


@pytest.mark.parametrize("words", BROKEN)
def test_a_broken_promise_is_found(words):
    leases = ordinary()
    if words == "was done 2 times":
        acknowledged(leases["abandoned"], 4)
    BROKEN[words](leases)
    found = check_work(*run(leases))
    assert [each for each in found if words in each], found


@pytest.mark.parametrize("backlog", [3, None])
def test_a_backlog_at_the_end_is_found(backlog):
    assert check_work(*run(ordinary(), backlog=backlog)) == [f"the backlog is {backlog} at the end"]


def test_a_message_that_is_given_before_its_release_is_found():
    leases = ordinary()
    leases["again"] = acknowledged(held(0.5, 2, B), 1, verdict=REJECT)
    [found] = check_work(*run(leases))
    assert "was given to two within a lease" in found


EXCUSED = {
    "twice within a lease": lambda it: it.update(
        early=held(3, 1, K), last=acknowledged(held(0, 1, K), 6, 409)
    ),
    "lost before its end": lambda it: acknowledged(it["abandoned"], 1, 409),
}


@pytest.mark.parametrize("trouble", [Trouble(1, 2), Trouble(1, 2, ONE), Trouble(-10, -1.5)])
@pytest.mark.parametrize("what", EXCUSED)
def test_leases_may_be_lost_by_a_fault(what, trouble):
    leases = ordinary()
    EXCUSED[what](leases)
    if what.startswith("twice"):
        acknowledged(leases["early"], 1)
    assert check_work(*run(leases, troubles=[trouble])) == []


@pytest.mark.parametrize("trouble", [Trouble(-10, -2.5), Trouble(40, 50), Trouble(1, 2, JAVA)])
@pytest.mark.parametrize("what", EXCUSED)
def test_a_fault_at_another_time_or_place_is_no_excuse(what, trouble):
    leases = ordinary()
    EXCUSED[what](leases)
    found = check_work(*run(leases, troubles=[trouble]))
    assert found


def test_a_late_acknowledgement_is_excused_only_by_a_wrong_clock():
    leases = ordinary()
    acknowledged(leases["abandoned"], 5.5)
    leases["late"] = held(5.5, 2, D)
    assert check_work(*run(leases, troubles=[Trouble(0, 20, TWO, is_clock=True)])) == []
    [found] = check_work(*run(leases, troubles=[Trouble(0, 20, TWO)]))
    assert "was acknowledged late" in found


def test_attempts_that_no_worker_saw_need_a_lost_pull():
    leases = ordinary()
    leases["last"].acknowledgements.clear()
    assert check_work(*run(leases, lost=[(24, 30)])) == []
    assert (
        count_work(*run(leases, lost=[(24, 30)]))["messages: given up, after attempts that no worker saw"]
        == 1
    )
    for lost in ([(10, 19)], [(50, 60)]):
        [found] = check_work(*run(leases, lost=lost))
        assert "is lost" in found


def test_an_acknowledgement_that_is_refused_after_one_without_an_answer_may_have_been_done():
    leases = ordinary()
    acknowledged(leases["no answer"], 2, 409)
    assert check_work(*run(leases)) == []


def test_a_part_of_a_lost_lease_may_be_done():
    leases = ordinary()
    leases["mixed"].acknowledgements.clear()
    acknowledged(leases["mixed"], 1, 409, verdict={A: ACCEPT, B: RELEASE}, done=[A])
    found = check_work(*run(leases, troubles=[Trouble(1, 2)]))
    assert found == []


def test_a_rejected_message_is_not_accepted_as_well():
    leases = ordinary()
    acknowledged(leases["mixed"], 0.5, verdict={A: REJECT, B: RELEASE})
    assert any("was done 2 times" in each for each in check_work(*run(leases)))


def test_released_messages_may_be_given_at_once():
    leases = ordinary()
    acknowledged(leases["abandoned"], 1, verdict=RELEASE)
    leases["late"] = acknowledged(held(1.05, 2, D), 1)
    assert check_work(*run(leases)) == []


def test_attempts_need_not_rise_in_the_order_in_which_polls_return():
    leases = ordinary()
    frozen = held(0, 1, K, gateway=JAVA, is_timed=False)
    frozen.ended_s = 7
    leases.update(frozen=frozen, last=acknowledged(held(6, 2, K), 0.2, verdict=RELEASE))
    assert check_work(*run(leases)) == []
    frozen.messages[K] = leases["last"].messages[K]
    [found] = check_work(*run(leases))
    assert "was given again as the same attempt" in found
