"""The processes that are measured, each of which serves HTTP on a loopback port of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil

from readings import READINGS

__all__ = [
    "HERE",
    "Server",
    "aiohttp_librdkafka",
    "aiohttp_readings",
    "free_port",
    "name_of_aiohttp",
    "sampleapp",
    "stock_klein",
]

HERE = Path(__file__).parent
DEADLINE_S = 60


class Server:
    """A process that serves HTTP on a port of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        port: int,
        directory: str,
        path: str = "",
        log: Path | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """
        :param path: answers with success as soon as the process serves.
        :param log: gets what the process prints; by default that is dropped, except its errors.
        :param descriptors: open files that the process gets, too.
        """
        self.port = port
        self._path = path
        self._log = log
        self.began_s = time.perf_counter()
        with contextlib.ExitStack() as files:
            output = {"stdout": subprocess.DEVNULL}
            if log is not None:
                output = {"stdout": files.enter_context(log.open("wb")), "stderr": subprocess.STDOUT}
            self.popen = subprocess.Popen(
                command, cwd=directory, start_new_session=True, pass_fds=descriptors, **output
            )
        self.first_answer_s = self._wait_for_answer() - self.began_s
        self.process = self._serving_process()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def _wait_for_answer(self) -> float:
        while time.perf_counter() - self.began_s < DEADLINE_S:
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + self._path):
                return time.perf_counter()
            if self.popen.poll() is not None:
                said = "" if self._log is None else f"\n{self._log.read_text(errors='backslashreplace')}"
                raise SystemExit(f"The server ended with status {self.popen.returncode}.{said}")
            time.sleep(0.005)
        raise SystemExit("The server does not answer.")

    def _serving_process(self) -> psutil.Process:
        process = psutil.Process(self.popen.pid)
        # Under strace the server is the child. It may have one itself, which checks contents by schemas.
        return process.children()[0] if process.name() == "strace" else process

    def cpu_s(self) -> float:
        if sys.platform == "linux":
            # clock_getcpuclockid(3): in ns, where psutil's times are in steps of 10 ms.
            return time.clock_gettime((~self.process.pid << 3) | 2)
        times = self.process.cpu_times()
        return times.user + times.system

    def resident_mib(self) -> float:
        return self.process.memory_info().rss / 2**20

    def load(self, kind: str, *, connections: int, requests: int) -> dict[str, float]:
        """Make requests; returns rates, latencies, and µs of CPU a request."""
        before_s = self.cpu_s()
        done = subprocess.run(
            [sys.executable, HERE / "load.py", str(self.port), str(connections), str(requests), kind],
            check=True,
            stdout=subprocess.PIPE,
        )
        figures = json.loads(done.stdout)
        return {**figures, "cpu_us": 1e6 * (self.cpu_s() - before_s) / requests}

    def publish(self, *, topic: str, key: str, content: str) -> tuple[int, bytes]:
        """Post one message; returns the status and the body of the answer."""
        body = json.dumps({"topic": topic, "key": key, "content": content}).encode()
        request = urllib.request.Request(f"{self.url}messages", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.popen.wait(DEADLINE_S)


@contextlib.contextmanager
def sampleapp(
    *,
    broker: str | None = None,
    prefix: Sequence[str] = (),
    readings: bool = True,
    options: Sequence[str] = (),
    twistd: Sequence[str] = (),
    path: str = "",
) -> Iterator[Server]:
    """The service as an operator starts it, with a hundred readings; for ``path`` see `Server`."""
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        command = [str(Path(sys.executable).with_name("twistd")), "-n", "--pidfile=", *twistd, "sampleapp"]
        listen = ["--listen", f"tcp:{port}:interface=127.0.0.1"] + (["--broker", broker] if broker else [])
        server = Server([*prefix, *command, *listen, *options], port=port, directory=directory, path=path)
        try:
            for key, value in READINGS.items() if readings else ():
                status, answer = server.publish(topic="readings", key=key, content=str(value))
                if status != 200:
                    raise SystemExit(f"A reading was not taken: {status} {answer!r}")
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def stock_klein() -> Iterator[Server]:
    """Klein without anything of ours; see `stock_klein.py`."""
    with _script("stock_klein.py") as server:
        yield server


@contextlib.contextmanager
def aiohttp_readings() -> Iterator[Server]:
    """aiohttp, which sends the same bytes as version 1 of the readings; see `aiohttp_readings.py`."""
    with _script("aiohttp_readings.py") as server:
        yield server


@contextlib.contextmanager
def aiohttp_librdkafka(*, bootstrap: str) -> Iterator[Server]:
    """The gateway that one would write otherwise; see `aiohttp_librdkafka.py`."""
    with _script("aiohttp_librdkafka.py", bootstrap) as server:
        yield server


@contextlib.contextmanager
def _script(name: str, *arguments: str) -> Iterator[Server]:
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(HERE / name), str(port), *arguments]
        server = Server(command, port=port, directory=directory)
        try:
            yield server
        finally:
            server.stop()


def name_of_aiohttp() -> str | None:
    """What it runs on here, or that it is not here."""
    if find_spec("aiohttp") is None:
        return None
    return "aiohttp on uvloop" if find_spec("uvloop") else "aiohttp"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
