"""The requests of clients of Confluent's REST Proxy, API v2: what is in them, without I/O."""

from sampleapp.rest_proxy.produce_requests import EmbeddedFormat, Unserializable, read_records

__all__ = ["EmbeddedFormat", "Unserializable", "read_records"]
