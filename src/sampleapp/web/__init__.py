"""What the service shows over HTTP."""

from sampleapp.web.answers import Answer
from sampleapp.web.app import FrontDoor
from sampleapp.web.documentation import Documentation
from sampleapp.web.routing import Routes, answer_to_failure
from sampleapp.web.server import Descriptors, Exchange, HTTPServer, Limits, Request

__all__ = [
    "Answer",
    "Descriptors",
    "Documentation",
    "Exchange",
    "FrontDoor",
    "HTTPServer",
    "Limits",
    "Request",
    "Routes",
    "answer_to_failure",
]
