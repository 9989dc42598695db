"""The programs of the page about working through a topic go on after a restart of the service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from urllib.request import urlopen

import pytest

from tests.support.command import publish
from tests.support.live_service import LiveService
from tests.support.waiting import wait_until

pytestmark = pytest.mark.page

# Go compiles its standard library first.
DEADLINE_S = 120

PROGRAMS = {
    "requests": (sys.executable, "-W", "error", "work_with_requests.py"),
    "twisted": (sys.executable, "-W", "error", "work_with_twisted.py"),
    "fetch": ("node", "work_with_fetch.mjs"),
    "go": ("go", "run", "work_with_go.go"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_does_each_message_once_through_a_restart_of_the_service(project, tmp_path, name):
    *start, file = PROGRAMS[name]
    if shutil.which(start[0]) is None:
        pytest.skip(f"this machine cannot run the program with {name}")
    with LiveService(directory=tmp_path) as service, (tmp_path / "errors").open("w+") as errors:
        publish(service, "orders", "a", "b")
        # The program ends after four messages.
        command = [*start, project / "docs/howto" / file, service.url, "billing", "4"]
        environment = {**os.environ, "NO_PROXY": "*"}
        with (tmp_path / "output").open("w+") as output:
            program = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)

        def shown():
            return (tmp_path / "output").read_text(encoding="utf-8")

        try:
            wait_until(lambda: shown().count("\n") == 2, "it has done two messages", deadline_s=DEADLINE_S)
            port = service.url.rstrip("/").rpartition(":")[2]
            service.stop()
            with LiveService(directory=tmp_path, listen=f"tcp:{port}:interface=127.0.0.1") as again:
                publish(again, "orders", "c", "d")
                assert program.wait(DEADLINE_S) == 0
                with urlopen(f"{again.url}topics/orders/groups/billing") as group:
                    assert b'"backlog":0' in group.read()
        finally:
            program.kill()
            program.wait()
        errors.seek(0)
        assert (shown(), errors.read()) == ("0-0 a\n0-1 b\n0-2 c\n0-3 d\n", "")
