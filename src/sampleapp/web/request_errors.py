"""What can be wrong with a request before anybody looks at what it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sampleapp.errors import SampleAppError
from sampleapp.web.answers import Headers

__all__ = [
    "BodyTooLarge",
    "CrossSiteRequest",
    "ExpectationNotMet",
    "HeaderTooLarge",
    "MalformedRequest",
    "MethodNotAllowed",
    "NotAcceptable",
    "NotReady",
    "PathNotFound",
    "PreconditionFailed",
    "RequestError",
    "RequestTooSlow",
    "SeveralContentTypes",
    "TooManyConnections",
    "TooManyRequests",
    "UndecodableBody",
    "UnsupportedContentCoding",
    "UnsupportedContentType",
    "UnsupportedEmbeddedFormat",
]

_LONGEST_FIELD = 100
"""So many bytes of a header field are repeated in a refusal."""


class RequestError(SampleAppError):
    """A request that HTTP, or this service, does not allow."""

    headers: Headers = ()
    """What the answer has to say beside its document."""


class MalformedRequest(RequestError):
    """The request does not follow the grammar of HTTP (RFC 9112)."""


class HeaderTooLarge(RequestError):
    """The request line or the header fields are more than the service reads."""


class PathNotFound(RequestError):
    """Nothing is at this path."""

    def __init__(self, why: str = "There is nothing at this path") -> None:
        """:param why: without the end of the sentence."""
        super().__init__(f"{why}; /openapi.json lists the paths that there are.")


class MethodNotAllowed(RequestError):
    """The path exists, and does not take this method (RFC 9110, section 15.5.6)."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """:param allowed: the methods that the path does take."""
        methods = ", ".join(sorted(allowed, key=lambda method: (method == "OPTIONS", method)))
        super().__init__(f"This path does not take this method; it takes {methods}.")
        self.headers = ((b"Allow", methods.encode("ascii")),)


class NotReady(RequestError):
    """Messages are not expected to be taken now, or the readings are not read yet, or the service stops."""

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        """:param reasons: why, a sentence each; none if that is not for who asks."""
        self.reasons = tuple(reasons)
        super().__init__(" ".join(self.reasons) or "The service is not ready.")


class PreconditionFailed(RequestError):
    """``If-Match`` does not name the current representation (RFC 9110, section 15.5.13)."""

    def __init__(self) -> None:
        super().__init__(
            "If-Match holds neither the current entity tag nor *. Send the request without it, or with the "
            "tag of the answer to a request with the same Accept."
        )


class BodyTooLarge(RequestError):
    """The body is over the limit of the service."""

    def __init__(self, max_body: int | None, *, is_decoded: bool = False) -> None:
        """
        :param max_body: the limit, in bytes; ``None`` if the length is more than any.
        :param is_decoded: whether it is over the limit only once it is decoded.
        """
        super().__init__(
            "The declared length of the body has more than 64 bits."
            if max_body is None
            else f"The body{', when decoded,' if is_decoded else ''} is larger than the {max_body} bytes "
            "that this service takes."
        )


class CrossSiteRequest(RequestError):
    """A page of another site made the request, and its origin is not allowed (``--allow-origin``)."""

    def __init__(self, name: str, value: bytes) -> None:
        """
        :param name: of the header field that says so.
        :param value: of that field.
        """
        super().__init__(
            f"A page of another site made this request ({name}: {_shown(value)}), and nothing was published. "
            "Requests of pages are taken if Origin has the host and the port of Host, or if it is an origin "
            "that the service was started with (--allow-origin)."
        )


class RequestTooSlow(RequestError):
    """The header, or the body, has not come in time (RFC 9110, section 15.5.9)."""


class TooManyConnections(RequestError):
    """As many connections are open as may be."""

    def __init__(self, max_connections: int) -> None:
        """:param max_connections: the limit."""
        super().__init__(f"All of the {max_connections} connections that this service takes are in use.")


class TooManyRequests(RequestError):
    """As many requests wait for the broker as may."""

    def __init__(self, max_waiting: int) -> None:
        """:param max_waiting: the limit."""
        super().__init__(
            f"There are {max_waiting} requests already that wait for the broker. Nothing was published."
        )


class UnsupportedContentType(RequestError):
    """The body is not said to be JSON, or lines of it."""

    headers = ((b"Accept", b"application/json, application/x-ndjson, application/jsonl"),)

    def __init__(self, content_types: Sequence[bytes]) -> None:
        """:param content_types: the values of the fields that the request has."""
        if len(content_types) == 1:
            came = f"not {_shown(content_types[0])}"
        elif content_types:
            came = f"once; this request has {len(content_types)} of them"
        else:
            came = "and this request has none"
        super().__init__(
            "The Content-Type of a message has to be application/json (of many, one a line: "
            f"application/x-ndjson), {came}."
        )


class SeveralContentTypes(RequestError):
    """The body is said to be more than one thing, where it may be anything (RFC 9110, section 8.3)."""

    def __init__(self) -> None:
        super().__init__("The request has more than one Content-Type; send one, or none.")


def _shown(field: bytes) -> str:
    # RFC 9110, section 5.5: what is not ASCII has no defined meaning.
    text = field[:_LONGEST_FIELD].decode("ascii", errors="replace")
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return f"{shown}…" if len(field) > _LONGEST_FIELD else shown or "empty"


class UnsupportedEmbeddedFormat(RequestError):
    """The body is not said to hold records of JSON or of base64, as REST Proxy's API v2 names them."""

    headers = ((b"Accept", b"application/vnd.kafka.json.v2+json, application/vnd.kafka.binary.v2+json"),)

    def __init__(self, content_types: Sequence[bytes]) -> None:
        """:param content_types: the values of the fields that the request has."""
        came = _shown(content_types[0]) if len(content_types) == 1 else f"{len(content_types) or 'none'}"
        super().__init__(
            "Of REST Proxy's media types, a Content-Type may be application/vnd.kafka.json.v2+json or "
            f"application/vnd.kafka.binary.v2+json; this request has {came}. There are no schemas (Avro, "
            "JSON Schema, Protobuf), and no other versions."
        )


