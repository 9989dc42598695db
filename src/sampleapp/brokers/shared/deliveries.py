"""The rules of leases, for brokers that keep the leases themselves: over the rows of a group, without I/O."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from typing import Final, Protocol

from msgspec import Struct

from sampleapp.errors import LeaseLost, TooManyLeases, UnknownIds
from sampleapp.model import ALL, Acknowledged, ConsumerRecord, Extended, Lease, LeasedRecord, Verdicts

PULL_BYTES: Final = 1024 * 1024
"""Keys, values and headers after which a lease takes no more messages; the last one may exceed it."""

_LONGEST_S: Final = 1e9

LEASE_LOST: Final = (
    "The lease has ended: its time is over, it was acknowledged or extended, or it is of another topic or "
    "group. Messages that were neither accepted nor rejected are given again. Extend a lease before it ends."
)
"""The message of a `sampleapp.errors.LeaseLost`."""


def verdicts_by_id(
    verdicts: Verdicts, given: Mapping[tuple[int, int], object]
) -> tuple[Collection[tuple[int, int]], Collection[tuple[int, int]], Collection[tuple[int, int]]]:
    """
    Return the messages of a lease that are accepted, released and rejected.

    :param given: all its messages.
    :raise UnknownIds: a verdict is not for one of them.
    """
    each_ids = (verdicts.accept, verdicts.reject, verdicts.release)
    named = {each for ids in each_ids if ids != ALL for each in ids}
    if named - given.keys():
        raise UnknownIds(named - given.keys())
    accepted, rejected, _ = (given.keys() - named if ids == ALL else ids for ids in each_ids)
    return accepted, given.keys() - accepted - rejected, rejected


class WorkSettings(Struct, frozen=True, kw_only=True):
    """The operator's settings for groups of workers. On Kafka, the group has those of leases and attempts."""

    most_leases: int = 200
    """The most leases that this instance gives at a time."""
    lease_s: float = 30.0
    """A lease ends after this time, in seconds."""
    attempts: int = 5
    """A message is given this many times, at least 1; if it is never accepted, it is given up."""

    @property
    def lease_ms(self) -> int:
        """The time of a lease in milliseconds; added to the time of day, it is a year with four digits."""
        return round(1000 * min(self.lease_s, _LONGEST_S))


class GivenLeases:
    """The leases that this instance has given. Transactions change them, one at a time."""

    def __init__(self, settings: WorkSettings, now: Callable[[], float]) -> None:
        """:param now: returns the time of day: seconds since the epoch."""
        self.settings: Final = settings
        self._now = now
        self._ends: dict[bytes, int] = {}
        """When they end, by token: milliseconds since the epoch."""

    def now_ms(self) -> int:
        """Return the time of day: milliseconds since the epoch."""
        return int(1000 * self._now())

    def count(self) -> int:
        """Count those that have not ended, in any thread."""
        now_ms = self.now_ms()
        return sum([ends_ms > now_ms for ends_ms in [*self._ends.values()]])

    def require_room(self, now_ms: int, is_given: Callable[[bytes], bool]) -> None:
        """
        Check that one more may be given.

        :param is_given: asked about each, since other processes may have ended it.
        :raise TooManyLeases: there are too many.
        """
        most = self.settings.most_leases
        if len(self._ends) >= most:
            self._ends = {
                token: ends_ms
                for token, ends_ms in self._ends.items()
                if ends_ms > now_ms and is_given(token)
            }
            if len(self._ends) >= most:
                raise TooManyLeases(most)

    def replace(self, token: bytes, new_token: bytes, ends_ms: int) -> None:
        """Remove a lease, if it is there, and add another one that has not ended."""
        self._ends.pop(token, None)
        if ends_ms:
            self._ends[new_token] = ends_ms


class GroupRows(Protocol):
    """The messages that were given to a group and are not done, and the position of its next new message."""

    def free(self, now_ms: int) -> Generator[tuple[int, int, ConsumerRecord | None], None, None]:
        """Iterate over the offsets, attempts and records (if not gone) of messages whose lease has ended."""

    def take_new(self, most: int, max_bytes: int) -> Sequence[ConsumerRecord]:
        """Return the next new records, and move the position after them. The last may exceed the bytes."""

    def give(self, token: bytes, ends_ms: int, attempts: Mapping[int, int]) -> None:
        """Put messages, by offset, under a lease, with the number of their attempts."""

    def given(self, token: bytes, now_ms: int) -> Mapping[int, int]:
        """Return the offsets and attempts of the messages under a lease; none if it has ended."""

    def is_given(self, token: bytes, now_ms: int) -> bool:
        """Return whether a lease of any group goes on."""

    def replace(self, token: bytes, new_token: bytes, ends_ms: int) -> None:
        """Replace a lease by another one, with the same messages."""

    def remove(self, offsets: Collection[int]) -> None:
        """Remove messages that are done."""

    def backlog(self, now_ms: int, attempts: int) -> int:
        """Count the messages that are not done; without free ones that had this many attempts, or more."""


