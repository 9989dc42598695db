"""
A plugin of pytest: at its end, a session fails if the service has written a secret of the tests anywhere.

With pytest-xdist each process searches what was written in it, and tells the one that started it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from twisted.logger import formatEvent, globalLogPublisher

from tests.support.secrets import collected_in, find_leaks, record_output

FOUND = pytest.StashKey()


def _observe(event):
    """Keep an event as text, and all that a log of another format would show of it."""
    failure = event.get("log_failure")
    parts = [formatEvent(event), *(str(value) for value in event.values() if isinstance(value, str | bytes))]
    if failure is not None:
        parts += [failure.getTraceback(), repr(failure.value)]
    record_output("log", "\n".join(parts))


def pytest_sessionstart(session):
    """Begin to keep what is written."""
    session.config.stash[FOUND] = []
    collected_in(session.config._tmp_path_factory.mktemp("written"))  # noqa: SLF001 -- it has no public name
    globalLogPublisher.addObserver(_observe)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Search it."""
    globalLogPublisher.removeObserver(_observe)
    leaks = [str(leak) for leak in find_leaks()]
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["leaks"] = leaks
        return
    session.config.stash[FOUND] += leaks
    if session.config.stash[FOUND] and session.exitstatus in {
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    }:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Take over what one process of pytest-xdist has found."""
    output = getattr(node, "workeroutput", None)
    if isinstance(output, Mapping):
        node.config.stash[FOUND] += output.get("leaks", [])


def pytest_terminal_summary(terminalreporter, config):
    """Say what was found, and where."""
    for leak in config.stash[FOUND]:
        terminalreporter.line(f"LEAK: {leak}", red=True)
