"""Who may call, and what."""

from sampleapp.access.rights import Right

__all__ = ["Right"]
