"""TLS for servers: the endpoint ``https:``, its certificates and settings, and checks for ``ssl:``."""

from __future__ import annotations

from sampleapp.tls.endpoints import ExpiryWatch, HTTPSEndpoint, check_ssl_endpoint
from sampleapp.tls.server_context import require_callbacks

__all__ = ["ExpiryWatch", "HTTPSEndpoint", "check_ssl_endpoint", "require_callbacks"]
