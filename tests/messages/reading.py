"""Reading REST Proxy's produce requests, for tests."""

from __future__ import annotations

import json

from sampleapp.messages.rest_proxy_bodies import EmbeddedFormat, read_records


def slices_of(body, embedded=EmbeddedFormat.JSON, *, partition=None):
    """The records of a request, a slice at a time."""
    return read_records(
        body, embedded, topic="t", partition=partition, timestamp_ms=1, headers=(("h", b"x"),)
    )


def records_of(body, embedded=EmbeddedFormat.JSON, *, partition=None):
    """All records of a request."""
    return [record for records in slices_of(body, embedded, partition=partition) for record in records]


def contents_of(body, embedded=EmbeddedFormat.JSON):
    """The key, value and partition of each record of a request."""
    return [(each.key, each.value, each.partition) for each in records_of(body, embedded)]


def body_of(records, **members):
    return json.dumps({"records": records, **members}).encode("ascii")
