"""
The Kafka broker: records in the topics of a cluster of Apache Kafka 2.1 to 4.x.

afkak keeps the connections, the requests that are in flight on each, and the cache of metadata. What goes
over the connections, how they are made and when they are given up, the producer and the consumer are our
own; see `sampleapp.brokers.kafka.cluster_client`.
"""
