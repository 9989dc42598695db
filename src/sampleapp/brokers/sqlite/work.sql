-- Groups of workers. The first pull from a file creates these tables, so a file without workers stays as it is.
-- Versions of sampleapp that do not know them ignore them: the version of the file stays the same.

CREATE TABLE IF NOT EXISTS work_group (
    id INTEGER PRIMARY KEY,
    -- Not the id of the topic, which another topic may get after this one was deleted by hand.
    topic_uid TEXT NOT NULL,
    name TEXT NOT NULL,
    -- The offset of the first message that was never given.
    next_offset INTEGER NOT NULL DEFAULT 0,
    -- The longest time of a lease: processes may have different ones.
    lease_ms INTEGER NOT NULL DEFAULT 0,
    UNIQUE (topic_uid, name)
);

-- The messages that were given and are not done.
CREATE TABLE IF NOT EXISTS work_delivery (
    group_id INTEGER NOT NULL REFERENCES work_group (id),
    offset INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    lease BLOB NOT NULL,
    -- When the lease ends, by the clock of the machine. The message is free from then on.
    ends_ms INTEGER NOT NULL,
    PRIMARY KEY (group_id, offset)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS work_delivery_ends ON work_delivery (group_id, ends_ms);

CREATE INDEX IF NOT EXISTS work_delivery_lease ON work_delivery (lease);
