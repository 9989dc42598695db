"""The schemas of topics as they are from one reload to the next."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from sampleapp.messages.schemas import Schema


class SchemaVersion(Struct, frozen=True, eq=False):
    """The schemas of topics. A request is checked by one version."""

    number: int
    """Distinguishes it from other versions."""
    files: Mapping[str, bytes]
    """Their files, from which the process that checks contents compiles them; see `compile_schemas`."""
    by_topic: Mapping[str, Schema]
