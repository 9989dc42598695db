"""
JSON Schemas of topics: compile them, and check the contents of messages.

The library is loaded by `compile_schemas`. It cannot be interrupted, and some checks take hours. So the
reactor only calls `Schema.matches_at_once`, which checks short contents by schemas whose checks take linear
time; see `sampleapp.messages.schema_keywords`. A process of its own does the rest; see
`sampleapp.validation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urldefrag, urljoin

import msgspec
from msgspec import Struct

from sampleapp.errors import Fault, MalformedMessage, StartUpError, pointer_token, shown
from sampleapp.messages.json_text import require_json
from sampleapp.messages.schema_keywords import size_if_linear
from sampleapp.model import is_legal_topic

if TYPE_CHECKING:
    import jsonschema_rs


_BASE: Final = "file:///"
"""For references between the files. Nothing is read there: all documents are given."""
_BACKTRACKS: Final = 10_000
"""Steps of a regular expression with look-around or back references: less than a millisecond."""
_NOWHERE: Final = "urn:invalid"
"""The place of a reference that is not a URI."""

_LONGEST_AT_ONCE: Final = 2048
"""Bytes. To decode and convert a content of this length takes up to a millisecond."""
_MOST_AT_ONCE: Final = 50_000
"""
The greatest product of the size of a schema and the length of a content, in bytes, that is checked at once.

