"""The directory with the schemas of topics."""

from __future__ import annotations

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock

from sampleapp.errors import StartUpError
from sampleapp.service import reloads
from sampleapp.service.reloads import SchemaFiles
from sampleapp.validation.validation import Validation


def test_a_directory_with_too_many_entries_is_a_mistake_and_is_watched_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(reloads, "_MOST_ENTRIES", 3)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    validation = Validation(Clock(), limit=1)
    files = SchemaFiles(str(tmp_path), run=maybeDeferred, validation=validation)
    assert sorted(validation.current.by_topic) == ["a", "b"]
    assert files.paths() == [str(tmp_path), str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    (tmp_path / "c").mkdir()
    with pytest.raises(StartUpError, match="has more than 3 files and directories; give a directory"):
        SchemaFiles(str(tmp_path), run=maybeDeferred, validation=validation)
    assert files.paths() == [str(tmp_path)]
