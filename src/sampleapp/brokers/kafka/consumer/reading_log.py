"""Log lines about topics that are not read for a while: one line for a cause, not for each topic."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.consumer.read_failures import ReadFailure

_GATHERING_S: Final = 2.0
"""The delay of a line, so that it names all topics of an outage; most elections are over before it."""
_INTERVAL_S: Final = 60.0
"""The least time between two lines about one cause, in seconds: leaders may change again and again."""
_MOST_NAMED: Final = 5


class ReadingLog:
    """
    Logs that subscriptions cannot read, and when they can again.

    A cause is logged some seconds after it was noted, with all the topics that it concerns by then, and at
    most once a minute. Nothing is logged about failures that are over before that.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        """:param clock: times the lines."""
        self._clock = clock
        self._failing: dict[Hashable, tuple[str, ReadFailure]] = {}
        """The topic and the failure of each subscription that cannot read now."""
        self._logged: dict[Hashable, str] = {}
        """The cause in the last line about a subscription that has not recovered since."""
        self._lines: dict[str, tuple[float, str]] = {}
        """The last line about each cause: its time, in seconds of the reactor's clock, and its reason."""
        self._timer: IDelayedCall | None = None

    def failed(self, subscription: Hashable, topic: str, failure: ReadFailure) -> None:
        """Note that a subscription cannot read its topic now, or a partition of it."""
        self._failing[subscription] = topic, failure
        if self._logged.get(subscription) != failure.cause:
            self._write_after(_GATHERING_S)

    def recovered(self, subscription: Hashable) -> None:
        """Note that a subscription can read; logged once no other one has the cause."""
        cause = self._logged.get(subscription)
        self.ended(subscription)
        if cause is not None and cause not in self._logged.values():
            self._log.info("Reading continues. Before: {reason}", reason=self._lines[cause][1])

    def ended(self, subscription: Hashable) -> None:
        """Forget a subscription."""
        self._failing.pop(subscription, None)
        self._logged.pop(subscription, None)
        if not self._failing and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write_after(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = self._clock.callLater(delay_s, self._write)

    def _write(self) -> None:
        self._timer = None
        new: dict[str, dict[Hashable, tuple[str, ReadFailure]]] = {}
        for subscription, failing in self._failing.items():
            cause = failing[1].cause
            if self._logged.get(subscription) != cause:
                new.setdefault(cause, {})[subscription] = failing
        now_s = self._clock.seconds()
        self._forget_lines(now_s)
        for cause, subscriptions in new.items():
            if cause in self._lines and self._lines[cause][0] + _INTERVAL_S > now_s:
                self._write_after(_GATHERING_S)
                continue
            reason = next(iter(subscriptions.values()))[1].sentence
            self._lines[cause] = now_s, reason
            self._logged.update(dict.fromkeys(subscriptions, cause))
            self._log.warn(
                "Reading is interrupted for {topics}; trying again: {reason}",
                topics=_named({topic for topic, _ in subscriptions.values()}),
                reason=reason,
            )

    def _forget_lines(self, now_s: float) -> None:
        in_use = set(self._logged.values())
        for cause, (at_s, _) in list(self._lines.items()):
            if cause not in in_use and at_s + _INTERVAL_S <= now_s:
                del self._lines[cause]


def _named(topics: set[str]) -> str:
    """Format topics, as in ``the topics a, b and 3 more``."""
    named = sorted(topics)
    text = ", ".join(named[:_MOST_NAMED])
    more = len(named) - _MOST_NAMED
    return f"the topic{'s' * (len(named) > 1)} {text}" + (f" and {more} more" if more > 0 else "")
