"""
Measure what streams of events cost, on this machine, now, next to nchan and KafkaSSE if they are installed.

    python benchmarks/streams.py                  everything, about ten minutes
    python benchmarks/streams.py --quick          to see that it works
    python benchmarks/streams.py rate history     some of it

- ``rate``: 100, 1,000 and 10,000 clients that get 50, 40 and 4 events a second each. One client in twenty
  reads only once a second; latencies are those of the others. CPU is that of the server for one event of one
  client, with everything else that it does: taking the record, storing it, reading it again.
- ``idle``: 10,000 streams on which nothing happens but ids: memory and CPU.
- ``history``: one client that reads 1 GB of records from the first one on, again and again, while 500
  messages a second are published over 64 connections. nchan keeps messages in memory only, so it is not
  compared. ``TMPDIR=/dev/shm`` takes the noise of the disk out.

nchan is a module of nginx; on Debian, ``apt-get install libnginx-mod-nchan`` installs it.

KafkaSSE, on Node.js, has a consumer for each client: more than 100 of them at 40 events a second are too many
for it. It is compared on the same Kafka (``--broker kafka://…?auto_create=true``), where Node.js finds it by
``NODE_PATH``. ``BUILD_LIBRDKAFKA=0 npm install kafka-sse`` installs it, with a compiler and librdkafka-dev;
``npm_config_nodedir=/usr`` takes the headers of Node.js that are installed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import confluent_kafka

from servers import HERE, Server, free_port, sampleapp

__all__ = ["PARTS", "measure_rate"]

TOPIC = "streams"
NCHAN_MODULE = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
NCHAN = """
load_module {module};
daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log;
worker_rlimit_nofile 30000;
events {{ worker_connections 25000; }}
http {{
  access_log off; client_body_temp_path {directory}; keepalive_requests 1000000;
  proxy_temp_path {directory}; fastcgi_temp_path {directory};
  uwsgi_temp_path {directory}; scgi_temp_path {directory};
  nchan_shared_memory_size 256M;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /ready {{ return 200; }}
    location = /publish {{ nchan_publisher; nchan_channel_id t; nchan_message_timeout 1h; }}
    location = /stream {{
      nchan_subscriber eventsource; nchan_channel_id t; nchan_subscriber_first_message newest;
      nchan_eventsource_ping_interval 15;
    }}
  }}
}}
"""
_WARM_UP_S = 3.0
_PUBLISHED_PER_S = 500


class Peer(NamedTuple):
    """A server of streams, and how one publishes and reads there."""

    name: str
    serve: Callable[[], Iterator[Server]]
    stream: str
    publish: Callable[[http.client.HTTPConnection, str], None]
    most: int = 10_000
    """The most clients that it is measured with."""


@contextmanager
def serve_nchan() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        config = Path(directory) / "nginx.conf"
        config.write_text(NCHAN.format(module=NCHAN_MODULE, directory=directory, port=port), encoding="utf-8")
        command = ["nginx", "-e", f"{directory}/error.log", "-c", str(config)]
        server = Server(command, port=port, directory=directory, path="ready")
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def serve_sampleapp(broker: str | None = None) -> Iterator[Server]:
    options = ["--max-connections", "12000", "--max-streams", "12000"]
    with sampleapp(readings=False, broker=broker, options=options) as server:
        server.publish(topic=TOPIC, key="first", content="first")
        yield server


def publish_to_sampleapp(connection: http.client.HTTPConnection, content: str) -> None:
    body = json.dumps({"topic": TOPIC, "content": content})
    connection.request("POST", "/messages", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"A message was not taken: {answer.status} {answer.read()!r}")
    answer.read()


def publish_to_nchan(connection: http.client.HTTPConnection, content: str) -> None:
    # As large as the event of the same record is.
    line = json.dumps(
        {
            "topic": TOPIC,
            "partition": 0,
            "offset": 1_000_000,
            "timestamp": 1_795_363_727_918,
            "content": content,
        }
    )
    connection.request("POST", "/publish", line, {"Content-Type": "text/plain"})
    answer = connection.getresponse()
    answer.read()


@contextmanager
def serve_kafka_sse(bootstrap: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        # Each of its consumers waits for a record in a thread of this pool.
        environment = ["env", "UV_THREADPOOL_SIZE=1024"]
        command = [*environment, "node", str(HERE / "kafka_sse.js"), str(port), bootstrap, TOPIC]
        server = Server(command, port=port, directory=directory, path="ready")
        try:
            yield server
        finally:
            server.stop()


def _has_kafka_sse() -> bool:
    if shutil.which("node") is None:
        return False
    command = ["node", "-e", "require('kafka-sse')"]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def kafka_sse(bootstrap: str) -> Peer:
    # It says so for each message that is left at the end, which nobody needs.
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 2})

    def publish(_: http.client.HTTPConnection, content: str) -> None:
        producer.produce(TOPIC, json.dumps({"content": content}))
        producer.poll(0)

    return Peer("KafkaSSE", lambda: serve_kafka_sse(bootstrap), "/stream", publish, most=100)


def peers(broker: str | None) -> list[Peer]:
    found = [
        Peer(
            "sampleapp",
            lambda: serve_sampleapp(broker),
            f"/topics/{TOPIC}/records",
            publish_to_sampleapp,
        )
    ]
    if NCHAN_MODULE.exists():
        found.append(Peer("nchan", serve_nchan, "/stream", publish_to_nchan))
    else:
        print("nchan is not installed, so nothing is compared with it.")
    if broker is None or not broker.startswith("kafka://"):
        print("KafkaSSE is compared on Kafka only, so not here.")
    elif not _has_kafka_sse():
        print("KafkaSSE is not installed, so nothing is compared with it: see the beginning of this file.")
    else:
        found.append(kafka_sse(urlsplit(broker).netloc))
    return found


class Publisher:
    """Publishes records of 150 bytes at a steady rate, from a thread."""

    def __init__(self, peer: Peer, server: Server, *, per_s: float) -> None:
        self._peer = peer
        self._port = server.port
        self._interval_s = 1 / per_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self.published = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _publish(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        next_s = time.monotonic()
        while not self._is_over.wait(max(0.0, next_s - time.monotonic())):
            next_s += self._interval_s
            self._peer.publish(connection, f"@{time.monotonic_ns():019d}".ljust(150, "x"))
            self.published += 1
        connection.close()


class Load:
    """The process of the clients."""

    def __init__(
        self, server: Server, path: str, *, clients: int, seconds: float, slow: bool = False
    ) -> None:
        script = str(HERE / "stream_load.py")
        options = ["--slow"] if slow else []
        self._popen = subprocess.Popen(
            [sys.executable, script, str(server.port), path, str(clients), str(seconds), *options],
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_open(self) -> None:
        if self._popen.stdout is None or self._popen.stdout.readline() != "open\n":
            raise SystemExit("The clients could not open their streams.")

    def figures(self) -> dict[str, float]:
        figures = json.loads(self._popen.communicate()[0])
        if set(figures["statuses"]) != {"200"} or figures["ended"]:
            raise SystemExit(f"Not every stream was open to the end: {figures}")
        return figures


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 30_000)), hard))


def measure_rate(*, scale: int, broker: str | None) -> None:
    _allow_many_files()
    heads = f"{'µs CPU':>9}{'KiB each':>10}{'events/s':>12}{'p50 ms':>9}{'p99 ms':>9}"
    print(f"\n{'clients x events a second':36}{heads}")
    compared = peers(broker)
    for all_clients, per_s in ((100, 50), (1000 // scale, 40), (10_000 // scale, 4)):
        for peer in compared:
            clients = min(all_clients, peer.most)
            with peer.serve() as server, Publisher(peer, server, per_s=per_s):
                seconds = 20.0 / scale
                before_mib = server.resident_mib()
                load = Load(server, peer.stream, clients=clients, seconds=seconds + _WARM_UP_S, slow=True)
                load.wait_until_open()
                began_s, before_s = time.monotonic(), server.cpu_s()
                time.sleep(seconds)
                kib = 1024 * (server.resident_mib() - before_mib) / clients
                figures = load.figures()
                took_s, cpu_s = time.monotonic() - began_s, server.cpu_s() - before_s
            print(
                f"{f'{peer.name}, {clients} x {per_s}':36}{1e6 * cpu_s / figures['events']:9.1f}{kib:10.1f}"
                f"{figures['events'] / took_s:12.0f}{figures['p50_ms']:9.1f}{figures['p99_ms']:9.1f}",
                flush=True,
            )


def measure_idle(*, scale: int, broker: str | None) -> None:
    _allow_many_files()
    seconds = 45.0 / scale
    print(f"\n{'idle streams':36}{'KiB each':>9}{'MiB in all':>12}{'% of a core':>13}")
    for peer in peers(broker):
        clients = min(10_000 // scale, peer.most)
        with peer.serve() as server:
            before_mib = server.resident_mib()
            load = Load(server, peer.stream, clients=clients, seconds=seconds)
            load.wait_until_open()
            began_s, before_s = time.monotonic(), server.cpu_s()
            time.sleep(seconds - 2)
            took_s, cpu_s = time.monotonic() - began_s, server.cpu_s() - before_s
            mib = server.resident_mib()
            load.figures()
        kib = 1024 * (mib - before_mib) / clients
        print(f"{f'{peer.name}, {clients}':36}{kib:9.1f}{mib:12.0f}{100 * cpu_s / took_s:13.1f}", flush=True)


def measure_history(*, scale: int, broker: str | None) -> None:
    size, rounds = 1_000_000_000 // scale, 3
    title = f"64 publishers, {_PUBLISHED_PER_S} messages a second"
    print(f"\n{title:36}{'p50 ms':>9}{'p99 ms':>9}{'% of a core':>13}{'read MB/s':>11}")
    with serve_sampleapp(broker) as server:
        records = _fill(server, size)
        for _ in range(rounds):
            _print_publishing("without a reader", server, seconds=20.0 / scale)
            with Reader(server, "/topics/history/records?from=earliest", records=records) as reader:
                _print_publishing("with a reader", server, seconds=20.0 / scale, reader=reader)


def _fill(server: Server, size: int) -> int:
    """Publish about `size` bytes to the topic `history`; returns the number of its records."""
    line = json.dumps({"topic": "history", "content": "x" * 9900}).encode() + b"\n"
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    per_batch = 1000
    batches = max(1, size // (10_000 * per_batch))
    for _ in range(batches):
        connection.request("POST", "/messages", line * per_batch, {"Content-Type": "application/x-ndjson"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"A batch was not taken: {answer.status} {body[:500]!r}")
    return batches * per_batch


class Reader:
    """Reads a stream as fast as it comes, in a thread; has it sent again after the last of its records."""

    def __init__(self, server: Server, path: str, *, records: int) -> None:
        self._address = "127.0.0.1", server.port
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        self._records = records
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._is_over.is_set():
            with socket.create_connection(self._address, timeout=60) as connection:
                connection.sendall(self._request)
                self._read_records(connection)

    def _read_records(self, connection: socket.socket) -> None:
        event, left, tail = b"\ndata:", self._records, b""
        while left > 0 and not self._is_over.is_set() and (data := connection.recv(1 << 20)):
            self.bytes += len(data)
            # The beginning of an event may have come in two parts.
            left -= data.count(event) + (tail + data[: len(event) - 1]).count(event)
            tail = (tail + data[1 - len(event) :])[1 - len(event) :]


def _print_publishing(name: str, server: Server, *, seconds: float, reader: Reader | None = None) -> None:
    began_s, before_s = time.monotonic(), server.cpu_s()
    done = subprocess.run(
        [sys.executable, HERE / "paced_load.py", *map(str, (server.port, 64, _PUBLISHED_PER_S, seconds))],
        check=True,
        stdout=subprocess.PIPE,
    )
    took_s, cpu_s = time.monotonic() - began_s, server.cpu_s() - before_s
    figures = json.loads(done.stdout)
    read = 0.0 if reader is None else reader.bytes / 1e6 / took_s
    print(
        f"{name:36}{figures['p50_ms']:9.2f}{figures['p99_ms']:9.2f}{100 * cpu_s / took_s:13.1f}{read:11.1f}",
        flush=True,
    )


PARTS = {"rate": measure_rate, "idle": measure_idle, "history": measure_history}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="few clients: to see that it works")
    parser.add_argument("--broker", metavar="URL", help="of the service; a file of SQLite by default")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name in options.parts or PARTS:
        PARTS[name](scale=10 if options.quick else 1, broker=options.broker)


if __name__ == "__main__":
    main()
