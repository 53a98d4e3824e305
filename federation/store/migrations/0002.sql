-- What attempts cost that are over, of jobs that began another one since. `cost` of a job is its newest attempt's.
CREATE TABLE charges (
    account TEXT NOT NULL,
    day INTEGER NOT NULL,
    money REAL NOT NULL,
    PRIMARY KEY (account, day)
) STRICT, WITHOUT ROWID;
