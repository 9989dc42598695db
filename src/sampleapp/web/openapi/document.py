"""
OpenAPI 3.1 document of the interface, generated from the descriptions of the routes.

It is generated in a thread, at the first request. No module that the start needs imports this one. All errors
with one status have one component, which describes each kind. Where an operation has only some of the kinds,
its reference to the component names them.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace
from werkzeug.routing import Rule

from sampleapp import access
from sampleapp.access import Right
from sampleapp.errors import (
    SampleAppError,
    SchemaChecksFull,
    SchemaChecksOfCallerFull,
    TooManyIdempotencyKeys,
)
from sampleapp.web import errors as request_errors
from sampleapp.web.descriptions import Content, Description, Features, Field, Parameter, Success, in_query
from sampleapp.web.errors import FAULT, ROWS, Problem, Row
from sampleapp.web.rest_proxy_documents import RESPONSE
from sampleapp.web.routing import App
from sampleapp.web.server import SAFE

_Kind: TypeAlias = type[SampleAppError] | None
"""A kind of error; ``None`` for a fault in the service."""

_ROWS: Final[Mapping[_Kind, Row]] = dict([*ROWS.items(), (None, FAULT)])

_OF_EVERY_REQUEST: Final = (
    None,
    request_errors.MalformedRequest,
    request_errors.RequestTooSlow,
    request_errors.BodyTooLarge,
    request_errors.UnsupportedContentCoding,
    request_errors.ExpectationNotMet,
    request_errors.HeaderTooLarge,
    request_errors.TooManyConnections,
)
"""The errors that the server itself answers for any request, from the head or before it."""

_OF_UNSAFE_METHODS: Final = (
    request_errors.UndecodableBody,
    request_errors.TooManyRequests,
    request_errors.BodyMemoryFull,
    request_errors.CrossSiteRequest,
    request_errors.PreconditionFailed,
)
_OF_EVERY_CALLER: Final = (
    access.NoCredentials,
    access.InvalidCredentials,
    access.AmbiguousCredentials,
    access.IssuerKeysNotKnown,
    access.RateExceeded,
)
_OF_ONE_CALLER: Final[Mapping[_Kind, _Kind]] = {
    request_errors.TooManyStreams: access.TooManyStreamsOfCaller,
    request_errors.BodyMemoryFull: request_errors.BodyMemoryOfCallerFull,
    SchemaChecksFull: SchemaChecksOfCallerFull,
}
"""By the error of a limit for all callers together: the error of the limit for one of them."""
_WITHOUT_OPERATION: Final = (request_errors.PathNotFound, request_errors.MethodNotAllowed)
"""The errors of requests that match no operation."""

_ALLOW: Final = Field("Allow", "The methods of the path.", "GET, HEAD, OPTIONS")
_FIELDS_OF_REJECTIONS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in (
        Field("Cache-Control", "Caches must not store the response.", "no-store"),
        _ALLOW,
        Field(
            "WWW-Authenticate", "The way to authenticate (RFC 6750, section 3).", 'Bearer realm="sampleapp"'
        ),
        Field("Retry-After", "Seconds to wait before the next attempt.", 1),
        Field(
            "Accept",
            "The media types that a body may have on this path (RFC 9110, section 12.5.1).",
            "application/json",
        ),
        Field("Accept-Encoding", "The content codings that a body may have (RFC 7694).", "gzip, zstd"),
    )
}
"""Every header field of an error, by its name; without those of every response."""

_VARYING_FIELDS: Final[Mapping[type[SampleAppError] | None, str]] = {
    request_errors.MethodNotAllowed: "Allow",
    request_errors.BodyMemoryFull: "Retry-After",
    request_errors.BodyMemoryOfCallerFull: "Retry-After",
    access.IssuerKeysNotKnown: "Retry-After",
    access.RateExceeded: "Retry-After",
    access.TooManyStreamsOfCaller: "Retry-After",
    TooManyIdempotencyKeys: "Retry-After",
}
"""The field that every error of a kind has, with a value of its own: it is not in the row of the kind."""

_OF_EVERY_RESPONSE: Final = (
    Field(
        "X-Request-Id", "The id of the request in the logs: your own, or a new one.", "6b86b273ff34fce1-42"
    ),
    Field(
        "X-Content-Type-Options", "Tells browsers not to guess another type than `Content-Type`.", "nosniff"
    ),
)
_HSTS: Final = Field(
    "Strict-Transport-Security",
    "On TLS endpoints: the seconds for which browsers use this host only with TLS (RFC 6797).",
    "max-age=31536000",
)
_VARY_BY_ORIGIN: Final = Field("Vary", "The request header fields that the response depends on.", "Origin")
_TO_OTHER_SITES: Final = (
    Field(
        "Access-Control-Allow-Origin",
        "The `Origin` of the request, if pages of this origin may use the service.",
        "https://example.org",
    ),
    Field(
        "Access-Control-Expose-Headers",
        "The header fields of the response that a page of another site can read.",
        "ETag, X-Request-Id",
    ),
)
_TO_PREFLIGHTS: Final = (
    Field(
        "Access-Control-Allow-Methods",
        "The methods that a page of another site may use.",
        "DELETE, GET, HEAD, POST",
    ),
    Field(
        "Access-Control-Allow-Headers",
        "The header fields that a page of another site may send.",
        "Authorization, Content-Type",
    ),
    Field("Access-Control-Max-Age", "The seconds for which a browser may cache this response.", 7200),
)
"""The fields of a response to a preflight, which has no ``Allow``."""

_TOKEN: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "The token of a caller, or a JSON Web Token of a trusted issuer.",
}
_PASSWORD: Final = {
    "type": "http",
    "scheme": "basic",
    "description": "The same token as the password, with any user name.",
}
_CERTIFICATE: Final = {
    "type": "mutualTLS",
    "description": "A client certificate, on endpoints that ask for one.",
}

_ABOUT: Final = """\
Publish messages to Apache Kafka with `POST`, and read topics with `GET`.

