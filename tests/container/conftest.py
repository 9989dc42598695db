"""An image for all tests, and containers that end with theirs."""

from __future__ import annotations

import pytest

from tests.container.image import Image, why_not


@pytest.fixture(scope="session")
def image(tmp_path_factory, request):
    reason = why_not(tmp_path_factory.mktemp("try"))
    if reason is not None:
        pytest.skip(reason)
    return Image(project=request.config.rootpath, directory=tmp_path_factory.mktemp("image"))


@pytest.fixture
def start(image, tmp_path):
    started = []
    volume = tmp_path / "volume"
    volume.mkdir()

    def start(**environment):
        started.append(image.start(volume=volume, environment=environment))
        return started[-1]

    yield start
    for container in started:
        container.kill()
