-- Runs in the order of their last events. A run that a worker holds is not in it: `rested` stays NULL, so an append of
-- its worker changes no index. `streams_worker` has these runs.
ALTER TABLE {schema}.streams
    ADD COLUMN rested BIGINT GENERATED ALWAYS AS (CASE WHEN worker IS NULL THEN time END) STORED;

CREATE INDEX streams_rested ON {schema}.streams (type, rested, number) WHERE rested IS NOT NULL;
