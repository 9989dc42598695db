"""What happens to the connections of a client, as its listener is told."""

from __future__ import annotations

from sampleapp.brokers.kafka.connections.diagnostics import FailureReason


class Connections:
    """A `ConnectionListener` that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int]] = []
        self.reasons: list[FailureReason] = []
        self.changes = 0
        """How often it was told that leaders have changed."""

    def connected(self, host: str, port: int) -> None:
        self.told.append(("connected", host, port))

    def responded(self, host: str, port: int) -> None:
        """Of no interest here: the tests count answers themselves."""

    def failed(self, host: str, port: int, reason: FailureReason) -> None:
        self.told.append(("failed", host, port))
        self.reasons.append(reason)

    def lost(self, host: str, port: int) -> None:
        self.told.append(("lost", host, port))

    def leaders_changed(self) -> None:
        self.changes += 1

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.told]
