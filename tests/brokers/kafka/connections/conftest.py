"""Fixtures of the tests of connections."""

from __future__ import annotations

import pytest
from twisted.logger import LogLevel, globalLogPublisher

from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def warnings():
    events = []

    def observe(event):
        if event["log_level"] is LogLevel.warn:
            events.append(event["log_format"].format(**event))

    globalLogPublisher.addObserver(observe)
    yield events
    globalLogPublisher.removeObserver(observe)
