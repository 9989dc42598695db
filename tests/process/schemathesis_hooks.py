"""How schemathesis makes bodies that are not JSON; it loads this file itself."""

from __future__ import annotations

import json

import schemathesis

LINES = b'{"topic":"lines","content":"1"}\n{"topic":"lines","key":"k","content":"2"}\n'


@schemathesis.serializer("application/x-ndjson", "application/jsonl")
def lines(context, value):
    """Any text would do for its description, which has no words for the form of lines."""
    return LINES if isinstance(value, str) else json.dumps(value).encode()
