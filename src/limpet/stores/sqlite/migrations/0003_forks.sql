-- A fork has its own events, and shares the earlier ones with the stream that it was forked from.
ALTER TABLE limpet_streams ADD COLUMN origin TEXT;
ALTER TABLE limpet_streams ADD COLUMN origin_at INTEGER CHECK ((origin IS NULL) = (origin_at IS NULL));
CREATE INDEX limpet_streams_origin ON limpet_streams (type, origin) WHERE origin IS NOT NULL;

-- Deleting a stream needs the rows that belong to it.
CREATE INDEX limpet_labels_run ON limpet_labels (run);

-- A message to a conversation needs the run that listens there.
CREATE INDEX limpet_streams_conversation ON limpet_streams (type, conversation) WHERE conversation IS NOT NULL;
