-- Another engine may have a run driven, such as Temporal. Workers claim only runs without one; the sweep of an engine
-- reads only its own.
ALTER TABLE limpet_streams ADD COLUMN engine TEXT NOT NULL DEFAULT '';
ALTER TABLE limpet_workers ADD COLUMN engine TEXT NOT NULL DEFAULT '';
DROP INDEX limpet_streams_ready;
CREATE INDEX limpet_streams_ready ON limpet_streams (agent, ready_at, number)
    WHERE ready_at IS NOT NULL AND engine = '';
CREATE INDEX limpet_streams_engine ON limpet_streams (engine, ready_at, number)
    WHERE ready_at IS NOT NULL AND engine <> '';
