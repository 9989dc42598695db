"""What the service asks of the process in which it is the only thing."""

from __future__ import annotations

import sys

import pytest
from twisted.application.service import Service
from twisted.internet.task import Clock

from sampleapp.service.systemd import Supervision
from sampleapp.service.tap import TwistdService


@pytest.fixture
def switch_interval():
    """Leave it as it was."""
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


def test_while_it_runs_other_threads_do_not_wait_long_for_the_interpreter(switch_interval):
    supervision = Supervision.from_environment({}, clock=Clock(), reasons=list)
    TwistdService(Service(), supervision=supervision).startService()
    assert sys.getswitchinterval() <= switch_interval / 20
