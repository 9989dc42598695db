"""All that workers of a group were given during a run, and how their acknowledgements were answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from tests.chaos.history import Place

__all__ = [
    "ACCEPT",
    "JAVA",
    "REJECT",
    "RELEASE",
    "Acknowledgement",
    "Given",
    "Held",
    "Trouble",
    "WorkHistory",
]

ACCEPT, RELEASE, REJECT = "accept", "release", "reject"
JAVA = "java"
"""Stands for a gateway where a worker has none. Its late acknowledgements are not to be believed."""

Time: TypeAlias = float
"""Seconds since the epoch: several processes tell them."""


class Given(Struct):
    """A message as a worker got it."""

    attempts: int
    key: str | None
    value: str | None
    headers: Mapping[str, str] | None = None
    """``None`` if the worker does not tell; nor does it tell the key then."""


class Acknowledgement(Struct):
    """One try to end a lease."""

    begun_s: Time
    gateway: str
    verdicts: Mapping[Place, str]
    ended_s: Time | None = None
    """``None`` if the worker died before."""
    status: int | None = None
    """``None`` without a response."""
    done: frozenset[Place] = frozenset()
    """Those of which the response says that the verdict stands."""
    is_replaced: bool = False
    """Whether it is of a lease that another one has replaced."""
    expires_s: Time | None = None
    """When its lease ended, if the worker knows."""


class Held(Struct):
    """A lease, until its end, with all its extensions."""

    worker: str
    gateways: list[str]
    """Those that gave and extended it."""
    begun_s: Time
    """When the pull was sent, or for Java when the broker may have given the messages at the earliest."""
    ended_s: Time
    """When the worker had the messages."""
    messages: Mapping[Place, Given]
    expires_s: Time | None = None
    """When it, or the one that replaced it, ends; ``None`` if the worker does not know."""
    acknowledgements: list[Acknowledgement] = []


class Trouble(Struct):
    """A fault that may take leases away before their end."""

    begun_s: Time
    ended_s: Time
    gateway: str = ""
    """The only one whose leases are concerned; empty for all."""
    is_clock: bool = False
    """Whether the gateway's clock was wrong."""


class WorkHistory(Struct):
    """Everything that the checker of work needs."""

    lease_s: float
    """How long a lease lasts."""
    most_attempts: int
    held: Sequence[Held]
    lost: Sequence[tuple[Time, Time]] = ()
    """Pulls without a known response, which may have taken messages."""
    troubles: Sequence[Trouble] = ()
    backlog: int | None = 0
    """At the end."""
