-- sampleapp's log. A change of this file is a new version.

-- "SApp" in ASCII: tells this file from the SQLite files of other programs.
PRAGMA application_id = 0x53417070;
PRAGMA user_version = 1;

CREATE TABLE topic (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    -- The offset that the next record of the topic gets. The first is 0; none is left out or used again.
    next_offset INTEGER NOT NULL DEFAULT 0,
    -- Tells a topic from another one of the same name: in another file, or deleted by hand and made again.
    uid TEXT NOT NULL DEFAULT (lower(hex(randomblob(8))))
);

-- With a rowid (not WITHOUT ROWID): appending to a rowid table fills its pages one after another, and
-- costs a third less CPU than inserting whole records into the tree of the primary key.
CREATE TABLE record (
    topic_id INTEGER NOT NULL REFERENCES topic (id),
    offset INTEGER NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    -- NULL is no key, which is not the same as an empty one; and so for the value.
    key BLOB,
    value BLOB,
    -- NULL when there are none, or JSON: [["name", "value in base64"], ...]
    headers BLOB,
    PRIMARY KEY (topic_id, offset)
);

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
