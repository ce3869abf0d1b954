-- Every statement that Limpet runs on PostgreSQL. {x} includes the section named x, {schema} is the schema.
-- Nothing depends on a session: every name is qualified, and a pooler may give each transaction another connection.

-- name: hello
-- The server's role, timeline and system, and whether its commits are durable.
SELECT pg_is_in_recovery(),
    CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn())
        WHEN has_function_privilege('pg_control_checkpoint()', 'execute')
        THEN (SELECT lpad(to_hex(timeline_id), 8, '0') FROM pg_control_checkpoint()) ELSE '00000000' END,
    CASE WHEN has_function_privilege('pg_control_system()', 'execute')
        THEN (SELECT system_identifier::text FROM pg_control_system()) ELSE '' END,
    current_setting('synchronous_commit'), current_setting('server_version_num')::bigint,
    current_setting('server_encoding')

-- name: accepts_writes
-- Whether this server and session accept writes at all, and whether this role may write what every operation writes.
SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', current_user,
    CASE WHEN to_regclass('{schema}.streams') IS NULL OR to_regclass('{schema}.events') IS NULL
        OR to_regclass('{schema}.receipts') IS NULL THEN true ELSE
        has_table_privilege('{schema}.streams', 'INSERT') AND has_table_privilege('{schema}.streams', 'UPDATE')
        AND has_table_privilege('{schema}.events', 'INSERT') AND has_table_privilege('{schema}.receipts', 'INSERT') END

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: settings
-- Planning each batch would cost more than the batch, and the plan does not depend on its size.
SET plan_cache_mode = force_generic_plan; SET lock_timeout = '5s'

-- name: impatient
-- A row that another transaction holds for long must not stop unrelated work.
SET LOCAL lock_timeout = '5s'

-- name: receipt
-- The first statement of every batch. A writer that lost a reply waits for this row, and then knows its last batch.
INSERT INTO {schema}.receipts (writer, batch) VALUES (%b::text, %b::bigint)
ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, time = now()

-- name: last_receipt
SELECT batch FROM {schema}.receipts WHERE writer = %b::text FOR UPDATE

-- name: drop_receipt
DELETE FROM {schema}.receipts WHERE writer = %b::text

-- name: drop_old_receipts
DELETE FROM {schema}.receipts WHERE time < now() - interval '1 day'

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: savepoint
SAVEPOINT limpet

-- name: undo
ROLLBACK TO SAVEPOINT limpet

-- name: forget
RELEASE SAVEPOINT limpet

-- name: notify
SELECT pg_notify('{channel}', '')

-- name: listen
LISTEN {channel}

-- name: looking
-- Values that change when something is written, and when it becomes visible.
SELECT (SELECT last_value FROM {schema}.positions), pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint

-- name: looking_read_only
-- The same, from the events. A standby receives the values of a sequence ahead of their use, and a role that may only
-- select from tables cannot read one.
SELECT coalesce((SELECT position FROM {schema}.events ORDER BY xid DESC, position DESC LIMIT 1), 0),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint

-- name: migration_lock
SELECT pg_advisory_xact_lock(hashtextextended(%b::text, 0))

-- name: has_schema
SELECT to_regnamespace(%b::text) IS NOT NULL, to_regclass(%b::text) IS NOT NULL

-- name: create_schema
CREATE SCHEMA {schema}

-- name: server_version
SELECT current_setting('server_version')

-- name: schema_version
SELECT value FROM {schema}.meta WHERE name = 'schema'

-- name: set_schema_version
INSERT INTO {schema}.meta VALUES ('schema', %b::text) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: bad_head
-- A stream whose row does not match the last event of its log.
SELECT s.id, s.seq FROM {schema}.streams AS s LEFT JOIN {schema}.events AS e ON e.run = s.number AND e.seq = s.seq
WHERE e.hash IS DISTINCT FROM s.hash
    OR EXISTS (SELECT 1 FROM {schema}.events AS later WHERE later.run = s.number AND later.seq > s.seq)
LIMIT 1

-- name: columns
s.number, s.id, s.type, s.agent, s.agent_version, s.status, s.waits, s.ready_at, s.seq, s.hash, s.time, s.fence,
s.worker, s.deaths, s.alone, s.created, s.start_at, s.ended, s."user", s.session, s.conversation, s.parent, s.exclusive,
s.goal, s.step, s.steps, s.item, s.items, s.undoing, s.cancelling, s.origin, s.origin_at, s.deadline,
s.cost, s.engine, s.labels

-- name: peek
SELECT {columns} FROM {schema}.streams AS s WHERE s.id = %b::text

-- name: row
SELECT {columns} FROM {schema}.streams AS s WHERE s.id = %b::text FOR NO KEY UPDATE

-- name: row_if_free
SELECT {columns} FROM {schema}.streams AS s WHERE s.id = %b::text FOR NO KEY UPDATE SKIP LOCKED

-- name: lock_rows
-- Every transaction locks in the same order.
SELECT {columns} FROM {schema}.streams AS s WHERE s.id = ANY(%b::text[]) ORDER BY s.id FOR NO KEY UPDATE

-- name: numbers
SELECT nextval(pg_get_serial_sequence('{schema}.streams', 'number')) FROM generate_series(1, %b::bigint)

-- name: add_all
INSERT INTO {schema}.streams (
    number, id, type, agent, agent_version, status, waits, ready_at, seq, hash, time, fence, worker, deaths, alone,
    created, start_at, ended, "user", session, conversation, parent, exclusive, goal, step, steps, item, items, undoing,
    cancelling, origin, origin_at, deadline, cost, engine, labels
) SELECT w.* FROM unnest(
    %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bigint[],
    %b::bytea[], %b::bigint[], %b::bigint[], %b::text[], %b::bigint[], %b::boolean[], %b::bigint[], %b::bigint[],
    %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bigint[],
    %b::bigint[], %b::bigint[], %b::boolean[], %b::boolean[], %b::text[], %b::bigint[], %b::bigint[],
    %b::float8[], %b::text[], %b::text[]
) AS w

