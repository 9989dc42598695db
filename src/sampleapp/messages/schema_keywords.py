"""
The keywords of JSON Schema: which ones a draft has, and which ones make the time of a check linear.

Sources: the meta-schemas of drafts 4, 6, 7, 2019-09 and 2020-12, https://json-schema.org/specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

import msgspec
from msgspec import Struct

from sampleapp.errors import pointer_token, shown

_OF_A_SCHEMA: Final = frozenset(
    (
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items"),
        *("not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    )
)
"""Keywords whose value is a schema."""
_OF_SCHEMAS: Final = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems"))
"""Keywords whose value is a list of schemas; ``items`` is until draft 2019-09."""
_OF_NAMED_SCHEMAS: Final = frozenset(
    ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
)
"""Keywords whose value has schemas as its members."""

_DRAFT_4: Final = frozenset(
    (
        *("$ref", "$schema", "additionalItems", "additionalProperties", "allOf", "anyOf", "default"),
        *("definitions", "dependencies", "description", "enum", "exclusiveMaximum", "exclusiveMinimum"),
        *("format", "id", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems"),
        *("minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern"),
        *("patternProperties", "properties", "required", "title", "type", "uniqueItems"),
    )
)
_DRAFT_6: Final = (_DRAFT_4 - {"id"}) | {"$id", "const", "contains", "examples", "propertyNames"}
_DRAFT_7: Final = _DRAFT_6 | {
    *("$comment", "contentEncoding", "contentMediaType", "else", "if", "readOnly", "then", "writeOnly"),
}
_DRAFT_2019: Final = _DRAFT_7 | {
    *("$anchor", "$defs", "$recursiveAnchor", "$recursiveRef", "$vocabulary", "contentSchema"),
    *("dependentRequired", "dependentSchemas", "deprecated", "maxContains", "minContains"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
_DRAFT_2020: Final = (_DRAFT_2019 - {"$recursiveAnchor", "$recursiveRef", "additionalItems"}) | {
    *("$dynamicAnchor", "$dynamicRef", "prefixItems"),
}
_DRAFTS: Final[Mapping[str, frozenset[str]]] = {
    "json-schema.org/draft-04/schema": _DRAFT_4,
    "json-schema.org/draft-06/schema": _DRAFT_6,
    "json-schema.org/draft-07/schema": _DRAFT_7,
    "json-schema.org/draft/2019-09/schema": _DRAFT_2019,
    "json-schema.org/draft/2020-12/schema": _DRAFT_2020,
}
"""The keywords of each draft, by its ``$schema`` without the scheme and an empty fragment."""

_ALL: Final = frozenset[str]().union(*_DRAFTS.values())

_MOST_WARNINGS: Final = 20
_SIMILARITY: Final = 0.75
_LONGEST_COMPARED: Final = 40
"""Characters of a keyword; difflib takes quadratic time."""

_ANNOTATIONS: Final = frozenset(
    (
        *("$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description"),
        *("examples", "readOnly", "title", "writeOnly"),
    )
)
"""Keywords that are not checked themselves."""
_LINEAR: Final = frozenset(
    (
        *("additionalProperties", "allOf", "anyOf", "const", "else", "enum", "exclusiveMaximum"),
        *("exclusiveMinimum", "if", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems"),
        *("minLength", "minProperties", "minimum", "not", "oneOf", "prefixItems", "properties", "required"),
        *("then", "type"),
    )
)
"""Keywords that take time in proportion to what they say, for each value and each byte of it."""
_CONSTANTS: Final = ("const", "enum")
"""Not with numbers: to compare one with a fraction takes a microsecond."""
_LINEAR_FORMATS: Final = frozenset(
    ("date", "date-time", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
_SIZE_OF_A_PATTERN: Final = 50
"""That of so many values."""


class UnknownKeyword(Struct, frozen=True):
    """A member of a schema that has no meaning."""

    pointer: str
    """Its place in the document."""
    name: str
    nearest: str | None
    """A keyword that was perhaps meant."""


def keyword_warnings(files: Mapping[str, bytes], *, directory: str) -> Iterator[str]:
    """
    Yield a sentence for each member of a schema that is not a keyword of its draft, up to a limit.

    :param files: valid schemas, by their path in the directory.
    :param directory: its name for messages.
    """
    found = (
        (name, each) for name, text in files.items() for each in unknown_keywords(msgspec.json.decode(text))
    )
    for name, unknown in islice(found, _MOST_WARNINGS):
        meant = "" if unknown.nearest is None else f" Is {unknown.nearest} meant?"
        yield (
            f"--schemas: {directory}/{name}, at {unknown.pointer}: {shown(unknown.name)} is not a keyword of "
            f"the schema's draft, and has no effect.{meant}"
        )
    more = sum(1 for _ in found)
    if more:
        yield f"--schemas: {more} more members of schemas in {directory} are not keywords."


def unknown_keywords(document: Any) -> Iterator[UnknownKeyword]:
    """
    Yield the members of schemas that are not keywords of their draft; none if the draft is not known.

    :param document: a valid schema.
    """
    rest: list[tuple[str, Any, frozenset[str]]] = [("", document, _DRAFT_2020)]
    while rest:
        at, schema, known = rest.pop()
        if not isinstance(schema, dict):
            continue
        draft = schema.get("$schema")
        if isinstance(draft, str):
            known = _DRAFTS.get(draft.removesuffix("#").partition("://")[2], frozenset())
        if not known:
            continue
        for name in schema:
            if name not in known:
                close = get_close_matches(name[:_LONGEST_COMPARED], known, n=1, cutoff=_SIMILARITY)
                yield UnknownKeyword(f"{at}/{pointer_token(name)}", name, close[0] if close else None)
        rest += [(f"{at}{place}", each, known) for place, each in reversed([*_subschemas(schema, known)])]


def _subschemas(schema: Mapping[str, Any], known: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield the pointers of the schemas directly in a schema, from it, and these schemas."""
    for name, value in schema.items():
        if name not in known:
            continue
        if name in _OF_SCHEMAS and isinstance(value, list):
            yield from ((f"/{name}/{number}", each) for number, each in enumerate(value))
        elif name in _OF_NAMED_SCHEMAS and isinstance(value, dict):
            yield from ((f"/{name}/{pointer_token(key)}", each) for key, each in value.items())
        elif name in _OF_A_SCHEMA:
            yield f"/{name}", value


