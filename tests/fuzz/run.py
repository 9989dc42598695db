"""
Send made-up requests to the service in memory, and to h11 and Twisted's server, for as long as you like.

    make fuzz
    make fuzz FUZZ='--seconds 3600 --seed 7'
    make fuzz FUZZ='--input 0d0a...'

It ends with status 1 at the first answer of 5xx, failure in the log, input that takes more than seconds,
connection that never ends, answer that depends on how the bytes were cut, or difference to the other servers
that is in no list. It then shows the input, made smaller where that is possible, and how to send it again.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from random import Random, SystemRandom
from typing import NamedTuple
from zlib import crc32

from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import provider

from tests.support.http_differences import differences
from tests.support.in_memory import InMemoryService, PromptBroker
from tests.support.requests import cut, mutated, stream
from tests.support.simulated_socket import Link

_REPORT_S = 10.0
_LONGEST_S = 5.0
_SHRINK_S = 20.0
_ALL_LIMITS_S = 120.0
_LONGEST_KEPT = 10_000


class Found(AssertionError):
    """Something that must not be."""


def main(arguments: list[str] | None = None) -> int:
    """Run for the time that is asked for; returns the status to exit with."""
    parser = argparse.ArgumentParser(description="Fuzz the HTTP server in memory.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, help="what the inputs are made from (default: another each time)")
    parser.add_argument(
        "--input", type=bytes.fromhex, help="one input in hexadecimal digits, instead of all others"
    )
    options = parser.parse_args(arguments)
    seed = SystemRandom().randrange(2**32) if options.seed is None else options.seed
    if options.input is not None:
        return _report(options.input)
    print(f"Seed {seed}; stop with Ctrl-C.")
    try:
        return _fuzz(Random(seed), seconds=options.seconds)
    except KeyboardInterrupt:
        return 0


def _fuzz(chance: Random, *, seconds: float) -> int:
    counts: Counter[str] = Counter()
    seen: set[object] = set()
    kept: list[bytes] = []
    started_s = reported_s = time.monotonic()
    inputs = 0
    while (now_s := time.monotonic()) < started_s + seconds:
        if now_s - reported_s >= _REPORT_S:
            reported_s = now_s
            print(f"{inputs:>9} inputs, {inputs / (now_s - started_s):.0f} a second, {len(seen)} outcomes")
        data = mutated(chance, chance.choice(kept)) if kept and chance.randint(0, 2) == 0 else stream(chance)
        inputs += 1
        outcome = _tried(data)
        if outcome.fault is not None:
            return _report(_smallest(data, outcome.fault))
        counts.update(outcome.kinds)
        if len(data) < _LONGEST_KEPT and not seen.issuperset(outcome.kinds):
            kept.append(data)
        seen.add(frozenset(outcome.kinds))
        seen.update(outcome.kinds)
    elapsed_s = time.monotonic() - started_s
    print(f"\n{inputs} inputs in {elapsed_s:.0f} s, {inputs / elapsed_s:.0f} a second. Nothing was found.\n")
    for kind, count in sorted(counts.items()):
        print(f"{count:>9}  {kind}")
    return 0


class _Outcome(NamedTuple):
    kinds: tuple[str, ...]
    """The kinds of answers, and of differences."""
    fault: str | None


def _tried(data: bytes) -> _Outcome:
    """Send one input in all ways; how it is cut depends on the input alone, so that it can be tried again."""
    kinds: list[str] = []
    signal.setitimer(signal.ITIMER_REAL, _LONGEST_S)
    try:
        with _failures_logged() as failures:
            fault = _fault(data, kinds)
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is what is looked for
        fault = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if failures and fault is None:
        fault = f"failure in the log: {failures[0].getTraceback()}"
    return _Outcome(tuple(kinds), fault)


def _fault(data: bytes, kinds: list[str]) -> str | None:
    whole = _responses([data])
    statuses = [int(status) for status in re.findall(rb"^HTTP/1\.1 ([2-5]\d\d) ", whole, re.MULTILINE)]
    kinds += [f"answer: {status}" for status in statuses or ["none"]]
    if any(status >= HTTPStatus.INTERNAL_SERVER_ERROR for status in statuses):
        return f"answer of 5xx: {whole[-500:]!r}"
    chance = Random(crc32(data))
    places = [chance.randint(0, len(data)) for _ in range(chance.randint(1, 6))]
    pieces = _responses(cut(data, places))
    # With an expectation, what has come already makes a difference.
    if pieces != whole and b"expect" not in data.lower():
        return f"another answer when cut at {sorted(places)}: {whole[-300:]!r} and {pieces[-300:]!r}"
    for each in differences(data):
        if each.kind is None:
            return f"difference to {each.other} that is in no list: {each.ours} here, {each.theirs} there"
        kinds.append(f"difference to {each.other}: {each.kind.name}")
    return None


def _responses(segments: list[bytes]) -> bytes:
    service = InMemoryService(broker=PromptBroker())
    service.give_same_request_ids()
    service.read(b"a", b"1.5")
    link = Link(service.site, service.clock)
    link.send(*segments)
    answers = re.sub(rb"\r\nDate: [^\r]*", b"", link.read_all())
    # Until every limit is over: the connection has to end.
    link.advance(_ALL_LIMITS_S, step_s=1.0)
    link.read_all()
    if not link.is_lost:
        raise Found("The connection stays for ever.")
    return answers


@contextmanager
def _failures_logged() -> Iterator[list[Failure]]:
    failures: list[Failure] = []

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        if event.get("log_failure") is not None:
            failures.append(event["log_failure"])

    globalLogPublisher.addObserver(observe)
    try:
        yield failures
    finally:
        globalLogPublisher.removeObserver(observe)


def _smallest(data: bytes, fault: str) -> bytes:
    """Take away from the input what the fault does not need."""
    name = fault.partition(":")[0].partition(" when ")[0]
    size = len(data) // 2
    end_s = time.monotonic() + _SHRINK_S
    while size and time.monotonic() < end_s:
        for start in range(0, len(data), size):
            less = data[:start] + data[start + size :]
            found = _tried(less).fault
            if found is not None and found.startswith(name):
                data = less
                break
        else:
            size //= 2
    return data


def _report(data: bytes) -> int:
    fault = _tried(data).fault
    if fault is None:
        print("Nothing was found.")
        return 0
    print(f"\nFound: {fault}\n\nThe input, of {len(data)} bytes:\n{data!r}\n\nAgain with:\n")
    print(f"  make fuzz FUZZ='--input {data.hex()}'")
    return 1


def _hang(number: int, frame: object) -> None:
    raise Found(f"One input takes more than {_LONGEST_S:g} s.")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _hang)
    sys.exit(main())
