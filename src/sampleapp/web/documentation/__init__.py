"""Documentation of the interface that the service serves: OpenAPI and Swagger UI."""

from sampleapp.web.documentation.routes import Documentation

__all__ = ["Documentation"]
