"""Whether the service can do now what it is there for."""

from __future__ import annotations

from sampleapp.follower import ReadingsFollower
from sampleapp.interfaces import IBroker

__all__ = ["Readiness"]

_STOPPING = "The service is stopping."


class Readiness:
    """
    Whether messages are expected to be taken, and the readings are served.

    Answers at once, from what is known. What holds up reading once all readings have been read does not
    count: they are a little old then, but messages are taken, and no other process would read further.
    """

    def __init__(self, *, broker: IBroker, follower: ReadingsFollower) -> None:
        self._broker = broker
        self._follower = follower
        self._is_stopping = False

    def stop(self) -> None:
        """Be ready no more, since the service stops."""
        self._is_stopping = True

    def reasons(self) -> list[str]:
        """
        Why the service is not ready: none if it is.

        :return: sentences that may be shown to any caller: no path, address or secret is in them.
        """
        reasons = [_STOPPING] if self._is_stopping else []
        reasons += self._broker.health().obstacles
        obstacle = self._follower.obstacle()
        if obstacle is not None:
            reasons.append(obstacle)
        return list(dict.fromkeys(reasons))
