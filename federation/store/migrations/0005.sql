-- Waiting jobs of the Slurm here that were let into the cloud partition; see federation/overflow/widened.py.
CREATE TABLE widened (
    root INTEGER PRIMARY KEY,
    submitted_at INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    rule TEXT NOT NULL,
    partitions TEXT NOT NULL,
    price REAL NOT NULL,
    account TEXT NOT NULL,
    at REAL NOT NULL
) STRICT;
