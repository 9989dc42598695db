"""Errors of requests at the level of HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sampleapp.errors import SampleAppError
from sampleapp.web.answers import Headers

__all__ = [
    "BodyMemoryFull",
    "BodyMemoryOfCallerFull",
    "BodyNeedsTooMuchMemory",
    "BodyTooLarge",
    "CrossSiteRequest",
    "ExpectationNotMet",
    "HeaderTooLarge",
    "LengthRequired",
    "MalformedRequest",
    "MethodNotAllowed",
    "MisdirectedRequest",
    "NotAcceptable",
    "NotReady",
    "PathNotFound",
    "PreconditionFailed",
    "RequestError",
    "RequestTooSlow",
    "SeveralContentTypes",
    "TooManyConnections",
    "TooManyRequests",
    "TooManyStreams",
    "TooManyTopics",
    "UndecodableBody",
    "UnsupportedContentCoding",
    "UnsupportedContentType",
    "UnsupportedEmbeddedFormat",
]

_LONGEST_FIELD = 100
"""The maximum length of a header field that an error quotes, in bytes."""


class RequestError(SampleAppError):
    """A request is not valid in HTTP, or for this service."""

    headers: Headers = ()
    """Header fields of the answer."""


class MalformedRequest(RequestError):
    """The request does not match the grammar of HTTP (RFC 9112)."""


class HeaderTooLarge(RequestError):
    """The request line or the header fields are larger than the limit."""


class LengthRequired(RequestError):
    """A ``POST`` does not say where its body ends, if it has one (RFC 9110, section 15.5.12)."""

    def __init__(self) -> None:
        super().__init__(
            "The request has neither Content-Length nor Transfer-Encoding: chunked, so a body would be lost. "
            "Send the length of the body; for an empty one, Content-Length: 0."
        )


class PathNotFound(RequestError):
    """No resource has this path."""

    def __init__(self, reason: str = "No resource has this path.") -> None:
        """:param reason: a sentence."""
        super().__init__(f"{reason} /openapi.json lists all paths.")


class MethodNotAllowed(RequestError):
    """The path does not have this method (RFC 9110, section 15.5.6)."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """:param allowed: the methods of the path."""
        methods = ", ".join(sorted(allowed, key=lambda method: (method == "OPTIONS", method)))
        super().__init__(f"This path does not have this method. Its methods are {methods}.")
        self.headers = ((b"Allow", methods.encode("ascii")),)


class NotReady(RequestError):
    """Publishing is expected to fail, the readings are not complete yet, or the service is stopping."""

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        """:param reasons: a sentence each; none if the client may not see them."""
        self.reasons = tuple(reasons)
        super().__init__(" ".join(self.reasons) or "The service is not ready.")


class PreconditionFailed(RequestError):
    """A condition of the request is not met (RFC 9110, section 15.5.13)."""

    def __init__(
        self,
        reason: str = "If-Match has neither the current entity tag nor *. Omit it, or send the ETag of an "
        "answer to a request with the same Accept.",
    ) -> None:
        """:param reason: a sentence."""
        super().__init__(reason)


class BodyTooLarge(RequestError):
    """The body is larger than the limit (``--max-body``, ``--max-batch-body``)."""

    def __init__(self, max_body: int | None, *, is_decoded: bool = False) -> None:
        """
        :param max_body: the limit, in bytes; ``None`` if the length exceeds any limit.
        :param is_decoded: whether only the decoded body is over the limit.
        """
        super().__init__(
            "The Content-Length of the body does not fit into 64 bits."
            if max_body is None
            else f"The {'decoded ' if is_decoded else ''}body is larger than {max_body} bytes, the limit of "
            "this service."
        )


class BodyMemoryFull(RequestError):
    """The memory for bodies is full (``--max-body-memory``)."""

    def __init__(self, max_body_memory: int) -> None:
        """:param max_body_memory: the limit for all of them, in bytes."""
        super().__init__(
            f"The bodies of other requests leave too little of the {max_body_memory} bytes of memory for "
            "bodies. Nothing was done. Send the request again."
        )


class BodyMemoryOfCallerFull(RequestError):
    """The part of one caller of the memory for bodies is full (``--max-body-memory``)."""

    def __init__(self, most: int) -> None:
        """:param most: the limit for all requests of a caller together, in bytes."""
        super().__init__(
            f"Your other requests leave too little of the {most} bytes of memory that one caller may have. "
            "Nothing was done. Send the request again when one of them is answered."
        )


class BodyNeedsTooMuchMemory(RequestError):
    """The body, its records or the answer need more memory than one request may have."""

    def __init__(self, needed: int, most: int) -> None:
        """
        :param needed: up to now, in bytes.
        :param most: the limit, in bytes.
        """
        super().__init__(
            f"The request needs at least {needed} bytes of memory. One request may have {most}. Nothing was "
            "done. Send, or ask for, fewer records in one request."
        )


class CrossSiteRequest(RequestError):
    """A page of another site made the request, and its origin is not allowed (``--allow-origin``)."""

    def __init__(self, name: str, value: bytes) -> None:
        """
        :param name: of the header field that shows it.
        :param value: of the field.
        """
        super().__init__(
            f"A page of another site made this request ({name}: {_shown(value)}). Nothing was published. "
            "Pages may publish if Origin has the host and the port of Host, or if the service was started "
            "with --allow-origin and this origin."
        )


class MisdirectedRequest(RequestError):
    """``Host`` is not a known name of this service (``--allow-host``)."""

    def __init__(self, host: bytes) -> None:
        """:param host: from the field, or from the target."""
        super().__init__(
            f"The host {_shown(host)} is not a known name of this service. Since callers need no "
            "credentials, only localhost, loopback addresses and the hosts of --allow-host are served: "
            "another site could point its name here. If it is a name of the service, start the service with "
            "--allow-host NAME."
        )


class RequestTooSlow(RequestError):
    """The head or the body was not received in time (RFC 9110, section 15.5.9)."""


class TooManyConnections(RequestError):
    """The maximum number of connections is open."""

    def __init__(self, max_connections: int) -> None:
        """:param max_connections: the limit."""
        super().__init__(f"All {max_connections} connections of this service are in use. Try again later.")


class TooManyRequests(RequestError):
    """The maximum number of requests is waiting for the broker."""

    def __init__(self, max_waiting: int) -> None:
        """:param max_waiting: the limit."""
        super().__init__(
            f"{max_waiting} requests are waiting for the broker, the maximum. Nothing was published."
        )


class TooManyStreams(RequestError):
    """The maximum number of streams, or of waiting pages, is open (``--max-streams``)."""

    def __init__(self, limit: int, *, what: str) -> None:
        """:param what: ``streams`` or ``waiting pages``."""
        super().__init__(
            f"{limit} {what} are open, the maximum of this service. Send the request again later, or to "
            "another instance."
            if limit
            else f"This service permits no {what}: their maximum is 0."
        )


class TooManyTopics(RequestError):
    """Streams and waiting pages read the maximum number of topics (``--max-followed-topics``)."""

    def __init__(self, limit: int) -> None:
        """:param limit: the number of topics."""
        super().__init__(
            f"Streams and waiting pages read {limit} other topics, the maximum of this service. Read pages "
            "without wait, or send the request again later."
        )


class UnsupportedContentType(RequestError):
    """``Content-Type`` is not JSON or lines of JSON."""

    headers = ((b"Accept", b"application/json, application/x-ndjson, application/jsonl"),)

    def __init__(self, content_types: Sequence[bytes]) -> None:
        """:param content_types: the values of the fields that the request has."""
        if len(content_types) == 1:
            actual = _shown(content_types[0])
        elif content_types:
            actual = f"{len(content_types)} of them"
        else:
            actual = "none"
        super().__init__(
            "The Content-Type must be application/json for one message, or application/x-ndjson for one "
            f"message on each line. The Content-Type of this request: {actual}."
        )


class SeveralContentTypes(RequestError):
    """The request has more than one ``Content-Type`` (RFC 9110, section 8.3)."""

    def __init__(self) -> None:
        super().__init__("The request has more than one Content-Type. Send one, or none.")


class UnsupportedEventFormat(RequestError):
    """``Content-Type`` is a format of CloudEvents other than JSON."""

    headers = ((b"Accept", b"application/cloudevents+json, application/cloudevents-batch+json"),)

    def __init__(self) -> None:
        super().__init__(
            "Of the formats of CloudEvents, only JSON is supported: application/cloudevents+json, or "
            "application/cloudevents-batch+json for a batch. Data of any type can be sent in binary mode."
        )


def _shown(field: bytes) -> str:
    # RFC 9110, section 5.5: bytes that are not ASCII have no defined meaning.
    text = field[:_LONGEST_FIELD].decode("ascii", errors="replace")
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return f"{shown}…" if len(field) > _LONGEST_FIELD else shown or "empty"


class UnsupportedEmbeddedFormat(RequestError):
    """``Content-Type`` is none of the supported formats of REST Proxy's API v2: ``json`` and ``binary``."""

    headers = ((b"Accept", b"application/vnd.kafka.json.v2+json, application/vnd.kafka.binary.v2+json"),)

    def __init__(self, content_types: Sequence[bytes]) -> None:
        """:param content_types: the values of the fields that the request has."""
        actual = _shown(content_types[0]) if len(content_types) == 1 else f"{len(content_types) or 'none'}"
        super().__init__(
            "Of REST Proxy's media types, the service supports application/vnd.kafka.json.v2+json and "
            f"application/vnd.kafka.binary.v2+json. The Content-Type of this request: {actual}. Schemas "
            "(Avro, JSON Schema, Protobuf) and other versions are not supported."
        )


