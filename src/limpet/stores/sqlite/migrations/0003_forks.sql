-- A fork has its own events, and shares those before them with the stream that it branched off.
ALTER TABLE limpet_streams ADD COLUMN origin TEXT;
ALTER TABLE limpet_streams ADD COLUMN origin_at INTEGER CHECK ((origin IS NULL) = (origin_at IS NULL));
CREATE INDEX limpet_streams_origin ON limpet_streams (type, origin) WHERE origin IS NOT NULL;

-- Whoever deletes a stream looks for what belongs to it.
CREATE INDEX limpet_labels_run ON limpet_labels (run);

-- Whoever says something in a conversation looks for the run that listens there.
CREATE INDEX limpet_streams_conversation ON limpet_streams (type, conversation) WHERE conversation IS NOT NULL;
