"""
An HTTP gateway to Apache Kafka.

Publish messages with POST, get the response once they are stored, and read topics as pages or event streams.
"""

from importlib.metadata import version

__all__ = ["DISTRIBUTION", "__version__"]

DISTRIBUTION = "sampleapp-http-gateway"
"""The name on a package index, where ``sampleapp`` is another project."""

__version__ = version(DISTRIBUTION)
