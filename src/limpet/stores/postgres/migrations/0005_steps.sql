-- The events of a step are found without reading the log before them.
ALTER TABLE {schema}.events ADD COLUMN step BIGINT CHECK (step >= 0);

CREATE INDEX events_step ON {schema}.events (run, step, seq) WHERE step IS NOT NULL;
