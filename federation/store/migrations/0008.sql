-- How far a job's output has come, at least and at the most: 2^62 of one that began before this was written down.
ALTER TABLE bursts ADD COLUMN stdout_acked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bursts ADD COLUMN stderr_acked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bursts ADD COLUMN stdout_most INTEGER NOT NULL DEFAULT 4611686018427387904;
ALTER TABLE bursts ADD COLUMN stderr_most INTEGER NOT NULL DEFAULT 4611686018427387904;