-- name: add_labels
INSERT INTO {schema}.labels (name, value, run) SELECT l.* FROM unnest(%b::text[], %b::text[], %b::bigint[]) AS l

-- name: extend
-- One statement for a batch. Every transaction locks rows in the order of their ids. A head moves only if it is where
-- its writer expects it, under a valid fence; events are inserted for the heads that moved. A stale extension is
-- skipped without affecting the others.
WITH moved AS (
    UPDATE {schema}.streams AS s
    SET seq = w.seq, hash = w.hash, time = w.time, step = greatest(s.step, w.step),
        deaths = CASE WHEN w.settled THEN 0 ELSE s.deaths END
    FROM (
        SELECT * FROM unnest(
            $1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[], $8::bigint[],
            $9::boolean[]
        ) WITH ORDINALITY AS u (id, after_seq, after_hash, fence, seq, hash, time, step, settled, place)
        ORDER BY u.id COLLATE "C"
    ) AS w
    WHERE s.id = w.id AND s.seq = w.after_seq AND s.hash = w.after_hash
        AND CASE WHEN w.fence < 0 THEN s.type = 'conversation' ELSE s.fence = w.fence AND s.worker IS NOT NULL END
    RETURNING s.number, w.place, greatest(w.fence, 0) AS fence
), written AS (
    INSERT INTO {schema}.events (run, seq, time, kind, version, fence, actor, codec, key_id, body, hash, step)
    SELECT m.number, e.seq, e.time, e.kind, e.version, m.fence, e.actor, e.codec, e.key_id, e.body, e.hash,
        nullif(e.step, -1)
    FROM unnest(
        $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[], $15::text[], $16::text[], $17::text[],
        $18::bytea[], $19::bytea[], $20::bigint[]
    ) AS e (place, seq, time, kind, version, actor, codec, key_id, body, hash, step)
    JOIN moved AS m ON m.place = e.place
)
SELECT m.place, m.number FROM moved AS m

-- name: move_one
-- The compare-and-set of one head, for the next two statements.
WITH moved AS (
    UPDATE {schema}.streams AS s
    SET seq = $5::bigint, hash = $6::bytea, time = $7::bigint, step = greatest(s.step, $8::bigint),
        deaths = CASE WHEN $9::boolean THEN 0 ELSE s.deaths END
    WHERE s.id = $1::text AND s.seq = $2::bigint AND s.hash = $3::bytea
        AND CASE WHEN $4::bigint < 0 THEN s.type = 'conversation'
            ELSE s.fence = $4::bigint AND s.worker IS NOT NULL END
    RETURNING s.number
)

-- name: extend_one
-- The same for one event of one stream, which a single caller waits for.
{move_one}
INSERT INTO {schema}.events (run, seq, time, kind, version, fence, actor, codec, key_id, body, hash, step)
SELECT m.number, $5::bigint, $7::bigint, $10::text, $11::bigint, greatest($4::bigint, 0), $12::text, $13::text,
    $14::text, $15::bytea, $6::bytea, nullif($16::bigint, -1)
FROM moved AS m
RETURNING 1::bigint, run

-- name: extend_two
-- The same for two events of one stream: the start and the end of a read.
{move_one}
INSERT INTO {schema}.events (run, seq, time, kind, version, fence, actor, codec, key_id, body, hash, step)
SELECT m.number, e.seq, e.time, e.kind, e.version, greatest($4::bigint, 0), e.actor, e.codec, e.key_id, e.body, e.hash,
    nullif(e.step, -1)
FROM moved AS m CROSS JOIN (VALUES
    ($10::bigint, $11::bigint, $12::text, $13::bigint, $14::text, $15::text, $16::text, $17::bytea, $18::bytea,
        $19::bigint),
    ($5::bigint, $7::bigint, $20::text, $21::bigint, $22::text, $23::text, $24::text, $25::bytea, $6::bytea,
        $26::bigint)
) AS e (seq, time, kind, version, actor, codec, key_id, body, hash, step)
ORDER BY e.seq
RETURNING 1::bigint, run

-- name: save_all
UPDATE {schema}.streams AS s
SET status = w.status, waits = w.waits, ready_at = w.ready_at, seq = w.seq, hash = w.hash, time = w.time,
    fence = w.fence, worker = w.worker, deaths = w.deaths, alone = w.alone, ended = w.ended, goal = w.goal,
    step = w.step, item = w.item, items = w.items, undoing = w.undoing, cancelling = w.cancelling,
    deadline = w.deadline, cost = w.cost, engine = w.engine
FROM unnest(
    %b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::bytea[], %b::bigint[], %b::bigint[], %b::text[],
    %b::bigint[], %b::boolean[], %b::bigint[], %b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::boolean[],
    %b::boolean[], %b::bigint[], %b::float8[], %b::text[], %b::bigint[]
) AS w (status, waits, ready_at, seq, hash, time, fence, worker, deaths, alone, ended, goal, step, item, items, undoing,
    cancelling, deadline, cost, engine, number)
WHERE s.number = w.number

