"""Fixtures that the tests of the SQLite broker share."""

from __future__ import annotations

import pytest

from tests.support.sqlite import Disk, OwnConnection


@pytest.fixture
def path(tmp_path):
    """The path of a file of records that does not exist yet."""
    return tmp_path / "log.sqlite3"


@pytest.fixture
def disk(monkeypatch):
    """Counts the calls of the brokers' stores, and can let them hang."""
    return Disk(monkeypatch)


@pytest.fixture
def own_connection(monkeypatch):
    """A hand on the connection of the broker that is made next."""
    return OwnConnection(monkeypatch)
