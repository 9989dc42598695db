"""Documentation of the interface that the service serves: OpenAPI and Swagger UI."""

from sampleapp.web.documentation.pages import Documentation

__all__ = ["Documentation"]
