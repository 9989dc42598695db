"""What the service shows over HTTP."""

from sampleapp.web.answers import Answer, Batch, TopicTotal
from sampleapp.web.app import FrontDoor
from sampleapp.web.cors import Cors
from sampleapp.web.documentation import Documentation
from sampleapp.web.gate import Gate
from sampleapp.web.probes import Probes
from sampleapp.web.routing import Routes, RouteTable, answer_to_failure, refusal_in_form
from sampleapp.web.server import (
    Descriptors,
    Dispatch,
    Exchange,
    HTTPServer,
    Limits,
    OnAnswer,
    Request,
    is_on_loopback,
)

__all__ = [
    "Answer",
    "Batch",
    "Cors",
    "Descriptors",
    "Dispatch",
    "Documentation",
    "Exchange",
    "FrontDoor",
    "Gate",
    "HTTPServer",
    "Limits",
    "OnAnswer",
    "Probes",
    "Request",
    "RouteTable",
    "Routes",
    "TopicTotal",
    "answer_to_failure",
    "is_on_loopback",
    "refusal_in_form",
]
