"""Failures that were dealt with."""

from __future__ import annotations

from twisted.python.failure import Failure

from sampleapp.errors import forget_frames

__all__ = ["forget_frames_of"]


def forget_frames_of(failure: Failure) -> None:
    """
    Drop the tracebacks of a failure, and of its error, as `sampleapp.errors.forget_frames` does.

    `Failure.cleanFailure` formats each frame, which takes as long as many requests.
    """
    failure.tb = None
    forget_frames(failure.value)
