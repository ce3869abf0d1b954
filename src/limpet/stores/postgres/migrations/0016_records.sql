-- Shared records are streams, too.
ALTER TABLE {schema}.streams DROP CONSTRAINT streams_type_check,
    ADD CONSTRAINT streams_type_check CHECK (type IN ('run', 'conversation', 'audit', 'record'));

CREATE INDEX streams_record ON {schema}.streams (number) WHERE type = 'record';
