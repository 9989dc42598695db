"""The number of examples that Hypothesis draws, relative to the profile."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

FEWEST = 10
"""Examples that a property has under every profile, unless it never has so many."""
FEWEST_OF_MACHINES = 20
"""As above, of state machines: in each example, Hypothesis leaves out some of the rules."""


def examples(number, **others):
    """
    Return settings for a property, or a state machine, that needs more or fewer examples than others.

    :param number: the examples under the profile ``all``, where other properties have 100. Another profile
        has the same proportion, but not too few.
    :param others: more settings.
    """
    fewest = FEWEST_OF_MACHINES if "stateful_step_count" in others else FEWEST
    proportional = number * settings().max_examples // 100
    return settings(max_examples=max(proportional, min(number, fewest)), **others)