Target = Callable[[str, str], "tuple[str, Any] | None"]
"""Returns the URI and the value of a reference, from the URI of its document; ``None`` if it is not known."""


def size_if_linear(document: Any, uri: str, target: Target, *, most: int) -> int | None:
    """
    Return the size of a schema whose checks take linear time: that of the content times this size, at most.

    Each value of a content is compared at most once with each schema, if those that references lead to count
    as often as there are references to them. So the size is the number of values in the schema, with its
    references replaced. A recursive one has no size.

    :param uri: of the document.
    :param most: the greatest size.
    :return: ``None`` if a keyword may take more than linear time, or the size is greater.
    """
    size = 0
    rest: list[tuple[str, Any]] = [(uri, document)]
    while rest:
        uri, schema = rest.pop()
        size += 1
        if size > most:
            return None
        if not isinstance(schema, dict):
            continue
        parts = _parts(uri, schema, target)
        if parts is None:
            return None
        inner, own = parts
        rest += inner
        size += own
    return size


def _parts(uri: str, schema: dict[str, Any], target: Target) -> tuple[list[tuple[str, Any]], int] | None:
    """
    Return the schemas that a schema consists of, each with the URI of its document, and its other values.

    :return: ``None`` if a keyword may take more than linear time.
    """
    parts: list[tuple[str, Any]] = []
    size = 0
    base = _base(uri, schema)
    if base is None:
        return None
    for name, value in schema.items():
        if name in _ANNOTATIONS or name not in _ALL:
            continue
        if name == "$ref":
            found = target(base, value) if isinstance(value, str) else None
            if found is None:
                return None
            parts.append(found)
        elif name in _CONSTANTS and _has_number(value):
            return None
        elif name in _LINEAR:
            inner, own = _inner(name, value)
            parts += [(base, each) for each in inner]
            size += own
        elif name == "pattern":
            size += _SIZE_OF_A_PATTERN
        elif name != "format" or not isinstance(value, str) or value not in _LINEAR_FORMATS:
            return None
    return parts, size


def _base(uri: str, schema: Mapping[str, Any]) -> str | None:
    """Return the URI for the references in a schema; ``None`` if this depends on the draft."""
    own = schema.get("$id")
    if own is None:
        return uri
    try:
        # Until draft 7, the keywords next to a reference have no effect.
        return urldefrag(urljoin(uri, own))[0] if isinstance(own, str) and "$ref" not in schema else None
    except ValueError:
        return None


def _inner(name: str, value: Any) -> tuple[list[Any], int]:
    """Return the schemas in the value of a keyword, and the number of its other values."""
    if name in _OF_NAMED_SCHEMAS and isinstance(value, dict):
        return [*value.values()], 0
    if name in _OF_SCHEMAS and isinstance(value, list):
        return value, 0
    return ([value], 0) if name in _OF_A_SCHEMA else ([], _values(value))


def _values(value: Any) -> int:
    """Return the number of values in a value, itself included."""
    return sum(1 for _ in _each(value))


def _has_number(value: Any) -> bool:
    return any(isinstance(each, int | float) and not isinstance(each, bool) for each in _each(value))


def _each(value: Any) -> Iterator[Any]:
    rest = [value]
    while rest:
        each = rest.pop()
        yield each
        if isinstance(each, dict):
            rest += each.values()
        elif isinstance(each, list):
            rest += each
