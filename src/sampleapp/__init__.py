"""
An HTTP gateway to Apache Kafka.

Publish messages with POST, get the response once they are stored, and read topics as pages or event streams.
"""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["DISTRIBUTION", "__version__"]

DISTRIBUTION = "sampleapp-http-gateway"
"""The name on a package index, where ``sampleapp`` is another project."""

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:
    # The client alone.
    __version__ = version(f"{DISTRIBUTION}-client")
