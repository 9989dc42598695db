"""
The Kafka broker: records in the topics of a cluster of Apache Kafka 0.11 to 4.x.

Connections, routing and the cache of metadata are afkak's; what goes over them is ours.
"""
