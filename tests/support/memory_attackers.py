"""Clients that attack the memory of the service, and honest ones beside them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

__all__ = ["ATTACKS", "HONEST", "HOST", "Attacker", "Honest", "callers_file", "fill_topics"]

HOST = "127.0.0.1"
HONEST, ATTACKER = (
    "honest-client-of-the-memory-attacks-0000000",
    "other-caller-of-the-memory-attacks-00000000",
)
NDJSON = "Content-Type: application/x-ndjson"
DEADLINE_S = 120.0
MIB = 1024 * 1024


def callers_file(directory: Path) -> Path:
    """Write a callers file with two callers and the hook of the attacks."""
    secret = directory / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    file = directory / "callers.toml"
    callers = [
        f'[callers.{name}]\npublish = ["*"]\nconsume = ["*"]\nwork = ["*"]\nmetrics = true\n'
        f'[[callers.{name}.tokens]]\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
        for name, token in (("honest", HONEST), ("attacker", ATTACKER))
    ]
    hook = f'[hooks.gh]\ntopic = "t"\nscheme = "github"\nsecret_files = ["{secret}"]\n'
    file.write_text("".join((*callers, hook)))
    file.chmod(0o600)
    return file


def request(
    method: str,
    target: str,
    *fields: str,
    body: bytes = b"",
    length: int | None = None,
    token: str = ATTACKER,
) -> bytes:
    head = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", *fields]
    if body or length is not None:
        head.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def batch_lines(topic: str, count: int, **members: object) -> bytes:
    return (json.dumps({"topic": topic, "content": "c" * 60, **members}).encode() + b"\n") * count


async def ask(port: int, *pieces: bytes) -> int:
    """Send a request in pieces, and read its answer; return the status, 0 if the connection was cut."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=64 * MIB)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            # A segment of its own.
            await asyncio.sleep(0.001)
        head = await reader.readuntil(b"\r\n\r\n")
        length = (
            next(
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            )
            if b"ontent-" in head and b"ength:" in head
            else 0
        )
        await reader.readexactly(length)
        return int(head[9:12])
    except (OSError, asyncio.IncompleteReadError):
        return 0
    finally:
        writer.close()


