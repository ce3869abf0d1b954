-- Audit logs are streams, too. Only constraints become wider, so the table's text is changed and its rows stay, as the
-- documentation of ALTER TABLE describes. The new index lets other connections notice the change.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(replace(sql,
    'CHECK (type IN (''run'', ''conversation''))', 'CHECK (type IN (''run'', ''conversation'', ''audit''))'),
    'CHECK ((type = ''conversation'') = (status = ''open''))', 'CHECK ((type <> ''run'') = (status = ''open''))')
WHERE type = 'table' AND name = 'limpet_streams';
PRAGMA writable_schema = RESET;
CREATE INDEX limpet_streams_audit ON limpet_streams (number) WHERE type = 'audit';
