"""Confluent's REST Proxy, API v2: produce requests, and the topics with their partitions."""

from sampleapp.web.rest_proxy.produce import ProduceRequests, require_acceptable
from sampleapp.web.rest_proxy.topics import Topics

__all__ = ["ProduceRequests", "Topics", "require_acceptable"]
