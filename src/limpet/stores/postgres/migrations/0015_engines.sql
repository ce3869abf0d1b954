-- Another engine may have a run driven, such as Temporal. Workers claim only runs without one; the sweep of an engine
-- reads only its own.
ALTER TABLE {schema}.streams ADD COLUMN engine TEXT COLLATE "C" NOT NULL DEFAULT '';

ALTER TABLE {schema}.workers ADD COLUMN engine TEXT COLLATE "C" NOT NULL DEFAULT '';

DROP INDEX {schema}.streams_ready;

CREATE INDEX streams_ready ON {schema}.streams (agent, ready_at, number) WHERE ready_at IS NOT NULL AND engine = '';

CREATE INDEX streams_engine ON {schema}.streams (engine, ready_at, number) WHERE ready_at IS NOT NULL AND engine <> '';
