"""
Metrics in the formats of Prometheus.

Each component counts its own events, in plain numbers. Here the numbers get their names (`families`) and are
written when a Prometheus server asks for them (`page`). Only requests are counted here (`requests`).
"""

from sampleapp.metrics.families import Families
from sampleapp.metrics.page import MetricsPage
from sampleapp.metrics.requests import RequestCounts

__all__ = ["Families", "MetricsPage", "RequestCounts"]
