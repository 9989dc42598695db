"""The token that a command sends: where it comes from, and what is said when it does not help."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from sampleapp.cli import main
from tests.support.command import sampleapp
from tests.support.secrets import secret

TOKEN = secret("sampleapp_another-token-of-the-tests-that-nobody-may-see", "a token")
OTHER = secret("sampleapp_a-third-token-of-the-tests-that-nobody-may-see", "a token")


class Handler(BaseHTTPRequestHandler):
    """Answers with what the server has been told, and keeps what it was asked."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self):
        self.server.authorizations.append(self.headers["Authorization"])
        status = self.server.status
        body = b'{"topic":"t","partition":0,"offset":0}' if self.command == "POST" else b"[21.5]"
        if status != 200:
            body = json.dumps({"title": "Title", "status": status, "detail": "Detail."}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status == 200 else "application/problem+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("SAMPLEAPP_TOKEN", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.status, server.authorizations = 200, []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(server, *arguments, token=None, environment=None, code=0):
    """Run a command; returns stderr."""
    environment = {**({} if token is None else {"SAMPLEAPP_TOKEN": token}), **(environment or {})}
    url = f"http://127.0.0.1:{server.server_port}/"
    stdout, stderr = sampleapp(None, *arguments, url=url, environment=environment, code=code)
    assert TOKEN not in stdout + stderr
    assert OTHER not in stdout + stderr
    return stderr


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def test_a_token_comes_from_the_environment_or_from_a_file_which_counts_more(server, file):
    run(server, "readings")
    run(server, "readings", token="")
    run(server, "readings", token=OTHER)
    run(server, "publish", "t", "c", "--token-file", str(file), token=OTHER)
    run(server, "readings", environment={"SAMPLEAPP_TOKEN_FILE": str(file)}, token=OTHER)
    sent = [None, None, f"Bearer {OTHER}", f"Bearer {TOKEN}", f"Bearer {TOKEN}"]
    assert server.authorizations == sent


@pytest.mark.parametrize(
    ("status", "token", "arguments", "advice"),
    [
        (401, None, ["publish", "t", "c"], "No token was sent. Put a token into the environment variable"),
        (
            401,
            TOKEN,
            ["readings"],
            "The service does not accept the token. It may have expired, been replaced,",
        ),
        (403, TOKEN, ["readings", "--watch"], "Detail. The operator of the service can grant the right."),
    ],
)
def test_who_is_not_let_in_is_told_what_to_do(server, status, token, arguments, advice):
    server.status = status
    assert advice in run(server, *arguments, token=token, code=1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "does not contain a token"),
        (b"two words", "does not contain a token"),
        (b"\xff", "does not contain a token"),
        (b"two\nlines\n", "does not contain a token"),
        (b"x" * 20_000, "contains more than a token: over 16384 bytes"),
    ],
)
def test_a_file_without_a_token_is_rejected_and_not_repeated(tmp_path, content, reason):
    (tmp_path / "token").write_bytes(content)
    result = CliRunner().invoke(main, ["readings", "--token-file", str(tmp_path / "token")])
    assert result.exit_code == 2
    shown = " ".join(result.output.split())
    assert reason in shown
    assert "two" not in shown


def test_a_variable_without_a_token_is_rejected_and_not_repeated():
    result = CliRunner(env={"SAMPLEAPP_TOKEN": "pass word"}).invoke(main, ["readings"])
    assert result.exit_code == 2
    shown = " ".join(result.output.split())
    assert "the environment variable SAMPLEAPP_TOKEN does not contain a token" in shown
    assert "pass word" not in shown


@pytest.mark.parametrize(
    ("url", "is_told"),
    [
        ("http://192.0.2.1/", True),
        ("http://service.example:8080/", True),
        ("https://service.example/", False),
        ("http://127.0.0.2:8080/", False),
        ("http://[::1]:8080/", False),
        ("http://localhost:8080/", False),
    ],
)
def test_who_sends_a_token_without_encryption_is_told_so(url, is_told, capsys):
    from sampleapp.cli._options import warn_of_unencrypted_token

    warn_of_unencrypted_token(url=url, token=TOKEN)
    assert ("without encryption" in capsys.readouterr().err) == is_told
    warn_of_unencrypted_token(url=url, token=None)
    assert capsys.readouterr().err == ""
