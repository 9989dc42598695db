"""What the service shows over HTTP."""

from sampleapp.web.app import FrontDoor
from sampleapp.web.site import FrontDoorSite

__all__ = ["FrontDoor", "FrontDoorSite"]