class NotAcceptable(RequestError):
    """The client takes none of the media types that the answer may have (RFC 9110, section 15.5.7)."""

    def __init__(self) -> None:
        super().__init__(
            "The answer is application/vnd.kafka.v2+json, also as application/vnd.kafka+json or "
            "application/json, and Accept allows none of them. Nothing was published."
        )


class UnsupportedContentCoding(RequestError):
    """The body is compressed in a way that is not undone here (RFC 9110, section 15.5.16)."""

    # RFC 7694, section 3.
    headers = ((b"Accept-Encoding", b"gzip, zstd"),)

    def __init__(self, codings: Sequence[bytes]) -> None:
        """:param codings: that the body has, in the order in which they were applied."""
        came = f"not {_shown(codings[0])}" if len(codings) == 1 else f"not {len(codings)} of them"
        super().__init__(f"The Content-Encoding of a body may be gzip or zstd, {came}; it need not have one.")


class UndecodableBody(RequestError):
    """The body is not what its ``Content-Encoding`` says: gzip (RFC 1952) or zstd (RFC 8878)."""

    def __init__(self, coding: str, reason: str) -> None:
        """
        :param coding: what it says.
        :param reason: what is wrong, in the words of the library that was to decode it, perhaps.
        """
        hint = " A window may have up to 8 MiB (RFC 9659)." if coding == "zstd" else ""
        super().__init__(
            f"The body is not what its Content-Encoding says, {coding}: {reason.rstrip('.')}.{hint} Send all "
            "of it as it was compressed, or without a Content-Encoding."
        )


class ExpectationNotMet(RequestError):
    """The request expects something else than 100-continue (RFC 9110, section 10.1.1)."""

    def __init__(self) -> None:
        super().__init__("The only expectation that this service can meet is 100-continue.")
