"""
The permissions of files that the configuration names.

Only the rights of all users count here. The rights of the file's owner and group are the operator's decision:
secrets of Kubernetes and of systemd have a group that the service belongs to.
"""

from __future__ import annotations

import stat

__all__ = ["WRITABLE", "is_readable_by_all", "is_writable_by_all"]

WRITABLE = "every user of this machine may write to it; remove that permission (chmod o-w)"
"""The fault of a file that all users may write to, as the end of a sentence."""


def is_readable_by_all(mode: int) -> bool:
    """Return true if every user of this machine may read a file of this mode (`os.stat_result.st_mode`)."""
    return bool(mode & stat.S_IROTH)


def is_writable_by_all(mode: int) -> bool:
    """Return true if every user of this machine may write to a file of this mode."""
    return bool(mode & stat.S_IWOTH)
