"""
The longest check of a content in the thread of the reactor, found by search.

Schemas and contents are changed at random, and each change that makes `Schema.matches_at_once` slower is kept
(hill climbing, with restarts). Prints the longest check of each restart, in milliseconds of CPU, and the
longest one of all with its schema and content.

    python benchmarks/schema_turns.py                     five minutes
    python benchmarks/schema_turns.py --seconds 3600 --seed 7
    python benchmarks/schema_turns.py --service           turns of the reactor in a service that runs

With ``--service``, contents of up to 1 MiB are sent over HTTP: alone, in a message, and in the lines of a
batch.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from sampleapp.errors import StartUpError
from sampleapp.messages.schemas import Schema, compile_schemas
from turns import NDJSON, Service, line, post

TEXTS = ("", "a", "ab" * 20, "aaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "\u00e9" * 9, "2026-01-01T00:00:00Z", '"\\' * 9)
NUMBERS = (
    *(
        "0",
        "1",
        "-1",
        "0.1",
        "1e308",
        "9e307",
        "5e-324",
        "1" * 19,
        "9" * 20,
        "1" * 150,
        "0." + "0" * 150 + "1",
    ),
    *(str(2**63), str(2**64 * 3), "1" * 300 + ".5", "123456789.123456789", "-0.0"),
)
PATTERNS = (
    *(
        "^(a+)+$",
        "(a|a)*b",
        "a.{1,20}b",
        "[^a]*a[^a]{9}b",
        "(.*)(.*)(.*)x",
        "^[A-Z]{2}-[0-9]+$",
        "(a?){20}a{20}",
    ),
    *(
        "(x+x+)+y",
        "^([a-z0-9]+[.-])*$",
        "(ab|a|b){1,30}c",
        "[ab]*a[ab]{12}",
        "^.{1,60}$",
        "(a*)*b",
        "\u00e9{9}z",
    ),
)
NAMES = ("a", "b", "c", "", "a" * 30)
FORMATS = ("date", "date-time", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
MOST = 1000
SCHEMAS_AT_ONCE = 25
LONGEST_SCHEMA = 100_000
LONGEST_CONTENT = 1024 * 1024 - 1024
DRAFTS = ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema")


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def written(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{written(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def is_small(value: Any) -> bool:
    """Return whether a value has at most some thousands in it: parts of it are there more than once."""
    count, rest = 0, [value]
    while rest and count < 5 * MOST:
        each = rest.pop()
        count += 1
        rest += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
    return not rest


def new_value(choose: random.Random, most: int = MOST) -> Any:
    """Return a value with up to so many values in it."""
    kind = choose.random()
    if most > 1 and kind < 0.5:
        count = min(most, choose.choice((0, 1, 3, 30, 200, 1000)))
        inner = most // max(count, 1)
        if kind < 0.3:
            return [new_value(choose, inner)] * count
        return {f"{choose.choice(NAMES)}{n or ''}": new_value(choose, inner) for n in range(count)}
    if kind < 0.75:
        return Number(choose.choice(NUMBERS))
    if kind < 0.95:
        return choose.choice(TEXTS) * choose.choice((1, 1, 30, 500))
    return choose.choice((True, False, None))


def new_schema(choose: random.Random, depth: int = 4, most: int = MOST) -> Any:
    """Return a schema with up to about so many schemas in it."""

    def inner(parts: int = 3) -> Any:
        return new_schema(choose, depth - 1 if most > 1 else 0, most // parts)

    def some() -> list[Any]:
        count = choose.choice((1, 2, 5, 20, 100))
        return [inner(count)] * min(count, most)

    def number() -> Number:
        return Number(choose.choice(NUMBERS))

    leaves: dict[str, Callable[[], Any]] = {
        "type": lambda: choose.choice(
            ("object", "array", "string", "number", "integer", ["null", "integer"])
        ),
        "minimum": number,
        "maximum": number,
        "exclusiveMinimum": number,
        "multipleOf": lambda: Number("0.01"),
        "uniqueItems": lambda: True,
        "const": lambda: new_value(choose, 9),
        "enum": lambda: (
            [f"value{n}" for n in range(99)]
            if choose.random() < 0.8
            else [Number(f"{n}{end}") for end in (choose.choice(("", ".5", "0" * 20)),) for n in range(99)]
        ),
        "minLength": lambda: choose.choice((1, 5000)),
        "maxLength": lambda: choose.choice((0, 5000)),
        "pattern": lambda: choose.choice(PATTERNS),
        "format": lambda: choose.choice(FORMATS),
        "required": lambda: [f"{name}{n or ''}" for name in NAMES for n in range(choose.choice((1, 9, 40)))],
        "minProperties": lambda: 1,
    }
    branches: dict[str, Callable[[], Any]] = {
        "properties": lambda: {name: inner(len(NAMES)) for name in NAMES},
        "additionalProperties": inner,
        "patternProperties": lambda: {choose.choice(PATTERNS): inner()},
        "propertyNames": inner,
        "items": inner,
        "contains": inner,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "prefixItems": some,
        "$ref": lambda: choose.choice(("#/$defs/a", "#/$defs/b", "#")),
    }
    names = choose.sample([*leaves, *(branches if depth else ())], choose.choice((1, 1, 2, 3)))
    return {name: (leaves.get(name) or branches[name])() for name in names}


def containers_of(value: Any) -> list[Any]:
    found = [value]
    for each in found:
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        found += [child for child in inner if isinstance(child, dict | list) and child]
        if len(found) > 200:
            break
    return [each for each in found if each]


def changed(value: Any, new: Callable[[], Any], choose: random.Random) -> Any:
    """Replace, double or remove a part of a value."""
    if choose.random() < 0.1 or not isinstance(value, dict | list) or not value:
        return new()
    value = copy.deepcopy(value)
    inside = choose.choice(containers_of(value))
    if isinstance(inside, list):
        action = choose.random()
        if action < 0.3:
            inside *= choose.choice((2, 3, 10)) if len(inside) < MOST else 1
        elif action < 0.4:
            del inside[len(inside) // 2 :]
        else:
            inside[:] = [new()] * len(inside) if action < 0.7 else [*inside, new()]
    else:
        name = choose.choice([*inside])
        inside[name] = new() if choose.random() < 0.5 else changed(inside[name], new, choose)
    return value


def compiled(schema: Any) -> Schema | None:
    """Return a schema; ``None`` if it is not valid, or nothing is checked at once by it."""
    try:
        found = compile_schemas({"t.json": written(schema).encode()}, directory="")["t"]
    except (StartUpError, RecursionError):
        return None
    return found if found.longest_at_once else None


def longest_ms(schema: Schema, content: bytes) -> float:
    """Return the CPU time of a check: the least of some, since others share the machine."""
    times = []
    for _ in range(3):
        start = time.process_time()
        schema.matches_at_once(content)
        times.append(time.process_time() - start)
        if times[-1] < 0.0002:
            break
    return 1000 * min(times)


def cut(value: Any, longest: int) -> bytes | None:
    """Write a content, cut to the longest that is checked: a list or an object loses members at its end."""
    for _ in range(60):
        text = written(value).encode()
        if len(text) <= longest:
            return text
        if isinstance(value, dict) and value:
            value = dict([*value.items()][: max(1, len(value) * longest // len(text))])
        elif isinstance(value, list) and value:
            value = value[: max(1, len(value) * longest // len(text))]
        elif isinstance(value, str) and not isinstance(value, Number):
            value = value[: max(0, longest // 2 - 2)]
        if isinstance(value, dict | list) and len(value) == 1:
            inner = next(iter(value.values())) if isinstance(value, dict) else value[0]
            value = inner
    return None


def climb(choose: random.Random, until_s: float) -> tuple[float, str, bytes]:
    """Search from one random pair until nothing has become slower for a while."""
    best, found, unchanged = 0.0, ("", b""), 0

    def schema_with_parts() -> Any:
        schema = new_schema(choose)
        if choose.random() < 0.7:
            # The same small schema many times, for each item of an array, is where most time is found.
            schema = {
                choose.choice(("allOf", "anyOf", "oneOf")): [new_schema(choose, 1, 2)]
                * choose.choice((5, 99))
            }
            schema = {"items": schema} if choose.random() < 0.7 else schema
        schema["$defs"] = {"a": new_schema(choose, 2), "b": new_schema(choose, 1)}
        schema["$schema"] = choose.choice(DRAFTS)
        return schema

    schema, value = schema_with_parts(), [Number(choose.choice(NUMBERS))] * MOST
    while unchanged < 60 and time.monotonic() < until_s:
        unchanged += 1
        is_of_schema = choose.random() < 0.5
        other = changed(schema, lambda: new_schema(choose, 2), choose) if is_of_schema else schema
        if not isinstance(other, dict) or "$defs" not in other:
            other = schema_with_parts()
        candidate = compiled(other) if is_small(other) else None
        if candidate is None:
            if not best:
                schema = schema_with_parts()
            continue
        other_value = value if is_of_schema else changed(value, lambda: new_value(choose), choose)
        if not is_small(other_value):
            continue
        content = cut(other_value, candidate.longest_at_once)
        if content is None or len(written(other)) > LONGEST_SCHEMA:
            continue
        length = longest_ms(candidate, content)
        if length > best * 1.02:
            best, schema, value, unchanged = length, other, other_value, 0
            found = written(schema), content
    return best, *found


def valid_schemas(choose: random.Random) -> dict[str, str]:
    """Return schemas by topic, which need not be checked at once."""
    found: dict[str, str] = {}
    while len(found) < SCHEMAS_AT_ONCE:
        schema = {**new_schema(choose), "$defs": {"a": new_schema(choose, 2), "b": new_schema(choose, 1)}}
        with contextlib.suppress(StartUpError, RecursionError):
            text = written(schema)
            compile_schemas({"t.json": text.encode()}, directory="")
            if len(text) <= LONGEST_SCHEMA:
                found[f"t{len(found)}"] = text
    return found


def grown(value: Any, length: int) -> bytes:
    """Write a content, in an array as often as there is room in a length, but at least once."""
    text = written(value).encode()
    return text if len(text) >= length else b"[%b]" % b",".join([text] * (length // (len(text) + 1) or 1))


def requests_with(content: bytes, topic: str) -> dict[str, bytes]:
    message = line(json.dumps(content.decode("utf-8", "replace"))[1:-1].encode(), topic.encode())
    return {
        "alone": post(f"/topics/{topic}", content),
        "in a message": post("/messages", message),
        "in a batch": post(
            "/messages", message * max(1, min(5000, 4 * LONGEST_CONTENT // len(message))), NDJSON
        ),
    }


def search_service(choose: random.Random, until_s: float) -> None:
    """Print each turn of a service that is longer than all before; of each content, 12 more are made."""
    longest_ms, sent = 0.0, 0
    while time.monotonic() < until_s:
        schemas = valid_schemas(choose)
        with tempfile.TemporaryDirectory() as directory:
            running = Service(sys.executable, "memory:", directory, schemas)
            try:
                for topic, schema in schemas.items():
                    best, value = 0.0, new_value(choose)
                    for _ in range(13):
                        other = changed(value, lambda: new_value(choose), choose) if best else value
                        if not is_small(other) or time.monotonic() > until_s:
                            continue
                        content = grown(other, choose.choice((100, 8_000, 100_000, LONGEST_CONTENT)))
                        for form, request in requests_with(content[:LONGEST_CONTENT], topic).items():
                            status, turn_ms = running.longest_ms(request)
                            sent += 1
                            if turn_ms > best:
                                best, value = turn_ms, other
                            if turn_ms > longest_ms:
                                longest_ms = turn_ms
                                told = f"{status.decode('latin-1')}, {form}, {len(content)} bytes"
                                print(f"{turn_ms:8.2f} ms after {sent} requests: {told}", flush=True)
                                print(f"    {schema[:300]}\n    {content[:100]!r}", flush=True)
            finally:
                running.server.stop()
    print(f"\n{longest_ms:.2f} ms, the longest of {sent} requests")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--service", action="store_true", help="send contents of up to 1 MiB to a service")
    options = parser.parse_args()
    choose = random.Random(options.seed)
    until_s = time.monotonic() + options.seconds
    if options.service:
        search_service(choose, until_s)
        return
    longest: tuple[float, str, bytes] = (0.0, "", b"")
    climbs = 0
    while time.monotonic() < until_s:
        result = climb(choose, until_s)
        climbs += 1
        if result[0] > longest[0]:
            longest = result
            print(f"{longest[0]:8.2f} ms after {climbs} restarts", flush=True)
    print(f"\n{longest[0]:.2f} ms\nschema: {longest[1]}\ncontent: {longest[2].decode()}")


if __name__ == "__main__":
    main()
