"""A service that the tests of the command share."""

from __future__ import annotations

import pytest

from tests.support.live_service import LiveService


@pytest.fixture(scope="package")
def service(tmp_path_factory):
    with LiveService(directory=tmp_path_factory.mktemp("cli")) as service:
        yield service
