"""What an answer is worth when the process ends without warning, or is not alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from tests.support.process import (
    DEADLINE_S,
    BatchPublisher,
    Publisher,
    assert_nothing_lost,
    connect,
    publish,
    records,
    wait_for_readings,
)
from tests.support.waiting import wait_until


def test_after_kill_9_every_acknowledged_record_is_where_its_answer_said(start, tmp_path):
    publishers = []
    for life in range(3):
        service = start()
        publishers += (alive := [Publisher(service, f"{life}-{n}") for n in range(16)])
        for publisher in alive:
            publisher.start()
        wait_until(lambda alive=alive: sum(len(p.acknowledged) for p in alive) > 300, "300 answers")
        service.kill()
        for publisher in alive:
            publisher.join(DEADLINE_S)
    with closing(connect(start())) as connection:
        status, answer = publish(connection, "after it all")
    stored = records(tmp_path)
    assert (status, answer["offset"], len(stored)) == (200, len(stored) - 1, answer["offset"] + 1)
    with closing(sqlite3.connect(tmp_path / "broker.sqlite3")) as database:
        database.execute("DELETE FROM record WHERE value = ?", [b"after it all"])
        database.commit()
    assert_nothing_lost(publishers, tmp_path)


def test_after_kill_9_every_line_that_was_answered_is_where_its_answer_said(start, tmp_path):
    publishers = []

    def not_answered():
        # In this order, since an answer may come in between.
        with closing(sqlite3.connect(tmp_path / "broker.sqlite3")) as database:
            ((stored,),) = database.execute("SELECT next_offset FROM topic WHERE name = 't'").fetchall()
        return stored - sum(len(batch) for publisher in publishers for batch in publisher.responded)

    before = 0
    for life in range(2):
        service = start()
        alive = [
            BatchPublisher(service, f"{life}-{n}", lines=lines) for n, lines in enumerate((30, 3000, 3000))
        ]
        publishers += alive
        for publisher in alive:
            publisher.start()
        wait_until(lambda alive=alive: all(p.responded for p in alive), "an answer each")
        wait_until(lambda before=before: not_answered() > before + 30, "a part of a batch in the file")
        service.kill()
        for publisher in alive:
            publisher.join(DEADLINE_S)
        before = not_answered()
    stored = records(tmp_path)
    assert [offset for offset, _ in stored] == list(range(len(stored)))
    responded = {place for publisher in publishers for batch in publisher.responded for place in batch}
    assert responded <= set(stored)
    others = [content for offset, content in stored if (offset, content) not in responded]
    expected = []
    for publisher in publishers:
        count = sum(content.startswith(f"{publisher.name_of_records}-") for content in others)
        # Without a gap, since later lines must not overtake earlier ones of their key.
        expected += publisher.unanswered[:count]
    assert sorted(others) == sorted(expected)


def test_after_a_restart_the_readings_are_the_same(start):
    service = start()
    with closing(connect(service)) as connection:
        for key, value in (("kitchen", "21.5"), ("hall", "19"), ("kitchen", "22.25")):
            assert publish(connection, value, topic="readings", key=key)[0] == 200
    before = wait_for_readings(service, b"[22.25,19.0]")
    service.kill()
    again = start()
    assert wait_for_readings(again, b"[22.25,19.0]") == before


def test_two_services_on_one_file_both_work(start, tmp_path):
    services = [start(), start()]
    publishers = [Publisher(service, f"{n}") for n, service in enumerate(services * 4)]
    for publisher in publishers:
        publisher.start()
    wait_until(lambda: all(len(p.acknowledged) > 10 for p in publishers), "10 answers each")
    for service, value in zip(services, (b"1", b"2"), strict=True):
        with closing(connect(service)) as connection:
            assert publish(connection, value.decode(), topic="readings", key="a")[0] == 200
        for other in services:
            wait_for_readings(other, b"[%b.0]" % value)
    for service in services:
        service.stop()
    for publisher in publishers:
        publisher.join(DEADLINE_S)
    assert_nothing_lost(publishers, tmp_path)
