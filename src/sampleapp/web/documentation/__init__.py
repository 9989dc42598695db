"""What the interface says of itself, to programs and to people."""

from sampleapp.web.documentation.routes import Documentation

__all__ = ["Documentation"]
