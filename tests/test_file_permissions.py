"""Files that every user of the machine may change: by their own mode, or by a directory in their path."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from sampleapp.files import changeable_by_all

REPLACEABLE = (
    "every user of this machine may replace it, since they may write to the directory {}; remove that "
    "permission (chmod o-w), or mount the directory read-only"
)


@pytest.fixture
def tree(tmp_path):
    """A file in a safe directory, and beside that a directory that every user may write to."""
    for name, mode in (("safe", 0o755), ("open", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        (tmp_path / name / "file").write_text(name)
    return tmp_path


def fault_of(path):
    return changeable_by_all(path, path.stat().st_mode)


def test_a_file_in_safe_directories_is_not_changeable(tree):
    assert fault_of(tree / "safe" / "file") is None
    assert fault_of(tree / "open" / ".." / "safe" / "file") is not None
    (tree / "safe").chmod(0o2775)
    assert fault_of(tree / "safe" / "file") is None


def test_the_mode_of_the_file_comes_first(tree):
    (tree / "open" / "file").chmod(0o602)
    assert fault_of(tree / "open" / "file") == (
        "every user of this machine may write to it; remove that permission (chmod o-w)"
    )


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        (None, None, "open/file"),
        (None, None, "open/a/b/file"),
        ("safe/link", "../open/file", "safe/link"),
        ("safe/link", "{}/open/file", "safe/link"),
        ("safe/link", "../open", "safe/link/file"),
        ("open/link", "../safe/file", "open/link"),
        ("open/link", "../safe", "open/link/file"),
        ("safe/link", "../open/../safe", "safe/link/file"),
    ],
)
def test_any_directory_in_the_path_counts_also_of_symbolic_links(tree, link, target, path):
    (tree / "open" / "a" / "b").mkdir(parents=True)
    (tree / "open" / "a" / "b" / "file").touch()
    if link is not None:
        (tree / link).symlink_to(target.format(tree))
    fault = fault_of(tree / path)
    assert fault == REPLACEABLE.format(tree / "open")


def test_a_relative_path_begins_at_the_working_directory(tree, monkeypatch):
    monkeypatch.chdir(tree / "open")
    assert changeable_by_all("file", 0o600) is not None
    monkeypatch.chdir(tree / "safe")
    assert changeable_by_all("file", 0o600) is None
    assert changeable_by_all("../open/file", 0o600) is not None


def test_in_a_sticky_directory_an_entry_of_its_owner_of_root_or_of_ones_own_is_safe(tree):
    sticky = tree / "open"
    sticky.chmod(0o1777)
    assert fault_of(sticky / "file") is None
    assert changeable_by_all(sticky / "none yet", None) is None
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    for entry in (sticky / "file", sticky / "directory"):
        entry.mkdir(exist_ok=True) if entry.name == "directory" else entry.touch()
        os.chown(entry, 12345, -1)
    (sticky / "directory" / "file").touch()
    for path, entry in (("file", "file"), ("directory/file", "directory")):
        assert fault_of(sticky / path) == (
            f"every user of this machine may add to the directory {sticky}, and {sticky / entry} belongs to "
            "another user; move it to a directory of your own"
        )
    os.chown(sticky, 12345, -1)
    assert fault_of(sticky / "file") is None


def test_the_secrets_of_kubernetes_are_safe(tree, monkeypatch):
    # The kubelet makes the directory, and links that it replaces at once when the secret changes.
    mount = tree / "open"
    (mount / "..2026_11_26").mkdir()
    (mount / "..2026_11_26" / "callers.toml").touch(0o440)
    (mount / "..data").symlink_to("..2026_11_26")
    (mount / "callers.toml").symlink_to("..data/callers.toml")
    assert fault_of(mount / "callers.toml") is not None
    mount.chmod(0o1777)
    assert fault_of(mount / "callers.toml") is None
    mount.chmod(0o777)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    assert fault_of(mount / "callers.toml") is None


def test_links_without_an_end_are_an_error(tree):
    (tree / "safe" / "a").symlink_to("b")
    (tree / "safe" / "b").symlink_to("a")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        changeable_by_all(tree / "safe" / "a", 0o600)


def test_an_absolute_path_is_examined_also_when_the_working_directory_is_deleted(tree, monkeypatch):
    (tree / "gone").mkdir()
    monkeypatch.chdir(tree / "gone")
    (tree / "gone").rmdir()
    assert fault_of(tree / "safe" / "file") is None
    assert fault_of(tree / "open" / "file") is not None
