"""Holds answers of the service against its own description, with a validator that is not ours."""

from __future__ import annotations

import json
import re

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

# What any HTTP server adds (RFC 9110), and OpenAPI says elsewhere: Content-Type.
NOT_DECLARED = {
    "server",
    "date",
    "connection",
    "keep-alive",
    "content-length",
    "content-type",
    "transfer-encoding",
}
PROBLEM = "application/problem+json"
ERROR_OBJECT = "application/vnd.kafka.v2+json"
URI = "urn:sampleapp:openapi"


class Described:
    """An OpenAPI document, and what it has to say of requests and answers."""

    def __init__(self, document):
        self.document = document
        self._validators = {}
        self._registry = Registry().with_resource(
            URI, Resource.from_contents(document, default_specification=DRAFT202012)
        )

    def operations(self):
        """Every method and path."""
        return {(method.upper(), path) for path, item in self.document["paths"].items() for method in item}

    def resolved(self, value):
        """What a reference refers to, or else the value itself."""
        while "$ref" in value:
            target = self.document
            for part in value["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            value = target
        return value

    def outcomes(self):
        """Every method, path, status and type of problem; an empty type for what is no problem."""
        return {
            (method, path, int(status), kind)
            for method, path in self.operations()
            for status, response in self.document["paths"][path][method.lower()]["responses"].items()
            for kind in self._problem_types(method, int(status), response)
        }

    def operations_with_error_objects(self):
        """Every method and path at which clients of REST Proxy are rejected in a form of their own."""
        return {
            (method, path)
            for method, path in self.operations()
            for status, response in self.document["paths"][path][method.lower()]["responses"].items()
            if int(status) < 400 and ERROR_OBJECT in response.get("content", {})
        }

    def _problem_types(self, method, status, response):
        if status < 400:
            return [""]
        types = self.resolved(response)["content"][PROBLEM]["schema"]["properties"]["type"]["enum"]
        if method == "HEAD":
            # It has no body, so that its status is all that it tells.
            return [""]
        if len(types) == 1:
            return types
        names = re.findall("`(.+?)`", response["description"])
        named = [name if ":" in name else f"urn:sampleapp:problem:{name}" for name in names]
        assert named
        assert set(named) <= set(types), (method, status, named)
        return named

    def is_valid(self, value, schema):
        """Whether a value is what a schema of the document says."""
        text = json.dumps(schema).replace('"#/', f'"{URI}#/')
        if text not in self._validators:
            self._validators[text] = Draft202012Validator(json.loads(text), registry=self._registry)
        return self._validators[text].is_valid(value)

    def outcome(self, method, path, response):
        """
        Hold an answer against what is declared.

        :return: the member of `outcomes` that it is.
        """
        operation = self.document["paths"][path][method.lower()]
        declared = operation["responses"].get(str(response.status))
        assert declared is not None, f"{method} {path} does not declare {response.status}: {response.body}"
        declared = self.resolved(declared)
        fields = {name.lower(): self.resolved(field) for name, field in declared["headers"].items()}
        came = {name.decode() for name in response.headers} - NOT_DECLARED
        assert came <= fields.keys(), (
            f"{method} {path} {response.status} does not declare {came - fields.keys()}"
        )
        required = {name for name, field in fields.items() if field.get("required")}
        assert required <= came, f"{method} {path} {response.status} lacks {required - came}"
        for name in came:
            text = response.headers[name.encode()].decode()
            schema = fields[name]["schema"]
            assert self.is_valid(int(text) if schema["type"] == "integer" else text, schema)
        if "content" not in declared:
            assert response.body == b""
            return method, path, response.status, ""
        media_type = response.headers[b"content-type"].decode().partition(";")[0]
        assert media_type in declared["content"], (
            f"{method} {path} {response.status} does not declare {media_type}"
        )
        if method == "HEAD":
            assert response.body == b""
            return method, path, response.status, ""
        assert media_type != ERROR_OBJECT or (method, path) in self.operations_with_error_objects()
        if not re.fullmatch(r"application/(.*\+)?json", media_type):
            return method, path, response.status, ""
        body = json.loads(response.body)
        assert self.is_valid(body, declared["content"][media_type]["schema"]), (method, path, body)
        return method, path, response.status, body["type"] if media_type == PROBLEM else ""
