"""
The longest turn of the reactor for each hostile form of a request, in milliseconds of CPU.

A turn is what every other client waits for. The service is a process of its own, with `turn_probe.py` in it.
Each form is sent to it on one connection, several times, with nothing beside it.

    python benchmarks/turns.py                       all forms, about three minutes
    python benchmarks/turns.py chunk path            those with a word in their names
    python benchmarks/turns.py --python VENV/bin/python   another installation of sampleapp
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import hashlib
import json
import mmap
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations, islice
from pathlib import Path

from clusters import mock_cluster
from servers import HERE, Server, free_port
from turn_probe import LONGEST

KIB, MIB = 1024, 1024 * 1024
BATCH = 16 * MIB - 4 * KIB
TIMES = 4
DEADLINE_S = 120
MOST_MS = 10.0
TOKEN = "sampleapp_" + "A" * 43
CALLERS = f"""
[callers.attacker]
publish = ["*"]
consume = ["*"]
read = true
work = ["*"]
metrics = true

[[callers.attacker.tokens]]
sha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"

[callers.narrow]
publish = [{", ".join(f'"*a{number}*b*c"' for number in range(100))}]

[[callers.narrow.tokens]]
sha256 = "{hashlib.sha256(TOKEN.lower().encode()).hexdigest()}"

[hooks.known]
topic = "hooks"
scheme = "github"
secret_files = ["hook.secret"]

[hooks.many]
topic = "hooks"
scheme = "stripe"
secret_files = ["hook.secret"]

