"""Groups of workers as rows. The caller begins and ends the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from typing import Final, cast

from msgspec import Struct

from sampleapp.brokers.shared.deliveries import Deliveries, GivenLeases
from sampleapp.brokers.shared.following import NO_SUCH_TOPIC
from sampleapp.brokers.shared.work import MOST_GROUPS, TOO_MANY_GROUPS
from sampleapp.brokers.sqlite.database import statements
from sampleapp.brokers.sqlite.rows import find_topic, page, record_at, uid_of
from sampleapp.errors import BrokerUnavailable, UnknownTopic
from sampleapp.model import ConsumerRecord

_EXISTS: Final = "SELECT 1 FROM sqlite_master WHERE name = 'work_delivery_lease'"
_GROUP: Final = "SELECT id, next_offset, lease_ms FROM work_group WHERE topic_uid = ? AND name = ?"
_CREATE: Final = (
    "INSERT INTO work_group (topic_uid, name, lease_ms) SELECT ?1, ?2, ?3 WHERE ?4 >"
    " (SELECT count(*) FROM work_group WHERE topic_uid = ?1 AND name <> ?2) ON CONFLICT (topic_uid, name)"
    " DO UPDATE SET lease_ms = excluded.lease_ms WHERE lease_ms < excluded.lease_ms"
)
_SHORTEN: Final = "UPDATE work_delivery SET ends_ms = ? WHERE group_id = ? AND ends_ms > ?"
_FREE: Final = (
    "SELECT offset, attempts FROM work_delivery WHERE group_id = ? AND ends_ms <= ? ORDER BY ends_ms, offset"
)
_GIVEN: Final = "SELECT offset, attempts FROM work_delivery WHERE lease = ? AND group_id = ? AND ends_ms > ?"
_IS_GIVEN: Final = "SELECT 1 FROM work_delivery WHERE lease = ? AND ends_ms > ?"
_FIRST: Final = "SELECT min(offset) FROM record WHERE topic_id = ? AND offset >= ?"
_COUNT: Final = (
    "SELECT count(*) FROM work_delivery WHERE group_id = ? AND (ends_ms > ? OR attempts < ?)"
    " AND EXISTS (SELECT 1 FROM record WHERE topic_id = ? AND record.offset = work_delivery.offset)"
)


def find_group(
    connection: sqlite3.Connection, leases: GivenLeases, key: tuple[str, str], *, create: bool
) -> Deliveries | None:
    """Find a group; see `sampleapp.brokers.shared.work.FindGroup`."""
    topic, group = key
    found = find_topic(connection, topic)
    if found is None:
        raise UnknownTopic(NO_SUCH_TOPIC)
    topic_id, end = found
    uid = uid_of(connection, topic_id)
    has_tables = connection.execute(_EXISTS).fetchone() is not None
    if create:
        for statement in () if has_tables else statements("work.sql"):
            connection.execute(statement)
        connection.execute(_CREATE, (uid, group, leases.settings.lease_ms, MOST_GROUPS))
    row = connection.execute(_GROUP, (uid, group)).fetchone() if has_tables or create else None
    if row is None:
        if create:
            raise BrokerUnavailable(TOO_MANY_GROUPS)
        return None
    group_id, next_offset, lease_ms = row
    if create:
        # They were given before the clock was set back, and would last until it is there again.
        last_ms = leases.now_ms() + lease_ms
        connection.execute(_SHORTEN, (last_ms, group_id, last_ms))
    rows = _GroupRows(connection, topic, topic_id, end, group_id, next_offset)
    return Deliveries(rows, leases)


class _GroupRows(Struct):
    """Implements `sampleapp.brokers.shared.deliveries.GroupRows`."""

    connection: sqlite3.Connection
    topic: str
    topic_id: int
    end: int
    """The offset of the topic's next record."""
    group_id: int
    next_offset: int
    """The offset of the next new message."""

    def free(self, now_ms: int) -> Generator[tuple[int, int, ConsumerRecord | None], None, None]:
        """See `GroupRows.free`."""
        with closing(self.connection.execute(_FREE, (self.group_id, now_ms))) as cursor:
            for offset, attempts in cursor:
                yield offset, attempts, record_at(self.connection, self.topic, self.topic_id, offset)

    def take_new(self, most: int, max_bytes: int) -> Sequence[ConsumerRecord]:
        """See `GroupRows.take_new`."""
        records: list[ConsumerRecord] = []
        size, first = 0, self.next_offset
        # A page has fewer records if an operator has deleted some.
        while self.next_offset < self.end and len(records) < most and size < max_bytes:
            found = page(self.connection, self.topic, self.next_offset, most - len(records), max_bytes - size)
            records += found.records
            size += found.size
            self.next_offset = found.next_offset
        if self.next_offset != first:
            self.connection.execute(
                "UPDATE work_group SET next_offset = ? WHERE id = ?", (self.next_offset, self.group_id)
            )
        return records

    def give(self, token: bytes, ends_ms: int, attempts: Mapping[int, int]) -> None:
        """See `GroupRows.give`."""
        self.connection.executemany(
            "INSERT OR REPLACE INTO work_delivery (group_id, offset, attempts, lease, ends_ms)"
            " VALUES (?, ?, ?, ?, ?)",
            [(self.group_id, offset, number, token, ends_ms) for offset, number in attempts.items()],
        )

    def given(self, token: bytes, now_ms: int) -> Mapping[int, int]:
        """See `GroupRows.given`."""
        return dict(self.connection.execute(_GIVEN, (token, self.group_id, now_ms)))

    def is_given(self, token: bytes, now_ms: int) -> bool:
        """See `GroupRows.is_given`."""
        return self.connection.execute(_IS_GIVEN, (token, now_ms)).fetchone() is not None

    def replace(self, token: bytes, new_token: bytes, ends_ms: int) -> None:
        """See `GroupRows.replace`."""
        self.connection.execute(
            "UPDATE work_delivery SET lease = ?, ends_ms = ? WHERE lease = ?", (new_token, ends_ms, token)
        )

    def remove(self, offsets: Collection[int]) -> None:
        """See `GroupRows.remove`."""
        self.connection.executemany(
            "DELETE FROM work_delivery WHERE group_id = ? AND offset = ?",
            [(self.group_id, offset) for offset in offsets],
        )

    def backlog(self, now_ms: int, attempts: int) -> int:
        """See `GroupRows.backlog`."""
        ((given,),) = self.connection.execute(_COUNT, (self.group_id, now_ms, attempts, self.topic_id))
        # Counting the others takes too long, but those before the first of them may have been deleted.
        ((first,),) = self.connection.execute(_FIRST, (self.topic_id, self.next_offset))
        return cast("int", given) + (0 if first is None else self.end - cast("int", first))
