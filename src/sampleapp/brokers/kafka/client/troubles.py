"""What may be wrong with a client as a whole, rather than with one of its connections."""

from __future__ import annotations

from typing import Final

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason

__all__ = ["NOT_LEARNT", "gone"]

NOT_LEARNT: Final = FailureReason(
    sentence="What the broker says of the cluster could not be used; see the log.",
    public="What the broker says of the cluster could not be used.",
    lasting=False,
)


def gone(node_id: int | None) -> FailureReason:
    """
    A broker is not in the cluster.

    :param node_id: ``None`` for all of them: the client is closed.
    """
    who = "The client" if node_id is None else f"Broker {node_id}"
    return FailureReason(
        sentence=f"{who} is no more.", public="The broker is not in the cluster now.", lasting=False
    )
