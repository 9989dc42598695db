"""What the tests of HTTP send, and what they expect of a refusal."""

from __future__ import annotations

import json

from tests.support.in_memory import request_bytes

JSON = [(b"Content-Type", b"application/json")]


MESSAGE = b'{"topic":"t","content":"c"}'


def raw(service, data):
    connection = service.connect()
    connection.send(data)
    return connection


def assert_problem(response, status):
    assert response.status == status
    assert response.headers[b"content-type"] == b"application/problem+json"
    problem = json.loads(response.body)
    assert problem["status"] == status
    assert set(problem) >= {"type", "title", "status", "detail"}


def chunked(body, size):
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


CHUNKED = request_bytes("POST", "/messages", [*JSON, (b"Transfer-Encoding", b"chunked")])
