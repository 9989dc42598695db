-- From version 1 to version 2 of sampleapp's log, in one transaction. New files get both.

PRAGMA user_version = 2;

-- Tells a topic from another one of the same name: in another file, or deleted by hand and made again.
ALTER TABLE topic ADD COLUMN uid TEXT;

UPDATE topic SET uid = lower(hex(randomblob(8)));

-- Also for topics that an older version makes, which had the file open already, and for those made by hand.
CREATE TRIGGER topic_uid AFTER INSERT ON topic WHEN NEW.uid IS NULL
BEGIN
    UPDATE topic SET uid = lower(hex(randomblob(8))) WHERE id = NEW.id;
END;
