"""
JSON Schemas of topics: compile them, and check the contents of messages.

The library is loaded by `compile_schemas`, and cannot be interrupted: what a check may take is limited before
it begins. Regular expressions take linear time, except those with look-around or back references. Their
backtracking is limited, but look-around may search the rest of a string again at each character.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote, urldefrag, urljoin

import msgspec
from msgspec import Struct

from sampleapp.errors import Fault, MalformedMessage, SchemaMismatch, StartUpError, pointer_token, shown
from sampleapp.messages.json_text import require_json
from sampleapp.model import is_legal_topic

if TYPE_CHECKING:
    import jsonschema_rs


_BASE: Final = "file:///"
"""For references between the files. Nothing is read there: all documents are given."""
_BACKTRACKS: Final = 10_000
"""Steps of a regular expression with look-around: less than a millisecond."""
_MOST_LOOK_AROUND: Final = 2048
"""Bytes of a content for a schema with such an expression: up to 8 ms, as this takes quadratic time."""

_FEW_OBJECTS: Final = 1024
"""The bytes of a content whose values are too few to start the garbage collector."""
_MOST_WORK: Final = 150_000
"""
The most commas and, four times as dear, colons and opening brackets of a content outside of strings.

The decoder takes up to 7 ms for this many. If a schema has keywords that take longer, it is divided by the
sum of these costs for one value.
"""
_COSTS: Final = {"contains": 3, "uniqueItems": 4, "multipleOf": 10}
_FRACTION_COST: Final = 10
"""To compare numbers takes up to a microsecond, if one of them has a fraction."""
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_ALTERNATIVES_OF_A_COST: Final = 5
_MOST_STEPS: Final = 400
"""Steps in which faults are collected, of up to 20 µs each: that of one missing member, or of four values."""
_VALUES_IN_A_STEP: Final = 4
_BYTES_IN_A_STEP: Final = 160
"""To show a long number takes longer."""
_MOST_FAULTS: Final = 100
_ALTERNATIVES: Final = ("allOf", "anyOf", "oneOf", "patternProperties", "dependentSchemas", "dependencies")
_DYNAMIC: Final = ("$dynamicRef", "$recursiveRef")
_LONGEST_CHAIN: Final = 100
_NOWHERE: Final = "urn:invalid"
"""The place of a reference that is not a URI."""

_LONGEST_TOKEN: Final = 200
_LONGEST_POINTER: Final = 1000
_LONGEST_VALUE: Final = 200
_MOST_BRANCHES: Final = 3

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ESCAPED_COLON: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u003[aA]")

_REQUIREMENTS: Final = {
    "const": "must be {}",
    "contentEncoding": "must be encoded in {}",
    "contentMediaType": "must be of the media type {}",
    "enum": "must be one of {}",
    "exclusiveMaximum": "must be less than {}",
    "exclusiveMinimum": "must be greater than {}",
    "format": "must have the format {}",
    "maxItems": "must have at most {} items",
    "maxLength": "must have at most {} characters",
    "maxProperties": "must have at most {} members",
    "maximum": "must be at most {}",
    "minItems": "must have at least {} items",
    "minLength": "must have at least {} characters",
    "minProperties": "must have at least {} members",
    "minimum": "must be at least {}",
    "multipleOf": "must be a multiple of {}",
    "pattern": "must match the pattern {}",
}
"""By keyword: what is right, with the keyword's value."""
_RULES: Final = {
    "contains": "must have items as the schema's contains describes them",
    "falseSchema": "has a value, or a member, that the schema does not allow",
    "not": "must not match the schema under not",
    "propertyNames": "has a member whose name does not match propertyNames of the schema",
    "uniqueItems": "must not have two equal items",
}
_NOT_MATCHED: Final = ("BacktrackLimitExceeded", "RegexEngineFailure")
_UNEXPECTED: Final = ("additionalProperties", "unevaluatedProperties", "additionalItems", "unevaluatedItems")
_TYPES: Final = {
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}

_T = TypeVar("_T")

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class _NotChecked(Exception):
    """A content has no values that could match. The message is a sentence for the caller."""


