-- Version 1 of sampleapp's log. A change of this file is a new version, in a new file.

-- "SApp" in ASCII: tells this file from the SQLite files of other programs.
PRAGMA application_id = 0x53417070;
PRAGMA user_version = 1;

CREATE TABLE topic (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    -- The offset that the next record of the topic gets. The first is 0; none is left out or used again.
    next_offset INTEGER NOT NULL DEFAULT 0
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
