"""The bodies of REST Proxy's produce requests and of the answers to them, for OpenAPI."""

from __future__ import annotations

from typing import Final

from sampleapp import errors
from sampleapp.messages.rest_proxy_bodies import EmbeddedFormat
from sampleapp.web.descriptions import Content
from sampleapp.web.error_objects import ErrorObject
from sampleapp.web.errors import BROKER_REFUSALS, NotAcceptable, UnsupportedEmbeddedFormat
from sampleapp.web.kafka_media_types import ANSWER, request_type
from sampleapp.web.rest_proxy_documents import BinaryProduceRequest, JSONProduceRequest, ProduceAnswer

__all__ = ["PRODUCED", "PRODUCE_BODIES", "PRODUCE_ERRORS", "PRODUCE_REFUSALS"]

PRODUCE_BODIES: Final = (
    Content(
        media_type=request_type(EmbeddedFormat.JSON),
        kind=JSONProduceRequest,
        summary="Records of JSON, as for REST Proxy",
        example={
            "records": [{"key": "kitchen", "value": {"celsius": 21.5}}, {"value": None, "partition": 0}]
        },
    ),
    Content(
        media_type=request_type(EmbeddedFormat.BINARY),
        kind=BinaryProduceRequest,
        summary="Records of any bytes, as for REST Proxy",
        example={"records": [{"key": "a2l0Y2hlbg==", "value": "MjEuNQ=="}]},
    ),
)
PRODUCED: Final = Content(
    media_type=ANSWER.decode("ascii"),
    kind=ProduceAnswer,
    summary="The outcome of each record, as REST Proxy answers it",
    example={
        "offsets": [{"partition": 0, "offset": 42, "error_code": None, "error": None}],
        "key_schema_id": None,
        "value_schema_id": None,
    },
)
PRODUCE_ERRORS: Final = (ErrorObject, ProduceAnswer)
"""The forms of answers that are not successes."""
PRODUCE_REFUSALS: Final = (
    errors.InvalidParameters,
    NotAcceptable,
    UnsupportedEmbeddedFormat,
    errors.MalformedMessage,
    errors.InvalidMessage,
    *BROKER_REFUSALS,
)