class Schema(Struct, frozen=True):
    """The schema of a topic."""

    text: bytes
    """Its file, as it is."""
    validator: jsonschema_rs.Validator
    alternatives: int
    """The most schemas that one keyword applies to a value."""
    required: int
    """The most members that one keyword requires of an object."""
    most_work: int
    """The most work of a content that can be checked; see `_MOST_WORK`."""
    has_look_around: bool
    """True if a pattern has look-around or back references."""
    is_recursive: bool
    """True if a reference leads to itself, so that work may multiply at each level of a content."""

    def matches(self, content: bytes) -> bool:
        """Check a content without naming its faults."""
        return _uncollected(content, self._matches, content)

    def _matches(self, content: bytes) -> bool:
        try:
            return self.validator.is_valid(self._value_of(content))
        except _NotChecked:
            return False

    def faults(self, content: bytes, *, at: str = "") -> list[Fault]:
        """
        Return the faults of a content: none if it matches.

        A large content, or a deep one with a recursive schema, has one fault: to collect all takes too long.

        :param content: the value of a record.
        :param at: the pointer to the content in its request.
        """
        return _uncollected(content, self._faults, content, at)

    def _faults(self, content: bytes, at: str) -> list[Fault]:
        try:
            value = self._value_of(content)
        except _NotChecked as error:
            return [Fault(at, str(error))]
        if self.validator.is_valid(value):
            return []
        found: list[Fault] = []
        for mismatch in self._errors(value, len(content)):
            found += [Fault(f"{at}{_pointer(path)}", f"{detail}.") for path, detail in _details(mismatch)]
            if len(found) >= _MOST_FAULTS:
                break
        return found[:_MOST_FAULTS] or [Fault(at, "The content does not match the schema of the topic.")]

    def _value_of(self, content: bytes) -> Any:
        """:raise _NotChecked: it is not JSON, takes too long to check, or has a repeated member."""
        if self.has_look_around and len(content) > _MOST_LOOK_AROUND:
            raise _NotChecked(
                f"The content has more than {_MOST_LOOK_AROUND} bytes, the most for a schema with "
                "look-around or back references in a pattern."
            )
        if _is_too_much(content, self.most_work):
            raise _NotChecked("The content has too many values to be checked against the topic's schema.")
        try:
            value = _decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _NotChecked(_not_json(content, error)) from error
        if _repeats_a_member(content, value):
            raise _NotChecked("A member is there more than once in the content.")
        return value

    def _errors(self, value: Any, length: int) -> Iterator[jsonschema_rs.ValidationError]:
        values, objects, depth = _size(value)
        at_each = 1 + self.alternatives
        steps = objects * self.required + values * at_each // _VALUES_IN_A_STEP + length // _BYTES_IN_A_STEP
        if steps * (at_each**depth if self.is_recursive else 1) <= _MOST_STEPS:
            yield from self.validator.iter_errors(value)
        elif not self.is_recursive:
            try:
                self.validator.validate(value)
            except ValueError as error:
                # On newer Pythons, the frames of its traceback would keep the value until a collection.
                yield error.with_traceback(None)  # type: ignore[misc]  # ValidationError; its module is optional


class Schemas:
    """The schemas of topics as they are now."""

    def __init__(self, by_topic: Mapping[str, Schema]) -> None:
        self.use(by_topic)

    def use(self, by_topic: Mapping[str, Schema]) -> None:
        """Replace the schemas."""
        self.by_topic = by_topic

    def check(self, topic: str, content: bytes | None, *, at: str = "") -> None:
        """
        Check the content of a message.

        :param content: the value of its record; ``None`` for a tombstone, which always matches.
        :param at: the pointer to the content in its request.
        :raise SchemaMismatch: the topic has a schema, and the content does not match it.
        """
        schema = self.by_topic.get(topic)
        if schema is not None and content is not None:
            faults = schema.faults(content, at=at)
            if faults:
                raise SchemaMismatch(faults)


