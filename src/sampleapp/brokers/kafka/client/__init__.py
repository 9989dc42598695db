"""
The client of a cluster: its connections, and its metadata.

It is afkak's client, subclassed. afkak's are the table of connections by node id, their connecting and
closing, and the cache of topics, partitions and leaders. Overridden are:

- what goes over a connection: afkak speaks the versions of Kafka 0.8, which Kafka 4 refuses (KIP-896);
- the requests that are in flight, their times and their answers: each takes some batches of records, and
  afkak's book-keeping was a third of what that took;
- connecting, which is bounded, backs off and says why it failed, where afkak goes on for ever;
- the loss of a connection, which fails its requests, where afkak sends them again: that would make
  duplicates, and change their order;
- loading metadata: one request at a time for all callers, another broker beside one that is slow, and no
  topic that is created by asking.
"""

from sampleapp.brokers.kafka.client.call import RequestFailed, reason_of
from sampleapp.brokers.kafka.client.client import Client
from sampleapp.brokers.kafka.client.interfaces import ClusterClient, ConnectionListener
from sampleapp.brokers.kafka.client.metadata import ask_one_of

__all__ = ["Client", "ClusterClient", "ConnectionListener", "RequestFailed", "ask_one_of", "reason_of"]
