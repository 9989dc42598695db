"""The service as a process, from an installed wheel: what only a real one can show."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.live_service import LiveService

DEADLINE_S = 20
TWISTD = [sys.executable, str(Path(sys.executable).with_name("twistd"))]


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The environment of a process that finds sampleapp in an installed wheel, and nowhere else first."""
    root = Path(__file__).parents[2]
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # From a copy, since building leaves files behind.
    source = tmp_path_factory.mktemp("source")
    subprocess.run(["cp", "-R", *[root / name for name in BUILD_INPUTS], source], check=True)
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source], check=True
    )
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    environment = {"PYTHONPATH": str(site)}
    found = subprocess.run(
        [sys.executable, "-c", "import sampleapp; print(sampleapp.__file__)"],
        check=True,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(site)
    return environment


BUILD_INPUTS = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "src", "twisted")


@pytest.fixture
def start(installed, tmp_path):
    """Starts services, and ends those that the test has left."""
    services = []

    def start(**arguments):
        service = LiveService(directory=tmp_path, environment=installed, **arguments)
        services.append(service)
        return service

    yield start
    for service in services:
        service.kill()


def connect(service):
    url = urlsplit(service.url)
    return http.client.HTTPConnection(url.hostname, url.port, timeout=DEADLINE_S)


def publish(connection, content, *, topic="t", key=None):
    """Publish one message; returns the status and the answer."""
    send_message(connection, content, topic=topic, key=key)
    return answer_on(connection)


def send_message(connection, content, *, topic="t", key=None):
    body = json.dumps({"topic": topic, "content": content} | ({} if key is None else {"key": key}))
    connection.request("POST", "/messages", body, {"Content-Type": "application/json"})


def answer_on(connection):
    response = connection.getresponse()
    return response.status, json.load(response)


def records(directory, topic="t"):
    """What is in a topic, read from the file by SQLite alone: a list of (offset, content)."""
    with closing(sqlite3.connect(directory / "broker.sqlite3")) as database:
        rows = database.execute(
            'SELECT "offset", value FROM record JOIN topic ON topic.id = record.topic_id'
            ' WHERE topic.name = ? ORDER BY "offset"',
            [topic],
        ).fetchall()
    return [(offset, value.decode()) for offset, value in rows]


