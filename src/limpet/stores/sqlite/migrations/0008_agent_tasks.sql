-- Runs as rows of a common task table, for programs that read one. What is encrypted, compressed or in a blob is not
-- shown. A run that waits is `running` there, and a cancelled one `failed`.
CREATE VIEW limpet_agent_tasks AS
WITH runs AS (
    SELECT s.*, iif(f.codec = 'json', CAST(f.body AS TEXT), '{}') AS first,
        iif(s.ended IS NULL, '{}', coalesce((
            SELECT iif(e.codec = 'json', CAST(e.body AS TEXT), '{}') FROM limpet_events AS e
            WHERE e.run = s.number AND e.kind IN ('run.completed', 'run.failed', 'run.cancelled')
            ORDER BY e.seq DESC LIMIT 1), '{}')) AS last
    FROM limpet_streams AS s
    LEFT JOIN limpet_streams AS o ON o.id = s.origin
    LEFT JOIN limpet_events AS f ON f.run = coalesce(o.number, s.number) AND f.seq = 1
    WHERE s.type = 'run' AND s.agent NOT LIKE 'limpet.%'
), tasks AS (
    SELECT runs.*, (SELECT value -> '$.value' FROM json_each(first, '$.initial.facts')
        WHERE value ->> '$.key' = 'imported_task' AND runs.origin IS NULL) AS imported
    FROM runs
)
SELECT id,
    iif(json_type(first, '$.input.json') = 'text', first ->> '$.input.json', coalesce(first -> '$.input.json', ''))
        AS user_input,
    CASE status WHEN 'waiting' THEN 'running' WHEN 'cancelled' THEN 'failed' ELSE status END AS state,
    iif(json_type(last, '$.output.json') = 'text', last ->> '$.output.json', coalesce(last -> '$.output.json', ''))
        AS result,
    coalesce(nullif(last ->> '$.failure.message', ''), last ->> '$.failure.type', 'cancelled: ' || (last ->> '$.reason'),
        '') AS error,
    coalesce(imported ->> '$.created_at',
        strftime('%Y-%m-%dT%H:%M:%S', created / 1000000, 'unixepoch') || printf('.%06dZ', created % 1000000))
        AS created_at,
    coalesce(iif(seq = iif(ended IS NULL, 1, 3), imported ->> '$.updated_at', NULL),
        strftime('%Y-%m-%dT%H:%M:%S', time / 1000000, 'unixepoch') || printf('.%06dZ', time % 1000000))
        AS updated_at
FROM tasks;