-- name: rewrite
UPDATE {schema}.streams
SET type = %b::text, agent = %b::text, agent_version = %b::text, status = %b::text, waits = %b::text,
    ready_at = %b::bigint, seq = %b::bigint, hash = %b::bytea, time = %b::bigint, fence = %b::bigint,
    worker = %b::text, deaths = %b::bigint, alone = %b::boolean, created = %b::bigint, start_at = %b::bigint,
    ended = %b::bigint, "user" = %b::text, session = %b::text, conversation = %b::text, parent = %b::text, exclusive = %b::text,
    goal = %b::text, step = %b::bigint, steps = %b::bigint, item = %b::bigint, items = %b::bigint,
    undoing = %b::boolean, cancelling = %b::boolean, origin = %b::text, origin_at = %b::bigint,
    deadline = %b::bigint, cost = %b::float8, engine = %b::text, labels = %b::text
WHERE number = %b::bigint

-- name: needing
SELECT id FROM {schema}.streams WHERE type IN ('run', 'conversation') AND origin = ANY(%b::text[])
UNION SELECT id FROM {schema}.streams WHERE type = 'run' AND conversation = ANY(%b::text[])

-- name: referred
-- Locked, so that transactions that add or delete references to these blobs are serialized, and one sees what is loose.
SELECT b.number FROM {schema}.blobs AS b
WHERE b.number IN (SELECT r.blob FROM {schema}.blob_refs AS r WHERE r.run = ANY(%b::bigint[]))
ORDER BY b.number FOR UPDATE

-- name: let_go
UPDATE {schema}.blobs AS b SET loose_since = %b::bigint WHERE b.number = ANY(%b::bigint[])
AND NOT EXISTS (SELECT 1 FROM {schema}.blob_refs AS r WHERE r.blob = b.number)

-- name: delete_slots
DELETE FROM {schema}.slots WHERE run = ANY(%b::bigint[])

-- name: delete_snapshots
DELETE FROM {schema}.snapshots WHERE run = ANY(%b::bigint[])

-- name: delete_late
DELETE FROM {schema}.late WHERE run = ANY(%b::bigint[])

-- name: delete_labels
DELETE FROM {schema}.labels WHERE run = ANY(%b::bigint[])

-- name: delete_requests
DELETE FROM {schema}.requests WHERE run = ANY(%b::bigint[])

-- name: delete_scores
DELETE FROM {schema}.scores WHERE run = ANY(%b::bigint[])

-- name: delete_blob_refs
DELETE FROM {schema}.blob_refs WHERE run = ANY(%b::bigint[])

-- name: delete_events
DELETE FROM {schema}.events WHERE run = ANY(%b::bigint[])

-- name: delete_streams
DELETE FROM {schema}.streams WHERE number = ANY(%b::bigint[])

-- name: drop_labels
DELETE FROM {schema}.labels WHERE run = %b::bigint

-- name: drop_requests
DELETE FROM {schema}.requests WHERE run = %b::bigint

-- name: insert_all
INSERT INTO {schema}.events (run, seq, time, kind, version, fence, actor, codec, key_id, body, hash, command, step)
SELECT e.* FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::text[], %b::int[], %b::bigint[], %b::text[],
    %b::text[], %b::text[], %b::bytea[], %b::bytea[], %b::text[], %b::bigint[]) AS e

-- name: index_steps
UPDATE {schema}.events AS e SET step = w.step
FROM (SELECT %b::bigint AS run) AS r, unnest(%b::bigint[], %b::bigint[]) AS w (seq, step)
WHERE e.run = r.run AND e.seq = w.seq AND e.step IS DISTINCT FROM w.step

-- name: event
e.seq, e.time, e.kind, e.version, e.fence, e.actor, e.codec, e.key_id, e.body, e.hash

-- name: events
SELECT {event} FROM {schema}.events AS e WHERE e.run = %b::bigint AND e.seq > %b::bigint ORDER BY e.seq LIMIT %b::bigint

-- name: logs
SELECT e.run, {event} FROM {schema}.events AS e WHERE e.run = ANY(%b::bigint[]) ORDER BY e.run, e.seq

-- name: number
SELECT number FROM {schema}.streams WHERE id = %b::text

-- name: origin
SELECT origin, origin_at FROM {schema}.streams WHERE id = %b::text

-- name: read
SELECT {event} FROM {schema}.events AS e
WHERE e.run = (SELECT number FROM {schema}.streams WHERE id = %b::text) AND e.seq > %b::bigint AND e.seq < %b::bigint
ORDER BY e.seq LIMIT %b::bigint

-- name: read_backwards
SELECT {event} FROM {schema}.events AS e
WHERE e.run = (SELECT number FROM {schema}.streams WHERE id = %b::text) AND e.seq > %b::bigint AND e.seq < %b::bigint
ORDER BY e.seq DESC LIMIT %b::bigint

-- name: read_steps
WITH w (id, after, before, most, upto) AS (
    SELECT %b::text, %b::bigint, %b::bigint, %b::bigint, %b::bigint
), s AS (
    SELECT t.number, w.* FROM {schema}.streams AS t JOIN w ON t.id = w.id
)
SELECT e.step, {event} FROM {schema}.events AS e
WHERE e.run = (SELECT number FROM s) AND e.seq <= (SELECT upto FROM s) AND e.step = ANY(ARRAY(
    SELECT 0::bigint UNION ALL (
        SELECT DISTINCT i.step FROM {schema}.events AS i
        WHERE i.run = (SELECT number FROM s) AND i.step > (SELECT after FROM s) AND i.step < (SELECT before FROM s)
            AND i.seq <= (SELECT upto FROM s)
        ORDER BY i.step LIMIT (SELECT most FROM s)
    )
))

