-- A suspect that a worker claimed alone stays alone there until it settles something.
ALTER TABLE limpet_streams ADD COLUMN alone INTEGER NOT NULL DEFAULT 0 CHECK (alone IN (0, 1));
