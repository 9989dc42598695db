"""
Keeps connections busy with requests of many messages each, and says how that went as one line of JSON.

Each line of NDJSON has 100 bytes; the same records are in the bodies of REST Proxy's API v2. It is a process
of its own, so that what is measured of the service is the service's alone.

    python benchmarks/batch_load.py PORT CONNECTIONS REQUESTS ndjson|v2 MESSAGES few|different
"""

from __future__ import annotations

import json
import sys

from load import Connection, keep_busy

__all__ = ["LINE_BYTES", "request"]

TOPIC = b"bench"
LINE_BYTES = 100
FEW = 100
NUMBER = b"@number@"
"""Stands for what is new in each request, where all keys are to be different."""

_LINE = b'{"topic":"%b","key":"%b%06d","content":"%b"}'
_CONTENT = b"x" * (LINE_BYTES - len(_LINE % (TOPIC, NUMBER, 0, b"")))


def request(form: str, messages: int, keys: str) -> bytes:
    """Make a request with so many messages."""
    prefix = NUMBER if keys == "different" else b"of a few"
    each = [(prefix, n if keys == "different" else n % FEW) for n in range(messages)]
    if form == "ndjson":
        path, media_type = b"/messages", b"application/x-ndjson"
        body = b"".join(_LINE % (TOPIC, *key, _CONTENT) + b"\n" for key in each)
    else:
        path, media_type = b"/topics/" + TOPIC, b"application/vnd.kafka.json.v2+json"
        records = b",".join(b'{"key":"%b%06d","value":"%b"}' % (*key, _CONTENT) for key in each)
        body = b'{"records":[%b]}' % records
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (path, media_type, len(body)) + body


def main() -> None:
    port, connections, requests = map(int, sys.argv[1:4])
    form, messages, keys = sys.argv[4], int(sys.argv[5]), sys.argv[6]
    body = request(form, messages, keys)
    made = [Connection(port, body, {NUMBER: b"%08x"}) for _ in range(connections)]
    print(json.dumps(keep_busy(made, requests)))


if __name__ == "__main__":
    main()
