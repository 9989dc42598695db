"""A short ``make chaos``, and one with gateways that lie."""

from __future__ import annotations

import pytest

from tests.chaos.lying_gateway import LyingGateway
from tests.chaos.run import Chaos
from tests.real_kafka.versions import SHARE_GROUPS

pytestmark = [pytest.mark.one_version, pytest.mark.timeout(900)]

SECONDS = 100
SEED = 405
"""One whose first fault is an unclean election."""
SPARING_SEED = 373
"""One whose only fault takes no lease away, so that it excuses no lie about leases."""


def test_every_promise_is_kept_while_everything_goes_wrong_that_may(version, tmp_path):
    assert Chaos(version=version, seed=SEED, directory=tmp_path).run(seconds=SECONDS) == []


@pytest.mark.release
def test_gateways_that_lie_are_found_out(version, tmp_path):
    made = []

    def lying(url):
        made.append(LyingGateway(url))
        return made[-1].url

    chaos = Chaos(version=version, seed=SPARING_SEED, directory=tmp_path, catch_up_s=10, before=lying)
    try:
        findings = chaos.run(seconds=15)
    finally:
        for each in made:
            each.close()
    expected = ["is lost", "is elsewhere", "is stored more than once", "never got"]
    if SHARE_GROUPS.is_in(version):
        assert chaos.counts["faults"] == {"partitions_added": 1}
        expected += ["within a lease", "wrong number of attempts", "given after it was done"]
    assert not [words for words in expected if not any(words in each for each in findings)]
    assert not [each for each in findings if " logged" in each]
