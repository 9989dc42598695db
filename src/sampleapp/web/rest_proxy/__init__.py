"""What clients of Confluent's REST Proxy, API v2, may ask for: to publish, and which topics there are."""

from sampleapp.web.rest_proxy.produce import (
    PRODUCE_BODIES,
    PRODUCE_ERRORS,
    PRODUCE_REFUSALS,
    PRODUCED,
    admit,
    max_body,
    publish,
    refuse_format,
)
from sampleapp.web.rest_proxy.topics import RestProxy

__all__ = [
    "PRODUCED",
    "PRODUCE_BODIES",
    "PRODUCE_ERRORS",
    "PRODUCE_REFUSALS",
    "RestProxy",
    "admit",
    "max_body",
    "publish",
    "refuse_format",
]