-- name: read_steps_backwards
WITH w (id, after, before, most, upto) AS (
    SELECT %b::text, %b::bigint, %b::bigint, %b::bigint, %b::bigint
), s AS (
    SELECT t.number, w.* FROM {schema}.streams AS t JOIN w ON t.id = w.id
)
SELECT e.step, {event} FROM {schema}.events AS e
WHERE e.run = (SELECT number FROM s) AND e.seq <= (SELECT upto FROM s) AND e.step = ANY(ARRAY(
    SELECT 0::bigint UNION ALL (
        SELECT DISTINCT i.step FROM {schema}.events AS i
        WHERE i.run = (SELECT number FROM s) AND i.step > (SELECT after FROM s) AND i.step < (SELECT before FROM s)
            AND i.seq <= (SELECT upto FROM s)
        ORDER BY i.step DESC LIMIT (SELECT most FROM s)
    )
))

-- name: command
SELECT {event} FROM {schema}.events AS e WHERE e.run = %b::bigint AND e.command = %b::text

-- name: request_columns
r.id, s.id, r.seq, r.kind, r.status, r."to", r.risk, r.tool, r.opened, r.expires, r.digest, r.by

-- name: request
SELECT {request_columns} FROM {schema}.requests AS r JOIN {schema}.streams AS s ON s.number = r.run
WHERE r.id = %b::text

-- name: open_requests
SELECT {request_columns} FROM {schema}.requests AS r JOIN {schema}.streams AS s ON s.number = r.run
WHERE r.run = %b::bigint AND r.status = 'open' ORDER BY r.opened, r.id

-- name: save_request
INSERT INTO {schema}.requests (id, run, seq, kind, status, "to", risk, tool, opened, expires, digest, by)
VALUES (%b::text, %b::bigint, %b::bigint, %b::text, %b::text, %b::text, %b::text, %b::text, %b::bigint, %b::bigint,
    %b::text, %b::text)
ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, status = excluded.status, "to" = excluded."to",
    opened = excluded.opened, expires = excluded.expires, digest = excluded.digest, by = excluded.by

-- name: count_requests
SELECT count(*) FROM {schema}.requests WHERE status = 'open'

-- name: requests
SELECT {request_columns} FROM {schema}.requests AS r JOIN {schema}.streams AS s ON s.number = r.run WHERE true

-- name: requests.status
AND r.status = %(status)b::text

-- name: requests.id
AND r.id = %(id)b::text

-- name: requests.run
AND s.id = %(run)b::text

-- name: requests.to
-- An element of a JSON array of strings: quotes inside a string are escaped, so a match cannot start in the middle.
AND (starts_with(r."to", '[' || %(to)b::text) OR strpos(r."to", ',' || %(to)b::text) > 0)

-- name: requests.risk
AND r.risk = %(risk)b::text

-- name: requests.opened_until
AND r.opened <= %(opened_until)b::bigint

-- name: requests.after
AND (r.opened, r.id) > (%(after_opened)b::bigint, %(after_id)b::text COLLATE "C")

-- name: requests.order
ORDER BY r.opened, r.id LIMIT %(limit)b::bigint

-- name: score_columns
s.id, c.name, c.by, c.step, c.seq, c.time, c.number, c.text

-- name: save_score
INSERT INTO {schema}.scores (run, name, by, step, seq, time, number, text)
VALUES (%b::bigint, %b::text, %b::text, %b::bigint, %b::bigint, %b::bigint, %b::float8, %b::text)
ON CONFLICT (run, name, by, step) DO UPDATE SET seq = excluded.seq, time = excluded.time, number = excluded.number,
    text = excluded.text

-- name: drop_score
DELETE FROM {schema}.scores WHERE run = %b::bigint AND name = %b::text AND by = %b::text AND step = %b::bigint

-- name: drop_scores
DELETE FROM {schema}.scores WHERE run = %b::bigint

-- name: scores
SELECT {score_columns} FROM {schema}.scores AS c JOIN {schema}.streams AS s ON s.number = c.run WHERE true

-- name: scores.run
AND s.id = %(run)b::text

-- name: scores.name
AND c.name = %(name)b::text

-- name: scores.by
AND c.by = %(by)b::text

-- name: scores.step
AND c.step = %(step)b::bigint

-- name: scores.time_from
AND c.time >= %(time_from)b::bigint

-- name: scores.before
AND (c.time, s.id, c.seq) < (%(before_time)b::bigint, %(before_run)b::text COLLATE "C", %(before_seq)b::bigint)

-- name: scores.order
ORDER BY c.time DESC, s.id DESC, c.seq DESC LIMIT %(limit)b::bigint

-- name: end_leases
UPDATE {schema}.workers SET lease_until = 0 WHERE id = ANY(%b::text[]) AND host = %b::text

-- name: slot_holder
SELECT coalesce(
    (SELECT h.id FROM {schema}.slots AS t JOIN {schema}.streams AS h ON h.number = t.run
        WHERE t.name = 'exclusive:' || s.exclusive AND t.run <> s.number ORDER BY t.place LIMIT 1),
    (SELECT h.id FROM {schema}.slots AS t JOIN {schema}.streams AS h ON h.number = t.run
        WHERE t.name = 'agent:' || s.agent AND t.run <> s.number ORDER BY t.place LIMIT 1)
) FROM {schema}.streams AS s WHERE s.id = %b::text

-- name: workers
SELECT id, host, agents, started, lease_until, engine FROM {schema}.workers ORDER BY started, id

-- name: worker
SELECT id, host, agents, started, lease_until, engine FROM {schema}.workers WHERE id = %b::text FOR KEY SHARE

-- name: lock_worker
-- A worker that claims or renews under this name now is using the row.
SELECT 1 FROM {schema}.workers WHERE id = %b::text AND host = %b::text AND lease_until = %b::bigint
FOR UPDATE SKIP LOCKED

-- name: host
SELECT host FROM {schema}.workers WHERE id = %b::text

