-- Audit logs are streams, too.
ALTER TABLE {schema}.streams DROP CONSTRAINT streams_type_check,
    ADD CONSTRAINT streams_type_check CHECK (type IN ('run', 'conversation', 'audit'));

ALTER TABLE {schema}.streams DROP CONSTRAINT streams_check,
    ADD CONSTRAINT streams_check CHECK ((type <> 'run') = (status = 'open'));

CREATE INDEX streams_audit ON {schema}.streams (number) WHERE type = 'audit';