Every error is a problem document ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). It says what is wrong
and how to correct it. A path that is not listed here returns `404`. A method that is not listed for its path
returns `405` with `Allow`. `GET /`, and the operations for operators and of the documentation, ignore the
query; any other operation returns `422` for a parameter that is not listed.
"""
_CODINGS: Final = (
    "The body may be compressed, with `Content-Encoding: gzip` or `Content-Encoding: zstd`. Both the "
    "compressed and the decoded body must be within the limit for bodies."
)
_SCHEMAS: Final = "#/components/schemas/{name}"
_HEADERS: Final = "#/components/headers/"
_RESPONSES: Final = "#/components/responses/"
_OPTIONS: Final = Success(
    "`Allow` lists the methods of the path.", status=HTTPStatus.NO_CONTENT, fields=(_ALLOW,)
)


def openapi_document(
    apps: Sequence[App], *, version: str, manual: str | None = None, features: Features | None = None
) -> dict[str, Any]:
    """
    Make the OpenAPI document of an interface.

    :param apps: have all of its routes.
    :param version: of the service.
    :param manual: the URL of the manual; ``None`` if it has none.
    :param features: by default, the interface has none.
    :return: an OpenAPI document (version 3.1.1), as dicts and lists for JSON.
    :raise ValueError: a route has no description, or describes other variables than its path has.
    """
    document = _Builder(Features() if features is None else features).document(apps)
    document["info"]["version"] = version
    if manual:
        document["externalDocs"] = {"url": manual, "description": "The manual"}
    return document


class _Builder:
    """Builds the document, and collects what its operations share as components."""

    def __init__(self, features: Features) -> None:
        self._schemes: dict[str, Any] = {}
        """The kinds of credentials; none if callers need none."""
        if features.is_guarded:
            self._schemes["token"] = _TOKEN
            self._schemes["password"] = _PASSWORD
            if features.takes_certificates:
                self._schemes["certificate"] = _CERTIFICATE
        self._recorded = tuple(
            in_query(name, f"Becomes the header `{name.lower()}` of the record, as bytes.")
            for name in features.recorded_parameters
        )
        self._of_every_request: set[_Kind] = {*_OF_EVERY_REQUEST}
        if features.has_host_rule:
            self._of_every_request.add(request_errors.MisdirectedRequest)
        always = [*_OF_EVERY_RESPONSE]
        # Some endpoints may have no TLS.
        sometimes = [_HSTS] if features.has_hsts else []
        self._options = _OPTIONS
        if features.is_for_other_sites:
            always.append(_VARY_BY_ORIGIN)
            sometimes.extend(_TO_OTHER_SITES)
            self._options = replace(_OPTIONS, fields=(), optional_fields=(_ALLOW, *_TO_PREFLIGHTS))
        self._common = {
            field.name: _header(field, is_required=field in always) for field in (*always, *sometimes)
        }
        """The header fields that any response may have."""
        self._schemas: dict[str, Any] = {}
        self._kinds: set[_Kind] = {*_WITHOUT_OPERATION}
        self._rejected: defaultdict[HTTPStatus, list[Description]] = defaultdict(list)
        """The operations that have errors with a status."""

    def document(self, apps: Iterable[App]) -> dict[str, Any]:
        paths: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for app in apps:
            for rule in app.url_map.iter_rules():
                route = app.routes[rule.endpoint]
                description = _checked(rule, route.description)
                operations = paths[route.template]
                for method in sorted(rule.methods or ()):
                    # Generators name the methods of clients by it, so it must be unique.
                    name = f"{rule.endpoint}_head" if method == "HEAD" else rule.endpoint
                    operations[method.lower()] = self._operation(method, name, description, route.right)
                if "options" not in operations:
                    operations["options"] = self._options_of(rule.endpoint, description)
        tags = {tag: None for item in paths.values() for each in item.values() for tag in each["tags"]}
        components = {
            "responses": {
                "Options": self._success("OPTIONS", self._options),
                **{
                    f"{status:d}": self._rejection(status, kinds)
                    for status, kinds in _by_status(self._kinds).items()
                },
            },
            "headers": self._common,
            # After the responses, which add to them.
            "schemas": self._schemas,
        }
        if self._schemes:
            components["securitySchemes"] = self._schemes
        return {
            "openapi": "3.1.1",
            "info": {
                "title": "sampleapp",
                "description": _ABOUT,
                "license": {"name": "MIT", "identifier": "MIT"},
            },
            "servers": [{"url": "/"}],
            "tags": [{"name": tag} for tag in tags],
            "paths": dict(paths),
            "components": components,
        }

    def _options_of(self, name: str, description: Description) -> dict[str, Any]:
        """Describe OPTIONS, which every path has: the service answers it without a handler."""
        # It takes any variables.
        variables = tuple(replace(each, kind=str) for each in _of_path(description))
        options = Description(
            tag=description.tag, summary="The methods of this path", parameters=variables, successes=()
        )
        # It needs credentials, so that paths are not disclosed.
        operation = self._operation("OPTIONS", f"{name}_options", options, Right.ANY)
        operation["responses"]["204"] = {"$ref": f"{_RESPONSES}Options"}
        return operation

    def _operation(self, method: str, name: str, description: Description, right: Right) -> dict[str, Any]:
        operation: dict[str, Any] = {
            "tags": [description.tag],
            "summary": description.summary,
            "operationId": name,
        }
        if description.text:
            operation["description"] = description.text
        parameters = description.parameters
        if description.takes_recorded_parameters:
            parameters += self._recorded
        if parameters:
            operation["parameters"] = [self._parameter(parameter) for parameter in parameters]
        if description.bodies and method not in {"GET", "HEAD"}:
            operation["requestBody"] = {
                "description": _CODINGS,
                **({"required": True} if description.needs_body else {}),
                "content": self._content(description.bodies),
            }
        if self._schemes:
            # Any one kind of credentials is enough.
            operation["security"] = [] if right is Right.NONE else [{name: []} for name in self._schemes]
        responses = {f"{each.status:d}": self._success(method, each) for each in description.successes}
        kinds = self._kinds_of(method, description, right)
        self._kinds |= kinds
        for status, kinds_of_status in _by_status(kinds).items():
            self._rejected[status].append(description)
            responses[f"{status:d}"] = _reference(status, kinds_of_status)
        operation["responses"] = responses
        return operation

    def _kinds_of(self, method: str, description: Description, right: Right) -> set[_Kind]:
        """Return the kinds of errors that an operation can have."""
        kinds = {*self._of_every_request, *description.rejections}
        if method == "OPTIONS":
            # The table of routes answers it without regard to the body.
            kinds.remove(request_errors.BodyTooLarge)
        elif method.encode("ascii") not in SAFE:
            kinds.update(_OF_UNSAFE_METHODS)
        if method == "POST":
            kinds.add(request_errors.LengthRequired)
        if self._schemes and right is not Right.NONE:
            kinds.update(_OF_EVERY_CALLER, (_OF_ONE_CALLER[kind] for kind in kinds & _OF_ONE_CALLER.keys()))
            if right is not Right.ANY:
                kinds.add(access.NotGranted)
        return kinds

    def _parameter(self, parameter: Parameter) -> dict[str, Any]:
        return {
            "name": parameter.name,
            "in": parameter.location,
            "description": parameter.meaning,
            **({"required": True} if parameter.is_required or parameter.location == "path" else {}),
            "schema": self._schema(parameter.kind),
        }

    def _success(self, method: str, success: Success) -> dict[str, Any]:
        fields = (*success.fields, *success.optional_fields)
        headers = self._headers(fields, [field.name for field in success.fields])
        response: dict[str, Any] = {"description": success.meaning, "headers": headers}
        if success.contents and method != "HEAD":
            response["content"] = self._content(success.contents)
        return response

    def _content(self, contents: Iterable[Content]) -> dict[str, Any]:
        described = {}
        for content in contents:
            described[content.media_type] = {"schema": self._schema(content.kind)}
            if content.rules:
                _merge(self._schemas[content.kind.__name__], content.rules)
            if content.example is not None:
                example = {"summary": content.summary, "value": content.example}
                described[content.media_type]["examples"] = {"example": example}
        return described

    def _schema(self, kind: Any) -> dict[str, Any]:
        """Return a schema as it is, or that of a type, whose structs become components."""
        if isinstance(kind, dict):
            return kind
        (schema,), components = msgspec.json.schema_components([kind], ref_template=_SCHEMAS)
        self._schemas = {**components, **self._schemas}
        return schema

    def _rejection(self, status: HTTPStatus, kinds: Sequence[_Kind]) -> dict[str, Any]:
        """Describe all errors with one status."""
        types = _types(kinds)
        names = [_field_names(kind) for kind in kinds]
        more_fields = dict.fromkeys(
            field for each in self._rejected[status] for field in each.fields_of_rejections
        )
        fields = [_FIELDS_OF_REJECTIONS[name] for name in sorted(set().union(*names))]
        content = {
            "application/problem+json": {
                # Generators of clients take the reference, and so make one class of all rejections.
                "schema": {
                    **self._schema(Problem),
                    "properties": {"type": {"enum": list(types)}, "status": {"const": int(status)}},
                },
                "examples": {
                    row.name or "plain": {
                        "summary": row.title,
                        "value": {
                            "type": uri,
                            "title": row.title,
                            "status": int(status),
                            "detail": meanings[0],
                        },
                    }
                    for uri, (row, meanings) in types.items()
                },
            }
        }
        if error_objects := dict.fromkeys(
            kind for each in self._rejected[status] for kind in each.error_objects
        ):
            content[RESPONSE.decode("ascii")] = {
                "schema": {
                    "description": "For clients of REST Proxy, on the paths of its API.",
                    "anyOf": [self._schema(kind) for kind in error_objects],
                }
            }
        return {
            "description": "\n".join(
                f"- {row.title} (`{uri}`): {' '.join(meanings)}" for uri, (row, meanings) in types.items()
            ),
            "headers": self._headers([*fields, *more_fields], set.intersection(*names)),
            "content": content,
        }

    def _headers(self, fields: Iterable[Field], always: Iterable[str]) -> dict[str, Any]:
        """
        Describe the header fields of a response, with those that every response has.

        :param always: the names of the fields that every response with this status has.
        """
        described = {field.name: _header(field, is_required=field.name in always) for field in fields}
        return {**described, **{name: {"$ref": _HEADERS + name} for name in self._common}}


def _checked(rule: Rule, description: Description | None) -> Description:
    """
    Return the description of a route.

    :raise ValueError: there is none, or the variables of the path are not the parameters that are described.
    """
    if description is None:
        raise ValueError(f"The route {rule.rule} has no description.")
    named = {parameter.name for parameter in _of_path(description)}
    if rule.arguments != named:
        raise ValueError(f"The variables of {rule.rule} are {rule.arguments}, not {named}.")
    return description


def _merge(schema: dict[str, Any], rules: Mapping[str, Any]) -> None:
    """Add keywords to a schema, also to those inside it."""
    for name, rule in rules.items():
        if isinstance(rule, Mapping) and isinstance(inner := schema.get(name), dict):
            _merge(inner, rule)
        else:
            schema[name] = rule


def _of_path(description: Description) -> list[Parameter]:
    return [parameter for parameter in description.parameters if parameter.location == "path"]


def _by_status(kinds: Collection[_Kind]) -> dict[HTTPStatus, list[_Kind]]:
    """Group kinds of errors by their status, in the order of the statuses and of the table of errors."""
    grouped: defaultdict[HTTPStatus, list[_Kind]] = defaultdict(list)
    for kind, row in _ROWS.items():
        if kind in kinds:
            grouped[row.status].append(kind)
    return dict(sorted(grouped.items()))


def _reference(status: HTTPStatus, kinds: Sequence[_Kind]) -> dict[str, str]:
    """Refer to the component for a status, and name the types of problems if the status has several."""
    reference = {"$ref": f"{_RESPONSES}{status:d}"}
    if len({row.type for row in _ROWS.values() if row.status == status}) > 1:
        rows = dict.fromkeys(_ROWS[kind].name or "about:blank" for kind in kinds)
        reference["description"] = f"Problems: {', '.join(f'`{each}`' for each in rows)}."
    return reference


def _types(kinds: Iterable[_Kind]) -> dict[str, tuple[Row, list[str]]]:
    """Return the row of each type of problem, and the meanings of the kinds of errors that have it."""
    types: dict[str, tuple[Row, list[str]]] = {}
    for kind in kinds:
        row = _ROWS[kind]
        types.setdefault(row.type, (row, []))[1].append(_meaning(kind))
    return types


def _meaning(kind: _Kind) -> str:
    """Return the first paragraph of the docstring of an error."""
    if kind is None:
        return "A fault in the service; its log has the details."
    # python -OO removes docstrings.
    paragraph = (inspect.getdoc(kind) or ROWS[kind].title).partition("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())


def _field_names(kind: _Kind) -> set[str]:
    names = {name.decode("ascii") for name, _ in _ROWS[kind].headers}
    return {"Cache-Control", *names, *([_VARYING_FIELDS[kind]] if kind in _VARYING_FIELDS else [])}


def _header(field: Field, *, is_required: bool) -> dict[str, Any]:
    schema = {"type": "string"} if isinstance(field.example, str) else {"type": "integer", "minimum": 0}
    described = {"description": field.meaning, "schema": schema, "example": field.example}
    return {**described, "required": True} if is_required else described
