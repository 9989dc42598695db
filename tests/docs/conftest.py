"""The documentation as HTML, and a browser, for the tests of its pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chromium import Chromium


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The documentation as HTML."""
    directory = tmp_path_factory.mktemp("html")
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "html", Path(__file__).parents[2] / "docs", directory],
        check=True,
        timeout=300,
    )
    return directory


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    with Chromium(directory=tmp_path_factory.mktemp("browser")) as browser:
        yield browser
