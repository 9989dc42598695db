-- From version 2 to version 3 of sampleapp's log, in one transaction.

PRAGMA user_version = 3;

-- The identities of records that their callers may send again, until they expire. The newest is never deleted,
-- so that no number is used again.
CREATE TABLE identity (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    topic_id INTEGER NOT NULL REFERENCES topic (id),
    offset INTEGER NOT NULL,
    -- When the record was stored, by the clock of the machine.
    stored_ms INTEGER NOT NULL
);

CREATE INDEX identity_stored_ms ON identity (stored_ms);

-- The index of all but the newest. Ids are digests, which come in no order: each new one would write a page at a
-- random place. So thousands are inserted at once, in order.
CREATE TABLE indexed_identity (
    id BLOB NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (id, number)
) WITHOUT ROWID;
