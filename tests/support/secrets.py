"""
Every secret that the tests use, and everything that the service writes, so that no secret is in it.

A test or a fixture that makes a password, a token or a private key says so with `secret`. What the service
writes is kept with `record_output`: by whoever runs it as a process, by an observer of the log in this
process, and by the connections in memory. At the end of the session all of that is searched (see
`tests.support.leaks`).

Each process of pytest-xdist has its own of both.
"""

from __future__ import annotations

import os
import re
import threading
from base64 import b64decode
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = ["Leak", "collected_in", "find_leaks", "record_output", "secret", "secret_key"]

SHORTEST = 12
"""A shorter text may be a part of any word."""
LONGEST_KEPT = 16 * 1024
"""What is longer at one time is content, such as readings; nothing that is said about a secret is so long."""
# What secrets are made of, so that a search can go from word to word.
WORD = re.compile(rb"[A-Za-z0-9._~+/=-]{%d,}" % SHORTEST)

_lock = threading.Lock()
_secrets: dict[bytes, str] = {}
_directory: Path | None = None
_files: dict[str, BinaryIO] = {}
_test_of: dict[str, str] = {}


class Leak(NamedTuple):
    """A secret in something that was written."""

    where: str
    test: str
    what: str

    def __str__(self):
        return f"{self.what} is in {self.where}, written while this ran: {self.test}"


def secret(text, what="a secret"):
    """
    Take note of a secret, and return it.

    :param text: at least `SHORTEST` letters, digits or ``._~+/=-``.
    :param what: it is, for the report.
    """
    data = text if isinstance(text, bytes) else text.encode()
    assert WORD.fullmatch(data), f"no secret that can be searched for: {text!r}"
    _secrets.setdefault(data, f"{what}, {data[:200].decode()!r},")
    return text


def secret_key(pem):
    """Take note of the body of a private key in PEM, and return the key."""
    lines = [line for line in pem.splitlines() if not line.startswith(b"-----") and b":" not in line]
    # What is in the first line of every key of a kind is no secret; what follows is.
    body = b"".join(lines)
    assert b64decode(body)
    for start in range(48, len(body) - 24, 24):
        secret(body[start : start + 24], "a part of a private key")
    return pem


def collected_in(directory):
    """From now on, keep what is written in files of this directory."""
    global _directory  # noqa: PLW0603 -- whoever writes something has nothing in common but this module
    _directory = directory


def record_output(where, text):
    """
    Keep something that the service has written.

    :param where: the name of a file: "log", "output of the service".
    """
    data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    if _directory is None or not data or len(data) > LONGEST_KEPT:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "no test").rpartition(" ")[0]
    with _lock:
        if where not in _files:
            _files[where] = (_directory / where).open("ab")
        if _test_of.get(where) != test:
            _test_of[where] = test
            _files[where].write(b"\n\0%b\n" % test.encode())
        _files[where].write(data + b"\n")


def find_leaks():
    """Search all that was written, in this process, for all secrets. Nothing is kept after that."""
    global _directory
    with _lock:
        directory, _directory = _directory, None
        while _files:
            _files.popitem()[1].close()
    secrets = _Secrets(_secrets)
    found = {}
    for path in sorted(directory.iterdir()) if directory else ():
        # Between the names of tests, which may have parameters that are secrets.
        test = ""
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(b"\0"):
                    test = line[1:-1].decode()
                else:
                    found |= dict.fromkeys(Leak(path.name, test, what) for what in secrets.newly_in(line))
    return list(found)


class _Secrets:
    """Finds secrets in words. Most words are there again and again; each is looked at once."""

    def __init__(self, secrets):
        self._by_head = {}
        self._seen = set()
        for data, what in secrets.items():
            self._by_head.setdefault(data[:SHORTEST], []).append((data, what))

    def newly_in(self, line):
        for word in WORD.findall(line):
            if word not in self._seen:
                self._seen.add(word)
                yield from self._in(word)

    def _in(self, word):
        for start in range(len(word) - SHORTEST + 1):
            for data, what in self._by_head.get(word[start : start + SHORTEST], ()):
                if word.startswith(data, start):
                    yield what
