"""TLS for servers: the endpoint ``https:``, its certificates and settings, and checks for ``ssl:``."""

from __future__ import annotations

from sampleapp.tls.expiry import ExpiryWatch
from sampleapp.tls.https_endpoint import HTTPSEndpoint
from sampleapp.tls.openssl_callbacks import require_callbacks
from sampleapp.tls.ssl_endpoint import check_ssl_endpoint

__all__ = ["ExpiryWatch", "HTTPSEndpoint", "check_ssl_endpoint", "require_callbacks"]
