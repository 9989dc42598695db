"""Fixtures that the tests of the SQLite broker share."""

from __future__ import annotations

import pytest

from tests.support.sqlite import Disk, OwnConnection


@pytest.fixture
def path(tmp_path):
    """Where a file of records may be made."""
    return tmp_path / "log.sqlite3"


@pytest.fixture
def disk(monkeypatch):
    """What the brokers' stores are asked, and whether they answer."""
    return Disk(monkeypatch)


@pytest.fixture
def own_connection(monkeypatch):
    """A hand on the connection of the broker that is made next."""
    return OwnConnection(monkeypatch)
