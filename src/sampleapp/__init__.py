"""
An HTTP gateway to Apache Kafka.

Publish messages with POST, get the answer once they are stored, and read the latest values with GET.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("sampleapp")
