"""
Chromium without a window, spoken to by its DevTools protocol over a pipe.

    with Chromium(directory=tmp_path) as browser:
        browser.open("http://127.0.0.1:8080/docs")
        browser.wait_for("document.querySelector('h1') !== null")
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

__all__ = ["CHROMIUM", "Chromium"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""Where it is; ``None`` if this machine has none."""

DEADLINE_S = 60.0
PHONE = 600
"""A window that is narrower, in pixels, is that of a phone."""


class PageLeft(Exception):
    """The browser left the page, for another one, before it evaluated the expression."""


class Chromium:
    """One tab, which remembers what it asked for and what went wrong in it."""

    def __init__(self, *, directory):
        """:param directory: where it keeps its profile."""
        here_reads, there_writes = os.pipe()
        there_reads, here_writes = os.pipe()
        self._read, self._write = here_reads, here_writes
        self._received = b""
        self._number = 0
        self._session = None
        self.requests: list[str] = []
        """The URLs of what was asked for, in order; ``data:`` included."""
        self.complaints: list[str] = []
        """What was logged as an error or a warning, thrown, or blocked."""

        # The protocol is spoken on these two descriptors.
        script = f'exec 3<&{there_reads} 4>&{there_writes}; exec "$@"'
        self._process = subprocess.Popen(
            [
                *("bash", "-c", script, "bash", CHROMIUM, "--headless=new", "--remote-debugging-pipe"),
                *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
                f"--user-data-dir={directory / 'chromium'}",
                "about:blank",
            ],
            pass_fds=(there_reads, there_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(there_reads)
        os.close(there_writes)

    def __enter__(self):
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def look_like(self, *, width, height=900, dark=False):
        """Have a window of this size, in pixels, and the colours that its user likes."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < PHONE,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url):
        """Go to a page."""
        answer = self._call("Page.navigate", url=url)
        assert "errorText" not in answer, answer

    def evaluate(self, expression):
        """The value of an expression in the page, which may be a promise."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression):
        """Wait until an expression is true in the page; returns its value."""
        until = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(PageLeft):
                if value := self.evaluate(expression):
                    return value
            assert time.monotonic() < until, f"{expression} stays false; {self.complaints}"
            time.sleep(0.05)

    def choose_file(self, selector, path):
        """Choose a file in an input of the page, as its user does in a dialog."""
        node = self._call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")
        self._call("DOM.setFileInputFiles", files=[str(path)], objectId=node["result"]["objectId"])

    def screenshot(self, path):
        """Keep a picture of the whole page."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + DEADLINE_S
        while True:
            answer = self._next(until)
            if answer.get("id") == self._number:
                if "navigated" in answer.get("error", {}).get("message", ""):
                    raise PageLeft(answer["error"])
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _next(self, until):
        while b"\0" not in self._received:
            remaining_s = until - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(remaining_s, 0))
            assert ready, "Chromium does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, f"Chromium has ended with {self._process.wait(10)}"
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, told = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in {"error", "warning", "assert"}:
            self.complaints.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(json.dumps(told["entry"]))
