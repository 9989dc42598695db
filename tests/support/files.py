"""Files for the tests."""

from __future__ import annotations


def written(path, content, *, mode=0o600):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def in_place(path, text):
    path.write_text(text)


def by_rename(path, text):
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def by_link(path, text):
    """As Kubernetes replaces a volume: the link to the directory turns, and files are links through it."""
    directory = path.parent
    target = directory / f"..{len(list(directory.iterdir()))}"
    target.mkdir()
    (target / path.name).write_text(text)
    data, new = directory / "..data", directory / "..data_new"
    new.symlink_to(target.name)
    new.replace(data)
    path.unlink(missing_ok=True)
    path.symlink_to(f"..data/{path.name}")
