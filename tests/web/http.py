"""Requests that the tests of HTTP send, and checks of the answers."""

from __future__ import annotations

import json

from tests.support.in_memory import request_bytes

JSON = [(b"Content-Type", b"application/json")]
NDJSON = [(b"Content-Type", b"application/x-ndjson")]


MESSAGE = b'{"topic":"t","content":"c"}'

OF_THE_SERVER = {b"date", b"connection", b"keep-alive", b"x-request-id"}
"""The header fields that differ from answer to answer."""


def same_headers(response):
    """Return the header fields but for those that differ from answer to answer."""
    return {name: value for name, value in response.headers.items() if name not in OF_THE_SERVER}


def same_answer(connections, method):
    """Return the only answer that each connection has, which is the same but for what servers add."""
    answers = []
    for connection in connections:
        (answer,) = connection.responses([method])
        answers.append(answer._replace(headers=same_headers(answer)))
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


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