class Deliveries:
    """One group at one moment: its leases, and what follows from their end."""

    def __init__(self, rows: GroupRows, leases: GivenLeases) -> None:
        """
        :param rows: are changed in place.
        :param leases: those of this instance, in all groups; are changed in place.
        """
        self._rows = rows
        self._leases = leases
        self._most_attempts = leases.settings.attempts
        self._now_ms = leases.now_ms()
        self._ends_ms = self._now_ms + leases.settings.lease_ms
        self.given_up = 0
        """The number of messages that were given up."""

    def pull(self, most: int) -> Lease | None:
        """
        Take up to a number of messages; see `sampleapp.interfaces.IWorkBroker.pull`.

        :raise TooManyLeases: this instance may not give one more.
        """
        self._leases.require_room(self._now_ms, lambda token: self._rows.is_given(token, self._now_ms))
        messages = self._again(most)
        left_bytes = PULL_BYTES - sum([each.record.size for each in messages])
        if len(messages) < most and left_bytes > 0:
            new = self._rows.take_new(most - len(messages), left_bytes)
            messages += [LeasedRecord(record, 1) for record in new]
        if not messages:
            return None
        token = secrets.token_bytes(16)
        self._rows.give(token, self._ends_ms, {each.record.offset: each.attempts for each in messages})
        self._leases.replace(token, token, self._ends_ms)
        return Lease(token=token, ends_ms=self._ends_ms, messages=messages)

    def acknowledge(self, token: bytes, verdicts: Verdicts) -> Acknowledged:
        """
        End a lease; see `sampleapp.interfaces.IWorkBroker.acknowledge`.

        :raise LeaseLost: it has ended.
        :raise UnknownIds: a verdict is not for one of its messages.
        """
        given = {(0, offset): attempts for offset, attempts in self._given(token).items()}
        accepted, released, rejected = verdicts_by_id(verdicts, given)
        spent = [each for each in released if given[each] >= self._most_attempts]
        self._rows.remove([offset for _, offset in (*accepted, *rejected, *spent)])
        self._replace(token, token, 0)
        self.given_up += len(spent)
        return Acknowledged(accepted=len(accepted), released=len(released), rejected=len(rejected))

    def extend(self, token: bytes) -> Extended:
        """
        Replace a lease by one that begins now; see `sampleapp.interfaces.IWorkBroker.extend`.

        :raise LeaseLost: it has ended.
        """
        self._given(token)
        extended = Extended(token=secrets.token_bytes(16), ends_ms=self._ends_ms)
        self._replace(token, extended.token, extended.ends_ms)
        return extended

    def backlog(self) -> int:
        """Count the messages that are not done; see `sampleapp.interfaces.IWorkBroker.backlog`."""
        return self._rows.backlog(self._now_ms, self._most_attempts)

    def _again(self, most: int) -> list[LeasedRecord]:
        """Return messages to give again. Those before them that are not given any more are removed."""
        messages: list[LeasedRecord] = []
        done: list[int] = []
        left_bytes = PULL_BYTES
        with closing(self._rows.free(self._now_ms)) as free:
            for offset, attempts, record in free:
                if record is None or attempts >= self._most_attempts:
                    done.append(offset)
                    self.given_up += record is not None
                    continue
                messages.append(LeasedRecord(record, attempts + 1))
                left_bytes -= record.size
                if len(messages) == most or left_bytes <= 0:
                    break
        self._rows.remove(done)
        return messages

    def _replace(self, token: bytes, new_token: bytes, ends_ms: int) -> None:
        for each in (self._rows, self._leases):
            each.replace(token, new_token, ends_ms)

    def _given(self, token: bytes) -> Mapping[int, int]:
        given = self._rows.given(token, self._now_ms)
        if not given:
            raise LeaseLost(LEASE_LOST)
        return given
