-- The journal of a site. Jobs are the origin's records, attempts the target's; see federation/model/states.py.
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
    token BLOB PRIMARY KEY,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    site TEXT NOT NULL,
    pool TEXT NOT NULL,
    user TEXT NOT NULL,
    account TEXT NOT NULL,
    name BLOB NOT NULL,
    on_silence TEXT NOT NULL,
    lease_s REAL NOT NULL,
    accepted_at REAL NOT NULL,
    due_at REAL,
    tries INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    far TEXT,
    signals INTEGER NOT NULL,
    cost REAL NOT NULL,
    cost_day INTEGER NOT NULL,
    avoid TEXT NOT NULL,
    reasons TEXT NOT NULL,
    why TEXT NOT NULL,
    started_at REAL,
    ended_at REAL,
    outcome TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_due ON jobs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX jobs_open ON jobs (state, site, pool) WHERE state != 'done';
CREATE INDEX jobs_cost ON jobs (account, cost_day) WHERE cost > 0;
CREATE INDEX jobs_done ON jobs (ended_at) WHERE state = 'done';

CREATE TABLE specs (
    token BLOB PRIMARY KEY,
    spec BLOB NOT NULL
) STRICT;

-- What an origin owes a target, until the target confirms it.
CREATE TABLE commands (
    token BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    kind TEXT NOT NULL,
    number INTEGER NOT NULL,
    value INTEGER NOT NULL,
    site TEXT NOT NULL,
    pool TEXT NOT NULL,
    due_at REAL NOT NULL,
    tries INTEGER NOT NULL,
    PRIMARY KEY (token, attempt, kind, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX commands_due ON commands (due_at);
CREATE INDEX commands_site ON commands (site);

-- Up to where this site has followed another one's journal.
CREATE TABLE followed (
    site TEXT PRIMARY KEY,
    journal BLOB NOT NULL,
    cursor INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
    token BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    origin TEXT NOT NULL,
    pool TEXT NOT NULL,
    user TEXT NOT NULL,
    state TEXT NOT NULL,
    revision INTEGER NOT NULL,
    lease_s REAL,
    due_at REAL,
    tries INTEGER NOT NULL,
    misses INTEGER NOT NULL,
    handle TEXT NOT NULL,
    signals INTEGER NOT NULL,
    started_at REAL,
    ended_at REAL,
    outcome TEXT,
    stopped_for TEXT NOT NULL,
    why TEXT NOT NULL,
    PRIMARY KEY (token, attempt)
) STRICT, WITHOUT ROWID;
CREATE INDEX attempts_due ON attempts (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX attempts_revision ON attempts (origin, revision);
CREATE INDEX attempts_open ON attempts (pool, origin) WHERE state NOT IN ('ended', 'released');
CREATE INDEX attempts_lease ON attempts (origin, lease_s) WHERE lease_s IS NOT NULL;
CREATE INDEX attempts_released ON attempts (ended_at) WHERE state = 'released';

CREATE TABLE attempt_specs (
    token BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    spec BLOB NOT NULL,
    PRIMARY KEY (token, attempt)
) STRICT;
