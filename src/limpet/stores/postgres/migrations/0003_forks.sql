-- A fork has its own events, and shares those before them with the stream that it branched off.
ALTER TABLE {schema}.streams ADD COLUMN origin TEXT COLLATE "C";

ALTER TABLE {schema}.streams ADD COLUMN origin_at BIGINT;

ALTER TABLE {schema}.streams ADD CONSTRAINT streams_origin_at CHECK ((origin IS NULL) = (origin_at IS NULL));

CREATE INDEX streams_origin ON {schema}.streams (type, origin, number) WHERE origin IS NOT NULL;

-- Whoever says something in a conversation looks for the run that listens there.
CREATE INDEX streams_conversation ON {schema}.streams (type, conversation, number) WHERE conversation IS NOT NULL;