-- name: save_worker
-- A name belongs to one process: the one that has it, or another after its lease expired or its process ended.
INSERT INTO {schema}.workers (id, host, agents, started, lease_until, engine)
VALUES (%b::text, %b::text, %b::text, %b::bigint, %b::bigint, %b::text)
ON CONFLICT (id) DO UPDATE SET host = excluded.host, agents = excluded.agents, started = excluded.started,
    lease_until = excluded.lease_until, engine = excluded.engine
    WHERE workers.host = excluded.host OR workers.lease_until <= %b::bigint OR workers.host = %b::text
RETURNING id

-- name: drop_worker
DELETE FROM {schema}.workers WHERE id = %b::text

-- name: duties
SELECT name, every, worker, lease_until, done, done_by, error FROM {schema}.duties ORDER BY name

-- name: duty
-- Locks the row, also one that another transaction is just inserting.
INSERT INTO {schema}.duties (name) VALUES (%b::text) ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING name, every, worker, lease_until, done, done_by, error

-- name: save_duty
UPDATE {schema}.duties SET every = %b::bigint, worker = %b::text, lease_until = %b::bigint, done = %b::bigint,
    done_by = %b::text, error = %b::text
WHERE name = %b::text

-- name: token_columns
id, name, kind, "groups", roles, rights, digest, created, created_by, expires, revoked, revoked_by, last_used,
    purpose, parent

-- name: token
SELECT {token_columns} FROM {schema}.tokens WHERE id = %b::text

-- name: lock_token
{token} FOR UPDATE

-- name: tokens
SELECT {token_columns} FROM {schema}.tokens WHERE purpose = 'token' AND (created, id) < (%b::bigint, %b::text)
ORDER BY created DESC, id DESC LIMIT %b::bigint

-- name: add_token
INSERT INTO {schema}.tokens ({token_columns})
VALUES (%b::text, %b::text, %b::text, %b::text, %b::text, %b::text, %b::bytea, %b::bigint, %b::text, %b::bigint,
    %b::bigint, %b::text, %b::bigint, %b::text, %b::text)
ON CONFLICT DO NOTHING RETURNING id

-- name: drop_sessions
DELETE FROM {schema}.tokens WHERE purpose <> 'token' AND expires < %b::bigint

-- name: save_token
UPDATE {schema}.tokens SET revoked = %b::bigint, revoked_by = %b::text, last_used = %b::bigint WHERE id = %b::text

-- name: foreign_tasks
-- The table of another program, in a schema of the search path.
SELECT id, user_input, state, result, error, created_at, updated_at FROM agent_tasks ORDER BY created_at, id

-- name: held_by
SELECT {columns} FROM {schema}.streams AS s WHERE s.worker = %b::text ORDER BY s.id

-- name: ready_agents
SELECT agent FROM unnest(%b::text[]) WITH ORDINALITY AS a (agent, place)
WHERE EXISTS (
    SELECT 1 FROM {schema}.streams AS s WHERE s.engine = '' AND s.agent = a.agent AND s.ready_at <= %b::bigint
)
ORDER BY place

-- name: ready
-- Skips rows that another worker is claiming, so that no claim waits for another.
SELECT {columns} FROM {schema}.streams AS s
WHERE s.engine = '' AND s.agent = %b::text AND s.ready_at <= %b::bigint AND s.agent_version = ANY(%b::text[])
AND (s.exclusive IS NULL OR s.cancelling OR NOT EXISTS (
    SELECT 1 FROM {schema}.slots AS t WHERE t.name = 'exclusive:' || s.exclusive AND t.place = 0 AND t.run <> s.number
))
ORDER BY s.ready_at, s.number LIMIT %b::bigint FOR NO KEY UPDATE OF s SKIP LOCKED

-- name: due
SELECT {columns} FROM {schema}.streams AS s
WHERE s.engine = %b::text AND s.engine <> '' AND (s.ready_at, s.number) > (%b::bigint, %b::bigint)
AND s.ready_at <= %b::bigint
ORDER BY s.ready_at, s.number LIMIT %b::bigint

-- name: has_slot
SELECT 1 FROM {schema}.slots WHERE name = %b::text AND run = %b::bigint

-- name: take_slot
-- The lowest free slot; no row if another transaction takes it first.
INSERT INTO {schema}.slots (name, place, run, driven)
SELECT %(name)b::text, p.place, %(run)b::bigint, %(driven)b::boolean FROM generate_series(0, %(size)b::bigint - 1) AS p (place)
WHERE NOT EXISTS (SELECT 1 FROM {schema}.slots AS t WHERE t.name = %(name)b::text AND t.place = p.place)
    AND (SELECT count(*) FROM {schema}.slots AS t WHERE t.name = %(name)b::text) < %(size)b::bigint
ORDER BY p.place LIMIT 1
ON CONFLICT DO NOTHING
RETURNING place

-- name: count_slots
SELECT count(*) FROM {schema}.slots WHERE name = %b::text

-- name: free_slots
DELETE FROM {schema}.slots WHERE run = ANY(%b::bigint[]) AND (driven OR NOT %b::boolean)

-- name: lend
INSERT INTO {schema}.lent DEFAULT VALUES RETURNING xid::text

-- name: take_back
-- No row if the transaction in which the connection was lent has ended.
DELETE FROM {schema}.lent WHERE xid = %b::text::xid8 AND xid = pg_current_xact_id()
RETURNING set_config('limpet.sealed', xid::text, true), set_config('synchronous_commit',
    CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)

-- name: save_snapshot
INSERT INTO {schema}.snapshots (run, seq, hash, time, data, codec, key_id)
VALUES (%b::bigint, %b::bigint, %b::bytea, %b::bigint, %b::bytea, %b::text, %b::text)
ON CONFLICT (run, seq) DO UPDATE SET hash = excluded.hash, time = excluded.time, data = excluded.data,
    codec = excluded.codec, key_id = excluded.key_id

