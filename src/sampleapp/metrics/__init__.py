"""
What an operator's monitoring reads, in the formats of Prometheus.

Whatever happens is counted where it happens, in plain numbers. Here they get their names (`families`), and
are written down when somebody asks for them (`page`). Only what happens to requests is counted here, too
(`requests`).
"""

from sampleapp.metrics.families import Families
from sampleapp.metrics.page import MetricsPage
from sampleapp.metrics.requests import RequestCounts

__all__ = ["Families", "MetricsPage", "RequestCounts"]