class NotAcceptable(RequestError):
    """``Accept`` allows none of the media types of the answer (RFC 9110, section 15.5.7)."""

    def __init__(self) -> None:
        super().__init__(
            "The answer can be application/vnd.kafka.v2+json, application/vnd.kafka+json or "
            "application/json. Accept allows none of them. Nothing was published."
        )


class UnsupportedContentCoding(RequestError):
    """The ``Content-Encoding`` of the body is not supported (RFC 9110, section 15.5.16)."""

    # RFC 7694, section 3.
    headers = ((b"Accept-Encoding", b"gzip, zstd"),)

    def __init__(self, codings: Sequence[bytes]) -> None:
        """:param codings: of the body, in the order in which they were applied."""
        actual = _shown(codings[0]) if len(codings) == 1 else f"{len(codings)} of them"
        super().__init__(
            "The Content-Encoding of a body must be gzip or zstd, or absent. The Content-Encoding of this "
            f"request: {actual}."
        )


class UndecodableBody(RequestError):
    """The body is not valid in its ``Content-Encoding``: gzip (RFC 1952) or zstd (RFC 8878)."""

    def __init__(self, coding: str, reason: str) -> None:
        """
        :param coding: the ``Content-Encoding``.
        :param reason: the fault, possibly in the words of the library that decodes.
        """
        hint = " The maximum window is 8 MiB (RFC 9659)." if coding == "zstd" else ""
        super().__init__(
            f"The body is not valid {coding}, its Content-Encoding: {reason.rstrip('.')}.{hint} Send the "
            "whole compressed body, or send it uncompressed, without Content-Encoding."
        )


class ExpectationNotMet(RequestError):
    """``Expect`` is not 100-continue (RFC 9110, section 10.1.1)."""

    def __init__(self) -> None:
        super().__init__("The only value of Expect that this service supports is 100-continue.")