-- name: drop_snapshots
DELETE FROM {schema}.snapshots WHERE run = %b::bigint AND seq = ANY(%b::bigint[])

-- name: snapshot
SELECT seq, hash, time, data, codec, key_id FROM {schema}.snapshots
WHERE run = %b::bigint AND seq <= %b::bigint ORDER BY seq DESC LIMIT 1

-- name: snapshots
SELECT seq, time FROM {schema}.snapshots WHERE run = %b::bigint ORDER BY seq

-- name: save_late
INSERT INTO {schema}.late (run, kept, seq, time, kind, version, fence, actor, codec, key_id, body, hash)
VALUES (%b::bigint, %b::bigint, %b::bigint, %b::bigint, %b::text, %b::int, %b::bigint, %b::text, %b::text, %b::text,
    %b::bytea, %b::bytea)
ON CONFLICT (run, hash) DO NOTHING

-- name: late
SELECT {event}, e.kept FROM {schema}.late AS e WHERE e.run = %b::bigint ORDER BY e.position

-- name: save_contracts
-- Contracts with the same hash are not even locked, so that apps which open with unchanged contracts do not queue. The
-- others are locked in the same order by every transaction.
INSERT INTO {schema}.contracts (agent, version, hash, contract, saved, codec, key_id)
SELECT w.* FROM unnest(
    %b::text[], %b::text[], %b::text[], %b::bytea[], %b::bigint[], %b::text[], %b::text[]
) AS w (agent, version, hash, contract, saved, codec, key_id)
WHERE NOT EXISTS (
    SELECT 1 FROM {schema}.contracts AS c WHERE c.agent = w.agent AND c.version = w.version AND c.hash = w.hash
)
ORDER BY w.agent COLLATE "C", w.version COLLATE "C"
ON CONFLICT (agent, version) DO UPDATE SET hash = excluded.hash, contract = excluded.contract, saved = excluded.saved,
    codec = excluded.codec, key_id = excluded.key_id
    WHERE contracts.hash <> excluded.hash

-- name: contracts
SELECT agent, version, hash, contract, saved, codec, key_id FROM {schema}.contracts

-- name: contracts_of
{contracts} WHERE agent = %b::text

-- name: put_blobs
-- The grace period of an existing loose blob starts again; one with references is left alone. Its name differs from
-- its id only if it was uploaded in chunks.
INSERT INTO {schema}.blobs (id, size, name, loose_since)
SELECT b.id, b.size, '', %b::bigint FROM unnest(%b::text[], %b::bigint[]) AS b (id, size) ORDER BY b.id
ON CONFLICT (id) DO UPDATE SET loose_since = excluded.loose_since WHERE blobs.loose_since IS NOT NULL
RETURNING id, number, xmax = 0

-- name: put_chunks
INSERT INTO {schema}.chunks (blob, place, codec, key_id, data)
SELECT c.* FROM unnest(%b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::bytea[]) AS c
ON CONFLICT (blob, place) DO UPDATE SET codec = excluded.codec, key_id = excluded.key_id, data = excluded.data

-- name: find_blobs
-- Locked until the transaction ends, so that the collector skips them.
SELECT id, number FROM {schema}.blobs WHERE id = ANY(%b::text[]) ORDER BY number FOR KEY SHARE

-- name: lock_upload
-- Locked exclusively: two transactions that share the lock and then want to name the blob would deadlock.
SELECT id, number FROM {schema}.blobs WHERE id = %b::text FOR UPDATE

-- name: begin_upload
INSERT INTO {schema}.blobs (id, size, name, loose_since) VALUES (%b::text, 0, %b::text, %b::bigint)
ON CONFLICT (id) DO UPDATE SET loose_since = excluded.loose_since
RETURNING number

-- name: touch_blob
UPDATE {schema}.blobs SET loose_since = %b::bigint WHERE number = %b::bigint AND loose_since IS NOT NULL

-- name: name_blob
UPDATE {schema}.blobs SET id = %b::text, size = %b::bigint, loose_since = %b::bigint WHERE number = %b::bigint

-- name: drop_blob
DELETE FROM {schema}.blobs WHERE number = %b::bigint

-- name: count_chunks
SELECT count(*) FROM {schema}.chunks WHERE blob = %b::bigint

-- name: refer
INSERT INTO {schema}.blob_refs (run, blob) SELECT DISTINCT r.* FROM unnest(%b::bigint[], %b::bigint[]) AS r
ORDER BY 1, 2 ON CONFLICT DO NOTHING

-- name: hold_blobs
UPDATE {schema}.blobs SET loose_since = NULL WHERE number IN (
    SELECT b.number FROM {schema}.blobs AS b WHERE b.number = ANY(%b::bigint[]) AND b.loose_since IS NOT NULL
    ORDER BY b.number FOR NO KEY UPDATE
)

-- name: loose_blobs
SELECT number FROM {schema}.blobs WHERE loose_since < %b::bigint
ORDER BY loose_since LIMIT %b::bigint FOR UPDATE SKIP LOCKED

-- name: collect
-- A separate statement, so that it sees every reference that was committed before the rows were locked.
DELETE FROM {schema}.blobs AS b WHERE b.number = ANY(%b::bigint[])
AND NOT EXISTS (SELECT 1 FROM {schema}.blob_refs AS r WHERE r.blob = b.number) RETURNING b.number

-- name: references
-- A reference to a blob that does not exist has no effect.
SELECT coalesce(b.id, '') FROM {schema}.blob_refs AS r LEFT JOIN {schema}.blobs AS b ON b.number = r.blob
WHERE r.run = %b::bigint ORDER BY b.id

