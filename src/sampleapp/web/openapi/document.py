"""
OpenAPI 3.1 document of the interface, generated from the descriptions of the routes.

It is generated in a thread, at the first request. No module that the start needs imports this one.
"""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from werkzeug.routing import Rule

from sampleapp import access
from sampleapp.access import Right
from sampleapp.errors import SampleAppError, TooManyIdempotencyKeys
from sampleapp.web import errors as request_errors
from sampleapp.web.descriptions import Content, Description, Field, Parameter, Success
from sampleapp.web.errors import FAULT, ROWS, Problem, Row
from sampleapp.web.rest_proxy_documents import ANSWER
from sampleapp.web.routing import App
from sampleapp.web.server import SAFE

__all__ = ["ABOUT", "OF_EVERY_REQUEST", "openapi_document"]

OF_EVERY_REQUEST: Final[tuple[type[SampleAppError], ...]] = (
    request_errors.MalformedRequest,
    request_errors.RequestTooSlow,
    request_errors.BodyTooLarge,
    request_errors.UnsupportedContentCoding,
    request_errors.ExpectationNotMet,
    request_errors.HeaderTooLarge,
    request_errors.TooManyConnections,
)
"""The errors that the server itself answers for any request, from the head or before it."""

_OF_OPTIONS: Final = tuple(kind for kind in OF_EVERY_REQUEST if kind is not request_errors.BodyTooLarge)
"""The errors of OPTIONS, which the table of routes answers without regard to the body."""

_OF_EVERY_CALLER: Final[tuple[type[SampleAppError], ...]] = (
    access.NoCredentials,
    access.InvalidCredentials,
    access.AmbiguousCredentials,
    access.IssuerKeysNotKnown,
    access.RateExceeded,
)
_WITH_RETRY_AFTER: Final = (
    access.IssuerKeysNotKnown,
    access.RateExceeded,
    access.TooManyStreamsOfCaller,
    TooManyIdempotencyKeys,
)
"""The errors that always have ``Retry-After``, though their rows do not."""

_TOKEN: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "The token of a caller, or a JSON Web Token of a trusted issuer.",
}
_CERTIFICATE: Final = {
    "type": "mutualTLS",
    "description": "A client certificate, on endpoints that ask for one.",
}

_ALLOW: Final = Field("Allow", "The methods of the path.", "GET, HEAD, OPTIONS")
_FIELDS_OF_REFUSALS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in (
        Field("Cache-Control", "Caches must not store the answer.", "no-store"),
        _ALLOW,
        Field(
            "WWW-Authenticate",
            "The way to authenticate (RFC 6750, section 3).",
            'Bearer realm="sampleapp"',
        ),
        Field("Retry-After", "Seconds to wait before the next attempt.", 1),
        Field(
            "Accept",
            "The media types that a body may have on this path (RFC 9110, section 12.5.1).",
            "application/json",
        ),
        Field(
            "Accept-Encoding",
            "The content codings that a body may have (RFC 7694).",
            "gzip, zstd",
        ),
    )
}
"""Every header field of an error, by its name; without those of every answer."""

