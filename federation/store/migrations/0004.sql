-- Jobs of the Slurm here that run at another site; see federation/overflow/burst.py.
CREATE TABLE bursts (
    token BLOB PRIMARY KEY,
    job_id INTEGER NOT NULL,
    array_id INTEGER NOT NULL,
    task_id INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    user TEXT NOT NULL,
    submitted_at INTEGER NOT NULL,
    restarts INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    node TEXT NOT NULL,
    pool TEXT NOT NULL,
    limit_s INTEGER NOT NULL,
    phase TEXT NOT NULL,
    stdout_base INTEGER NOT NULL,
    stderr_base INTEGER NOT NULL,
    began_at INTEGER NOT NULL,
    told INTEGER NOT NULL,
    suspended INTEGER NOT NULL,
    partitions TEXT NOT NULL,
    closed_at INTEGER NOT NULL,
    why TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX bursts_open ON bursts (job_id) WHERE phase != 'closed';
CREATE INDEX bursts_job ON bursts (job_id);
CREATE INDEX bursts_array ON bursts (array_id, task_id) WHERE array_id > 0;
CREATE INDEX bursts_closed ON bursts (closed_at) WHERE phase = 'closed';
