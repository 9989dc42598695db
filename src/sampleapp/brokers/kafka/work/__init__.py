"""
Groups of workers on Kafka's share groups (KIP-932).

Each lease is a share session of a member of its own, on a connection of its own: when a connection closes,
the broker ends only the last session that was begun on it. Any instance may acknowledge: the lease names the
node, the member and the next epoch of its session, and a broker compares only these.
"""

from sampleapp.brokers.kafka.work.group_work import GroupWork

__all__ = ["GroupWork"]
