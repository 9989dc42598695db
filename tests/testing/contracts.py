"""Checks that the contracts of brokers notice brokers that break a promise."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree as ET


def check_contract(directory, brokers, tests, test, broken):
    """
    Run the tests of a contract: all with a right broker, and one with each that breaks a promise.

    :param brokers: the source of a module with the brokers; ``Right`` is the right one.
    :param tests: the beginning of the source of a module with the tests.
    :param test: the source of a class with the tests of one broker, with ``{name}``.
    :param broken: the name of the test that fails, by the name of the broker.
    """
    (directory / "theirs.py").write_text(brokers)
    source = tests + "".join(test.format(name=name) for name in ("Right", *broken))
    (directory / "test_theirs.py").write_text(source)
    report = directory / "report.xml"
    options = ["-q", "-c", "/dev/null", "--rootdir", str(directory), f"--junitxml={report}"]
    chosen = ["TestRight", *(f"Test{name}::{test}" for name, test in broken.items())]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"test_theirs.py::{each}" for each in chosen)],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    cases = list(ET.parse(report).iter("testcase"))
    # The right broker has run more tests than the broken ones.
    assert len(cases) >= len(broken) + len(set(broken.values())), done.stdout
    failed = {case.get("classname").rpartition(".Test")[2]: case.get("name") for case in cases if list(case)}
    assert failed == broken, done.stdout
