"""Ports and addresses at which nobody listens."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"

# Out of these the system gives no ports to connections, so that a server that is down keeps its own
# (net.ipv4.ip_local_port_range begins with 32768).
PORTS = range(10_000, 32_000)


def free_ports(count: int) -> Iterator[int]:
    """Ports that nobody listens on now and that the kernel gives to nobody."""
    found = []
    # Another run of the tests takes others.
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            break
    return iter(found)


def free_port() -> int:
    return next(free_ports(1))


@contextlib.contextmanager
def rejecting_port() -> Iterator[int]:
    """A port that refuses connections: it is bound, so nobody else takes it, but does not listen."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        yield bound.getsockname()[1]
