"""Requests to one broker over a plain socket, without the service's client."""

from __future__ import annotations

import socket
import struct
from contextlib import contextmanager

from sampleapp.brokers.kafka.protocol import request_frame

__all__ = ["Wire", "connected"]


class Wire:
    """One connection, on which one request after another is asked."""

    def __init__(self, connected):
        self._socket = connected

    def ask(self, request, version):
        self.send(request, version)
        (length,) = struct.unpack(">i", self._read(4))
        answer = self._read(length)
        assert answer[:4] == struct.pack(">i", 7)
        return request.decode(version, answer[4:])

    def send(self, request, version):
        """Send a request without waiting for its answer, which only `close` or `reset` may follow."""
        frame = request_frame(request, version=version, correlation_id=7, client_id=b"tests")
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def close(self):
        self._socket.close()

    def reset(self):
        """Close it so that the broker sees an error, not an end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _read(self, size):
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data


@contextmanager
def connected(bootstrap):
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        yield Wire(connection)
