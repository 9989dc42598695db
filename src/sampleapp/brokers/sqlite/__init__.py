"""
The embedded default broker: records in one SQLite file.

From the bottom up: `faults` translates errors of SQLite, `opening` opens and verifies the file, `wal`
watches the write-ahead log, `identities` recognises records that are sent again, `rows` inserts and selects,
`store` appends and reads (all on one private thread), `thread` is that thread, `publishes` are pending
calls, `writer` groups them into transactions, `expiry` deletes expired identities, `reader` reads and follows
topics, and `broker` wires them together.
"""

from sampleapp.brokers.sqlite.broker import SQLiteBroker

__all__ = ["SQLiteBroker"]
