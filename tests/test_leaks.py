"""Secrets in what the service writes are found: wherever they are, and in whichever process of the tests."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.secrets import secret

LEAKING = '''
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.logger import Logger
from twisted.python.failure import Failure

from tests.support.certificates import key_pem
from tests.support.in_memory import MemoryTransport
from tests.support.live_service import LiveService
from tests.support.secrets import secret


def planted(name):
    return secret("planted-secret-" + name)


def in_parts(text):
    """As an expression, so that a program has it as a whole only in what it writes."""
    return f"{text[:5]!r} + {text[5:]!r}"


def test_in_the_text_of_the_log():
    Logger().info("It is {it}.", it=[planted("in-a-text")])


def test_in_a_field_of_the_log():
    Logger().info("It is not shown.", it=planted("in-a-field"))


def test_in_a_traceback():
    try:
        raise ValueError(planted("in-a-traceback"))
    except ValueError:
        Logger().failure("It failed.", failure=Failure())


def test_in_the_output_of_the_service(tmp_path):
    program = f"print('Listening at http://127.0.0.1:1/', {in_parts(planted('in-the-output'))})"
    with LiveService(directory=tmp_path, command=[sys.executable, "-c", program]) as service:
        service.wait_for_output("planted")


def test_in_what_everybody_on_the_machine_can_see(tmp_path):
    program = "print('Listening at http://127.0.0.1:1/')"
    command = [sys.executable, "-c", program, planted("in-the-options")]
    with LiveService(directory=tmp_path, command=command):
        pass


def test_in_a_file_that_the_service_has_written(tmp_path):
    program = f"""
print('Listening at http://127.0.0.1:1/', flush=True)
open('access.log', 'w').write({in_parts(planted('in-a-file'))})
"""
    with LiveService(
        directory=tmp_path, command=[sys.executable, "-c", program], options=["--access-log", "access.log"]
    ) as service:
        service.process.wait()


def test_in_an_answer():
    MemoryTransport().write(b"HTTP/1.1 401 Unauthorized\\r\\n\\r\\n" + planted("in-an-answer").encode())


def test_of_a_key():
    pem = key_pem(ec.generate_private_key(ec.SECP256R1()))
    Logger().info("The key is {key!r}.", key=pem[60:150])
'''
HARMLESS = """
from twisted.logger import Logger

from tests.support.secrets import secret


def test_nothing():
    secret("a-secret-that-is-not-written")
    Logger().info("a-secret-that-is-something-else")
"""


def session(directory, project, program, *options):
    """Run pytest on a program; returns its exit code and what it prints."""
    (directory / "test_planted.py").write_text(program)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.support.leaks", "-p", "no:cacheprovider"),
            *("--rootdir", directory, "--basetemp", directory / "temporary", *options, directory),
        ],
        cwd=project,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=120,
    )
    return ended.returncode, ended.stdout + ended.stderr


has_xdist = pytest.mark.skipif(find_spec("xdist") is None, reason="pytest-xdist is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), pytest.param(("-n", "2"), marks=has_xdist)], ids=["one", "two"])
def test_a_secret_that_is_written_anywhere_fails_the_session(project, tmp_path, options):
    code, shown = session(tmp_path, project, LEAKING, *options)
    assert code == 1, shown
    assert "8 passed" in shown
    leaks = [line for line in shown.splitlines() if line.startswith("LEAK: ")]
    for where, what, test in [
        ("log", "in-a-text", "text_of_the_log"),
        ("log", "in-a-field", "field_of_the_log"),
        ("log", "in-a-traceback", "traceback"),
        ("output of the service", "in-the-output", "output_of_the_service"),
        ("options of processes", "in-the-options", "everybody_on_the_machine"),
        ("files of the service", "in-a-file", "file_that_the_service"),
        ("answers", "in-an-answer", "in_an_answer"),
        ("log", "part of a private key", "test_of_a_key"),
    ]:
        found = [line for line in leaks if what in line and f" is in {where}, " in line]
        assert found, (what, shown)
        assert test in found[0]


def test_a_session_without_a_leak_ends_well(project, tmp_path):
    code, shown = session(tmp_path, project, HARMLESS)
    assert code == 0, shown
    assert "LEAK" not in shown


@pytest.mark.parametrize("text", ["short", "with a space in it", "not-in-ascii-ä"])
def test_what_could_not_be_searched_for_is_no_secret(text):
    with pytest.raises(AssertionError, match="no secret that can be searched for"):
        secret(text)
