"""
The embedded default broker: records in one SQLite file.

From the bottom up: `faults` says what an error of SQLite means, `opening` opens and verifies, `store` appends
and reads (all three run on one private thread), `thread` is that thread, `publishes` is what callers wait
for, `writer` gathers it into transactions, `following` reads topics, and `broker` puts them together.
"""

from sampleapp.brokers.sqlite.broker import SQLiteBroker

__all__ = ["SQLiteBroker"]
