-- A suspect that a worker was given alone stays alone there until it settles something.
ALTER TABLE {schema}.streams ADD COLUMN alone BOOLEAN NOT NULL DEFAULT FALSE;
