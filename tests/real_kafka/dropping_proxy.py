"""A TCP proxy before a Kafka node that loses connections at the worst moments."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from enum import Enum

from tests.real_kafka.configuration import HOST

__all__ = ["DroppingProxy", "Loss"]

PRODUCE = 0


class Loss(Enum):
    """What becomes of a Produce request when its connection is lost."""

    BEFORE = "the broker never sees it"
    TORN = "the broker sees its first half"
    AFTER = "the broker has stored it, and its answer is lost"


class DroppingProxy:
    """
    Forwards connections to a node, which has to tell its clients the proxy's port.

    It understands only as much of Kafka's protocol as it needs: frames with a length before them, which begin
    with the key of what is asked (int16), a version (int16) and a correlation id (int32).
    """

    def __init__(self, *, port: int, target: int, loss_of_one_in: int = 0, seed: int = 0) -> None:
        """
        :param port: where to listen.
        :param target: the node's port.
        :param loss_of_one_in: about which part of the Produce requests is lost; 0 for none.
        """
        self.losses: Counter[Loss] = Counter()
        self.requests: Counter[int] = Counter()
        """The number of requests, by API key."""
        self.loss_of_one_in = loss_of_one_in
        self._target = target
        self._random = random.Random(seed)
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._server = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """``HOST:PORT``."""
        host, port = self._server.getsockname()
        return f"{host}:{port}"

    @property
    def connections(self) -> int:
        """The number of clients that are connected."""
        with self._lock:
            return len(self._open) // 2

    def close(self) -> None:
        """Listen no more, and lose all connections."""
        # A close alone does not wake a thread that is in accept.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.resume()
        self.drop_all()

    def hold(self) -> None:
        """Forward nothing more to the broker, while connections stay open."""
        self._may_pass.clear()

    def resume(self) -> None:
        """Go on after `hold`."""
        self._may_pass.set()

    def drop_all(self) -> None:
        """Lose all connections."""
        with self._lock:
            ends = list(self._open)
        for each in ends:
            self._cut(each)

    def reset_all(self) -> None:
        """Lose all connections, so that clients are sent RST."""
        with self._lock:
            ends, self._open = self._open, set()
        for each in ends:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # It wakes the thread that reads, which then closes.
                each.shutdown(socket.SHUT_RD)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError, EOFError),
            socket.create_connection((HOST, self._target)) as broker,
        ):
            with self._lock:
                self._open |= {client, broker}
            doomed: set[int] = set()
            back = threading.Thread(target=self._responses, args=[broker, client, doomed], daemon=True)
            back.start()
            with contextlib.suppress(OSError, EOFError):
                self._requests(client, broker, doomed)
            self._cut(client)
            self._cut(broker)
            back.join()

    def _requests(self, client: socket.socket, broker: socket.socket, doomed: set[int]) -> None:
        while True:
            frame = _frame(client)
            self._may_pass.wait()
            key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            with self._lock:
                self.requests[key] += 1
            loss = self._choose() if key == PRODUCE else None
            if loss is Loss.BEFORE:
                return
            if loss is Loss.TORN:
                broker.sendall(frame[: len(frame) // 2])
                return
            if loss is Loss.AFTER:
                doomed.add(correlation_id)
            broker.sendall(frame)

    def _responses(self, broker: socket.socket, client: socket.socket, doomed: set[int]) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = _frame(broker)
                if struct.unpack_from(">i", frame, 4)[0] in doomed:
                    break
                client.sendall(frame)
        self._cut(client)
        self._cut(broker)

    def _choose(self) -> Loss | None:
        with self._lock:
            if not self.loss_of_one_in or self._random.randrange(self.loss_of_one_in):
                return None
            loss = self._random.choice(list(Loss))
            self.losses[loss] += 1
            return loss

    def _cut(self, end: socket.socket) -> None:
        with self._lock:
            if end not in self._open:
                return
            self._open.remove(end)
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _frame(source: socket.socket) -> bytes:
    """One whole frame, with its length. :raise EOFError: the connection has ended."""
    head = _exactly(source, 4)
    return head + _exactly(source, struct.unpack(">i", head)[0])


def _exactly(source: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = source.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
