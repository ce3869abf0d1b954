-- Runs as rows of a common task table, for programs that read one. What is encrypted, compressed or in a blob is not
-- shown, nor text with a NUL, which no text column can have. A run that waits is `running` there, and a cancelled one
-- `failed`.
CREATE VIEW {schema}.agent_tasks AS
WITH tasks AS (
    SELECT s.*, CASE WHEN f.codec = 'json' AND position('\x5c7530303030'::bytea IN f.body) = 0
            THEN convert_from(f.body, 'UTF8')::jsonb ELSE '{}' END AS first,
        coalesce((
            SELECT CASE WHEN e.codec = 'json' AND position('\x5c7530303030'::bytea IN e.body) = 0
                THEN convert_from(e.body, 'UTF8')::jsonb ELSE '{}' END
            FROM {schema}.events AS e
            WHERE s.ended IS NOT NULL AND e.run = s.number AND e.kind IN ('run.completed', 'run.failed', 'run.cancelled')
            ORDER BY e.seq DESC LIMIT 1), '{}') AS last
    FROM {schema}.streams AS s
    LEFT JOIN {schema}.streams AS o ON o.id = s.origin
    LEFT JOIN {schema}.events AS f ON f.run = coalesce(o.number, s.number) AND f.seq = 1
    WHERE s.type = 'run' AND s.agent NOT LIKE 'limpet.%'
), imported AS (
    SELECT t.*, (SELECT fact -> 'value' FROM jsonb_array_elements(
        CASE WHEN t.origin IS NULL THEN t.first -> 'initial' -> 'facts' END) AS fact
        WHERE fact ->> 'key' = 'imported_task') AS imported
    FROM tasks AS t
)
SELECT id::text AS id,
    coalesce(first -> 'input' ->> 'json', '') AS user_input,
    CASE status WHEN 'waiting' THEN 'running' WHEN 'cancelled' THEN 'failed' ELSE status END::text AS state,
    coalesce(last -> 'output' ->> 'json', '') AS result,
    coalesce(nullif(last -> 'failure' ->> 'message', ''), last -> 'failure' ->> 'type',
        'cancelled: ' || (last ->> 'reason'), '') AS error,
    coalesce((imported ->> 'created_at')::timestamptz, to_timestamp(created / 1000000.0)) AS created_at,
    coalesce(CASE WHEN seq = CASE WHEN ended IS NULL THEN 1 ELSE 3 END
        THEN (imported ->> 'updated_at')::timestamptz END, to_timestamp(time / 1000000.0)) AS updated_at
FROM imported;
