"""Faults of Kafka's nodes, of gateways and of connections, and a check of every answer: ``make chaos``."""
