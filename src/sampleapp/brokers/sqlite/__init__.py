"""
The embedded default broker: records in one SQLite file.

From the bottom up: `faults` translates errors of SQLite, `database` opens and verifies the file, watches
its write-ahead log and has the private thread for it, `rows` inserts and selects records and recognises
those that are sent again, `store` appends and reads (all on that thread), `writer` groups pending calls
into transactions, `reader` reads and follows topics, and `broker` wires them together.
"""

from sampleapp.brokers.sqlite.broker import SQLiteBroker

__all__ = ["SQLiteBroker"]
