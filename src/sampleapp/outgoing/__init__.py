"""Connections to other servers: TLS with verified certificates, HTTPS, and the bodies of responses."""
