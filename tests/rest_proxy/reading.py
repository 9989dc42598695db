"""Reading produce requests, for tests."""

from __future__ import annotations

import json

from sampleapp.rest_proxy import EmbeddedFormat, read_records
from sampleapp.rest_proxy.produce_requests import SLICE_BYTES


def records_of(
    body, embedded=EmbeddedFormat.JSON, *, partition=None, max_record=None, slice_bytes=SLICE_BYTES
):
    """All records of a request."""
    slices = read_records(
        body,
        embedded,
        topic="t",
        partition=partition,
        timestamp_ms=1,
        headers=(("h", b"x"),),
        max_record=max_record,
        slice_bytes=slice_bytes,
    )
    return [record for records in slices for record in records]


def contents_of(body, embedded=EmbeddedFormat.JSON, **options):
    """The key, value and partition of each record of a request."""
    return [(each.key, each.value, each.partition) for each in records_of(body, embedded, **options)]


def text_of(json_text):
    """The bytes of the only record of a request, which has this text as its value."""
    ((_, value, _),) = contents_of(b'{"records":[{"value":%b}]}' % json_text.encode("utf-8"))
    return value


def body_of(records, **members):
    return json.dumps({"records": records, **members}).encode("ascii")
