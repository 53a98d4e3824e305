-- How much input of other sites' attempts is kept here: until they are released, as a peer may have only so much of it.
ALTER TABLE attempts ADD COLUMN input_bytes INTEGER NOT NULL DEFAULT 0;
CREATE INDEX attempts_held ON attempts (origin, input_bytes) WHERE input_bytes > 0 AND state != 'released';
