"""Readiness check."""

from __future__ import annotations

from collections.abc import Sequence

from sampleapp.interfaces import IBroker
from sampleapp.readings.follower import ReadingsFollower

__all__ = ["Readiness"]

_STOPPING = "The service is stopping."


class Readiness:
    """
    The readiness of the service: it can publish messages, and has read all readings once.

    The check answers at once, from the known state. After all readings have been read once, a failure of
    reading does not count: the readings become stale, but messages are accepted, and no other process would
    read further.
    """

    def __init__(self, *, broker: IBroker, follower: ReadingsFollower) -> None:
        self._broker = broker
        self._follower = follower
        self._is_stopping = False

    def stop(self) -> None:
        """Report not ready from now on: the service is shutting down."""
        self._is_stopping = True

    def reasons(self) -> list[str]:
        """
        Return why the service is not ready; none if it is ready.

        :return: sentences that any caller may see: they have no path, address or secret.
        """
        reasons = [_STOPPING] if self._is_stopping else []
        reasons += self._broker.health().public_reasons
        unavailable_reason = self._follower.unavailable_reason()
        if unavailable_reason is not None:
            reasons.append(unavailable_reason)
        return list(dict.fromkeys(reasons))

    def warnings(self) -> Sequence[str]:
        """Return problems that do not make the service unready; sentences as those of `reasons`."""
        return self._broker.health().warnings
