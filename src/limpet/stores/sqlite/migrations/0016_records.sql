-- Shared records are streams, too. See 0010 for how the constraint becomes wider.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql,
    'CHECK (type IN (''run'', ''conversation'', ''audit''))',
    'CHECK (type IN (''run'', ''conversation'', ''audit'', ''record''))')
WHERE type = 'table' AND name = 'limpet_streams';
PRAGMA writable_schema = RESET;
CREATE INDEX limpet_streams_record ON limpet_streams (number) WHERE type = 'record';
