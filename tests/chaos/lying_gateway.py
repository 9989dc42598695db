"""A gateway that lies regularly: an HTTP proxy, to see that the checker finds it out."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import urlsplit

__all__ = ["LyingGateway"]

_ONE_IN = 15
_OWN = {"connection", "transfer-encoding", "content-length"}


class LyingGateway(ThreadingHTTPServer):
    """
    Forwards requests to a gateway, and responses back.

    It answers a message with 200 and forgets it, says another offset, forwards a message twice, or leaves
    out a line of a page. Workers get the messages of another pull, or other attempts, are told that an
    acknowledgement is done that it forgets, or that a lost lease is not lost. It tells each lie once in a
    number of occasions, and not at random, so that none is missing in a short run.
    """

    daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = urlsplit(url).netloc
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.occasions: defaultdict[str, count[int]] = defaultdict(lambda: count(1))
        self.leases: dict[str, bytes] = {}
        """The responses to pulls, by lease; the latest is the last."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """Say nothing about clients that cut their connections."""

    def close(self) -> None:
        """Serve no more."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/groups/" in self.path:
            {"pull": self._pull, "ack": self._acknowledge}.get(self.path.rpartition("/")[2], self._pass)(body)
            return
        if self.headers["Content-Type"] != "application/json":
            self._pass(body)
            return
        if self._lies("forgotten"):
            place = {"topic": json.loads(body)["topic"], "partition": 0, "offset": 1}
            self._answer(200, {}, json.dumps(place).encode())
            return
        if "Idempotency-Key" not in self.headers and self._lies("published twice"):
            self._forward(body)
        status, headers, received = self._forward(body)
        if status == http.HTTPStatus.OK and self._lies("offset"):
            place = json.loads(received)
            received = json.dumps({**place, "offset": place["offset"] + 1}).encode()
        self._answer(status, headers, received)

    def _pass(self, body: bytes) -> None:
        self._answer(*self._forward(body))

    def _pull(self, body: bytes) -> None:
        latest = [*self.server.leases.values()][-1:]
        if latest and self._lies("pull of another"):
            self._answer(200, {}, *latest)
            return
        status, headers, received = self._forward(body)
        if status == http.HTTPStatus.OK:
            found = json.loads(received)
            if self._lies("attempts"):
                found["messages"][0]["attempts"] += 5
            received = self.server.leases[found["lease"]] = json.dumps(found).encode()
        self._answer(status, headers, received)

    def _acknowledge(self, body: bytes) -> None:
        wanted = json.loads(body)
        lease = self.server.leases.pop(wanted.pop("lease"), None)
        ids = {each["id"] for each in json.loads(lease)["messages"]} if lease else set()
        lists = {name: ids if some == "all" else {*some} for name, some in wanted.items()}
        lists["release"] = ids - lists.get("accept", set()) - lists.get("reject", set())
        names = {"accepted": "accept", "released": "release", "rejected": "reject"}
        done = json.dumps({name: len(lists.get(each, ())) for name, each in names.items()}).encode()
        if ids and self._lies("acknowledgement"):
            self._answer(200, {}, done)
            return
        status, headers, received = self._forward(body)
        if status == http.HTTPStatus.CONFLICT and self._lies("lost lease"):
            status, received = 200, done
        self._answer(status, headers, received)

    def do_GET(self) -> None:
        if self.headers.get("Accept") == "text/event-stream":
            self._relay()
            return
        status, headers, received = self._forward(None)
        lines = received.splitlines(keepends=True)
        if len(lines) > 1 and "/records" in self.path and self._lies("page"):
            del lines[0]
        self._answer(status, headers, b"".join(lines))

    do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing on stderr."""

    def _lies(self, about: str) -> bool:
        return next(self.server.occasions[about]) % _ONE_IN == 0

    def _forward(self, body: bytes | None) -> tuple[int, dict, bytes]:
        with contextlib.closing(self._connected(body)) as connection:
            response = connection.getresponse()
            return response.status, dict(response.headers), response.read()

    def _relay(self) -> None:
        self.close_connection = True
        with contextlib.closing(self._connected(None)) as connection, contextlib.suppress(OSError):
            response = connection.getresponse()
            self._head(response.status, dict(response.headers))
            while received := response.read1(65536):
                self.wfile.write(received)

    def _connected(self, body: bytes | None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        connection.request(self.command, self.path, body, headers)
        return connection

    def _answer(self, status: int, headers: dict, body: bytes) -> None:
        self._head(status, headers, length=len(body))
        self.wfile.write(body)

    def _head(self, status: int, headers: dict, *, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _OWN:
                self.send_header(name, value)
        if length is not None and status != http.HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(length))
        self.end_headers()