The longest check that `benchmarks/schema_turns.py` finds by search takes about 6 ms.
"""
_MOST_SIZE: Final = _MOST_AT_ONCE // 64
_PATTERN_BYTES: Final = 4096
"""The size of a compiled pattern up to which matching takes at most a microsecond for each character."""

_ALL_FAULTS_BYTES: Final = 16 * 1024
"""The length of a content up to which all faults are named: each takes up to a millisecond."""
MOST_FAULTS: Final = 100
"""The most faults that are named."""

_LONGEST_TOKEN: Final = 200
_LONGEST_POINTER: Final = 1000
_LONGEST_VALUE: Final = 200
_MOST_BRANCHES: Final = 3

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

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class _NotChecked(Exception):
    """A content has no values that could match. The message is a sentence for the caller."""


class _NotAtOnce(Exception):
    """A number of a content takes long to convert."""


def _short_fraction(text: str) -> float:
    """Read a number that the library writes out with no more digits than it has here."""
    if "e" in text or "E" in text:
        raise _NotAtOnce
    return float(text)


_EXPONENTS: Final = bytes.maketrans(b"123456789E", b"000000000e")
"""Makes ``0e`` of the beginning of each exponent. A regular expression takes ten times as long."""
_decode_at_once: Final = msgspec.json.Decoder(float_hook=_short_fraction).decode


class Schema(Struct, frozen=True):
    """The schema of a topic."""

    text: bytes
    """Its file, as it is."""
    validator: jsonschema_rs.Validator
    longest_at_once: int
    """The greatest length of a content, in bytes, that `matches_at_once` checks. 0: none."""

    def matches_at_once(self, content: bytes) -> bool:
        """
        Check a content in less than 10 ms.

        :param content: the value of a record.
        :return: false if the content does not match, or if this can only be said by `faults`.
        """
        if len(content) > self.longest_at_once:
            return False
        try:
            has_exponent = b"0e" in content.translate(_EXPONENTS)
            value = (_decode_at_once if has_exponent else _decode)(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _NotAtOnce):
            return False
        return not _repeats_a_member(content, value) and self.validator.is_valid(value)

    def faults(self, content: bytes) -> Iterator[list[Fault]]:
        """
        Yield the faults of a content: nothing if it matches. May take any time.

        :param content: the value of a record.
        :return: the first fault, as soon as it is known, and then all, up to `MOST_FAULTS`. Of a content of
            more than 16 KiB, the first alone.
        """
        try:
            value = _value_of(content)
        except _NotChecked as error:
            yield [Fault("", str(error))]
            return
        if self.validator.is_valid(value):
            return
        yield _faults(self._first_error(value))
        if len(content) <= _ALL_FAULTS_BYTES:
            # The library collects all before it returns.
            found = chain.from_iterable(map(_faults, self.validator.iter_errors(value)))
            yield list(islice(found, MOST_FAULTS))

    def _first_error(self, value: Any) -> jsonschema_rs.ValidationError:
        try:
            self.validator.validate(value)
        except ValueError as error:
            # On newer Pythons, the frames of its traceback would keep the value until a collection.
            return error.with_traceback(None)  # type: ignore[return-value]  # ValidationError
        raise AssertionError("The library finds no error of a value that is not valid.")


def _value_of(content: bytes) -> Any:
    """:raise _NotChecked: it is not JSON, or has a repeated member."""
    try:
        value = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _NotChecked(_not_json(content, error)) from error
    if _repeats_a_member(content, value):
        raise _NotChecked("A member is there more than once in the content.")
    return value


def _faults(error: jsonschema_rs.ValidationError) -> list[Fault]:
    return [Fault(_pointer(path), f"{detail}.") for path, detail in _details(error)]


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
        import jsonschema_rs  # noqa: F401 -- it is used below, and may be missing here
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
    references = _References(documents)
    schemas = {}
    for name, text in files.items():
        try:
            schema = _compiled(text, _uri(name), references)
        except ValueError as error:
            raise _invalid(error, references, _uri(name), directory=directory, name=name) from error
        if "/" not in name:
            schemas[name.removesuffix(".json")] = schema
    if not schemas:
        raise StartUpError(
            f"--schemas: {directory} has no schema; the file TOPIC.json in it is the schema of that topic."
        )
    return schemas


def _compiled(text: bytes, uri: str, references: _References) -> Schema:
    """
    Compile one file.

    :raise ValueError: it is not a schema.
    """
    import jsonschema_rs

    documents = references.documents
    compiled = partial(
        jsonschema_rs.validator_for,
        documents[uri],
        base_uri=uri,
        retriever=documents.__getitem__,
        mask="\N{HORIZONTAL ELLIPSIS}",
    )
    size = None
    try:
        # This engine has neither look-around nor back references.
        validator = compiled(pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES))
    except ValueError:
        validator = compiled(pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS))
    else:
        size = size_if_linear(documents[uri], uri, references.target, most=_MOST_SIZE)
    return Schema(text, validator, 0 if size is None else min(_LONGEST_AT_ONCE, _MOST_AT_ONCE // size))


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
    error: ValueError, references: _References, uri: str, *, directory: str, name: str
) -> StartUpError:
    if getattr(error, "instance_path", ()):
        path, reason = next(_details(error))
        return _mistake(directory, name, _pointer(path), reason)
    wrong = references.wrong(uri)
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


class _References:
    """References of documents, also from one to another."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self.documents = documents

    def wrong(self, uri: str) -> tuple[str, str] | None:
        """Return the place and the target of a reference that leads nowhere, if there is one."""
        for at, reference in _references(self.documents[uri]):
            if self.target(uri, reference) is None:
                return at, reference
        return None

    def target(self, base: str, reference: str) -> tuple[str, Any] | None:
        """
        Return the URI and the value that a reference leads to.

        :param base: the URI of the document with the reference.
        :return: ``None`` if there is none, or it is named by an anchor.
        """
        document, fragment = _place(base, reference)
        if document not in self.documents or (fragment and not fragment.startswith("/")):
            return None
        value = self.documents[document]
        for token in fragment.split("/")[1:]:
            key = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return None
        return document, value


def _references(document: Any) -> Iterator[tuple[str, str]]:
    """Yield the place and the target of each reference."""
    rest = [("", document)]
    while rest:
        at, value = rest.pop()
        if isinstance(value, dict):
            for name, member in value.items():
                if name in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(member, str):
                    yield f"{at}/{name}", member
                rest.append((f"{at}/{pointer_token(name)}", member))
        elif isinstance(value, list):
            rest += [(f"{at}/{number}", member) for number, member in enumerate(value)]


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


def _details(error: Any) -> Iterator[tuple[Sequence[str | int], str]]:
    """Yield each place that an error of the library names, and a sentence about it without its full stop."""
    path, kind = error.instance_path, error.kind
    if kind.name == "required" and hasattr(kind, "property"):
        yield [*path, kind.property], f'"{shown(kind.property)}" is missing; the schema requires it'
    elif kind.name in _UNEXPECTED and hasattr(kind, "unexpected"):
        for each in kind.unexpected[:MOST_FAULTS]:
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
