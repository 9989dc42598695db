"""
What a description in OpenAPI 3.1 has no words for; schemathesis loads this file itself.

The lines of a body, the spelling of a partition, the earliest time, and that a key is for one request.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import count

import schemathesis
from hypothesis import strategies as st

from sampleapp.web.openapi.operations import IDEMPOTENCY_KEY

LINES = ("application/x-ndjson", "application/jsonl")

numbers = count()


@schemathesis.hook
def before_load_schema(_context, document):
    content = document["paths"]["/messages"]["post"]["requestBody"]["content"]
    for media_type in LINES:
        del content[media_type]["examples"]
        content[media_type]["schema"] = {
            "type": "array",
            "minItems": 1,
            "items": {"$ref": "#/components/schemas/Message"},
        }


@schemathesis.serializer(*LINES)
def lines(_context, value):
    # What is no list is no lines either, and is rejected.
    messages = value if isinstance(value, list) else [[value]]
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


@schemathesis.hook
def map_body(_context, body):
    """JSON Schema takes 7.0 for an integer, and REST Proxy's partitions are written without a fraction."""
    records = body.get("records") if isinstance(body, dict) else None
    for record in records if isinstance(records, list) else ():
        if isinstance(record, dict) and isinstance(record.get("partition"), float):
            record["partition"] = int(record["partition"])
    return body


@schemathesis.hook
def map_query(_context, query):
    """A page may wait for a minute; here it waits for a second at most."""
    wait = query.get("wait") if isinstance(query, dict) else None
    if isinstance(wait, int) and wait > 1:
        query["wait"] = 1
    return query


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """Let each key belong to one request, in cases that are to be accepted, and pulls wait for a second."""
    wait = case.body.get("wait") if isinstance(case.body, dict) else None
    if isinstance(wait, int) and 1 < wait <= 60:
        case.body["wait"] = 1
    if case.meta.generation.mode.is_positive and IDEMPOTENCY_KEY.name in (case.headers or {}):
        case.headers[IDEMPOTENCY_KEY.name] = f"key-{next(numbers)}"


# A day later than the first one, so that no offset makes it earlier.
schemathesis.openapi.format(
    "date-time",
    st.datetimes(min_value=datetime(1970, 1, 2), timezones=st.just(UTC)).map(datetime.isoformat),  # noqa: DTZ001 -- so Hypothesis wants it
)