-- name: blob
SELECT b.id, b.size, (SELECT count(*) FROM {schema}.chunks AS c WHERE c.blob = b.number), coalesce(nullif(b.name, ''), b.id)
FROM {schema}.blobs AS b WHERE b.id = %b::text

-- name: chunk
SELECT c.codec, c.key_id, c.data FROM {schema}.chunks AS c JOIN {schema}.blobs AS b ON b.number = c.blob
WHERE b.id = %b::text AND c.place = %b::bigint

-- name: small_blobs
SELECT b.id, b.size, coalesce(nullif(b.name, ''), b.id), c.codec, c.key_id, c.data
FROM {schema}.blobs AS b JOIN {schema}.chunks AS c ON c.blob = b.number AND c.place = 0
WHERE b.id = ANY(%b::text[])
AND NOT EXISTS (SELECT 1 FROM {schema}.chunks AS d WHERE d.blob = b.number AND d.place = 1)

-- name: settle
INSERT INTO {schema}.meta VALUES (%b::text, %b::text) ON CONFLICT (name) DO UPDATE SET value = meta.value
RETURNING value

-- name: setting
SELECT value FROM {schema}.meta WHERE name = %b::text

-- name: is_new
SELECT NOT EXISTS (SELECT 1 FROM {schema}.streams)

-- name: lock_keys
LOCK TABLE {schema}.keys IN EXCLUSIVE MODE

-- name: keys
SELECT id, purpose, master, wrapped, created FROM {schema}.keys ORDER BY created, id

-- name: drop_keys
DELETE FROM {schema}.keys

-- name: add_key
INSERT INTO {schema}.keys (id, purpose, master, wrapped, created)
VALUES (%b::text, %b::text, %b::text, %b::bytea, %b::bigint)

-- name: feed
-- In an order in which no event is ever inserted before one that was returned: a transaction that is still open, or
-- started after one that is, waits for its turn.
SELECT s.id, {event}, e.xid::text::bigint, e.position
FROM {schema}.events AS e JOIN {schema}.streams AS s ON s.number = e.run
WHERE (e.xid, e.position) >= (%b::bigint::text::xid8, %b::bigint) AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.xid, e.position LIMIT %b::bigint

-- name: recent_from
SELECT e.xid::text::bigint, e.position, e.time FROM {schema}.events AS e
WHERE (e.xid, e.position) < (%b::bigint::text::xid8, %b::bigint)
ORDER BY e.xid DESC, e.position DESC LIMIT 1 OFFSET %b::bigint

-- name: recent
SELECT e.xid::text::bigint, e.position, s.id, {event} FROM {schema}.events AS e JOIN {schema}.streams AS s ON s.number = e.run
WHERE (e.xid, e.position) < (%b::bigint::text::xid8, %b::bigint)
AND (e.xid, e.position) >= (%b::bigint::text::xid8, %b::bigint) AND e.kind = ANY(%b::text[])
ORDER BY e.xid DESC, e.position DESC

-- name: restored
-- Events with transaction ids ahead of the server's: a dump was restored into a new server.
SELECT 1 FROM {schema}.events WHERE xid > pg_snapshot_xmax(pg_current_snapshot()) ORDER BY xid DESC LIMIT 1

-- name: stamp_anew
UPDATE {schema}.events SET xid = pg_current_xact_id() WHERE xid > pg_current_xact_id()

-- name: new_life
INSERT INTO {schema}.meta VALUES ('life', '2') ON CONFLICT (name) DO UPDATE SET value = (meta.value::bigint + 1)::text

-- name: life
SELECT coalesce((SELECT value FROM {schema}.meta WHERE name = 'life'), '1')

-- name: feed_end
SELECT e.xid::text::bigint, e.position FROM {schema}.events AS e
WHERE e.xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY e.xid DESC, e.position DESC LIMIT 1

-- name: counts
SELECT agent, status, sum(n)::bigint FROM {schema}.counters GROUP BY agent, status HAVING sum(n) > 0

-- name: miscounted
SELECT agent, status, sum(kept)::bigint, sum(there)::bigint FROM (
    SELECT agent, status, n AS kept, 0 AS there FROM {schema}.counters
    UNION ALL SELECT agent, status, 0, 1 FROM {schema}.streams WHERE type = 'run'
) AS both_ways GROUP BY agent, status HAVING sum(kept) <> sum(there) ORDER BY agent, status

