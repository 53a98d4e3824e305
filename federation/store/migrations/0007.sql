-- Bytes of a job's files that its proxy has written itself.
ALTER TABLE bursts ADD COLUMN stdout_own INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bursts ADD COLUMN stderr_own INTEGER NOT NULL DEFAULT 0;