@contextmanager
def locked(directory):
    """While this lasts, the service can write nothing."""
    with closing(sqlite3.connect(directory / "broker.sqlite3", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


class Publisher(threading.Thread):
    """A client that publishes one message after the other until the service is gone."""

    def __init__(self, service, name):
        super().__init__()
        self.connection = connect(service)
        self.prefix = name
        self.acknowledged = []
        self.sent = 0

    def run(self):
        try:
            while True:
                content = f"{self.prefix}-{self.sent}"
                self.sent += 1
                status, answer = publish(self.connection, content)
                assert status == 200, answer
                self.acknowledged.append((answer["offset"], content))
        except (OSError, http.client.HTTPException):
            self.connection.close()


def wait_until(condition, what):
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.01)


def assert_nothing_lost(publishers, directory):
    stored = records(directory)
    assert [offset for offset, _ in stored] == list(range(len(stored))), "a gap or a repeat"
    acknowledged = [pair for publisher in publishers for pair in publisher.acknowledged]
    assert len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= set(stored)
    # What was not acknowledged may be there or not, but nothing is there twice.
    contents = [content for _, content in stored]
    assert len(contents) == len(set(contents))
    # One message of each was on its way at the most.
    assert len(stored) <= len(acknowledged) + len(publishers)


def test_after_kill_9_every_acknowledged_record_is_where_its_answer_said(start, tmp_path):
    publishers = []
    for life in range(3):
        service = start()
        publishers += (alive := [Publisher(service, f"{life}-{n}") for n in range(16)])
        for publisher in alive:
            publisher.start()
        wait_until(lambda alive=alive: sum(len(p.acknowledged) for p in alive) > 300, "300 answers")
        service.kill()
        for publisher in alive:
            publisher.join(DEADLINE_S)
    with closing(connect(start())) as connection:
        status, answer = publish(connection, "after it all")
    stored = records(tmp_path)
    assert (status, answer["offset"], len(stored)) == (200, len(stored) - 1, answer["offset"] + 1)
    with closing(sqlite3.connect(tmp_path / "broker.sqlite3")) as database:
        database.execute("DELETE FROM record WHERE value = ?", [b"after it all"])
        database.commit()
    assert_nothing_lost(publishers, tmp_path)


def test_after_a_restart_the_readings_are_the_same(start):
    service = start()
    with closing(connect(service)) as connection:
        for key, value in (("kitchen", "21.5"), ("hall", "19"), ("kitchen", "22.25")):
            assert publish(connection, value, topic="readings", key=key)[0] == 200
    before = wait_for_readings(service, b"[22.25,19.0]")
    service.kill()
    again = start()
    assert wait_for_readings(again, b"[22.25,19.0]") == before


def wait_for_readings(service, body):
    answers = []

    def read():
        with closing(connect(service)) as connection:
            connection.request("GET", "/")
            response = connection.getresponse()
            answers.append((response.read(), response.getheader("ETag")))
        return answers[-1][0] == body

    wait_until(read, f"readings {body}")
    return answers[-1][1]


def test_sigterm_while_requests_run_loses_none_of_them(start, tmp_path):
    service = start()
    connections = [connect(service) for _ in range(20)]
    idle = connect(service)
    assert publish(idle, "first")[0] == 200
    with ThreadPoolExecutor(len(connections)) as pool:
        with locked(tmp_path):
            for n, connection in enumerate(connections):
                send_message(connection, f"m{n}")
            answers = [pool.submit(answer_on, connection) for connection in connections]
            wait_until(lambda: has_read_all_of(service, 21), "20 requests have come in")
            service.process.terminate()
            service.wait_for_output("Received SIGTERM")
            # It takes nobody new,
            wait_until(lambda: refuses(service), "the port is closed")
            # but those that it has, it keeps.
            assert not any(answer.done() for answer in answers)
        outcomes = [answer.result(DEADLINE_S) for answer in answers]
    assert {status for status, _ in outcomes} == {200}
    assert service.stop() == -15
    answered = sorted((answer["offset"], f"m{n}") for n, (_, answer) in enumerate(outcomes))
    assert answered == records(tmp_path)[1:]
    for connection in (*connections, idle):
        connection.close()


def has_read_all_of(service, connections):
    """Whether the service has so many connections, and has read what was sent on them."""
    port = urlsplit(service.url).port
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Columns: number, local address, remote address, state (01 is established), tx_queue:rx_queue.
    ours = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return len(ours) == connections and all(row[4].endswith(":00000000") for row in ours)


def refuses(service):
    try:
        with socket.create_connection((urlsplit(service.url).hostname, urlsplit(service.url).port)):
            return False
    except OSError:
        return True


def test_what_still_runs_at_the_deadline_is_answered_with_what_is_known_of_it(start, tmp_path):
    service = start(options=["--drain-timeout", "0.5"])
    with closing(connect(service)) as connection, ThreadPoolExecutor(1) as pool:
        assert publish(connection, "first")[0] == 200
        with locked(tmp_path):
            send_message(connection, "second")
            answer = pool.submit(answer_on, connection)
            wait_until(lambda: has_read_all_of(service, 1), "the request has come in")
            assert service.stop() == -15
            status, problem = answer.result(DEADLINE_S)
    assert status == 503, problem
    assert records(tmp_path) == [(0, "first")]


def test_two_services_on_one_file_both_work(start, tmp_path):
    services = [start(), start()]
    publishers = [Publisher(service, f"{n}") for n, service in enumerate(services * 4)]
    for publisher in publishers:
        publisher.start()
    wait_until(lambda: all(len(p.acknowledged) > 10 for p in publishers), "10 answers each")
    for service, value in zip(services, (b"1", b"2"), strict=True):
        with closing(connect(service)) as connection:
            assert publish(connection, value.decode(), topic="readings", key="a")[0] == 200
        for other in services:
            wait_for_readings(other, b"[%b.0]" % value)
    for service in services:
        service.stop()
    for publisher in publishers:
        publisher.join(DEADLINE_S)
    assert_nothing_lost(publishers, tmp_path)


def test_a_client_that_closes_its_side_after_its_request_is_answered(start):
    service = start()
    url = urlsplit(service.url)
    wait_for_readings(service, b"[]")
    body = b'{"topic":"t","content":"c"}'
    post = (
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    for request in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", post % len(body) + body):
        with socket.create_connection((url.hostname, url.port), timeout=DEADLINE_S) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            received = b""
            while data := client.recv(65536):
                received += data
        assert received.startswith(b"HTTP/1.1 200 OK")


def test_every_option_has_its_effect(start, tmp_path):
    options = ["--readings-topic", "temperatures", "--max-body", "100", "--drain-timeout", "0.25"]
    service = start(options=options)
    with closing(connect(service)) as connection:
        assert publish(connection, "1", topic="readings", key="a")[0] == 200
        assert publish(connection, "2", topic="temperatures", key="a")[0] == 200
        wait_for_readings(service, b"[2.0]")
        assert publish(connection, "x" * 100)[0] == 413
    with closing(connect(service)) as connection, locked(tmp_path):
        send_message(connection, "late")
        wait_until(lambda: has_read_all_of(service, 1), "the request has come in")
        assert service.stop() == -15
    assert "still running after 0.25 seconds" in service.output


def test_a_client_that_sends_too_much_can_read_why_while_it_still_sends(start):
    url = urlsplit(start(options=["--max-body", "1000"]).url)
    with socket.create_connection((url.hostname, url.port), timeout=DEADLINE_S) as client:
        client.sendall(
            b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(64):
            client.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        received = b""
        while data := client.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b'"detail":"The body is larger than the 1000 bytes' in received


@pytest.fixture
def certificate(tmp_path):
    """A certificate for localhost and its key, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_file, certificate_file = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key_file, certificate_file


def test_tls_works_beside_plain_http(start, certificate):
    key_file, certificate_file = certificate
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(options=["--listen", tls, "--max-body", "1000"])
    secure = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1))
    context = ssl.create_default_context(cafile=certificate_file)
    context.set_alpn_protocols(["h2", "http/1.1"])

    def connect_securely():
        return http.client.HTTPSConnection("localhost", secure.port, timeout=DEADLINE_S, context=context)

    with closing(connect_securely()) as connection, closing(connect(service)) as plain:
        assert publish(connection, "1", topic="readings", key="a") == (
            200,
            {"topic": "readings", "partition": 0, "offset": 0},
        )
        assert publish(plain, "2", topic="readings", key="a")[1]["offset"] == 1
    with closing(connect_securely()) as connection:
        status, problem = publish(connection, "x" * 1000)
        assert (status, problem["status"]) == (413, 413)
    with closing(connect_securely()) as idle:
        assert publish(idle, "3")[0] == 200
        # The limit for bodies would not hold in HTTP/2.
        assert idle.sock.selected_alpn_protocol() == "http/1.1"
        # A client that does not answer the end of TLS is not waited for.
        assert service.stop() == -15
    assert "still running" not in service.output
    # Nobody who reads the log knows the names of classes.
    assert "FrontDoorSite" not in service.output


def test_a_certificate_that_is_not_trusted_is_told_apart_from_an_answer_that_is_no_http(start, certificate):
    key_file, certificate_file = certificate
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(options=["--listen", tls])
    port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port
    reasons = {"localhost": "it has expired, or no authority", "127.0.0.1": "it is for another host name"}
    for host, reason in reasons.items():
        done = subprocess.run(
            [Path(sys.executable).with_name("sampleapp"), "publish", "t", "c"],
            check=False,
            env={**os.environ, "SAMPLEAPP_URL": f"https://{host}:{port}/"},
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 1
        sentence = f"The certificate of https://{host}:{port}/messages is not one to trust: {reason}"
        assert sentence in done.stderr
        assert ("SSL_CERT_FILE" in done.stderr) == (host == "localhost")
        assert "SSL routines" not in done.stderr
        assert "Is the service running?" not in done.stderr
        assert "may have been published" not in done.stderr


def test_a_second_signal_leaves_no_traceback_and_does_not_cut_the_drain_short(start, tmp_path):
    service = start()
    with closing(connect(service)) as connection:
        assert publish(connection, "first")[0] == 200
        with locked(tmp_path):
            send_message(connection, "second")
            wait_until(lambda: has_read_all_of(service, 1), "the request has come in")
            service.process.terminate()
            wait_until(lambda: refuses(service), "the port is closed")
            service.process.terminate()
            service.process.send_signal(signal.SIGINT)
        assert answer_on(connection)[0] == 200
    assert service.stop() == -15
    assert "Traceback" not in service.output


def run(arguments, environment, directory):
    return subprocess.run(
        [*TWISTD, *arguments],
        check=False,
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )


def newer_file(directory):
    with closing(sqlite3.connect(directory / "newer.sqlite3")) as database:
        (schema,) = (Path(__file__).parents[2] / "src/sampleapp/brokers/sqlite/schema").iterdir()
        database.executescript(schema.read_text())
        database.execute("PRAGMA user_version = 999")


def corrupt_file(directory):
    (directory / "corrupt.sqlite3").write_bytes(b"not a database " * 1000)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--listen", "tcp:TAKEN:interface=127.0.0.1"], "Cannot listen on tcp:TAKEN"),
        (["--listen", "nonsense:1"], "not an endpoint that Twisted understands"),
        (["--listen", "8080"], "--listen takes a Twisted endpoint"),
        (["--listen", "ssl:0:privateKey=nowhere.pem"], "cannot read"),
        (["--broker", "http://localhost"], "--broker: The scheme of this broker's URL is not known"),
        (["--broker", "sqlite:"], "--broker: The path of the file is missing"),
        (["--broker", "sqlite:nowhere/b.sqlite3"], "nowhere/b.sqlite3"),
        (["--broker", "sqlite:newer.sqlite3"], "newer"),
        (["--broker", "sqlite:corrupt.sqlite3"], "corrupt.sqlite3"),
        (["--readings-topic", "no/topic"], "--readings-topic takes the name of a topic"),
        (["--max-body", "1k"], "--max-body takes a whole number of bytes"),
        (["--drain-timeout", "soon"], "--drain-timeout takes a number of seconds"),
        (["surplus"], "Wrong number of arguments"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_a_sentence(installed, tmp_path, options, sentence):
    newer_file(tmp_path)
    corrupt_file(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        options = [option.replace("TAKEN", port) for option in options]
        if "--listen" not in options:
            options += ["--listen", "tcp:0:interface=127.0.0.1"]
        done = run(["-n", "sampleapp", *options], installed, tmp_path)
    assert done.returncode == 1
    assert sentence.replace("TAKEN", port) in done.stdout
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "twistd.pid").exists()


def test_twistd_lists_it_and_its_help_teaches(installed, tmp_path):
    assert "sampleapp" in run(["--help"], installed, tmp_path).stdout
    helped = run(["sampleapp", "--help"], installed, tmp_path)
    assert helped.returncode == 0
    for option in ("--listen", "--broker", "--readings-topic", "--max-body", "--drain-timeout"):
        assert option in helped.stdout
    assert "  curl http://127.0.0.1:8080/\n" in helped.stdout


def test_as_a_daemon_it_leaves_no_trace_when_it_has_stopped(installed, tmp_path):
    arguments = ["--pidfile=d.pid", "--logfile=d.log", "sampleapp", "--listen", "tcp:0:interface=127.0.0.1"]
    assert run(arguments, installed, tmp_path).returncode == 0
    pid = int((tmp_path / "d.pid").read_text())
    try:
        log = tmp_path / "d.log"
        wait_until(lambda: "Listening at" in log.read_text(), "the log says that it listens")
        port = int(log.read_text().split("Listening at http://127.0.0.1:")[1].split("/")[0])
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
            assert publish(connection, "c")[0] == 200
    finally:
        os.kill(pid, 15)
    wait_until(lambda: not (tmp_path / "d.pid").exists(), "the daemon has ended")
    assert (tmp_path / "sampleapp.sqlite3").exists()
    assert not (tmp_path / "sampleapp.sqlite3-wal").exists()