def compile_schemas(files: Mapping[str, bytes], *, directory: str) -> dict[str, Schema]:
    """
    Compile the schemas of topics.

    :param files: the contents of all files, by their path in the directory, with ``/``. Those without ``/``
        are schemas of topics; all may be referred to, by their path or their ``$id``.
    :param directory: its name for messages.
    :return: the schemas by topic.
    :raise StartUpError: the library is not installed, or a file is not a schema.
    """
    try:
        import jsonschema_rs
    except ImportError as error:
        raise StartUpError(
            "--schemas needs the package jsonschema-rs, which is not installed: install "
            "sampleapp-http-gateway[schemas]."
        ) from error
    names: dict[str, str] = {}
    documents: dict[str, Any] = {}
    for name, text in files.items():
        document = _document(name, text, directory=directory)
        own = _uri(name)
        given = document.get("$id", document.get("id")) if isinstance(document, dict) else None
        for uri in {own, _place(own, given)[0]} if isinstance(given, str) else {own}:
            if uri in documents:
                raise _mistake(directory, name, "/$id", f"is that of {names[uri]}, too; each has its own")
            documents[uri], names[uri] = document, name
    schemas = {}
    for name, text in files.items():
        uri = _uri(name)
        try:
            validator = jsonschema_rs.validator_for(
                documents[uri],
                base_uri=uri,
                retriever=documents.__getitem__,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS),
                mask="\N{HORIZONTAL ELLIPSIS}",
            )
        except ValueError as error:
            raise _invalid(error, documents, uri, directory=directory, name=name) from error
        if "/" not in name:
            members = [each for document in _used(uri, documents) for each in _members(document)]
            schemas[name.removesuffix(".json")] = Schema(
                text,
                validator,
                alternatives=_longest(members, _ALTERNATIVES),
                required=_longest(members, ("required", "dependentRequired")),
                most_work=_MOST_WORK // _cost_of_a_value(members),
                has_look_around=any(map(_has_look_around, _patterns(members))),
                is_recursive=_Walk(documents).is_recursive(uri),
            )
    if not schemas:
        raise StartUpError(
            f"--schemas: {directory} has no schema; the file TOPIC.json in it is the schema of that topic."
        )
    return schemas


def _document(name: str, text: bytes, *, directory: str) -> Any:
    if "/" not in name and not is_legal_topic(name.removesuffix(".json")):
        raise _mistake(
            directory, name, "", "its name is not that of a topic with .json; move it to a subdirectory"
        )
    if not text.strip():
        raise _mistake(directory, name, "", "it is empty; a schema that any content matches is {}")
    try:
        require_json(text, source="file")
        document = _decode(text)
    except MalformedMessage as error:
        raise StartUpError(f"--schemas: {directory}/{name}: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _mistake(directory, name, "", _reason(error)) from error
    if not isinstance(document, dict | bool):
        raise _mistake(directory, name, "", "it is not a schema, which is an object, true or false")
    if _repeats_a_member(text, document):
        raise _mistake(directory, name, "", "a member is there more than once; remove one of them")
    return document


def _invalid(
    error: ValueError, documents: Mapping[str, Any], uri: str, *, directory: str, name: str
) -> StartUpError:
    if getattr(error, "instance_path", ()):
        path, reason = next(_details(error))
        return _mistake(directory, name, _pointer(path), reason)
    wrong = _Walk(documents).wrong_reference(uri)
    if wrong is not None:
        at, target = wrong
        return _mistake(
            directory,
            name,
            at,
            f"refers to {shown(target)}, which is not in the directory; references must be to a place in "
            "its files, and nothing is fetched",
        )
    return _mistake(directory, name, "", str(getattr(error, "message", error)))


def _mistake(directory: str, name: str, at: str, why: str) -> StartUpError:
    place = f", at {at}" if at else ""
    return StartUpError(f"--schemas: {directory}/{name}{place}: {why}.")


class _Walk:
    """Follows the references of documents."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self._done: set[str] = set()

    def wrong_reference(self, uri: str) -> tuple[str, str] | None:
        """Return the place and the target of a reference that leads nowhere, if there is one."""
        for at, _, target in _references(self._documents[uri]):
            if self._value_at(*_place(uri, target)) is None:
                return at, target
        return None

    def is_recursive(self, uri: str, above: tuple[str, ...] = ()) -> bool:
        """Return true if a reference leads to a place that it is in, or to one that is not known."""
        value = self._value_at(*_place(uri, ""))
        if value is None:
            return True
        for _, keyword, target in _references(value):
            place = "#".join(_place(uri, target))
            # A longer chain of references is checked as if it were recursive.
            if keyword in _DYNAMIC or place in above or len(above) >= _LONGEST_CHAIN:
                return True
            if place not in self._done and self.is_recursive(place, (*above, place)):
                return True
        self._done.add(uri)
        return False

    def _value_at(self, document: str, fragment: str) -> Any:
        """Return the value at a place; ``None`` if there is none, or it is named by an anchor."""
        value = self._documents.get(document)
        if not fragment.startswith("/"):
            return None if fragment else value
        for token in fragment.split("/")[1:]:
            key = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and key.isdecimal():
                value = value[int(key)] if int(key) < len(value) else None
            else:
                value = value.get(key) if isinstance(value, dict) else None
        return value


def _members(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the pointer of the object, the name and the value of each member at any depth."""
    rest = [("", value)]
    while rest:
        at, value = rest.pop()
        if isinstance(value, dict):
            for name, member in value.items():
                yield at, name, member
                rest.append((f"{at}/{pointer_token(name)}", member))
        elif isinstance(value, list):
            rest += [(f"{at}/{number}", member) for number, member in enumerate(value)]


def _references(value: Any) -> Iterator[tuple[str, str, str]]:
    for at, name, target in _members(value):
        if name in ("$ref", *_DYNAMIC) and isinstance(target, str):
            yield f"{at}/{name}", name, target


def _uri(name: str) -> str:
    # Names of files need not be UTF-8.
    return _BASE + quote(name, errors="surrogateescape")


def _place(base: str, reference: str) -> tuple[str, str]:
    """Return the document and the fragment that a reference leads to."""
    try:
        document, fragment = urldefrag(urljoin(base, reference))
    except ValueError:
        return _NOWHERE, ""
    return document, fragment


def _used(uri: str, documents: Mapping[str, Any]) -> list[Any]:
    """Return a document and those that its references lead to: all documents, if one is not known."""
    found = [uri]
    for each in found:
        for _, _, target in _references(documents[each]):
            document, _ = _place(each, target)
            if document not in documents:
                return list(documents.values())
            if document not in found:
                found.append(document)
    return [documents[each] for each in found]


def _longest(members: Iterable[tuple[str, str, Any]], names: Sequence[str]) -> int:
    """Return the number of members of the longest list, or object, with one of these names."""
    lists = (value for _, name, value in members if name in names and isinstance(value, list | dict))
    return max(map(len, lists), default=0)


def _patterns(members: Iterable[tuple[str, str, Any]]) -> Iterator[str]:
    for _, name, value in members:
        if name == "pattern" and isinstance(value, str):
            yield value
        elif name == "patternProperties" and isinstance(value, dict):
            yield from value


def _has_look_around(pattern: str) -> bool:
    import jsonschema_rs

    try:
        # This engine has neither look-around nor back references.
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions())
    except ValueError:
        return True
    return False


