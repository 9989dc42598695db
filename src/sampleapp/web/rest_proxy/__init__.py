"""Confluent's REST Proxy, API v2: produce requests, and the topics with their partitions."""

from sampleapp.web.rest_proxy.produce import UNSUPPORTED_FORMAT, produce_plan
from sampleapp.web.rest_proxy.routes import RestProxy

__all__ = ["UNSUPPORTED_FORMAT", "RestProxy", "produce_plan"]
