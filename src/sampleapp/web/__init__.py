"""What the service shows over HTTP."""

from sampleapp.web.app import FrontDoor
from sampleapp.web.documentation import Documentation
from sampleapp.web.routing import answer_to_failure
from sampleapp.web.server import Descriptors, HTTPServer, Limits

__all__ = ["Descriptors", "Documentation", "FrontDoor", "HTTPServer", "Limits", "answer_to_failure"]
