-- Attempts that nobody here ran, as one that was refused: they are forgotten sooner than others.
CREATE INDEX attempts_nobodys ON attempts (ended_at) WHERE state = 'released' AND user = '';
