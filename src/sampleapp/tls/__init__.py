"""What an endpoint with TLS needs: its files, OpenSSL's settings, and the endpoints themselves."""

from __future__ import annotations

from sampleapp.tls.callbacks import require_callbacks
from sampleapp.tls.endpoint import HTTPSEndpoint
from sampleapp.tls.expiry import ExpiryWatch
from sampleapp.tls.ssl_endpoint import RenewableSSLEndpoint

__all__ = ["ExpiryWatch", "HTTPSEndpoint", "RenewableSSLEndpoint", "require_callbacks"]
