-- A suspect that a worker claimed alone stays alone there until it settles something.
ALTER TABLE {schema}.streams ADD COLUMN alone BOOLEAN NOT NULL DEFAULT FALSE;