[issuers.example]
issuer = "https://issuer.example"
audience = "sampleapp"
jwks = "keys.json"
publish_claim = "topics"
"""
SCHEMAS = {
    "unique": {"uniqueItems": True},
    "object": {"type": "object"},
    "integers": {"items": {"type": "integer"}},
    "patterns": {"anyOf": [{"pattern": f"^a*{letter}$"} for letter in "bcdefghijk"]},
    "names": {"patternProperties": {f"^a*{number}$": True for number in range(20)}},
}
KEY = {"kty": "RSA", "kid": "k", "alg": "RS256", "e": "AQAB", "n": "1" + "7" * 341}
OPEN = ("Authorization: Bearer " + TOKEN,)
NARROW = ("Authorization: Bearer " + TOKEN.lower(),)
NDJSON = ("Content-Type: application/x-ndjson", *OPEN)
JSON = ("Content-Type: application/json", *OPEN)
EVENTS = ("Content-Type: application/cloudevents-batch+json", *OPEN)
EVENT = ("Content-Type: application/cloudevents+json", *OPEN)
REST = ("Content-Type: application/vnd.kafka.json.v2+json", *OPEN)
BINARY = ("Content-Type: application/vnd.kafka.binary.v2+json", *OPEN)
ACK = "/topics/t/groups/g/ack"
CHUNKED = ("Transfer-Encoding: chunked", *OPEN)
SIGNED = ("Transfer-Encoding: chunked", "X-Hub-Signature-256: sha256=" + "0" * 64)


def request(
    method: str,
    target: str,
    body: bytes | None = None,
    headers: tuple[str, ...] = OPEN,
    *,
    closes: bool = True,
) -> bytes:
    """Return a request; with ``Transfer-Encoding`` among its headers, the body must be in chunks already."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *headers]
    if closes:
        lines.append("Connection: close")
    if body is not None and not any(each.startswith("Transfer-Encoding") for each in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def get(target: str, *headers: str) -> bytes:
    return request("GET", target, None, (*OPEN, *headers))


def post(target: str, body: bytes, headers: tuple[str, ...] = JSON) -> bytes:
    return request("POST", target, body, headers)


def chunks(content: bytes, size: int, extension: bytes = b"") -> bytes:
    return b"".join(
        b"%x%b\r\n%b\r\n" % (len(content[at : at + size]), extension, content[at : at + size])
        for at in range(0, len(content), size)
    )


def repeated(piece: bytes, length: int) -> bytes:
    return piece * (length // len(piece))


def numbered(form: bytes, length: int) -> bytes:
    """Repeat a form with numbers in it, up to a length."""
    pieces, size = [], 0
    for number in range(length):
        pieces.append(form.replace(b"#", b"%d" % number))
        size += len(pieces[-1])
        if size >= length:
            break
    return b"".join(pieces[:-1])


def fields(form: str, length: int = 15 * KIB) -> tuple[str, ...]:
    """Return header fields of a form, with numbers in it, up to a length."""
    return tuple(numbered(form.encode("latin-1") + b"\n", length).decode("latin-1").splitlines())


def events(attributes: int, length: int, space: bytes = b"") -> bytes:
    more = b"".join(b'"a%d":"",' % number for number in range(attributes))
    event = b'{"specversion":"1.0",%b"id":"1","source":"s","type":"t"%b}' % (more, space)
    return b"[" + b",".join([event] * (length // len(event))) + b"]"


def rest(record: bytes, length: int, space: bytes = b"") -> bytes:
    return b'{"records":[%b%b]}' % (space, b",".join([record] * (length // len(record))))


def keyed(length: int, topic: bytes = b"t") -> bytes:
    """Return a line with a key of a length."""
    return b'{"topic":"%b","content":"","key":"%b"}\n' % (topic, b"k" * length)


def ack(ids: bytes) -> bytes:
    """:param ids: with a comma after each."""
    return b'{"lease":"kqVvcmRlcnM","accept":[%b]}' % ids[:-1]


def line(content: bytes, topic: bytes = b"t", more: bytes = b"") -> bytes:
    return b'{"topic":"%b","content":"%b"%b}\n' % (topic, content, more)


def forms() -> dict[str, Callable[[], bytes]]:
    """Return the requests by name."""
    headers = b"".join(b'"h%d":"",' % number for number in range(1000))[:-1]
    return {
        "usual message": lambda: post("/messages", b'{"topic":"t","content":"x"}'),
        "chunks of one byte": lambda: post("/topics/t", chunks(b"x" * 300_000, 1) + b"0\r\n\r\n", CHUNKED),
        "chunks of one byte, hook": lambda: post(
            "/hooks/known", chunks(b"x" * 300_000, 1) + b"0\r\n\r\n", SIGNED
        ),
        "chunks of one byte, no credentials": lambda: post(
            "/topics/t", chunks(b"x" * 300_000, 1) + b"0\r\n\r\n", ("Transfer-Encoding: chunked",)
        ),
        "chunks of two bytes, after much content": lambda: post(
            "/topics/t", chunks(b"x" * 700_000, 700_000) + chunks(b"x" * 200_000, 2) + b"0\r\n\r\n", CHUNKED
        ),
        "chunks of 16 bytes": lambda: post("/topics/t", chunks(b"x" * MIB, 16) + b"0\r\n\r\n", CHUNKED),
        "chunks with extensions": lambda: post(
            "/topics/t", chunks(b"x" * 5000, 1, b";a") + b"0\r\n\r\n", CHUNKED
        ),
        "chunk with long size": lambda: post("/topics/t", b"0" * 16_000 + b"1\r\nx\r\n0\r\n\r\n", CHUNKED),
        "trailers": lambda: post("/topics/t", b"1\r\nx\r\n0\r\n" + b"a:\r\n" * 4090 + b"\r\n", CHUNKED),
        "trailers, all different": lambda: post(
            "/topics/t", b"1\r\nx\r\n0\r\n" + numbered(b"#:\r\n", 16_000) + b"\r\n", CHUNKED
        ),
        "trailer with tabs": lambda: post(
            "/topics/t", b"1\r\nx\r\n0\r\na:" + b"\t " * 8000 + b"b\r\n\r\n", CHUNKED
        ),
        "path of slashes": lambda: get("/" * 15_000),
        "path of segments": lambda: get("/a" * 7_500),
        "path of segments, no credentials": lambda: request("GET", "/a" * 7_500, None, ()),
        "path of segments, trailing slash": lambda: get("/a" * 7_500 + "/"),
        "path of escapes": lambda: get("/" + "%41" * 5_000),
        "path of escaped slashes": lambda: get("/" + "%2F" * 5_000),
        "path of a hook": lambda: request("POST", "/hooks/" + "%41/" * 3_700, b"", ()),
        "path of a topic": lambda: post("/topics/" + "a/" * 7_500, b""),
        "query of parameters": lambda: post("/topics/t?" + "a&" * 7_500, b"", OPEN),
        "query of parameters, all different": lambda: post(
            "/topics/t?" + numbered(b"#&", 15_000).decode(), b"", OPEN
        ),
        "query of escapes": lambda: post("/topics/t?" + "%41&" * 3_700, b"", OPEN),
        "query of records": lambda: get("/topics/t/records?" + "a&" * 7_500),
        "query of headers": lambda: get("/topics/t/records?" + "header=a:b&" * 1_350),
        "query of one name": lambda: get("/topics/t/records?" + "limit=1&" * 1_800),
        "partitions": lambda: get("/topics/t/records?partition=" + ",".join(map(str, range(0, 6_000, 2)))),
        "partitions, ranges": lambda: get(
            "/topics/t/records?partition=" + ",".join(f"{n}-{n}" for n in range(1_500))
        ),
        "partitions, long": lambda: get("/topics/t/records?partition=" + "0," * 7_000 + "x"),
        "position": lambda: get("/topics/t/records?from=a~" + ".".join(["1e1"] * 1_000)),
        "position, long": lambda: get("/topics/t/records?from=a~" + "." * 14_000),
        "Last-Event-ID": lambda: get(
            "/topics/t/records", "Accept: text/event-stream", "Last-Event-ID: a~" + "." * 14_000
        ),
        "Accept": lambda: get("/", "Accept: " + "a/b;q=0.1," * 1_400),
        "Accept, slashes": lambda: get("/", "Accept: " + "a/b," * 3_700),
        "Accept, quotes": lambda: get("/", "Accept: " + 'a/b;c="' + "\\" * 14_000),
        "Accept, commas": lambda: get("/", "Accept: " + "," * 15_000),
        "Accept, many fields": lambda: get("/", *["Accept: a/b"] * 480),
        "Accept of metrics": lambda: get("/metrics", "Accept: " + "a/b;q=0.1," * 1_400),
        "Accept of records": lambda: get("/topics/t/records", "Accept: " + "a/b;q=0.1," * 1_400),
        "Accept of REST Proxy": lambda: post("/topics/t", b"{}", (*REST, "Accept: " + "a/b;q=0.1," * 1_400)),
        "Accept-Encoding": lambda: get("/", "Accept-Encoding: " + "a;q=0.1," * 1_800),
        "If-None-Match": lambda: get("/", "If-None-Match: " + 'W/"",' * 3_000),
        "If-None-Match, open quotes": lambda: get("/", "If-None-Match: " + '"' * 15_000),
        "If-None-Match, commas": lambda: get("/", "If-None-Match: " + "," * 15_000),
        "Content-Type": lambda: post(
            "/messages", b"{}", ("Content-Type: application/json" + ";a=b" * 3_700, *OPEN)
        ),
        "Content-Type, quotes": lambda: post(
            "/messages", b"{}", ('Content-Type: application/json;a="' + "\\" * 14_000, *OPEN)
        ),
        "Content-Encoding": lambda: post("/messages", b"{}", ("Content-Encoding: " + "a," * 7_000, *JSON)),
        "Connection": lambda: post("/topics/t", b"x", ("Connection: " + "a," * 7_000, *OPEN)),
        "Origin": lambda: post("/topics/t", b"x", ("Origin: http://" + "a." * 7_000, *OPEN)),
        "Host": lambda: request("GET", "/live", None, ("Host: " + "a." * 7_000,)),
        "preflight": lambda: request(
            "OPTIONS",
            "/messages",
            None,
            (
                "Origin: https://a.example",
                "Access-Control-Request-Method: POST",
                "Access-Control-Request-Headers: " + "a," * 7_000,
            ),
        ),
        "tracestate": lambda: post(
            "/topics/t",
            b"x",
            ("traceparent: 00-" + "1" * 32 + "-" + "1" * 16 + "-01", "tracestate: " + "a=b," * 3_700, *OPEN),
        ),
        "tracestate, many fields": lambda: post(
            "/topics/t",
            b"x",
            ("traceparent: 00-" + "1" * 32 + "-" + "1" * 16 + "-01", *["tracestate: a=b"] * 480, *OPEN),
        ),
        "Idempotency-Key": lambda: post("/topics/t", b"x", ('Idempotency-Key: "a"' + ";a=1" * 3_500, *OPEN)),
        "Idempotency-Key, inner list": lambda: post(
            "/topics/t", b"x", ("Idempotency-Key: " + "(" * 14_000, *OPEN)
        ),
        "X-Request-Id, blanks": lambda: get("/live", "X-Request-Id: a" + " \t" * 7_000 + "b"),
        "fields": lambda: get("/live", *fields("a#: b")),
        "fields of one name": lambda: get("/live", *["a:"] * 3_500),
        "fields of one name, no credentials": lambda: request("GET", "/topics", None, ("a:",) * 3_500),
        "fields of one name, partial": lambda: request("GET", "/topics", None, ("a:",) * 3_500)[:-2],
        "attributes of events": lambda: post(
            "/topics/t",
            b"x",
            (
                *("ce-id: 1", "ce-source: s", "ce-type: t", "ce-specversion: 1.0"),
                *fields("ce-a#: %41%41", 14_000)[:480],
                *OPEN,
            ),
        ),
        "attribute of escapes": lambda: post(
            "/topics/t",
            b"x",
            (
                *("ce-id: 1", "ce-source: s", "ce-type: t", "ce-specversion: 1.0"),
                'ce-a: "' + "\\a" * 7_000 + '"',
                *OPEN,
            ),
        ),
        "attributes of events, wrong": lambda: post(
            "/topics/t", b"x", fields("ce-#_: %ff", 14_000)[:480] + OPEN
        ),
        "token": lambda: request("GET", "/", None, ("Authorization: Bearer " + "a" * 15_000,)),
        "token of an issuer": lambda: request(
            "GET", "/", None, ("Authorization: Bearer " + jwt({f"c{n}": [] for n in range(800)}),)
        ),
        "token of an issuer, deep": lambda: request(
            "GET",
            "/",
            None,
            ("Authorization: Bearer " + jwt({"iss": "https://issuer.example"}, b"[" * 10_000),),
        ),
        "Authorization, many": lambda: request("GET", "/", None, ("Authorization: Bearer a",) * 480),
        "Basic": lambda: request("GET", "/", None, ("Authorization: Basic " + "A" * 15_000,)),
        "signatures": lambda: request(
            "POST",
            "/hooks/many",
            b"x" * 900_000,
            (f"Stripe-Signature: t={int(time.time())}" + (",v1=" + "0" * 64) * 50,),
        ),
        "signatures, commas": lambda: request(
            "POST", "/hooks/many", b"x", (f"Stripe-Signature: t={int(time.time())}" + "," * 15_000,)
        ),
        "signatures, times": lambda: request(
            "POST", "/hooks/many", b"x", ("Stripe-Signature: " + "t=1," * 3_700,)
        ),
        "pipeline of live": lambda: request("GET", "/live", None, (), closes=False) * 2000 + get("/live"),
        "pipeline of paths": lambda: request("GET", "/a" * 7_000, None, (), closes=False) * 20 + get("/live"),
        "pipeline of small heads": lambda: (
            b"".join(request("GET", f"/{number}", None, (), closes=False) for number in range(2000))
            + get("/live")
        ),
        "pipeline of publishes": lambda: (
            request("POST", "/messages", b'{"topic":"t","content":"x"}', JSON, closes=False) * 2000
            + get("/live")
        ),
        "empty lines": lambda: b"\r\n" * 200_000 + get("/live"),
        "message, brackets": lambda: post("/messages", b"[" * (MIB - KIB)),
        "message, open objects": lambda: post("/messages", repeated(b'{"a":', MIB - KIB)),
        "message, pairs of brackets": lambda: post(
            "/messages", b'{"topic":"t","content":[' + repeated(b"[],", MIB - KIB)[:-1] + b"]}"
        ),
        "message, small pairs of brackets": lambda: post(
            "/messages", b'{"topic":"t","content":[' + repeated(b"{},", 63 * KIB)[:-1] + b"]}"
        ),
        "message, members": lambda: post("/messages", b"{" + numbered(b'"#":1,', MIB - KIB) + b'"a":1}'),
        "message, small, members": lambda: post(
            "/messages", b"{" + numbered(b'"#":1,', 63 * KIB) + b'"a":1}'
        ),
        "message, headers": lambda: post(
            "/messages", b'{"topic":"t","content":"","headers":{%b}}' % numbered(b'"#":"",', MIB - KIB)[:-1]
        ),
        "message, wrong headers": lambda: post(
            "/messages", b'{"topic":"t","content":"","headers":{%b}}' % numbered(b'"#":1,', 63 * KIB)[:-1]
        ),
        "message, repeated headers": lambda: post(
            "/messages", b'{"topic":"t","content":"","headers":{%b}}' % repeated(b'"a":"",', 63 * KIB)[:-1]
        ),
        "message, white space": lambda: post("/messages", b" " * (MIB - KIB) + b"{}"),
        "message, escapes": lambda: post(
            "/messages", b'{"topic":"t","content":"%b"}' % (b"\\u0041" * 170_000)
        ),
        "message, colons": lambda: post(
            "/messages", b'{"topic":"t","content":"%b","key":"\\\\"}' % (b"\\u003a" * 170_000)
        ),
        "message, surrogates": lambda: post(
            "/messages", b'{"topic":"t","content":"%b"}' % (b"\\ud800" * 170_000)
        ),
        "message, digits": lambda: post(
            "/messages", b'{"topic":"t","content":"","timestamp":%b}' % (b"1" * 1_000_000)
        ),
        "message, digits, small": lambda: post(
            "/messages", b'{"topic":"t","content":"","timestamp":%b}' % (b"1" * 64_000)
        ),
        "message, numbers": lambda: post("/messages", b'{"topic":[%b0]}' % repeated(b"1e308,", 63 * KIB)),
        "message, base64": lambda: post(
            "/messages", b'{"topic":"t","content_base64":"%b"}' % base64.b64encode(b"\xff" * 780_000)
        ),
        "message, wrong base64": lambda: post(
            "/messages", b'{"topic":"t","content_base64":"%b"}' % (b"-" * 1_000_000)
        ),
        "message, long names": lambda: post("/messages", b'{"%b":1}' % (b"\xc2\x85" * 500_000)),
        "message, not UTF-8": lambda: post(
            "/messages", b'{"topic":"t","content":"%b"}' % (b"\xff" * 1_000_000)
        ),
        "message, timestamp": lambda: post(
            "/messages",
            b'{"topic":"t","content":"","timestamp":"%b"}' % (b"2026-01-01T00:00:00." + b"0" * 900_000),
        ),
        "message, gzip": lambda: post(
            "/messages", gzip.compress(b" " * 50 * MIB), (*JSON, "Content-Encoding: gzip")
        ),
        "batch, gzip": lambda: post(
            "/messages", gzip.compress(line(b"x") * 300_000), (*NDJSON, "Content-Encoding: gzip")
        ),
        "batch, gzip, members": lambda: post(
            "/messages", gzip.compress(b"") * 500_000, (*NDJSON, "Content-Encoding: gzip")
        ),
        "batch": lambda: post("/messages", repeated(line(b"x" * 100), BATCH), NDJSON),
        "batch, half as many messages": lambda: post("/messages", repeated(line(b""), BATCH // 2), NDJSON),
        "batch, small messages": lambda: post("/messages", repeated(line(b""), BATCH), NDJSON),
        "batch, new topics": lambda: post(
            "/messages", numbered(b'{"topic":"n#","content":""}\n', BATCH), NDJSON
        ),
        "batch, forbidden topics": lambda: request(
            "POST",
            "/messages",
            numbered(b'{"topic":"#aaaaaaaaaaaaaaaaaaaa","content":""}\n', BATCH // 4),
            ("Content-Type: application/x-ndjson", *NARROW),
        ),
        "batch, empty lines": lambda: post("/messages", b"\n" * BATCH, NDJSON),
        "batch, CR LF": lambda: post("/messages", b"\r\n" * (BATCH // 2), NDJSON),
        "batch, spaces": lambda: post("/messages", repeated(b" \n", BATCH), NDJSON),
        "batch, empty objects": lambda: post("/messages", repeated(b"{}\n", BATCH), NDJSON),
        "batch, not JSON": lambda: post("/messages", repeated(b"x\n", BATCH), NDJSON),
        "batch, one long line": lambda: post("/messages", b"x" * BATCH, NDJSON),
        "batch, long lines": lambda: post("/messages", repeated(line(b"x" * (MIB - 100)), BATCH), NDJSON),
        "batch, lines of brackets": lambda: post(
            "/messages", repeated(b"[" * (MIB - 10) + b"\n", BATCH), NDJSON
        ),
        "batch, lines of pairs": lambda: post(
            "/messages", repeated(b'{"topic":[' + b"[]," * 20_000 + b"[]]}\n", BATCH), NDJSON
        ),
        "batch, wrong then pairs": lambda: post(
            "/messages", b"{}\n" * 100 + repeated(b"[" + b"[]," * 300_000 + b"[]]\n", BATCH), NDJSON
        ),
        "batch, values after faults": lambda: post(
            "/messages", b"{}\n" * 100 + repeated(b"1\n", BATCH), NDJSON
        ),
        "batch, headers": lambda: post(
            "/messages", repeated(line(b"", more=b',"headers":{%b}' % headers), BATCH), NDJSON
        ),
        "batch, timestamps": lambda: post(
            "/messages", repeated(line(b"", more=b',"timestamp":"2026-01-01T00:00:00Z"'), BATCH), NDJSON
        ),
        "batch, colons": lambda: post("/messages", repeated(line(b":\\u003a"), BATCH), NDJSON),
        "batch, base64": lambda: post(
            "/messages",
            repeated(b'{"topic":"t","content_base64":"%b"}\n' % base64.b64encode(b"x" * 700_000), BATCH),
            NDJSON,
        ),
        "long key": lambda: post("/messages", keyed(MIB - 100)),
        "long key in base64": lambda: post(
            "/messages", b'{"topic":"t","content":"","key_base64":"%b"}' % (b"AAAA" * 262_000)
        ),
        "long key of an event": lambda: post(
            "/topics/t",
            b'{"specversion":"1.0","id":"1","source":"s","type":"t","partitionkey":"%b"}'
            % (b"k" * 1_048_000),
            EVENT,
        ),
        "batch, long keys": lambda: post("/messages", repeated(keyed(MIB - 100), BATCH), NDJSON),
        "batch, long keys, few": lambda: post("/messages", keyed(MIB - 100) * 5, NDJSON),
        "batch, keys of 100 kB": lambda: post("/messages", repeated(keyed(100_000), BATCH), NDJSON),
        "batch, keys of 10 kB": lambda: post("/messages", repeated(keyed(10_000), BATCH), NDJSON),
        "batch, keys of 1 kB": lambda: post(
            "/messages", numbered(keyed(1_000).replace(b"kkkkkkkk", b"#", 1), BATCH), NDJSON
        ),
        "batch, keys of many lengths": lambda: post(
            "/messages", b"".join(keyed(number) for number in range(1, 5_500)), NDJSON
        ),
        "batch, new keys": lambda: post(
            "/messages", numbered(b'{"topic":"t","key":"#","content":""}\n', BATCH // 2), NDJSON
        ),
        "batch, long keys, new topic": lambda: post(
            "/messages", repeated(keyed(MIB - 100, b"new%d" % time.monotonic_ns()), BATCH), NDJSON
        ),
        "batch, unknown topics": lambda: post(
            "/messages", numbered(b'{"topic":"u%d-#","content":""}\n' % time.monotonic_ns(), 30_000), NDJSON
        ),
        "batch, long topics": lambda: post(
            "/messages", repeated(b'{"topic":"%b","content":""}\n' % (b"t" * 1_000_000), BATCH), NDJSON
        ),
        "batch, long member names": lambda: post(
            "/messages", repeated(b'{"%b":""}\n' % (b"~/" * 500_000), BATCH), NDJSON
        ),
        "batch with a key, long keys": lambda: post(
            "/messages", repeated(keyed(MIB - 100), BATCH), (*NDJSON, "Idempotency-Key: k")
        ),
        "batch with a key": lambda: post(
            "/messages", repeated(line(b""), BATCH // 4), (*NDJSON, "Idempotency-Key: k")
        ),
        "events": lambda: post("/topics/t", events(0, BATCH), EVENTS),
        "events, long keys": lambda: post(
            "/topics/t",
            b"[%b]"
            % b",".join(
                [
                    b'{"specversion":"1.0","id":"1","source":"s","type":"t","partitionkey":"%b"}'
                    % (b"k" * 1_000_000)
                ]
                * 16
            ),
            EVENTS,
        ),
        "events, 1,000 attributes": lambda: post("/topics/t", events(1000, BATCH), EVENTS),
        "events, 100,000 attributes": lambda: post("/topics/t", events(60_000, BATCH), EVENTS),
        "events, unterminated string": lambda: post("/topics/t", b'[{"a":"' + b"x" * BATCH, EVENTS),
        "events, unterminated scalar": lambda: post("/topics/t", b"[" + b"x" * BATCH, EVENTS),
        "events, unterminated list": lambda: post("/topics/t", b"[" * BATCH, EVENTS),
        "events, backslashes": lambda: post("/topics/t", b'["' + b"\\" * BATCH, EVENTS),
        "events, white space": lambda: post("/topics/t", b"[" + b" " * BATCH + b"]", EVENTS),
        "events, white space in an event": lambda: post(
            "/topics/t", events(0, BATCH, b" " * (MIB - 100)), EVENTS
        ),
        "events, white space at the end": lambda: post(
            "/topics/t", events(0, 100) + b" " * (BATCH - 200), EVENTS
        ),
        "events, numbers": lambda: post("/topics/t", b"[" + repeated(b"1,", BATCH) + b"1]", EVENTS),
        "events, empty objects": lambda: post("/topics/t", b"[" + repeated(b"{},", BATCH) + b"1]", EVENTS),
        "events, quotes": lambda: post("/topics/t", b"[{" + b'""' * (BATCH // 2), EVENTS),
        "events, wide": lambda: post(
            "/topics/t",
            b"[%b]"
            % b",".join(
                [b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":[%b0]}' % (b"[]," * 330_000)]
                * 15
            ),
            EVENTS,
        ),
        "event, attributes": lambda: post("/topics/t", events(60_000, MIB)[1:-1] or b"{}", EVENT),
        "event, data": lambda: post(
            "/topics/t",
            b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":[%b0]}' % (b"[]," * 330_000),
            EVENT,
        ),
        "event, brackets": lambda: post("/topics/t", b"[" * (MIB - KIB), EVENT),
        "event, wrong": lambda: post("/topics/t", b'{"data":[%b0]}' % (b"[]," * 340_000), EVENT),
        "v2": lambda: post("/topics/t", rest(b'{"value":1}', 200 * KIB), REST),
        "v2, as JSON": lambda: post("/topics/t", rest(b"{}", 650 * KIB), JSON),
        "v2, as JSON, members": lambda: post(
            "/topics/t", b'{"records":[{%b"key":1}]}' % (b'"key":1,' * 130_000), JSON
        ),
        "v2, too many records": lambda: post("/topics/t", rest(b'{"value":1}', 4 * MIB - KIB), REST),
        "v2, white space": lambda: post("/topics/t", rest(b'{"value":1}', 100 * KIB, b" " * 3 * MIB), REST),
        "v2, white space between": lambda: post(
            "/topics/t", rest(b'{"value": [1, 2, 3, 4]}', 400 * KIB), REST
        ),
        "v2, strings": lambda: post(
            "/topics/t", b'{"records":[{"value":[%b""]}]}' % repeated(b'"",', 4 * MIB - KIB), REST
        ),
        "v2, strings with white space": lambda: post(
            "/topics/t", b'{"records":[{"value":[%b""]}]}' % repeated(b'"a", ', 4 * MIB - KIB), REST
        ),
        "v2, members": lambda: post("/topics/t", b"{" + numbered(b'"#":1,', 4 * MIB - KIB) + b'"a":1}', REST),
        "v2, members of a record": lambda: post(
            "/topics/t", b'{"records":[{' + repeated(b'"key":1,', 4 * MIB - KIB) + b'"value":1}]}', REST
        ),
        "v2, wrong": lambda: post("/topics/t", b'{"records":[%b0]}' % repeated(b"[],", 4 * MIB - KIB), REST),
        "v2, brackets": lambda: post("/topics/t", b"[" * (4 * MIB - KIB), REST),
        "v2, brackets with white space": lambda: post(
            "/topics/t", b'{"records":[{"value":' + b"[" * 500 + b"1, 1" + b"]" * 500 + b"}]}", REST
        ),
        "v2, deep": lambda: post("/topics/t", b'{"records":[{"value":' + b"[" * 3 * MIB, REST),
        "v2, small, wrong": lambda: post(
            "/topics/t", b'{"records":[%b0]}' % repeated(b"{},", 63 * KIB), REST
        ),
        "v2, small, members": lambda: post(
            "/topics/t", b'{"records":[{%b"a":1}]}' % numbered(b'"#":1,', 63 * KIB), REST
        ),
        "v2, long key": lambda: post(
            "/topics/t", rest(b'{"key":"%b","value":1}' % (b"k" * 4_000_000), 4 * MIB - KIB), REST
        ),
        "v2, keys": lambda: post("/topics/t", rest(b'{"key":1,"value":1}', 380_000), REST),
        "v2, base64": lambda: post("/topics/t", rest(b'{"value":"AAAA"}', 320 * KIB), BINARY),
        "v2, large base64": lambda: post(
            "/topics/t", rest(b'{"value":"%b"}' % (b"A" * 1_000_000), 4 * MIB - KIB), BINARY
        ),
        "v2, wrong base64": lambda: post("/topics/t", rest(b'{"value":"A-\\n"}', 320 * KIB), BINARY),
        "v2, padding": lambda: post(
            "/topics/t", rest(b'{"value":"%b"}' % (b"=" * 3_900_000), 4 * MIB - KIB), BINARY
        ),
        "v2, escaped base64": lambda: post(
            "/topics/t", rest(b'{"value":"%b"}' % (b"\\/" * 2_000_000), 4 * MIB - KIB), BINARY
        ),
        "v2, escapes": lambda: post(
            "/topics/t", rest(b'{"value": "%b"}' % (b"\\u0041" * 680_000), 4 * MIB - KIB), REST
        ),
        "v2, numbers with white space": lambda: post(
            "/topics/t", b'{"records":[{"value":[%b1 ]}]}' % (b"1," * 2_000_000), REST
        ),
        "v2, large numbers with white space": lambda: post(
            "/topics/t", b'{"records":[{"value":[%b1 ]}]}' % (b"1.2345678901e1," * 249_000), REST
        ),
        "v2, long name": lambda: post("/topics/t", b'{"%b":1}' % (b"\xc2\x85" * 2_000_000), REST),
        "v2, partitions": lambda: post("/topics/t", rest(b'{"value":1,"partition":1}', 400 * KIB), REST),
        "groups, deep": lambda: post("/topics/t/groups/g/pull", b"[" * (MIB - KIB)),
        "slack, deep": lambda: post(
            "/hooks/known", b"[" * (MIB - KIB), ("X-Hub-Signature-256: sha256=" + "0" * 64,)
        ),
        "acknowledgement, many ids": lambda: post(ACK, ack(repeated(b'"0-42",', 60 * KIB))),
        "acknowledgement, many that are no ids": lambda: post(ACK, ack(repeated(b'"x",', 60 * KIB))),
        "acknowledgement, many numbers": lambda: post(ACK, ack(repeated(b"1,", 60 * KIB))),
        "acknowledgement, many members": lambda: post(
            ACK, b'{%b"a":1}' % b"".join(b'"m%d":1,' % number for number in range(5000))
        ),
        "topics": lambda: get("/topics"),
        "topics of a narrow caller": lambda: request("GET", "/topics", None, NARROW),
        "page": lambda: get("/topics/large/records?limit=10000"),
        "page of a key": lambda: get("/topics/large/records?key=none"),
        "page of a header": lambda: get("/topics/large/records?header=a:b"),
        "page from a time": lambda: get("/topics/large/records?from=2100-01-01T00:00:00Z"),
        "page from the end": lambda: get("/topics/large/records?from=-1000000"),
        "schema, integers of equal hash": lambda: post(
            "/topics/unique", b"[%b]" % b",".join(b"%d" % (2**63 + number) for number in range(20_000))
        ),
        "schema, numbers with exponents": lambda: post(
            "/topics/object", b"[" + repeated(b"1e308,", 800 * KIB) + b"1]"
        ),
        "schema, lines with exponents": lambda: post(
            "/messages", line(b"[" + repeated(b"1e308,", 800 * KIB) + b"1]", b"object") * 6, NDJSON
        ),
        "schema, faults": lambda: post("/topics/integers", b"[" + repeated(b'"a",', 800 * KIB) + b"1]"),
        "schema, patterns": lambda: post("/topics/patterns", b'"' + b"a" * 900 * KIB + b'"'),
        "schema, escapes": lambda: post("/topics/patterns", b'"' + repeated(b'\\",', 900 * KIB) + b'"'),
        "schema, long name": lambda: post("/topics/names", b'{"' + b"a" * 800 * KIB + b'":1}'),
        "schema, many lines": lambda: post(
            "/messages", repeated(line(b"[1,2,3]", b"integers"), BATCH), NDJSON
        ),
        "OpenAPI": lambda: request("GET", "/openapi.json", None, ()),
        "OpenAPI, ranges": lambda: request("GET", "/openapi.json", None, ("Accept-Encoding: gzip",)),
        "documentation": lambda: request("GET", "/docs", None, ()),
        "metrics": lambda: get("/metrics"),
    }


V2 = "Accept: application/vnd.sampleApp.v2+json"
STREAM = "Accept: text/event-stream"


def reading(number: int, character: bytes, length: int) -> bytes:
    """Return a request that gives a reading with a long id another value."""
    key = b"%b%d" % (character * length, number)
    return request(
        "POST",
        "/messages",
        b'{"topic":"readings","key":"%b","content":"%d"}' % (key, time.perf_counter_ns()),
        JSON,
        closes=False,
    )


def of_readings(character: bytes, length: int) -> dict[str, Callable[[], bytes]]:
    """Return requests to a service that has readings with long ids; each changes one of them first."""
    change = partial(reading, 1, character, length)
    return {
        "the change alone": lambda: change() + get("/live"),
        "version 1": lambda: change() + get("/"),
        "version 2": lambda: change() + get("/", V2),
        "version 2, not modified": lambda: change() + get("/", V2, 'If-None-Match: "a"'),
        "new": lambda: reading(time.perf_counter_ns(), character, length) + get("/", V2),
    }


@contextlib.contextmanager
def with_readings(running: Service, count: int, character: bytes, length: int) -> Iterator[None]:
    """Publish readings with long ids, and follow their changes."""
    for number in range(count):
        running.send(reading(number, character, length) + get("/live"))
    with running.streams(["/changes"] * 3):
        yield


@contextlib.contextmanager
def with_filters(running: Service, query: Callable[[int], str]) -> Iterator[None]:
    """Open 900 streams with filters by headers."""
    with running.streams([f"/topics/t/records?{query(number)}" for number in range(900)]):
        yield


def some_of_1000(number: int) -> str:
    return "&".join(f"header=h{(number * 97 + 131 * n) % 1000}:" for n in range(8))


def some_of_16(number: int) -> str:
    chosen = next(islice(combinations(range(984, 1000), 8), number * 13, None))
    return "&".join(f"header=h{n}:" for n in chosen)


def of_streams() -> dict[str, Callable[[], bytes]]:
    """Return requests to a service whose streams are filtered by headers."""
    names = [b'"h%d":""' % number for number in range(1000)]
    return {
        "a record with 1,000 headers": lambda: post(
            "/messages", line(b"", more=b',"headers":{%b}' % b",".join(names))
        ),
        "records with 16 headers": lambda: post(
            "/messages", line(b"", more=b',"headers":{%b}' % b",".join(names[-16:])) * 100, NDJSON
        ),
    }


_Scene = tuple[Callable[["Service"], contextlib.AbstractContextManager[None]], dict[str, Callable[[], bytes]]]


def scenes() -> dict[str, _Scene]:
    """Return what the service has and does before and during the requests, and these, by name."""
    ids = {
        "100 ids of 160,000 control characters": (100, b"\\u0001", 160_000),
        "1,000 ids of 20,000 letters": (1000, b"a", 20_000),
        "3 ids of 1 MB": (3, b"a", MIB - KIB),
        "4,000 ids of 60 control characters": (4000, b"\\u0001", 60),
    }
    return {
        "": (lambda _: contextlib.nullcontext(), forms()),
        **{
            f"readings, {name}": (
                partial(with_readings, count=count, character=character, length=length),
                of_readings(character, length),
            )
            for name, (count, character, length) in ids.items()
        },
        "streams, 8 of 1,000 headers": (partial(with_filters, query=some_of_1000), of_streams()),
        "streams, 8 of 16 headers": (partial(with_filters, query=some_of_16), of_streams()),
    }


def jwt(claims: dict[str, object], more: bytes = b"") -> str:
    parts = [
        json.dumps({"alg": "RS256", "kid": "k"}).encode(),
        json.dumps(claims).encode() + more,
        b"x" * 256,
    ]
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in parts)


class Service:
    """A service with a probe, and with topics that are there before."""

    def __init__(
        self, python: str, broker: str, directory: str, schemas: Mapping[str, str] | None = None
    ) -> None:
        """:param schemas: by topic, as JSON; `SCHEMAS` by default."""
        path = Path(directory)
        if schemas is None:
            schemas = {topic: json.dumps(schema) for topic, schema in SCHEMAS.items()}
        (path / "turns").write_bytes(bytes(LONGEST.size))
        (path / "callers.toml").write_text(CALLERS)
        (path / "schemas").mkdir()
        for topic, schema in schemas.items():
            (path / "schemas" / f"{topic}.json").write_text(schema)
        (path / "hook.secret").write_text("x" * 32)
        (path / "keys.json").write_text(json.dumps({"keys": [KEY]}))
        for each in ("callers.toml", "hook.secret", "keys.json"):
            (path / each).chmod(0o600)
        with (path / "turns").open("r+b") as file:
            self._longest = mmap.mmap(file.fileno(), LONGEST.size)
        port = free_port()
        self.server = Server(
            [
                python,
                str(HERE / "turn_probe.py"),
                str(path / "turns"),
                f"--listen=tcp:{port}:interface=127.0.0.1",
                f"--broker={broker}",
                "--callers=callers.toml",
                "--schemas=schemas",
                "--allow-origin=https://a.example",
                *(["--idempotent-topic=*"] if broker.startswith("kafka:") else []),
            ],
            port=port,
            directory=directory,
            path="live",
            log=path / "log",
        )

    def longest_ms(self, content: bytes) -> tuple[bytes, float]:
        """Send a request; return the status of the answer, and the longest turn until it has come."""
        time.sleep(0.05)
        LONGEST.pack_into(self._longest, 0, 0.0)
        status = self.send(content)
        # What is put off, such as freeing memory, has its turns as well.
        time.sleep(0.05)
        return status, 1000 * LONGEST.unpack(self._longest)[0]

    @contextlib.contextmanager
    def streams(self, targets: list[str]) -> Iterator[None]:
        """Open streams, and read them."""
        selector = selectors.DefaultSelector()
        with contextlib.ExitStack() as connections:
            for target in targets:
                connection = connections.enter_context(
                    socket.create_connection(("127.0.0.1", self.server.port), timeout=DEADLINE_S)
                )
                connection.sendall(request("GET", target, None, (STREAM, *OPEN)))
                selector.register(connection, selectors.EVENT_READ)
            is_over = threading.Event()

            def read() -> None:
                while not is_over.is_set():
                    for key, _ in selector.select(0.1):
                        if not key.fileobj.recv(MIB):
                            raise SystemExit("A stream has ended.")

            reader = threading.Thread(target=read)
            reader.start()
            time.sleep(2)
            try:
                yield
            finally:
                is_over.set()
                reader.join()

    def send(self, content: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=DEADLINE_S) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(content)
            answer = b""
            with contextlib.suppress(ConnectionError, TimeoutError):
                while piece := connection.recv(65536):
                    answer = (answer + piece)[:12]
        return answer[9:12] or b"cut"


@contextlib.contextmanager
def service(python: str, broker: str) -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as directory:
        running = Service(python, broker, directory)
        try:
            for number in range(10):
                body = repeated(line(b"", b"large"), 4 * MIB) if number < 3 else line(b"", b"t")
                running.send(post("/messages", body, NDJSON))
            yield running
        finally:
            running.server.stop()


def measure(python: str, broker: str, words: list[str], times: int) -> None:
    print(f"\n{broker.partition(':')[0]:72}{'status':>8}{'longest turn, ms of CPU':>26}")
    over = 0
    for scene, (prepare, requests) in scenes().items():
        chosen = {
            f"{scene}, {name}" if scene else name: make
            for name, make in requests.items()
            if not words or any(word in f"{scene}, {name}" for word in words)
        }
        if not chosen:
            continue
        with service(python, broker) as running, prepare(running):
            over += measure_all(running, chosen, times)
    print(f"{over} over {MOST_MS:g} ms")


def measure_all(running: Service, requests: dict[str, Callable[[], bytes]], times: int) -> int:
    """Measure and print the longest turns of some requests; return the number of those that are too long."""
    over = 0
    for name, make in requests.items():
        found = [running.longest_ms(make()) for _ in range(times)]
        middle = statistics.median(longest for _, longest in found)
        first = found[0][1]
        mark = " *" if middle > MOST_MS else ""
        over += bool(mark)
        status = found[0][0].decode("latin-1")
        print(f"{name:72}{status:>8}{middle:14.1f}   (first {first:.1f}){mark}", flush=True)
    return over


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only forms with one of these in the name")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the installation")
    parser.add_argument("--broker", choices=("memory", "sqlite", "kafka"), action="append")
    parser.add_argument("--times", type=int, default=TIMES, help="how often each form is sent")
    options = parser.parse_args()
    brokers = {"memory": "memory:", "sqlite": "sqlite:records.sqlite3"}
    for name in options.broker or [*brokers, "kafka"]:
        if name in brokers:
            measure(options.python, brokers[name], options.words, options.times)
        else:
            with mock_cluster() as mock:
                for topic in ("t", "large", "hooks"):
                    mock.create_topic(topic, partitions=6)
                measure(options.python, f"kafka://{mock.bootstrap}", options.words, options.times)


if __name__ == "__main__":
    main()