def _cost_of_a_value(members: Iterable[tuple[str, str, Any]]) -> int:
    """Return about the time to check a value, in times that the decoder takes for it."""
    costs: Counter[str] = Counter()
    for at, name, value in members:
        costs[at] += _cost(name, value)
    return 1 + max(costs.values(), default=0)


def _cost(name: str, value: Any) -> int:
    if name in _ALTERNATIVES and isinstance(value, list | dict):
        return len(value) // _ALTERNATIVES_OF_A_COST
    if name in ("const", "enum"):
        # Numbers are compared with one after the other.
        some = value if name == "enum" and isinstance(value, list) else [value]
        return sum(
            _FRACTION_COST if isinstance(each, float | list | dict) else type(each) is int for each in some
        )
    if name in _BOUNDS:
        return _FRACTION_COST if isinstance(value, float) else 0
    return _COSTS.get(name, 0)


def _uncollected(content: bytes, check: Callable[..., _T], *arguments: Any) -> _T:
    """
    Call a function that decodes a content, and frees its values again.

    Thousands of them would start the garbage collector, which looks at all objects of the service: 23 ms for
    100,000 records.
    """
    if len(content) <= _FEW_OBJECTS or not gc.isenabled():
        return check(*arguments)
    gc.disable()
    try:
        return check(*arguments)
    finally:
        gc.enable()


def _is_too_much(content: bytes, most: int) -> bool:
    if len(content) <= most // 4 or _work(content) <= most:
        return False
    # Perhaps most of them are in strings. Each string that is not is a value, or the name of one.
    strings = (content.count(b'"') - content.count(b'\\"')) // 2
    return strings > _MOST_WORK // 4 or _work(_STRING.sub(b"", content)) > most


def _work(content: bytes) -> int:
    return content.count(b",") + 4 * (content.count(b":") + content.count(b"{") + content.count(b"["))


def _not_json(content: bytes, error: Exception) -> str:
    if not content.strip():
        return "The content is empty; it must be JSON that matches the schema of the topic."
    try:
        require_json(content, source="content")
    except MalformedMessage as malformed:
        return str(malformed)
    return f"The content cannot be checked: {_reason(error)}."


