-- Which script it is of, by a digest: an id may be given to another job. Empty of one that began before this.
ALTER TABLE bursts ADD COLUMN script BLOB NOT NULL DEFAULT x'';
