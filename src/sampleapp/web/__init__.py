"""The HTTP interface: application, routes, access control, publishing, documentation and server."""

from sampleapp.web.access_control import AccessControl
from sampleapp.web.admin import AdminApp, MetricsApp
from sampleapp.web.app import SampleApp
from sampleapp.web.cors import Cors
from sampleapp.web.descriptions import Features
from sampleapp.web.errors import problem_response
from sampleapp.web.failures import rejection_in_form, response_to_failure
from sampleapp.web.openapi.pages import Documentation
from sampleapp.web.probes import Probes
from sampleapp.web.publish.publisher import IdempotentRecords
from sampleapp.web.read.registry import OpenStreams, StreamKind
from sampleapp.web.read.topic_reads import TopicReads
from sampleapp.web.responses import Batch, Response, TopicTotal
from sampleapp.web.routing import App, RouteTable
from sampleapp.web.server import (
    Descriptors,
    Dispatch,
    Exchange,
    HostRule,
    HTTPServer,
    Limits,
    OnResponse,
    Request,
    StreamEnd,
    is_on_loopback,
)
from sampleapp.web.work.groups import WorkGroups

__all__ = [
    "AccessControl",
    "AdminApp",
    "App",
    "Batch",
    "Cors",
    "Descriptors",
    "Dispatch",
    "Documentation",
    "Exchange",
    "Features",
    "HTTPServer",
    "HostRule",
    "IdempotentRecords",
    "Limits",
    "MetricsApp",
    "OnResponse",
    "OpenStreams",
    "Probes",
    "Request",
    "Response",
    "RouteTable",
    "SampleApp",
    "StreamEnd",
    "StreamKind",
    "TopicReads",
    "TopicTotal",
    "WorkGroups",
    "is_on_loopback",
    "problem_response",
    "rejection_in_form",
    "response_to_failure",
]
