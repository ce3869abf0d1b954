-- A fork has its own events, and shares the earlier ones with the stream that it was forked from.
ALTER TABLE {schema}.streams ADD COLUMN origin TEXT COLLATE "C";

ALTER TABLE {schema}.streams ADD COLUMN origin_at BIGINT;

ALTER TABLE {schema}.streams ADD CONSTRAINT streams_origin_at CHECK ((origin IS NULL) = (origin_at IS NULL));

CREATE INDEX streams_origin ON {schema}.streams (type, origin, number) WHERE origin IS NOT NULL;

-- A message to a conversation needs the run that listens there.
CREATE INDEX streams_conversation ON {schema}.streams (type, conversation, number) WHERE conversation IS NOT NULL;
