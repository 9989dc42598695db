"""An issuer of JSON Web Tokens over TLS, and a service that verifies its tokens, as processes."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.support.certificates import Authority
from tests.support.issuer import AUDIENCE, ISSUER, jwk, jwks, signed
from tests.support.secrets import record_output
from tests.support.waiting import wait_until

CALLERS = """
[callers.kitchen]
publish = ["t"]
read = true
[issuers.example]
issuer = "{issuer}"
audience = "{audience}"
jwks = "https://localhost:{port}/jwks.json"
caller_claim = "sub"
names_callers = true
"""


class Handler(BaseHTTPRequestHandler):
    """Publishes the keys that the server has been given."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(jwks(*self.server.keys))

    def log_message(self, *_):
        pass


class Issuer:
    """What a test makes of an issuer: where it will be, its authority, and whether it is up."""

    def __init__(self, directory):
        self.authority = Authority(directory, "issuer-ca")
        issued = self.authority.server("issuer")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(issued.certificate, issued.key)
        # The port is its own as long as the test runs, whether it listens or not.
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.server_bind()
        self.port = self._server.server_port
        self._thread = None

    def publish(self, *keys):
        self._server.keys = keys
        if self._thread is None:
            self._server.server_activate()
            self._server.socket = self._context.wrap_socket(self._server.socket, server_side=True)
            self._thread = threading.Thread(target=self._server.serve_forever)
            self._thread.start()

    def end(self):
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()


@contextmanager
def issuer_in(directory):
    issuer = Issuer(directory)
    try:
        yield issuer
    finally:
        issuer.end()


def ask(service, token):
    """Publish with a token, on a connection of its own."""
    url = urlsplit(service.url)
    with closing(http.client.HTTPConnection(url.hostname, url.port, timeout=20)) as connection:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token.decode()}"}
        connection.request("POST", "/messages", '{"topic":"t","content":"c"}', headers)
        answer = connection.getresponse()
        body = answer.read()
        record_output("answers", body)
        return answer.status, answer.getheader("Retry-After"), json.loads(body)


def test_tokens_count_as_soon_as_the_issuer_is_up_and_as_long_as_they_are_valid(start, tmp_path):
    def token(**changes):
        return signed(sub="kitchen", exp=time.time() + 600, **changes)

    with issuer_in(tmp_path) as issuer:
        file = tmp_path / "callers.toml"
        file.write_text(CALLERS.format(issuer=ISSUER, audience=AUDIENCE, port=issuer.port))
        service = start(
            broker="memory:",
            options=["--callers", str(file)],
            environment={"SSL_CERT_FILE": str(issuer.authority.certificate)},
        )
        status, retry_after, problem = ask(service, token())
        assert (status, problem["type"]) == (503, "urn:sampleapp:problem:issuer-keys-not-known")
        assert int(retry_after) >= 1
        service.wait_for_output(r"https://localhost:\d+/jwks\.json cannot be reached")
        issuer.publish(jwk())
        wait_until(lambda: ask(service, token())[0] == 200, "a token that counts", deadline_s=20)
        assert ask(service, token(algorithm="RS256", header={"kid": "ES256-0"}))[0] == 401
        assert ask(service, signed(sub="kitchen", exp=time.time() - 60))[0] == 401
        # A new key counts with the first token that has it, but for the moment that it takes to ask for it.
        issuer.publish(jwk(), jwk("EdDSA"))
        assert ask(service, token(algorithm="EdDSA"))[0] in {200, 503}
        wait_until(lambda: ask(service, token(algorithm="EdDSA"))[0] == 200, "the new key", deadline_s=20)
        issuer.end()
        assert ask(service, token())[0] == 200
    service.stop()


def test_keys_from_whom_nobody_trusts_do_not_count(start, tmp_path):
    with issuer_in(tmp_path) as issuer:
        issuer.publish(jwk())
        file = tmp_path / "callers.toml"
        file.write_text(CALLERS.format(issuer=ISSUER, audience=AUDIENCE, port=issuer.port))
        service = start(broker="memory:", options=["--callers", str(file)])
        service.wait_for_output(r"jwks\.json cannot be trusted: .* is not signed by a trusted authority")
        assert ask(service, signed(sub="kitchen", exp=time.time() + 600))[0] == 503
    service.stop()
