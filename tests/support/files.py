"""Files for the tests."""

from __future__ import annotations


def written(path, content, *, mode=0o600):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path
