"""The HTTP interface: application, routes, access control, publishing, documentation and server."""

from sampleapp.web.admin import AdminApp, MetricsApp
from sampleapp.web.answers import Answer, Batch, TopicTotal
from sampleapp.web.app import SampleApp
from sampleapp.web.cors import Cors
from sampleapp.web.descriptions import Features
from sampleapp.web.errors import problem_answer
from sampleapp.web.failures import answer_to_failure, refusal_in_form
from sampleapp.web.gate import Gate
from sampleapp.web.openapi.pages import Documentation
from sampleapp.web.probes import Probes
from sampleapp.web.publish.idempotency import IdempotentRecords
from sampleapp.web.read.registry import OpenStreams, StreamKind
from sampleapp.web.read.topic_reads import TopicReads
from sampleapp.web.routing import App, RouteTable
from sampleapp.web.server import (
    Descriptors,
    Dispatch,
    Exchange,
    HostRule,
    HTTPServer,
    Limits,
    OnAnswer,
    Request,
    StreamEnd,
    is_on_loopback,
)

__all__ = [
    "AdminApp",
    "Answer",
    "App",
    "Batch",
    "Cors",
    "Descriptors",
    "Dispatch",
    "Documentation",
    "Exchange",
    "Features",
    "Gate",
    "HTTPServer",
    "HostRule",
    "IdempotentRecords",
    "Limits",
    "MetricsApp",
    "OnAnswer",
    "OpenStreams",
    "Probes",
    "Request",
    "RouteTable",
    "SampleApp",
    "StreamEnd",
    "StreamKind",
    "TopicReads",
    "TopicTotal",
    "answer_to_failure",
    "is_on_loopback",
    "problem_answer",
    "refusal_in_form",
]
