"""
What many messages in one request cost, and what they cost others meanwhile.

On the mock cluster of librdkafka: µs of CPU of the service for each message, for batches of 10 to 10,000
messages of 100 bytes at four connections, beside a gateway on aiohttp and librdkafka that takes the same
requests. Then on SQLite, in memory of the process, and in the time that others wait.

    python benchmarks/batches.py              everything, about ten minutes
    python benchmarks/batches.py cost profile some of it
    python benchmarks/batches.py --quick      to see that it works
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from batch_load import LINE_BYTES, request
from clients import peak_mib
from clusters import mock_cluster
from servers import HERE, Server, aiohttp_librdkafka, name_of_aiohttp, sampleapp
from tables import Rounds, medians, ratio

__all__ = ["parts"]

SIZES = (10, 100, 1_000, 10_000)
AIMED_AT = 1_000
KEYS = {"few": "100 keys", "different": "all keys different"}
CONNECTIONS = 4
LARGE_BYTES = 16 * 1024 * 1024 - 4096
LARGE = LARGE_BYTES // (LINE_BYTES + 1)
UPLOADERS = 8
DEADLINE_S = 300.0
OTHERS = {
    "post": "a message, to the same topic",
    "post-elsewhere": "a message, to another topic",
    "get": "GET /",
}

# What a function is for, by the file that it is in: the first that fits the innermost frame counts, or else
# that of its caller, and so on.
STEPS: tuple[tuple[str, str], ...] = (
    ("compress", r"compression\.py|cramjam|zstd|lz4|snappy|gzip"),
    ("hash", r"partitioner\.py|murmur|crc32c"),
    ("encode", r"kafka/batches/|kafka/protocol/"),
    (
        "wire",
        (
            r"tcp\.py|abstract\.py|_tls|server/(connection|writer)\.py|"
            r"kafka/cluster_client/|kafka/connections/|"
            r"kafka/producer/(sender|response_handler|produce_requests|idempotence)"
        ),
    ),
    ("queue", r"kafka/producer/|kafka/broker\.py|brokers/"),
    (
        "parse",
        r"messages/(lines|parsing|faults|json_text|timestamps|rest_proxy_bodies)\.py|rest_proxy|decode",
    ),
    ("check", r"access/|access_control\.py|messages/headers\.py"),
    ("answer", r"web/(publish/|answers|app|errors)|metrics/|logs/"),
    ("HTTP", r"web/server/|httptools|web/"),
    ("reactor", r"twisted/"),
)
IDLE = re.compile(r"Condition\.wait|doPoll")
"""Where threads wait, which py-spy cannot tell from work here."""


def batch_load(server: Server, form: str, keys: str, *, messages: int, size: int) -> dict[str, float]:
    """Send so many messages; returns rates, latencies, and µs of CPU a message."""
    requests = max(messages // size, 2 * CONNECTIONS)
    before_s = server.cpu_s()
    done = subprocess.run(
        [
            sys.executable,
            HERE / "batch_load.py",
            *map(str, (server.port, CONNECTIONS, requests, form, size, keys)),
        ],
        check=True,
        stdout=subprocess.PIPE,
    )
    figures = json.loads(done.stdout)
    return {
        **figures,
        "messages_per_s": figures["requests_per_s"] * size,
        "cpu_us": 1e6 * (server.cpu_s() - before_s) / (requests * size),
    }


def takes(server: Server, form: str) -> bool:
    """Whether a server takes such requests at all."""
    head, _, body = request(form, 2, "few").partition(b"\r\n\r\n")
    path = head.split(b" ")[1].decode()
    media_type = re.search(rb"Content-Type: (\S+)", head)
    made = urllib.request.Request(
        f"{server.url.rstrip('/')}{path}",
        body,
        {"Content-Type": media_type[1].decode() if media_type else ""},
    )
    try:
        with urllib.request.urlopen(made) as response:
            # A service without REST Proxy's API would take it as the value of one record.
            return form != "v2" or b'"offsets"' in response.read()
    except urllib.error.HTTPError as error:
        with error:
            return False


def measure_cost(*, messages: int, rounds: int) -> None:
    print(f"\nBatches on the mock cluster, {CONNECTIONS} connections, messages of {LINE_BYTES} bytes")
    print(f"{'':52}{'µs CPU':>9}{'messages/s':>12}{'p50 ms':>9}{'p99 ms':>9}")
    with mock_cluster() as mock, contextlib.ExitStack() as running:
        service = running.enter_context(sampleapp(broker=f"kafka://{mock.bootstrap}", readings=False))
        measured = [("sampleapp", service, "ndjson"), ("sampleapp", service, "v2")]
        aiohttp = name_of_aiohttp()
        if aiohttp is not None:
            yardstick = running.enter_context(aiohttp_librdkafka(bootstrap=mock.bootstrap))
            measured.append((f"{aiohttp}, librdkafka", yardstick, "ndjson"))
        measured = [each for each in measured if takes(*each[1:])]
        for keys, described in KEYS.items():
            for size in SIZES:
                found: Rounds = {f"{name}, {form}": [] for name, _, form in measured}
                # In turns; the first round is to warm up.
                for round_ in range(rounds + 1):
                    for name, server, form in measured:
                        # A message of a small batch takes more, so fewer of them say as much.
                        count = messages // 3 if size == SIZES[0] else messages
                        figures = batch_load(server, form, keys, messages=count, size=size)
                        if round_:
                            found[f"{name}, {form}"].append(figures)
                for name, each in found.items():
                    print_line(f"{size:,} with {described}: {name}", medians(each))
                if aiohttp is not None and "sampleapp, ndjson" in found:
                    ratio(
                        found,
                        "sampleapp, ndjson",
                        f"{aiohttp}, librdkafka, ndjson",
                        figure="cpu_us",
                        aim="at most 0.4, accepted to 0.65" if size == AIMED_AT else "none",
                    )


def print_line(name: str, figures: dict[str, float]) -> None:
    print(
        f"{name:52}{figures['cpu_us']:9.2f}{figures['messages_per_s']:12,.0f}"
        f"{figures['p50_ms']:9.2f}{figures['p99_ms']:9.2f}",
        flush=True,
    )


def measure_sqlite(*, messages: int) -> None:
    print("\nBatches of 1,000 on SQLite")
    for keys, described in KEYS.items():
        with sampleapp(broker="sqlite:records.sqlite3", readings=False) as service:
            batch_load(service, "ndjson", keys, messages=messages // 10, size=1_000)
            before = metric(service, "sampleapp_sqlite_commits_total")
            figures = batch_load(service, "ndjson", keys, messages=messages, size=1_000)
            made = metric(service, "sampleapp_sqlite_commits_total") - before
            print_line(f"{described}, {made:,.0f} commits", figures)


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}metrics") as response:
        found = re.search(rf"^{name} (\S+)".encode(), response.read(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def measure_memory() -> None:
    print(
        f"\nMemory: {UPLOADERS} connections, each with a batch of {LARGE:,} messages, which is "
        f"{LARGE_BYTES / 2**20:.1f} MiB"
    )
    body = request("ndjson", LARGE, "few")
    with mock_cluster() as mock:
        for broker in (f"kafka://{mock.bootstrap}", "sqlite:records.sqlite3"):
            with sampleapp(broker=broker, readings=False) as service:
                takes(service, "ndjson")
                before, began_s = peak_mib(service), time.perf_counter()
                statuses: Counter[str] = Counter()
                threads = [
                    threading.Thread(target=upload, args=(service, body, statuses)) for _ in range(UPLOADERS)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                took_s = time.perf_counter() - began_s
                name, most = broker.partition(":")[0], peak_mib(service)
                print(
                    f"{name:8} {dict(statuses)} in {took_s:.1f} s; resident before {before:.0f} MiB, at most "
                    f"{most:.0f} MiB, after {service.resident_mib():.0f} MiB",
                    flush=True,
                )


def upload(server: Server, data: bytes, statuses: Counter[str]) -> None:
    body = data.partition(b"\r\n\r\n")[2]
    made = urllib.request.Request(
        f"{server.url}messages", body, {"Content-Type": "application/x-ndjson"}, method="POST"
    )
    try:
        with urllib.request.urlopen(made, timeout=DEADLINE_S) as response:
            lines = sum(piece.count(b"\n") for piece in iter(partial(response.read, 1 << 20), b""))
            statuses[f"{response.status} with {lines:,} lines"] += 1
    except urllib.error.HTTPError as error:
        with error:
            problem = json.loads(error.read() or b"{}")
            statuses[f"{error.code} {problem.get('type', '').rpartition(':')[2]}"] += 1


def measure_others(*, requests: int, rounds: int) -> None:
    print("\nOne request after the other on a connection, while batches of 16 MiB come on another one")
    with mock_cluster() as mock:
        for broker in (f"kafka://{mock.bootstrap}", "sqlite:records.sqlite3"):
            with sampleapp(broker=broker, readings=False) as service:
                service.load("post", connections=1, requests=requests // 4)
                found: dict[str, Rounds] = {kind: {"alone": [], "meanwhile": []} for kind in OTHERS}
                sent = 0.0
                for _ in range(rounds):
                    for kind, each in found.items():
                        each["alone"].append(service.load(kind, connections=1, requests=requests))
                    with batches_one_after_the_other(service):
                        before = metric(service, "sampleapp_batches_total")
                        for kind, each in found.items():
                            each["meanwhile"].append(service.load(kind, connections=1, requests=requests))
                        sent += metric(service, "sampleapp_batches_total") - before
                print(f"{broker.partition(':')[0]}, {sent:.0f} batches")
                for kind, each in found.items():
                    print_delays(OTHERS[kind], each)


def print_delays(name: str, found: Rounds) -> None:
    for when, each in found.items():
        figures = medians(each)
        print(
            f"  {name:36} {when:10} p50 {figures['p50_ms']:7.2f} ms, p99 {figures['p99_ms']:7.2f} ms, "
            f"longest {figures['max_ms']:7.1f} ms",
            flush=True,
        )


@contextlib.contextmanager
def batches_one_after_the_other(server: Server) -> Iterator[None]:
    """Send large batches until the end."""
    arguments = map(str, (server.port, 1, 1_000_000, "ndjson", LARGE, "few"))
    before = metric(server, "sampleapp_batches_total")
    sender = subprocess.Popen([sys.executable, HERE / "batch_load.py", *arguments], stdout=subprocess.DEVNULL)
    try:
        while metric(server, "sampleapp_batches_total") == before and sender.poll() is None:
            time.sleep(0.1)
        yield
        if sender.poll() is not None:
            raise SystemExit("The batches were not taken.")
    finally:
        sender.kill()
        sender.wait()


def measure_profile(*, messages: int) -> None:
    print("\nWhere the time goes, NDJSON in batches of 1,000 on the mock cluster")
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        print("not measured: it takes py-spy (pip install py-spy), and the right to look into a process")
        return
    with mock_cluster() as mock:
        for keys, described in KEYS.items():
            with sampleapp(broker=f"kafka://{mock.bootstrap}", readings=False) as service:
                batch_load(service, "ndjson", keys, messages=messages // 4, size=1_000)
                with tempfile.NamedTemporaryFile() as stacks:
                    command = [spy, "record", "-r", "500", "-d", "3600", "-f", "raw", "-o", stacks.name, "-p"]
                    spying = subprocess.Popen(
                        [*command, str(service.process.pid)],
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                    batch_load(service, "ndjson", keys, messages=5 * messages, size=1_000)
                    spying.send_signal(2)
                    spying.wait()
                    print_profile(described, Path(stacks.name).read_text().splitlines())


def print_profile(name: str, stacks: Sequence[str]) -> None:
    by_step: Counter[str] = Counter()
    by_place: Counter[str] = Counter()
    for stack in stacks:
        frames, _, count = stack.rpartition(" ")
        places = frames.split(";")
        if IDLE.search(places[-1]):
            continue
        by_step[step_of(places)] += int(count)
        by_place[places[-1]] += int(count)
    total = sum(by_step.values()) or 1
    shares = ", ".join(f"{step} {100 * count / total:.0f} %" for step, count in by_step.most_common())
    print(f"{name}: {shares}")
    for place, count in by_place.most_common(15):
        print(f"    {100 * count / total:5.1f} %  {place}")


def step_of(places: Sequence[str]) -> str:
    for place in reversed(places):
        for step, pattern in STEPS:
            if re.search(pattern, place):
                return step
    return "other"


def parts(*, scale: int, rounds: int) -> dict[str, Callable[[], None]]:
    messages = 100_000 // scale
    return {
        "cost": partial(measure_cost, messages=messages, rounds=rounds),
        "profile": partial(measure_profile, messages=messages),
        "sqlite": partial(measure_sqlite, messages=messages),
        "memory": measure_memory,
        "others": partial(measure_others, requests=1_000 // scale, rounds=min(rounds, 2)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(parts(scale=1, rounds=1))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="few messages: to see that it works")
    options = parser.parse_args()
    unknown = set(options.parts) - set(names)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    scale, rounds = (10, 1) if options.quick else (1, 3)
    for name, measure in parts(scale=scale, rounds=rounds).items():
        if not options.parts or name in options.parts:
            measure()


if __name__ == "__main__":
    main()