_OF_EVERY_ANSWER: Final = (
    Field(
        "X-Request-Id",
        "The id of the request in the logs: your own, or a new one.",
        "6b86b273ff34fce1-42",
    ),
    Field(
        "X-Content-Type-Options",
        "Tells browsers not to guess another type than `Content-Type`.",
        "nosniff",
    ),
)
_HSTS: Final = Field(
    "Strict-Transport-Security",
    "On TLS endpoints: the seconds for which browsers use this host only with TLS (RFC 6797).",
    "max-age=31536000",
)
_VARY_BY_ORIGIN: Final = Field("Vary", "The request header fields that the answer depends on.", "Origin")
_TO_OTHER_SITES: Final = (
    Field(
        "Access-Control-Allow-Origin",
        "The `Origin` of the request, if pages of this origin may use the service.",
        "https://example.org",
    ),
    Field(
        "Access-Control-Expose-Headers",
        "The header fields of the answer that a page of another site can read.",
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
    Field("Access-Control-Max-Age", "The seconds for which a browser may cache this answer.", 7200),
)
"""The fields of an answer to a preflight, which has no ``Allow``."""

_WITHOUT_OPERATION: Final = (request_errors.PathNotFound, request_errors.MethodNotAllowed)
"""The errors of requests that match no operation."""

ABOUT: Final = """\
Publish messages to Apache Kafka with `POST`, and read the latest values with `GET`.

Every error is a problem document ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). It says what is wrong
and how to correct it. A path that is not listed here returns `404`. A method that is not listed for its path
returns `405` with `Allow`. Operations without query parameters ignore the query.
"""

_OPTIONS: Final = Success(
    meaning="`Allow` lists the methods of the path.", status=HTTPStatus.NO_CONTENT, fields=(_ALLOW,)
)
_CODINGS: Final = (
    "The body may be compressed, with `Content-Encoding: gzip` or `Content-Encoding: zstd`. Both the "
    "compressed and the decoded body must be within the limit for bodies."
)
_SCHEMAS: Final = "#/components/schemas/{name}"
_HEADERS: Final = "#/components/headers/"
_RESPONSES: Final = "#/components/responses/"
_PROBLEM_TYPE: Final = "application/problem+json"


def openapi_document(
    apps: Sequence[App],
    *,
    version: str,
    manual: str | None = None,
    is_guarded: bool = False,
    takes_certificates: bool = False,
    is_for_other_sites: bool = False,
    has_hsts: bool = False,
    has_host_rule: bool = False,
) -> dict[str, Any]:
    """
    Make the OpenAPI document of an interface.

    :param apps: have all of its routes.
    :param version: of the service.
    :param manual: the URL of the manual; ``None`` if it has none.
    :param is_guarded: whether callers need credentials.
    :param takes_certificates: whether a client certificate is one.
    :param is_for_other_sites: whether pages of other sites may use it from a browser.
    :param has_hsts: whether answers on TLS endpoints have ``Strict-Transport-Security``.
    :param has_host_rule: whether requests for unknown hosts are refused.
    :return: an OpenAPI document (version 3.1.1), as dicts and lists for JSON.
    :raise ValueError: a route has no description, or describes other variables than its path has.
    """
    schemes: dict[str, Any] = {}
    if is_guarded:
        schemes = {"token": _TOKEN, **({"certificate": _CERTIFICATE} if takes_certificates else {})}
    builder = _Builder(
        apps,
        schemes=schemes,
        is_for_other_sites=is_for_other_sites,
        has_hsts=has_hsts,
        has_host_rule=has_host_rule,
    )
    about = {"externalDocs": {"url": manual, "description": "The manual"}} if manual else {}
    return {**builder.document(version=version), **about}


class _Builder:
    """Builds the document, and collects the components that several operations share."""

    def __init__(
        self,
        apps: Sequence[App],
        *,
        schemes: Mapping[str, Any],
        is_for_other_sites: bool,
        has_hsts: bool,
        has_host_rule: bool,
    ) -> None:
        """:param schemes: the kinds of credentials; none if callers need none."""
        self._apps = apps
        self._schemes = schemes
        of_hosts = (request_errors.MisdirectedRequest,) if has_host_rule else ()
        self._of_every_request = (*OF_EVERY_REQUEST, *of_hosts)
        self._of_options = (*_OF_OPTIONS, *of_hosts)
        self._common = [*_OF_EVERY_ANSWER]
        # Some endpoints may have no TLS.
        self._of_some: tuple[Field, ...] = (_HSTS,) if has_hsts else ()
        options = _OPTIONS
        if is_for_other_sites:
            self._common.append(_VARY_BY_ORIGIN)
            self._of_some = (*self._of_some, *_TO_OTHER_SITES)
            options = replace(options, fields=(), optional_fields=(_ALLOW, *_TO_PREFLIGHTS))
        self._options = options
        self._responses: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        kinds = [Problem, *_kinds(route.description for app in apps for route in app.routes.values())]
        schemas, self._schemas = msgspec.json.schema_components(kinds, ref_template=_SCHEMAS)
        self._schema_of = dict(zip(map(repr, kinds), schemas, strict=True))
        for content in _contents(route.description for app in apps for route in app.routes.values()):
            if content.rules:
                self._schemas[content.kind.__name__].update(content.rules)

    def document(self, *, version: str) -> dict[str, Any]:
        paths: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        names: set[str] = set()
        tags: dict[str, None] = {}
        rules = [(app, rule) for app in self._apps for rule in app.url_map.iter_rules()]
        for app, rule in rules:
            route = app.routes[rule.endpoint]
            description = route.description
            if description is None:
                raise ValueError(f"The route {rule.rule} has no description.")
            tags[description.tag] = None
            path = _path(rule, route.template, description)
            for method in _methods(rule):
                # Generators name methods by it, so it must be unique; HEAD has the endpoint of GET.
                name = rule.endpoint if rule.endpoint not in names else f"{rule.endpoint}_{method.lower()}"
                names.add(name)
                paths[path][method.lower()] = self._operation(method, name, description, route.right)
        for item in paths.values():
            # Every path has OPTIONS; the service answers it without a handler.
            first = next(iter(item.values()))
            item["options"] = {
                "tags": first["tags"],
                "summary": "The methods of this path",
                "operationId": f"{first['operationId']}_options",
                **({"parameters": variables} if (variables := _of_path(first)) else {}),
                # It needs credentials, so that paths are not disclosed.
                **self._security(Right.ANY),
                "responses": self._answers(
                    "OPTIONS", (self._options,), (*self._of_options, *self._refusals_of_callers(Right.ANY))
                ),
            }
        for kind in _WITHOUT_OPERATION:
            self._refusal([kind])
        return {
            "openapi": "3.1.1",
            "info": {
                "title": "sampleapp",
                "version": version,
                "description": ABOUT,
                "license": {"name": "MIT", "identifier": "MIT"},
            },
            "servers": [{"url": "/"}],
            "tags": [{"name": tag} for tag in tags],
            "paths": dict(paths),
            "components": {
                "schemas": self._schemas,
                "responses": self._responses,
                "headers": {
                    **{field.name: {**_field(field), "required": True} for field in self._common},
                    **{field.name: _field(field) for field in self._of_some},
                },
                **({"securitySchemes": self._schemes} if self._schemes else {}),
            },
        }

    def _operation(self, method: str, name: str, description: Description, right: Right) -> dict[str, Any]:
        refusals = (*self._of_every_request, *self._refusals_of_callers(right), *description.refusals)
        if method == "POST":
            refusals = (*refusals, request_errors.LengthRequired)
        if self._schemes and request_errors.TooManyStreams in description.refusals:
            refusals = (*refusals, access.TooManyStreamsOfCaller)
        if method.encode("ascii") not in SAFE:
            refusals = (
                *refusals,
                request_errors.UndecodableBody,
                request_errors.TooManyRequests,
                request_errors.BodyMemoryFull,
                request_errors.CrossSiteRequest,
                request_errors.PreconditionFailed,
            )
        if self._schemes and right is not Right.NONE and request_errors.BodyMemoryFull in refusals:
            refusals = (*refusals, request_errors.BodyMemoryOfCallerFull)
        operation: dict[str, Any] = {
            "tags": [description.tag],
            "summary": description.summary,
            "operationId": name,
        }
        if description.text:
            operation["description"] = description.text
        if description.parameters:
            operation["parameters"] = [self._parameter(parameter) for parameter in description.parameters]
        if description.bodies and method not in {"GET", "HEAD"}:
            operation["requestBody"] = {
                "description": _CODINGS,
                **({"required": True} if description.needs_body else {}),
                "content": self._content(description.bodies),
            }
        operation.update(self._security(right))
        operation["responses"] = self._answers(
            method,
            description.successes,
            refusals,
            error_objects=description.error_objects,
            fields_of_refusals=description.fields_of_refusals,
        )
        return operation

    def _refusals_of_callers(self, right: Right) -> tuple[type[SampleAppError], ...]:
        if not self._schemes or right is Right.NONE:
            return ()
        return _OF_EVERY_CALLER if right is Right.ANY else (*_OF_EVERY_CALLER, access.NotGranted)

    def _security(self, right: Right) -> dict[str, Any]:
        """Return the security requirement: any one kind of credentials is enough."""
        if not self._schemes:
            return {}
        return {"security": [] if right is Right.NONE else [{name: []} for name in self._schemes]}

    def _parameter(self, parameter: Parameter) -> dict[str, Any]:
        return {
            "name": parameter.name,
            "in": parameter.place,
            "description": parameter.meaning,
            **({"required": True} if parameter.is_required or parameter.place == "path" else {}),
            "schema": self._schema(parameter.kind),
        }

    def _answers(
        self,
        method: str,
        successes: Sequence[Success],
        refusals: Iterable[type[SampleAppError]],
        *,
        error_objects: tuple[type, ...] = (),
        fields_of_refusals: tuple[Field, ...] = (),
    ) -> dict[str, Any]:
        answers = {f"{success.status:d}": self._success(method, success) for success in successes}
        by_status: defaultdict[int, list[type[SampleAppError] | None]] = defaultdict(list)
        by_status[FAULT.status].append(None)
        for kind in dict.fromkeys(refusals):
            by_status[_row(kind).status].append(kind)
        for status, kinds in sorted(by_status.items()):
            answers[str(int(status))] = self._refusal(
                kinds, has_body=method != "HEAD", error_objects=error_objects, more_fields=fields_of_refusals
            )
        return answers

    def _success(self, method: str, success: Success) -> dict[str, Any]:
        fields = (*success.fields, *success.optional_fields)
        headers = self._headers(fields, [field.name for field in success.fields])
        answer: dict[str, Any] = {"description": success.meaning, "headers": headers}
        if success.contents and method != "HEAD":
            answer["content"] = self._content(success.contents)
        return answer

    def _content(self, contents: Iterable[Content]) -> dict[str, Any]:
        return {
            content.media_type: {
                "schema": self._schema(content.kind),
                **(
                    {"examples": {"example": {"summary": content.summary, "value": content.example}}}
                    if content.example is not None
                    else {}
                ),
            }
            for content in contents
        }

    def _schema(self, kind: Any) -> dict[str, Any]:
        return kind if isinstance(kind, dict) else self._schema_of[repr(kind)]

    def _refusal(
        self,
        kinds: Sequence[type[SampleAppError] | None],
        *,
        has_body: bool = True,
        error_objects: tuple[type, ...] = (),
        more_fields: tuple[Field, ...] = (),
    ) -> dict[str, str]:
        """Describe all errors with one status: a shared component, to which operations refer."""
        rows = [_row(kind) for kind in kinds]
        types: dict[str, tuple[Row, list[str]]] = {}
        for kind, row in zip(kinds, rows, strict=True):
            types.setdefault(row.type, (row, []))[1].append(_meaning(kind))
        always = set.intersection(*(_field_names(kind, row) for kind, row in zip(kinds, rows, strict=True)))
        fields = sorted(set.union(*(_field_names(kind, row) for kind, row in zip(kinds, rows, strict=True))))
        response = {
            "description": "\n".join(
                f"- {row.title} (`{uri}`): {' '.join(meanings)}" for uri, (row, meanings) in types.items()
            ),
            "headers": self._headers([*(_FIELDS_OF_REFUSALS[name] for name in fields), *more_fields], always),
        }
        if has_body:
            content: dict[str, Any] = {
                _PROBLEM_TYPE: {
                    # Generators of clients take the reference, and so make one class of all refusals.
                    "schema": {
                        "$ref": _SCHEMAS.format(name=Problem.__name__),
                        "properties": {
                            "type": {"enum": list(types)},
                            "status": {"const": int(rows[0].status)},
                        },
                    },
                    "examples": {
                        row.name or "plain": {
                            "summary": row.title,
                            "value": {
                                "type": uri,
                                "title": row.title,
                                "status": int(row.status),
                                "detail": meanings[0],
                            },
                        }
                        for uri, (row, meanings) in types.items()
                    },
                }
            }
            if error_objects:
                schemas = [self._schema(kind) for kind in error_objects]
                content[ANSWER.decode("ascii")] = {
                    "schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
                }
            response["content"] = content
        return self._shared(rows[0].status, response)

    def _headers(self, fields: Iterable[Field], always: Iterable[str]) -> dict[str, Any]:
        """
        Describe the header fields of an answer, with those that every answer has.

        :param always: the names of the fields that every answer with this status has.
        """
        described = {
            field.name: {**_field(field), **({"required": True} if field.name in always else {})}
            for field in fields
        }
        common = (field.name for field in (*self._common, *self._of_some))
        return {**described, **{name: {"$ref": _HEADERS + name} for name in common}}

    def _shared(self, status: HTTPStatus, response: dict[str, Any]) -> dict[str, str]:
        text = json.dumps(response)
        if text not in self._names:
            name = "".join(word.capitalize() for word in status.name.split("_"))
            count = sum(1 for other in self._responses if other.rstrip("0123456789") == name)
            self._names[text] = name if not count else f"{name}{count + 1}"
            self._responses[self._names[text]] = response
        return {"$ref": f"{_RESPONSES}{self._names[text]}"}


def _kinds(descriptions: Iterable[Description | None]) -> Iterator[Any]:
    descriptions = list(descriptions)
    for description in descriptions:
        if description is not None:
            yield from description.error_objects
            yield from (each.kind for each in description.parameters if not isinstance(each.kind, dict))
    yield from (content.kind for content in _contents(descriptions) if not isinstance(content.kind, dict))


def _contents(descriptions: Iterable[Description | None]) -> Iterator[Content]:
    for description in descriptions:
        if description is not None:
            yield from description.bodies
            for success in description.successes:
                yield from success.contents


def _methods(rule: Rule) -> list[str]:
    """Return the methods of a route, with HEAD last, since it is described like GET."""
    return sorted(rule.methods or (), key=lambda method: (method == "HEAD", method))


def _path(rule: Rule, template: str, description: Description) -> str:
    """
    Return the path of an operation: ``/topics/{topic}``.

    :raise ValueError: its variables are not the parameters that are described.
    """
    named = {parameter.name for parameter in description.parameters if parameter.place == "path"}
    if rule.arguments != named:
        raise ValueError(f"The variables of {rule.rule} are {rule.arguments}, not {named}.")
    return template


def _of_path(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the variables of the path, as any strings: OPTIONS does not check them."""
    return [
        {**parameter, "schema": {"type": "string"}}
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "path"
    ]


def _row(kind: type[SampleAppError] | None) -> Row:
    return FAULT if kind is None else ROWS[kind]


def _meaning(kind: type[SampleAppError] | None) -> str:
    """Return the first paragraph of the docstring of an error."""
    if kind is None:
        return "A fault in the service; its log has the details."
    # python -OO removes docstrings.
    paragraph = (inspect.getdoc(kind) or ROWS[kind].title).partition("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())


def _field_names(kind: type[SampleAppError] | None, row: Row) -> set[str]:
    names = {name.decode("ascii") for name, _ in row.headers}
    if kind is request_errors.MethodNotAllowed:
        names.add(_ALLOW.name)
    if kind in _WITH_RETRY_AFTER:
        names.add("Retry-After")
    return {"Cache-Control", *names}


def _field(field: Field) -> dict[str, Any]:
    schema = {"type": "string"} if isinstance(field.example, str) else {"type": "integer", "minimum": 0}
    return {"description": field.meaning, "schema": schema, "example": field.example}
