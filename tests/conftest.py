"""Fixtures that every test shares."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import signal
from pathlib import Path

import hypothesis
import pytest
import pytest_twisted
from twisted.internet.task import deferLater
from twisted.logger import globalLogBeginner

from sampleapp_testing import failures_collected
from tests.real_kafka.distribution import why_not

pytest_plugins = ["tests.support.leaks"]

DOCS = Path(__file__).with_name("docs")
REAL_KAFKA = Path(__file__).with_name("real_kafka")
CONTAINER = Path(__file__).with_name("container")

hypothesis.settings.register_profile(
    "all",
    # Deferreds wait for the reactor and the disk: how long an example takes says nothing here.
    deadline=None,
    # The examples on disk would make a run depend on the runs before it.
    database=None,
    # A busy machine is slow to draw examples, which is no fault of the strategy.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# Most faults show in a few examples; --hypothesis-profile=all looks for the rare ones.
hypothesis.settings.register_profile("few", hypothesis.settings.get_profile("all"), max_examples=10)
hypothesis.settings.load_profile("few")


def _names(config, directory):
    named = [Path(str(argument).split("::", maxsplit=1)[0]).absolute() for argument in config.args]
    return any(path == directory or directory in path.parents for path in named)


def pytest_ignore_collect(collection_path, config):
    """Leave out, unless they are asked for, the tests that take Java, or root, and long."""
    return (
        True if collection_path in (REAL_KAFKA, CONTAINER) and not _names(config, collection_path) else None
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "slow: takes many seconds of CPU; not run by make test, but by .ci/run"
    )
    config.addinivalue_line(
        "markers", "page: runs commands or a program of a page; only if tests/docs is named, as by make check"
    )


def pytest_collection_modifyitems(config, items):
    """Leave out, unless they are asked for, the tests that run the commands and programs of pages."""
    if not _names(config, DOCS):
        pages = {each for each in items if each.get_closest_marker("page")}
        config.hook.pytest_deselected(items=list(pages))
        items[:] = [each for each in items if each not in pages]


def pytest_terminal_summary(terminalreporter, config):
    """Say that those against real Kafka were left out, and whether they could be run."""
    if _names(config, REAL_KAFKA) or config.args != config.getini("testpaths"):
        return
    reason = why_not() or "make test-kafka runs them, which takes a while"
    terminalreporter.line(f"The tests against real Kafka were skipped: {reason}.")


def pytest_sessionstart():
    """Prepare the process of the tests."""
    # Until logging begins, Twisted keeps the last 65,536 events, and with them the objects that logged them.
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    # Around each test pytest asks for the version of Twisted, and each time all of its metadata was parsed.
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    # Ctrl-C ends what the tests start, also where the tests run in the background, which ignores it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Keep what is imported by now out of the collections that follow each test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol():
    """Keep what outlives a test out of the collections after all later ones, which would grow with it."""
    result = yield
    # What is frozen is never collected, and some things went only now: the arguments of the test.
    gc.collect()
    gc.freeze()
    return result


@pytest.fixture(autouse=True)
def no_failure_is_lost():
    """Fail a test that leaves a failure unhandled in a Deferred, or logs one that it does not expect."""
    # To import it makes it, which is up to pytest-twisted.
    from twisted.internet import reactor

    with failures_collected() as failures:
        yield failures
        # Until its next turn, the greenlet of the reactor has the frames of the test, and what they refer to.
        pytest_twisted.blockon(deferLater(reactor, 0))


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the project's own tree."""
    return Path(__file__).parent.parent
