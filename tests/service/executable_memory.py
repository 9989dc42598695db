"""The service in a process whose memory cannot become executable (``MemoryDenyWriteExecute=`` of systemd)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import DEADLINE_S

WITHOUT_EXECUTABLE_MEMORY = """
import ctypes, os, sys
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    sys.exit(77)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def rejected_start(*options, directory):
    """Start the service with these options, and return what it says when it does not start."""
    twistd = str(Path(sys.executable).with_name("twistd"))
    done = subprocess.run(
        [
            *[sys.executable, "-c", WITHOUT_EXECUTABLE_MEMORY],
            *[twistd, "-n", "--pidfile=", "sampleapp", "--broker", "memory:", *options],
        ],
        check=False,
        cwd=directory,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    if done.returncode == 77:
        pytest.skip("this kernel cannot keep memory from becoming executable")
    assert done.returncode == 1
    return done.stdout
