-- The events of a step are found without reading the log before them.
ALTER TABLE limpet_events ADD COLUMN step INTEGER CHECK (step >= 0);
CREATE INDEX limpet_events_step ON limpet_events (run, step, seq) WHERE step IS NOT NULL;
