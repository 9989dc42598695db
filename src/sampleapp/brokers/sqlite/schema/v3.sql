-- From version 2 to version 3 of sampleapp's log, in one transaction.

PRAGMA user_version = 3;

-- The identities of records that their callers may send again, until they expire. With a rowid, since the ids
-- are digests, which come in no order: only the index on them is written at random places.
CREATE TABLE identity (
    id BLOB NOT NULL UNIQUE,
    fingerprint BLOB NOT NULL,
    topic_id INTEGER NOT NULL REFERENCES topic (id),
    offset INTEGER NOT NULL,
    -- When the record was stored, by the clock of the machine.
    stored_ms INTEGER NOT NULL
);

CREATE INDEX identity_stored_ms ON identity (stored_ms);