async def fill_topics(port: int) -> None:
    """Publish what the attacks read: records with many headers, of control characters, and large ones."""
    headers = {f"n{number:03}": "v" for number in range(1000)}
    for _ in range(10):
        await publish_lines(port, "headers", 30, headers=headers)
    for name, content in (("nel", "\x85" * (MIB // 2)), ("control", "\x01" * MIB)):
        for _ in range(2):
            await require(port, request("POST", f"/topics/{name}", body=content.encode()[:MIB]))
    await require(port, request("POST", "/topics/bytes", body=b"\xff" * MIB))
    for _ in range(30):
        await require(port, request("POST", "/topics/work", body=b"\x01" * MIB))
    for _ in range(20):
        await require(port, request("POST", "/topics/large", body=b"x" * 900_000))
    await publish_lines(port, "t", 100)


async def publish_lines(port: int, topic: str, count: int, **members: object) -> None:
    await require(port, request("POST", "/messages", NDJSON, body=batch_lines(topic, count, **members)))


async def require(port: int, data: bytes) -> None:
    status = await ask(port, data)
    if status != 200:
        raise SystemExit(f"A record to be read was not taken: {status}")


class Attacker:
    """Many connections that each hold what they can."""

    def __init__(self, port: int, count: int, *, tls_port: int = 0) -> None:
        self.port = port
        self.count = count
        self.tls_port = tls_port
        self.statuses: Counter[str] = Counter()

    async def hold(self, data: bytes, *, then: bytes = b"", every_s: float = 1.0, port: int = 0) -> None:
        """Keep the connections open without reading, and open those again that are rejected."""
        await asyncio.gather(
            *(self._hold(data, then, every_s, port or self.port, 0.01 * n) for n in range(self.count))
        )

    async def _hold(self, data: bytes, then: bytes, every_s: float, port: int, begin_s: float) -> None:
        await asyncio.sleep(min(begin_s, 3.0))
        loop = asyncio.get_running_loop()
        while True:
            with socket.socket() as client, contextlib.suppress(OSError):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.settimeout(0)
                await loop.sock_connect(client, (HOST, port))
                await loop.sock_sendall(client, data)
                while True:
                    await asyncio.sleep(every_s)
                    if then:
                        await loop.sock_sendall(client, then)
                    start = client.recv(64, socket.MSG_PEEK) if _has_come(client) else b""
                    if start.startswith(b"HTTP/1.1 ") and start[9:12] != b"200":
                        self.statuses[start[9:12].decode()] += 1
                        break
            await asyncio.sleep(0.2)

    async def read_slowly(self, data: bytes) -> None:
        """Read some hundred bytes a second of an endless answer."""

        async def read() -> None:
            loop = asyncio.get_running_loop()
            with socket.socket() as client, contextlib.suppress(OSError):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.settimeout(0)
                await loop.sock_connect(client, (HOST, self.port))
                await loop.sock_sendall(client, data)
                for _ in range(int(DEADLINE_S)):
                    await loop.sock_recv(client, 600)
                    await asyncio.sleep(1)

        await asyncio.gather(*(read() for _ in range(self.count)))


def _has_come(client: socket.socket) -> bool:
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


EVENTS = "Accept: text/event-stream"
FALSE_SIGNATURE = f"X-Hub-Signature-256: sha256={'0' * 64}"
# The beginning of a record of 16 KiB with a ClientHello (RFC 8446, section 4.1.2).
HALF_HANDSHAKE = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(16_000)

ATTACKS: dict[str, tuple[int, Callable[[Attacker], Awaitable[None]]]] = {
    "pages": (230, lambda a: a.hold(request("GET", "/topics/headers/records"))),
    "pages-nel": (230, lambda a: a.hold(request("GET", "/topics/nel/records"))),
    "pages-control": (230, lambda a: a.hold(request("GET", "/topics/control/records"))),
    "pages-bytes": (230, lambda a: a.hold(request("GET", "/topics/bytes/records"))),
    "pulls": (60, lambda a: a.hold(request("POST", "/topics/work/groups/g/pull"))),
    "announced": (14, lambda a: a.hold(request("POST", "/messages", NDJSON, length=16 * MIB))),
    "dripped": (
        14,
        lambda a: a.hold(
            request("POST", "/messages", NDJSON, length=16 * MIB) + b" " * (16 * MIB - 1000),
            then=b" ",
            every_s=5,
        ),
    ),
    "hook-heads": (224, lambda a: a.hold(request("POST", "/hooks/gh", FALSE_SIGNATURE, length=MIB))),
    "hooks": (
        1024,
        lambda a: a.hold(
            request("POST", "/hooks/gh", FALSE_SIGNATURE, length=32 * 1024) + bytes(32 * 1024 - 1000),
            then=b"\0",
        ),
    ),
    "streams": (
        300,
        lambda a: a.read_slowly(request("GET", "/topics/large/records?from=earliest", EVENTS)),
    ),
    "handshakes": (1000, lambda a: a.hold(HALF_HANDSHAKE, port=a.tls_port)),
}
"""The attacks: their connections, and what these do until they are cancelled."""


class Honest:
    """Clients that each make one kind of request after the other, until the end."""

    def __init__(self, port: int) -> None:
        self.statuses: dict[str, Counter[int]] = {}
        self._times_s: dict[str, list[float]] = {}
        self._port = port
        message, lines = b'{"topic":"t","content":"c"}', batch_lines("t", 1000)
        json_, own = "Content-Type: application/json", partial(request, token=HONEST)
        self._requests = {
            # The body in a segment of its own.
            "small": (own("POST", "/messages", json_, length=len(message)), message),
            "100 KB": (own("POST", "/topics/t", length=100_000), bytes(100_000)),
            "batch": (own("POST", "/messages", NDJSON, length=len(lines)), lines),
            "page": (own("GET", "/topics/t/records?limit=100"),),
        }

    async def run(self) -> None:
        """Make requests until it is cancelled."""
        await asyncio.gather(*(self._run(name, pieces) for name, pieces in self._requests.items()))

    async def _run(self, name: str, pieces: Sequence[bytes]) -> None:
        found, times_s = self.statuses.setdefault(name, Counter()), self._times_s.setdefault(name, [])
        while True:
            began_s = time.monotonic()
            found[await ask(self._port, *pieces)] += 1
            times_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0.1)

    @property
    def starved(self) -> list[str]:
        """The kinds of requests that were never answered with 200."""
        return [name for name, found in self.statuses.items() if not found[200]]

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {' '.join(f'{status}:{count}' for status, count in sorted(found.items()))} "
            f"(p50 {_percentile_ms(self._times_s[name], 0.5):.0f} ms, "
            f"p99 {_percentile_ms(self._times_s[name], 0.99):.0f} ms)"
            for name, found in self.statuses.items()
        )


def _percentile_ms(times_s: Sequence[float], part: float) -> float:
    return 1000 * sorted(times_s)[int(part * len(times_s))] if times_s else math.nan
