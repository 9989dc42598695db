"""The types that answers are decoded into."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import msgspec
import pytest
from msgspec import inspect as types

import sampleapp.client


def decoded_types():
    """All types into which the client decodes: those of its decoders, and the structs for it alone."""
    for module in pkgutil.iter_modules(sampleapp.client.__path__, "sampleapp.client."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, msgspec.json.Decoder):
                yield value.type
            elif (
                inspect.isclass(value)
                and issubclass(value, msgspec.Struct)
                and value.__module__ == module.name
                and (name.startswith("_") or module.name.endswith("._messages"))
                and name not in sampleapp.client.__all__
            ):
                yield value


def structs_in(kind, seen):
    """All structs in a type, with those of their members."""
    if isinstance(kind, types.StructType) and kind.cls not in seen:
        seen.add(kind.cls)
        for field in kind.fields:
            structs_in(field.type, seen)
    for member in ("types", "item_types"):
        for each in getattr(kind, member, ()):
            structs_in(each, seen)
    for member in ("item_type", "value_type"):
        if hasattr(kind, member):
            structs_in(getattr(kind, member), seen)
    return seen


@pytest.mark.parametrize("kind", sorted(set(decoded_types()), key=str))
def test_no_type_of_the_service_is_decoded_so_that_it_may_get_members(kind):
    modules = {struct.__module__ for struct in structs_in(types.type_info(kind), set())}
    assert all(module.startswith("sampleapp.client.") for module in modules)
