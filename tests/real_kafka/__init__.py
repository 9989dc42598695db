"""Tests against Apache Kafka itself; ``make test-kafka`` runs them."""