-- name: strays
-- Rows without their stream or blob, slots that their run should not hold, and running runs without their slot.
SELECT 'events', t.run, count(*) FROM {schema}.events AS t
WHERE NOT EXISTS (SELECT 1 FROM {schema}.streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'labels', t.run, count(*) FROM {schema}.labels AS t
WHERE NOT EXISTS (SELECT 1 FROM {schema}.streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'requests', t.run, count(*) FROM {schema}.requests AS t
WHERE NOT EXISTS (SELECT 1 FROM {schema}.streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'scores', t.run, count(*) FROM {schema}.scores AS t
WHERE NOT EXISTS (SELECT 1 FROM {schema}.streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'blob_refs', t.run, count(*) FROM {schema}.blob_refs AS t
WHERE NOT EXISTS (SELECT 1 FROM {schema}.streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'snapshots', t.run, count(*) FROM {schema}.snapshots AS t
WHERE NOT EXISTS (SELECT 1 FROM {schema}.streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'late', t.run, count(*) FROM {schema}.late AS t
WHERE NOT EXISTS (SELECT 1 FROM {schema}.streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'chunks', t.blob, count(*) FROM {schema}.chunks AS t
WHERE NOT EXISTS (SELECT 1 FROM {schema}.blobs AS o WHERE o.number = t.blob) GROUP BY t.blob
UNION ALL SELECT 'blob_refs', t.blob, count(*) FROM {schema}.blob_refs AS t
WHERE NOT EXISTS (SELECT 1 FROM {schema}.blobs AS o WHERE o.number = t.blob) GROUP BY t.blob
UNION ALL SELECT 'slots', t.run, count(*) FROM {schema}.slots AS t LEFT JOIN {schema}.streams AS s ON s.number = t.run
WHERE NOT coalesce(CASE WHEN t.driven THEN t.name = 'agent:' || s.agent AND s.worker IS NOT NULL
    ELSE t.name = 'exclusive:' || s.exclusive AND t.place = 0 AND s.ended IS NULL END, false) GROUP BY t.run
UNION ALL SELECT 'slots', run, count(*) FROM {schema}.slots GROUP BY name, run HAVING count(*) > 1
UNION ALL SELECT 'slots', s.number, count(*) FROM {schema}.streams AS s
WHERE s.status = 'running' AND s.exclusive IS NOT NULL AND NOT s.cancelling AND NOT EXISTS (
    SELECT 1 FROM {schema}.slots AS t WHERE t.name = 'exclusive:' || s.exclusive AND t.run = s.number
) GROUP BY s.number

-- name: streams
SELECT number, id FROM {schema}.streams WHERE number > %b::bigint ORDER BY number LIMIT %b::bigint

-- name: steps
SELECT seq, step FROM {schema}.events WHERE run = %b::bigint AND step IS NOT NULL ORDER BY seq

-- name: commands
SELECT seq, command FROM {schema}.events WHERE run = %b::bigint AND command IS NOT NULL ORDER BY seq

-- name: lock_counters
LOCK TABLE {schema}.counters IN EXCLUSIVE MODE

-- name: drop_counters
DELETE FROM {schema}.counters

-- name: count_anew
INSERT INTO {schema}.counters
SELECT agent, status, 0, count(*) FROM {schema}.streams WHERE type = 'run' GROUP BY agent, status

-- name: labels
SELECT name, value FROM {schema}.labels WHERE run = %b::bigint

-- Lists are composed of the parts that a filter needs. User input is bound, never inserted.

-- name: runs
SELECT {columns} FROM {schema}.streams AS s WHERE s.type = %(type)b::text

-- name: count
SELECT count(*) FROM {schema}.streams AS s WHERE s.type = %(type)b::text

-- name: runs.status
AND s.status = %(status)b::text

-- name: runs.statuses
AND s.status = ANY(%(statuses)b::text[])

-- name: runs.waits
AND s.waits LIKE %(waits)b::text

-- name: runs.agent
AND s.agent = %(agent)b::text

-- name: runs.session
AND s.session = %(session)b::text

-- name: runs.user
AND s."user" = %(user)b::text

-- name: runs.parent
AND s.parent = %(parent)b::text

-- name: runs.origin
AND s.origin = %(origin)b::text

-- name: runs.conversation
AND s.conversation = %(conversation)b::text

-- name: runs.label
AND s.number IN (SELECT l.run FROM {schema}.labels AS l WHERE l.name = %%(label_name_%d)b::text AND l.value = %%(label_value_%d)b::text)

-- name: runs.scored
AND s.number IN (SELECT c.run FROM {schema}.scores AS c WHERE c.name = %(scored_name)b::text)

-- name: runs.scored_number
AND s.number IN (SELECT c.run FROM {schema}.scores AS c WHERE c.name = %(scored_name)b::text
    AND c.number >= %(scored_least)b::float8 AND c.number <= %(scored_most)b::float8)

-- name: runs.scored_text
AND s.number IN (SELECT c.run FROM {schema}.scores AS c WHERE c.name = %(scored_name)b::text AND c.text = %(scored_text)b::text)

-- name: runs.created_from
AND s.created >= %(created_from)b::bigint

-- name: runs.created_before
AND s.created < %(created_before)b::bigint

-- name: runs.text
-- Ignores the case of ASCII letters, as everywhere.
AND (translate(s.id, {upper}, {lower}) LIKE %(text)b::text OR translate(s.agent, {upper}, {lower}) LIKE %(text)b::text
    OR translate(s.goal, {upper}, {lower}) LIKE %(text)b::text
    OR EXISTS (SELECT 1 FROM {schema}.labels AS l WHERE l.run = s.number
        AND translate(l.value, {upper}, {lower}) LIKE %(text)b::text))

-- name: upper
'ABCDEFGHIJKLMNOPQRSTUVWXYZ'

-- name: lower
'abcdefghijklmnopqrstuvwxyz'

-- name: runs.before
AND s.number < %(before)b::bigint

-- name: runs.order
ORDER BY s.number DESC LIMIT %(limit)b::bigint

-- The runs that were updated last: those that no worker holds, from the end of their index, and the held ones, sorted.
-- Both are read by one statement, or a run that is claimed in between would be missed.

-- name: latest.start
SELECT * FROM (

-- name: latest.held_runs
{runs}

-- name: latest.held
AND s.worker IS NOT NULL

-- name: latest.held_before
AND (s.time, s.number) < (%(before_time)b::bigint, %(before_number)b::bigint)

-- name: latest.held_order
ORDER BY s.time DESC, s.number DESC LIMIT %(limit)b::bigint

-- name: latest.middle
) AS held UNION ALL SELECT * FROM (

-- name: latest.rested_runs
{runs}

-- name: latest.rested
AND s.rested IS NOT NULL

-- name: latest.rested_before
AND (s.rested, s.number) < (%(before_time)b::bigint, %(before_number)b::bigint)

-- name: latest.rested_order
ORDER BY s.rested DESC, s.number DESC LIMIT %(limit)b::bigint

-- name: latest.end
) AS rested ORDER BY time DESC, number DESC LIMIT %(limit)b::bigint
