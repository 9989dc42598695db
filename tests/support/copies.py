"""Copies of topics with the command, and the records of every kind to copy."""

from __future__ import annotations

import os
import subprocess

from tests.support.command import COMMAND

__all__ = ["KINDS", "copied", "pipe"]

KINDS = [
    {"content": "no key"},
    {"key": "", "content": ""},
    {"key": "k", "content": "\u0085 \u2028 \x00 é", "headers": {"b": "1", "a": ""}},
    {"key": "old", "content": "1970", "timestamp": "1970-01-01T00:00:00.001Z"},
    {"key": "late", "content": "9999", "timestamp": "9999-12-31T23:59:59.999Z"},
    {"key_base64": "/wA=", "content_base64": "AP8=", "timestamp": 1795363727918},
    {"content": "repeated", "headers": {"b": "1"}, "headers_base64": [["a", "YQ=="], ["a", "Yg=="]]},
    {"key": "k", "content": "bytes", "headers_base64": [["a", "AP8="], ["null", None], ["", ""]]},
    {"key": "k", "content": None},
    {"key_base64": "/wA=", "content": None},
    {"key": "k", "content": "again"},
]


def copied(record):
    """The members that a copy of a record keeps: a tombstone has its own time."""
    kept = {name: each for name, each in record.items() if name not in {"topic", "partition", "offset"}}
    if kept.get("content", "") is None:
        del kept["timestamp"]
    return kept


def pipe(consume, publish, *, source, target):
    """Pipe one command into the other; return what the second prints."""
    with subprocess.Popen(
        [COMMAND, "consume", *consume],
        stdout=subprocess.PIPE,
        cwd=source.directory,
        env={**os.environ, "SAMPLEAPP_URL": source.url},
    ) as reading:
        ended = subprocess.run(
            [COMMAND, "publish", *publish],
            stdin=reading.stdout,
            capture_output=True,
            check=False,
            cwd=target.directory,
            env={**os.environ, "SAMPLEAPP_URL": target.url},
            timeout=120,
        )
    assert (reading.returncode, ended.returncode) == (0, 0), ended
    return ended.stdout.decode(), ended.stderr.decode()
