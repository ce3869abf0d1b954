-- Runs in the order of their last events. A run that a worker holds is not in it, so its steps do not move an entry;
-- `limpet_streams_worker` has these.
CREATE INDEX limpet_streams_rested ON limpet_streams (type, time) WHERE worker IS NULL;
