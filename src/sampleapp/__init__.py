"""The front door between plain HTTP and Apache Kafka."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("sampleapp")
