-- Whether all of a job's output is in its own files.
ALTER TABLE bursts ADD COLUMN written INTEGER NOT NULL DEFAULT 0;
