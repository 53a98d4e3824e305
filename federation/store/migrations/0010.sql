-- How often a backend ended an attempt before it began; when an origin was last heard, of those whose jobs have a lease.
ALTER TABLE attempts ADD COLUMN vain INTEGER NOT NULL DEFAULT 0;
CREATE TABLE heard (
    origin TEXT PRIMARY KEY,
    at REAL NOT NULL
) STRICT, WITHOUT ROWID;