def _reason(error: Exception) -> str:
    """Return the reason why the decoder rejects a valid JSON text."""
    text = str(error)
    return text if "out of range" in text else "a string has a lone surrogate, which has no form in UTF-8"


def _repeats_a_member(content: bytes, value: Any) -> bool:
    """
    Check whether a member is there twice: the decoder keeps the last one, and consumers may read the first.

    Each member is followed by a colon, which is lost with it. Those in strings stay, unescaped.
    """
    colons = content.count(b":")
    if not colons:
        return False
    if b"\\" in content:
        colons += len(_ESCAPED_COLON.findall(content))
    return colons != _encode(value).count(b":")


def _size(value: Any) -> tuple[int, int, int]:
    """Return the number of values, of objects among them, and the depth: of a part, if there are many."""
    values = objects = depth = 0
    level = [value]
    while level and values <= _MOST_STEPS * _VALUES_IN_A_STEP:
        depth += 1
        values += len(level)
        inner = [each.values() for each in level if isinstance(each, dict)]
        objects += len(inner)
        level = [*chain(*inner, *[each for each in level if isinstance(each, list)])]
    return values + len(level), objects, depth


def _details(error: Any) -> Iterator[tuple[Sequence[str | int], str]]:
    """Yield each place that an error of the library names, and a sentence about it without its full stop."""
    path, kind = error.instance_path, error.kind
    if kind.name == "required" and hasattr(kind, "property"):
        yield [*path, kind.property], f'"{shown(kind.property)}" is missing; the schema requires it'
    elif kind.name in _UNEXPECTED and hasattr(kind, "unexpected"):
        for each in kind.unexpected[:_MOST_FAULTS]:
            named = f'"{shown(each)}"' if isinstance(each, str) else f"Item {each}"
            yield [*path, each], f"{named} is not allowed by the schema; omit it"
    elif type(kind).__name__ in _NOT_MATCHED:
        yield path, f"{_subject(path)} takes too many steps to be matched with a pattern of the schema"
    else:
        yield path, f"{_subject(path)} {_requirement(kind)}"


def _requirement(kind: Any) -> str:
    name = kind.name
    if name == "type":
        return f"must be {' or '.join(_TYPES.get(each, each) for each in kind.types)}"
    if name in ("anyOf", "oneOf"):
        return _alternatives_requirement(kind)
    if name in _RULES:
        return _RULES[name]
    value = kind.value
    if name not in _REQUIREMENTS or value is None:
        return f"does not match {shown(name)} of the schema"
    if name == "enum" and isinstance(value, list):
        return _REQUIREMENTS[name].format(_cut(", ".join(_text(each) for each in value)))
    return _REQUIREMENTS[name].format(_cut(_text(value)))


def _alternatives_requirement(kind: Any) -> str:
    if not hasattr(kind, "context") or all(not branch for branch in kind.context):
        return f"must match only one of the schemas under {kind.name}"
    wrong = []
    for branch in kind.context[:_MOST_BRANCHES]:
        if not branch:
            return f"must match only one of the schemas under {kind.name}, and matches several"
        # Not the alternatives of alternatives: these sentences would have no end.
        first = branch[0]
        if first.kind.name not in ("anyOf", "oneOf"):
            wrong.append(next((detail for _, detail in _details(first)), ""))
    more = "" if len(kind.context) <= _MOST_BRANCHES else "; and so on"
    return f"must match one of the schemas under {kind.name}: {'; or: '.join(wrong)}{more}"


def _subject(path: Sequence[str | int]) -> str:
    if not path:
        return "The content"
    return f'"{shown(path[-1])}"' if isinstance(path[-1], str) else f"Item {path[-1]}"


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode() if not hasattr(value, "as_tuple") else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}\N{HORIZONTAL ELLIPSIS}"


def _pointer(path: Sequence[str | int]) -> str:
    # One that was cut off points to nothing, but still says where to look.
    pointer = "".join(
        f"/{pointer_token(each)[:_LONGEST_TOKEN] if isinstance(each, str) else each}" for each in path
    )
    return (
        pointer
        if len(pointer) <= _LONGEST_POINTER
        else f"{pointer[:_LONGEST_POINTER]}\N{HORIZONTAL ELLIPSIS}"
    )
