"""Groups of workers as rows. The caller begins and ends the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from typing import Final, cast

from sampleapp.brokers.shared.deliveries import Deliveries, WorkSettings
from sampleapp.brokers.shared.following import NO_SUCH_TOPIC
from sampleapp.brokers.sqlite.database import statements
from sampleapp.brokers.sqlite.rows import earliest_of, find_topic, page, record_at, uid_of
from sampleapp.errors import UnknownTopic
from sampleapp.model import ConsumerRecord

_EXISTS: Final = "SELECT 1 FROM sqlite_master WHERE name = 'work_delivery_lease'"
_GROUP: Final = "SELECT id, next_offset, lease_ms FROM work_group WHERE topic_uid = ? AND name = ?"
_OF_DELETED: Final = "SELECT id FROM work_group WHERE topic_uid NOT IN (SELECT uid FROM topic)"
_FREE: Final = (
    "SELECT offset, attempts FROM work_delivery WHERE group_id = ? AND ends_ms <= ? ORDER BY ends_ms, offset"
)
_GIVEN: Final = "SELECT offset, attempts FROM work_delivery WHERE lease = ? AND group_id = ? AND ends_ms > ?"
_COUNT: Final = (
    "SELECT count(*) FROM work_delivery WHERE group_id = ? AND (ends_ms > ? OR attempts < ?)"
    " AND EXISTS (SELECT 1 FROM record WHERE topic_id = ? AND record.offset = work_delivery.offset)"
)


def find_group(
    connection: sqlite3.Connection,
    settings: WorkSettings,
    now_ms: int,
    topic: str,
    group: str,
    *,
    create: bool,
) -> Deliveries | None:
    """
    Find a group; see `sampleapp.brokers.shared.work.FindGroup`.

    :param now_ms: the time of day: milliseconds since the epoch.
    """
    found = find_topic(connection, topic)
    if found is None:
        raise UnknownTopic(NO_SUCH_TOPIC)
    uid = uid_of(connection, found[0])
    if create:
        _create(connection, uid, group, settings.lease_ms)
    elif not connection.execute(_EXISTS).fetchone():
        return None
    row = connection.execute(_GROUP, (uid, group)).fetchone()
    if row is None:
        return None
    group_id, next_offset, lease_ms = row
    if create:
        # They were given before the clock was set back, and would last until it is there again.
        latest_ms = now_ms + lease_ms
        connection.execute(
            "UPDATE work_delivery SET ends_ms = ? WHERE group_id = ? AND ends_ms > ?",
            (latest_ms, group_id, latest_ms),
        )
    rows = _GroupRows(connection, topic, found, group_id, next_offset)
    return Deliveries(rows, settings, now_ms=now_ms)


def _create(connection: sqlite3.Connection, uid: str, group: str, lease_ms: int) -> None:
    """Create a group, unless it exists, and the tables."""
    if not connection.execute(_EXISTS).fetchone():
        for statement in statements("work.sql"):
            connection.execute(statement)
    row = connection.execute(_GROUP, (uid, group)).fetchone()
    if row is None:
        connection.execute(f"DELETE FROM work_delivery WHERE group_id IN ({_OF_DELETED})")  # noqa: S608 -- constant
        connection.execute(f"DELETE FROM work_group WHERE id IN ({_OF_DELETED})")  # noqa: S608 -- constant
    if row is None or row[2] < lease_ms:
        connection.execute(
            "INSERT INTO work_group (topic_uid, name, lease_ms) VALUES (?, ?, ?)"
            " ON CONFLICT (topic_uid, name) DO UPDATE SET lease_ms = excluded.lease_ms",
            (uid, group, lease_ms),
        )


class _GroupRows:
    """Implements `sampleapp.brokers.shared.deliveries.GroupRows`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        topic: str,
        found: tuple[int, int],
        group_id: int,
        next_offset: int,
    ) -> None:
        """:param found: the id of the topic, and the offset of its next record."""
        self._connection = connection
        self._topic = topic
        self._topic_id, self._end = found
        self._group_id = group_id
        self._next_offset = next_offset

    def free(self, now_ms: int) -> Generator[tuple[int, int, ConsumerRecord | None], None, None]:
        """See `GroupRows.free`."""
        with closing(self._connection.execute(_FREE, (self._group_id, now_ms))) as cursor:
            for offset, attempts in cursor:
                yield offset, attempts, record_at(self._connection, self._topic, self._topic_id, offset)

    def take_new(self, most: int, max_bytes: int) -> Sequence[ConsumerRecord]:
        """See `GroupRows.take_new`."""
        records: list[ConsumerRecord] = []
        size, first = 0, self._next_offset
        # A page has fewer records if an operator has deleted some.
        while self._next_offset < self._end and len(records) < most and size < max_bytes:
            found = page(
                self._connection, self._topic, self._next_offset, most - len(records), max_bytes - size
            )
            records += found.records
            size += found.size
            self._next_offset = found.next_offset
        if self._next_offset != first:
            self._connection.execute(
                "UPDATE work_group SET next_offset = ? WHERE id = ?", (self._next_offset, self._group_id)
            )
        return records

    def give(self, token: bytes, ends_ms: int, attempts: Mapping[int, int]) -> None:
        """See `GroupRows.give`."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO work_delivery (group_id, offset, attempts, lease, ends_ms)"
            " VALUES (?, ?, ?, ?, ?)",
            [(self._group_id, offset, number, token, ends_ms) for offset, number in attempts.items()],
        )

    def given(self, token: bytes, now_ms: int) -> Mapping[int, int]:
        """See `GroupRows.given`."""
        return dict(self._connection.execute(_GIVEN, (token, self._group_id, now_ms)))

    def replace(self, token: bytes, new_token: bytes, ends_ms: int) -> None:
        """See `GroupRows.replace`."""
        self._connection.execute(
            "UPDATE work_delivery SET lease = ?, ends_ms = ? WHERE lease = ? AND group_id = ?",
            (new_token, ends_ms, token, self._group_id),
        )

    def remove(self, offsets: Collection[int]) -> None:
        """See `GroupRows.remove`."""
        self._connection.executemany(
            "DELETE FROM work_delivery WHERE group_id = ? AND offset = ?",
            [(self._group_id, offset) for offset in offsets],
        )

    def backlog(self, now_ms: int, attempts: int) -> int:
        """See `GroupRows.backlog`."""
        ((given,),) = self._connection.execute(_COUNT, (self._group_id, now_ms, attempts, self._topic_id))
        first = max(self._next_offset, earliest_of(self._connection, self._topic_id, self._end))
        return cast("int", given) + max(0, self._end - first)
