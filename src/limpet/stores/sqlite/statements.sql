-- Every statement that Limpet runs on SQLite. {x} includes the section named x.

-- name: connect
-- The busy timeout is set before this: switching to WAL may have to wait. No mmap: an I/O error there is a signal.
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
PRAGMA checkpoint_fullfsync = ON;
PRAGMA foreign_keys = ON;
PRAGMA trusted_schema = OFF;
PRAGMA mmap_size = 0;
PRAGMA cache_size = -16000;
PRAGMA temp_store = MEMORY;

-- name: connect_read_only
PRAGMA query_only = ON;
PRAGMA trusted_schema = OFF;
PRAGMA mmap_size = 0;
PRAGMA cache_size = -16000;
PRAGMA temp_store = MEMORY;

-- name: index_in_memory
-- Before the first read: the index of the log is then built in memory, and not shared.
PRAGMA locking_mode = EXCLUSIVE

-- name: read_only
PRAGMA query_only = ON

-- name: data_version
PRAGMA data_version

-- name: checkpoint
-- Moves everything committed into the database file, syncs it, and empties the write-ahead log.
PRAGMA wal_checkpoint(TRUNCATE)

-- name: quick_check
PRAGMA quick_check(1)

-- name: bad_head
-- A stream whose row does not match the last event of its log.
SELECT s.id, s.seq FROM limpet_streams AS s LEFT JOIN limpet_events AS e ON e.run = s.number AND e.seq = s.seq
WHERE e.hash IS NOT s.hash OR EXISTS (SELECT 1 FROM limpet_events AS later WHERE later.run = s.number AND later.seq > s.seq)
LIMIT 1

-- name: begin
-- Never a deferred transaction: one that has read and then writes gets BUSY immediately.
BEGIN IMMEDIATE

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: savepoint
SAVEPOINT limpet

-- name: undo
ROLLBACK TO limpet

-- name: forget
RELEASE limpet

-- name: journal_mode
PRAGMA journal_mode

-- name: has_schema
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'limpet_meta'

-- name: schema_version
SELECT value FROM limpet_meta WHERE name = 'schema'

-- name: set_schema_version
INSERT INTO limpet_meta VALUES ('schema', ?1) ON CONFLICT DO UPDATE SET value = excluded.value

-- name: columns
s.number, s.id, s.type, s.agent, s.agent_version, s.status, s.waits, s.ready_at, s.seq, s.hash, s.time, s.fence,
s.worker, s.deaths, s.alone, s.created, s.start_at, s.ended, s.user, s.session, s.conversation, s.parent, s.exclusive,
s.goal, s.step, s.steps, s.item, s.items, s.undoing, s.cancelling, s.origin, s.origin_at, s.deadline,
s.cost, s.engine, s.labels

-- name: row
SELECT {columns} FROM limpet_streams AS s WHERE s.id = ?1

-- name: add
INSERT INTO limpet_streams (
    id, type, agent, agent_version, status, waits, ready_at, seq, hash, time, fence, worker, deaths, alone, created,
    start_at, ended, user, session, conversation, parent, exclusive, goal, step, steps, item, items, undoing,
    cancelling, origin, origin_at, deadline, cost, engine, labels
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24,
    ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35)
RETURNING number

-- name: add_label
INSERT INTO limpet_labels (name, value, run) VALUES (?1, ?2, ?3)

-- name: advance_run
-- The compare-and-set: a second writer fails here, in the database.
UPDATE limpet_streams
SET seq = ?5, hash = ?6, time = ?7, step = max(step, ?8), deaths = iif(?9, 0, deaths)
WHERE number = ?1 AND seq = ?2 AND hash = ?3 AND fence = ?4 AND worker IS NOT NULL

-- name: advance_conversation
UPDATE limpet_streams SET seq = ?4, hash = ?5, time = ?6
WHERE number = ?1 AND seq = ?2 AND hash = ?3 AND type = 'conversation'

-- name: save
UPDATE limpet_streams
SET status = ?2, waits = ?3, ready_at = ?4, seq = ?5, hash = ?6, time = ?7, fence = ?8, worker = ?9, deaths = ?10,
    alone = ?11, ended = ?12, goal = ?13, step = ?14, item = ?15, items = ?16, undoing = ?17, cancelling = ?18,
    deadline = ?19, cost = ?20, engine = ?21
WHERE number = ?1

-- name: insert
INSERT INTO limpet_events (run, seq, time, kind, version, fence, actor, codec, key_id, body, hash, command, step)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)

-- name: extensions
-- A row that is inserted into this view appends an event of a run, if the run's head is the event before. So all events
-- of a batch are one statement. Between two statements, the writer may have to wait for a thread that computes.
CREATE TEMP VIEW limpet_extensions
(run, seq, time, kind, version, fence, actor, codec, key_id, body, hash, step, previous, held, reached, settled)
AS VALUES (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);

CREATE TEMP TRIGGER limpet_extend INSTEAD OF INSERT ON limpet_extensions WHEN new.run IS NOT NULL BEGIN
    UPDATE limpet_streams
    SET seq = new.seq, hash = new.hash, time = new.time, step = max(step, new.reached),
        deaths = iif(new.settled, 0, deaths)
    WHERE number = new.run AND seq = new.seq - 1 AND hash = new.previous AND fence = new.held
    AND +worker IS NOT NULL;  -- The plus keeps it from reading all runs with a worker by their index.
    INSERT INTO limpet_events (run, seq, time, kind, version, fence, actor, codec, key_id, body, hash, step)
    SELECT new.run, new.seq, new.time, new.kind, new.version, new.fence, new.actor, new.codec, new.key_id, new.body,
        new.hash, new.step
    WHERE changes();
END

-- name: extend
INSERT INTO limpet_extensions VALUES

-- name: newest_hashes
SELECT json_group_array(lower(hex(hash))) FROM (SELECT hash FROM limpet_events ORDER BY position DESC LIMIT ?1)

-- name: index_step
UPDATE limpet_events SET step = ?3 WHERE run = ?1 AND seq = ?2 AND step IS NOT ?3

-- name: event
e.seq, e.time, e.kind, e.version, e.fence, e.actor, e.codec, e.key_id, e.body, e.hash

-- name: events
SELECT {event} FROM limpet_events AS e WHERE e.run = ?1 AND e.seq > ?2 ORDER BY e.seq LIMIT ?3

-- name: number
SELECT number FROM limpet_streams WHERE id = ?1

-- name: origin
SELECT origin, origin_at FROM limpet_streams WHERE id = ?1

-- name: peek
{row}

-- name: read
SELECT {event} FROM limpet_events AS e WHERE e.run = (SELECT number FROM limpet_streams WHERE id = ?1)
AND e.seq > ?2 AND e.seq < ?3 ORDER BY e.seq LIMIT ?4

-- name: read_backwards
SELECT {event} FROM limpet_events AS e WHERE e.run = (SELECT number FROM limpet_streams WHERE id = ?1)
AND e.seq > ?2 AND e.seq < ?3 ORDER BY e.seq DESC LIMIT ?4

-- name: read_steps
SELECT e.step, {event} FROM limpet_events AS e WHERE e.run = (SELECT number FROM limpet_streams WHERE id = ?1)
AND e.seq <= ?5 AND e.step IN (SELECT 0 UNION ALL SELECT * FROM (
    SELECT DISTINCT i.step FROM limpet_events AS i WHERE i.run = (SELECT number FROM limpet_streams WHERE id = ?1)
    AND i.step > ?2 AND i.step < ?3 AND i.seq <= ?5 ORDER BY i.step LIMIT ?4
))

-- name: read_steps_backwards
SELECT e.step, {event} FROM limpet_events AS e WHERE e.run = (SELECT number FROM limpet_streams WHERE id = ?1)
AND e.seq <= ?5 AND e.step IN (SELECT 0 UNION ALL SELECT * FROM (
    SELECT DISTINCT i.step FROM limpet_events AS i WHERE i.run = (SELECT number FROM limpet_streams WHERE id = ?1)
    AND i.step > ?2 AND i.step < ?3 AND i.seq <= ?5 ORDER BY i.step DESC LIMIT ?4
))

-- name: command
SELECT {event} FROM limpet_events AS e WHERE e.run = ?1 AND e.command = ?2

-- name: request_columns
r.id, s.id, r.seq, r.kind, r.status, r."to", r.risk, r.tool, r.opened, r.expires, r.digest, r.by

-- name: request
SELECT {request_columns} FROM limpet_requests AS r JOIN limpet_streams AS s ON s.number = r.run WHERE r.id = ?1

-- name: open_requests
SELECT {request_columns} FROM limpet_requests AS r JOIN limpet_streams AS s ON s.number = r.run
WHERE r.run = ?1 AND r.status = 'open' ORDER BY r.opened, r.id

-- name: any_request
SELECT 1 FROM limpet_requests WHERE status = 'open' LIMIT 1

-- name: save_request
INSERT INTO limpet_requests (id, run, seq, kind, status, "to", risk, tool, opened, expires, digest, by)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, status = excluded.status, "to" = excluded."to",
    opened = excluded.opened, expires = excluded.expires, digest = excluded.digest, by = excluded.by

-- name: count_requests
SELECT count(*) FROM limpet_requests WHERE status = 'open'

-- name: requests
SELECT {request_columns} FROM limpet_requests AS r JOIN limpet_streams AS s ON s.number = r.run WHERE true

-- name: requests.status
AND r.status = :status

-- name: requests.id
AND r.id = :id

-- name: requests.run
AND s.id = :run

-- name: requests.to
AND EXISTS (SELECT 1 FROM json_each(r."to") WHERE value = :to)

-- name: requests.risk
AND r.risk = :risk

-- name: requests.opened_until
AND r.opened <= :opened_until

-- name: requests.after
AND (r.opened, r.id) > (:after_opened, :after_id)

-- name: requests.order
ORDER BY r.opened, r.id LIMIT :limit

-- name: score_columns
s.id, c.name, c.by, c.step, c.seq, c.time, c.number, c.text

-- name: save_score
INSERT INTO limpet_scores (run, name, by, step, seq, time, number, text)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (run, name, by, step) DO UPDATE SET seq = excluded.seq, time = excluded.time, number = excluded.number,
    text = excluded.text

-- name: drop_score
DELETE FROM limpet_scores WHERE run = ?1 AND name = ?2 AND by = ?3 AND step = ?4

-- name: drop_scores
DELETE FROM limpet_scores WHERE run = ?1

-- name: scores
SELECT {score_columns} FROM limpet_scores AS c JOIN limpet_streams AS s ON s.number = c.run WHERE true

-- name: scores.run
AND s.id = :run

-- name: scores.name
AND c.name = :name

-- name: scores.by
AND c.by = :by

-- name: scores.step
AND c.step = :step

-- name: scores.time_from
AND c.time >= :time_from

-- name: scores.before
AND (c.time, s.id, c.seq) < (:before_time, :before_run, :before_seq)

-- name: scores.order
ORDER BY c.time DESC, s.id DESC, c.seq DESC LIMIT :limit

-- name: slot_holder
SELECT coalesce(
    (SELECT h.id FROM limpet_slots AS t JOIN limpet_streams AS h ON h.number = t.run
        WHERE t.name = 'exclusive:' || s.exclusive AND t.run <> s.number ORDER BY t.place LIMIT 1),
    (SELECT h.id FROM limpet_slots AS t JOIN limpet_streams AS h ON h.number = t.run
        WHERE t.name = 'agent:' || s.agent AND t.run <> s.number ORDER BY t.place LIMIT 1)
) FROM limpet_streams AS s WHERE s.id = ?1

-- name: workers
SELECT id, host, agents, started, lease_until, engine FROM limpet_workers ORDER BY started, id

-- name: worker
SELECT id, host, agents, started, lease_until, engine FROM limpet_workers WHERE id = ?1

-- name: save_worker
INSERT INTO limpet_workers (id, host, agents, started, lease_until, engine) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (id) DO UPDATE SET host = excluded.host, agents = excluded.agents, started = excluded.started,
    lease_until = excluded.lease_until, engine = excluded.engine

-- name: drop_worker
DELETE FROM limpet_workers WHERE id = ?1

-- name: duties
SELECT name, every, worker, lease_until, done, done_by, error FROM limpet_duties ORDER BY name

-- name: duty
INSERT INTO limpet_duties (name) VALUES (?1) ON CONFLICT DO UPDATE SET name = excluded.name
RETURNING name, every, worker, lease_until, done, done_by, error

-- name: save_duty
UPDATE limpet_duties SET every = ?2, worker = ?3, lease_until = ?4, done = ?5, done_by = ?6, error = ?7 WHERE name = ?1

-- name: token_columns
id, name, kind, "groups", roles, rights, digest, created, created_by, expires, revoked, revoked_by, last_used,
    purpose, parent

-- name: token
SELECT {token_columns} FROM limpet_tokens WHERE id = ?1

-- name: tokens
SELECT {token_columns} FROM limpet_tokens WHERE purpose = 'token' AND (created, id) < (?1, ?2)
ORDER BY created DESC, id DESC LIMIT ?3

-- name: add_token
INSERT INTO limpet_tokens ({token_columns}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
ON CONFLICT DO NOTHING RETURNING id

-- name: drop_sessions
DELETE FROM limpet_tokens WHERE purpose <> 'token' AND expires < ?1

-- name: save_token
UPDATE limpet_tokens SET revoked = ?2, revoked_by = ?3, last_used = ?4 WHERE id = ?1

-- name: foreign_tasks
-- The table of another program.
SELECT id, user_input, state, result, error, created_at, updated_at FROM agent_tasks ORDER BY created_at, id

-- name: held_by
SELECT {columns} FROM limpet_streams AS s WHERE s.worker = ?1 ORDER BY s.number

-- name: ready_agents
SELECT json_group_array(a.value) FROM json_each(?1) AS a
WHERE EXISTS (SELECT 1 FROM limpet_streams AS s WHERE s.engine = '' AND s.agent = a.value AND s.ready_at <= ?2)

-- name: ready
SELECT {columns} FROM limpet_streams AS s
WHERE s.engine = '' AND s.agent = ?1 AND s.ready_at <= ?2 AND s.agent_version IN (SELECT value FROM json_each(?3))
AND (s.exclusive IS NULL OR s.cancelling OR NOT EXISTS (
    SELECT 1 FROM limpet_slots AS t WHERE t.name = 'exclusive:' || s.exclusive AND t.place = 0 AND t.run <> s.number
))
ORDER BY s.ready_at, s.number LIMIT ?4

-- name: due
SELECT {columns} FROM limpet_streams AS s
WHERE s.engine = ?1 AND s.engine <> '' AND (s.ready_at, s.number) > (?2, ?3) AND s.ready_at <= ?4
ORDER BY s.ready_at, s.number LIMIT ?5

-- name: slots_taken
SELECT place, run FROM limpet_slots WHERE name = ?1

-- name: take_slot
INSERT INTO limpet_slots (name, place, run, driven) VALUES (?1, ?2, ?3, ?4)

-- name: any_slot
SELECT 1 FROM limpet_slots LIMIT 1

-- name: free_slots
DELETE FROM limpet_slots WHERE run = ?1 AND driven >= ?2

-- name: save_snapshot
INSERT INTO limpet_snapshots (run, seq, hash, time, data, codec, key_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (run, seq) DO UPDATE SET hash = excluded.hash, time = excluded.time, data = excluded.data,
    codec = excluded.codec, key_id = excluded.key_id

-- name: drop_snapshot
DELETE FROM limpet_snapshots WHERE run = ?1 AND seq = ?2

-- name: snapshot
SELECT seq, hash, time, data, codec, key_id FROM limpet_snapshots WHERE run = ?1 AND seq <= ?2 ORDER BY seq DESC LIMIT 1

-- name: snapshots
SELECT seq, time FROM limpet_snapshots WHERE run = ?1 ORDER BY seq

-- name: save_late
INSERT INTO limpet_late (run, kept, seq, time, kind, version, fence, actor, codec, key_id, body, hash)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO NOTHING

-- name: late
SELECT {event}, e.kept FROM limpet_late AS e WHERE e.run = ?1 ORDER BY e.position

-- name: save_contract
-- A contract with the same hash stays unchanged.
INSERT INTO limpet_contracts (agent, version, hash, contract, saved, codec, key_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (agent, version) DO UPDATE SET hash = excluded.hash, contract = excluded.contract, saved = excluded.saved,
    codec = excluded.codec, key_id = excluded.key_id
    WHERE hash <> excluded.hash

-- name: contracts
SELECT agent, version, hash, contract, saved, codec, key_id FROM limpet_contracts

-- name: contracts_of
{contracts} WHERE agent = ?1

-- name: rewrite
UPDATE limpet_streams
SET type = ?2, agent = ?3, agent_version = ?4, status = ?5, waits = ?6, ready_at = ?7, seq = ?8, hash = ?9, time = ?10,
    fence = ?11, worker = ?12, deaths = ?13, alone = ?14, created = ?15, start_at = ?16, ended = ?17, user = ?18,
    session = ?19, conversation = ?20, parent = ?21, exclusive = ?22, goal = ?23, step = ?24, steps = ?25, item = ?26,
    items = ?27, undoing = ?28, cancelling = ?29, origin = ?30, origin_at = ?31, deadline = ?32, cost = ?33,
    engine = ?34, labels = ?35
WHERE id = ?1

-- name: needing
SELECT id FROM limpet_streams WHERE type IN ('run', 'conversation') AND origin IN (SELECT value FROM json_each(?1))
UNION SELECT id FROM limpet_streams WHERE type = 'run' AND conversation IN (SELECT value FROM json_each(?1))

-- name: referred
SELECT DISTINCT blob FROM limpet_blob_refs WHERE run IN (SELECT value FROM json_each(?1))

-- name: let_go
UPDATE limpet_blobs SET loose_since = ?2 WHERE number IN (SELECT value FROM json_each(?1))
AND NOT EXISTS (SELECT 1 FROM limpet_blob_refs AS r WHERE r.blob = limpet_blobs.number)

-- name: delete_slots
DELETE FROM limpet_slots WHERE run IN (SELECT value FROM json_each(?1))

-- name: delete_snapshots
DELETE FROM limpet_snapshots WHERE run IN (SELECT value FROM json_each(?1))

-- name: delete_late
DELETE FROM limpet_late WHERE run IN (SELECT value FROM json_each(?1))

-- name: delete_labels
DELETE FROM limpet_labels WHERE run IN (SELECT value FROM json_each(?1))

-- name: delete_requests
DELETE FROM limpet_requests WHERE run IN (SELECT value FROM json_each(?1))

-- name: delete_scores
DELETE FROM limpet_scores WHERE run IN (SELECT value FROM json_each(?1))

-- name: delete_blob_refs
DELETE FROM limpet_blob_refs WHERE run IN (SELECT value FROM json_each(?1))

-- name: delete_events
DELETE FROM limpet_events WHERE run IN (SELECT value FROM json_each(?1))

-- name: delete_streams
DELETE FROM limpet_streams WHERE number IN (SELECT value FROM json_each(?1))

-- name: drop_labels
DELETE FROM limpet_labels WHERE run = ?1

-- name: drop_requests
DELETE FROM limpet_requests WHERE run = ?1

-- name: blob
SELECT b.id, b.size, (SELECT count(*) FROM limpet_chunks AS c WHERE c.blob = b.number), coalesce(nullif(b.name, ''), b.id)
FROM limpet_blobs AS b WHERE b.id = ?1

-- name: chunk
SELECT c.codec, c.key_id, c.data FROM limpet_chunks AS c JOIN limpet_blobs AS b ON b.number = c.blob
WHERE b.id = ?1 AND c.place = ?2

-- name: small_blobs
SELECT b.id, b.size, coalesce(nullif(b.name, ''), b.id), c.codec, c.key_id, c.data
FROM limpet_blobs AS b JOIN limpet_chunks AS c ON c.blob = b.number AND c.place = 0
WHERE b.id IN (SELECT value FROM json_each(?1))
AND NOT EXISTS (SELECT 1 FROM limpet_chunks AS d WHERE d.blob = b.number AND d.place = 1)

-- name: find_blobs
SELECT id, number FROM limpet_blobs WHERE id IN (SELECT value FROM json_each(?1))

-- name: add_blob
-- Its name differs from its id only if it was uploaded in chunks.
INSERT INTO limpet_blobs (id, size, name, loose_since) VALUES (?1, ?2, ?3, ?4) RETURNING number

-- name: touch_blob
UPDATE limpet_blobs SET loose_since = ?2 WHERE number = ?1 AND loose_since IS NOT NULL

-- name: name_blob
UPDATE limpet_blobs SET id = ?2, size = ?3, loose_since = ?4 WHERE number = ?1

-- name: drop_blob
DELETE FROM limpet_blobs WHERE number = ?1

-- name: put_chunk
INSERT INTO limpet_chunks (blob, place, codec, key_id, data) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (blob, place) DO UPDATE SET codec = excluded.codec, key_id = excluded.key_id, data = excluded.data

-- name: count_chunks
SELECT count(*) FROM limpet_chunks WHERE blob = ?1

-- name: refer
INSERT INTO limpet_blob_refs (run, blob) VALUES (?1, ?2) ON CONFLICT DO NOTHING

-- name: references
-- A reference to a blob that does not exist has no effect.
SELECT coalesce(b.id, '') FROM limpet_blob_refs AS r LEFT JOIN limpet_blobs AS b ON b.number = r.blob
WHERE r.run = ?1 ORDER BY b.id

-- name: hold_blob
UPDATE limpet_blobs SET loose_since = NULL WHERE number = ?1 AND loose_since IS NOT NULL

-- name: collect
DELETE FROM limpet_blobs WHERE number IN (
    SELECT b.number FROM limpet_blobs AS b WHERE b.loose_since < ?1
    AND NOT EXISTS (SELECT 1 FROM limpet_blob_refs AS r WHERE r.blob = b.number)
    ORDER BY b.loose_since LIMIT ?2
)

-- name: settle
INSERT INTO limpet_meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = value RETURNING value

-- name: setting
SELECT value FROM limpet_meta WHERE name = ?1

-- name: is_new
SELECT NOT EXISTS (SELECT 1 FROM limpet_streams)

-- name: keys
SELECT id, purpose, master, wrapped, created FROM limpet_keys ORDER BY created, id

-- name: drop_keys
DELETE FROM limpet_keys

-- name: add_key
INSERT INTO limpet_keys (id, purpose, master, wrapped, created) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: feed
-- There is one writer at a time, so positions are in the order of the commits.
SELECT s.id, {event}, e.position FROM limpet_events AS e JOIN limpet_streams AS s ON s.number = e.run
WHERE e.position > ?1 ORDER BY e.position LIMIT ?2

-- name: recent_from
SELECT position, time FROM limpet_events WHERE position < ?1 ORDER BY position DESC LIMIT 1 OFFSET ?2

-- name: recent
SELECT e.position, s.id, {event} FROM limpet_events AS e JOIN limpet_streams AS s ON s.number = e.run
WHERE e.position < ?1 AND e.position >= ?2 AND e.kind IN (SELECT value FROM json_each(?3)) ORDER BY e.position DESC

-- name: last_position
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'limpet_events'), 0)

-- name: feed_end
SELECT coalesce(max(position), 0) FROM limpet_events

-- name: counts
SELECT agent, status, n FROM limpet_counters WHERE n > 0

-- name: miscounted
-- Values that are not valid text are returned unchanged.
SELECT CAST(agent AS BLOB), CAST(status AS BLOB), sum(kept), sum(there) FROM (
    SELECT agent, status, n AS kept, 0 AS there FROM limpet_counters
    UNION ALL SELECT agent, status, 0, 1 FROM limpet_streams WHERE type = 'run'
) GROUP BY agent, status HAVING sum(kept) <> sum(there) ORDER BY agent, status

-- name: strays
-- Rows without their stream or blob, slots that their run should not hold, and running runs without their slot.
SELECT 'events', t.run, count(*) FROM limpet_events AS t
WHERE NOT EXISTS (SELECT 1 FROM limpet_streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'labels', t.run, count(*) FROM limpet_labels AS t
WHERE NOT EXISTS (SELECT 1 FROM limpet_streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'requests', t.run, count(*) FROM limpet_requests AS t
WHERE NOT EXISTS (SELECT 1 FROM limpet_streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'scores', t.run, count(*) FROM limpet_scores AS t
WHERE NOT EXISTS (SELECT 1 FROM limpet_streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'blob_refs', t.run, count(*) FROM limpet_blob_refs AS t
WHERE NOT EXISTS (SELECT 1 FROM limpet_streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'snapshots', t.run, count(*) FROM limpet_snapshots AS t
WHERE NOT EXISTS (SELECT 1 FROM limpet_streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'late', t.run, count(*) FROM limpet_late AS t
WHERE NOT EXISTS (SELECT 1 FROM limpet_streams AS s WHERE s.number = t.run) GROUP BY t.run
UNION ALL SELECT 'chunks', t.blob, count(*) FROM limpet_chunks AS t
WHERE NOT EXISTS (SELECT 1 FROM limpet_blobs AS o WHERE o.number = t.blob) GROUP BY t.blob
UNION ALL SELECT 'blob_refs', t.blob, count(*) FROM limpet_blob_refs AS t
WHERE NOT EXISTS (SELECT 1 FROM limpet_blobs AS o WHERE o.number = t.blob) GROUP BY t.blob
UNION ALL SELECT 'slots', t.run, count(*) FROM limpet_slots AS t LEFT JOIN limpet_streams AS s ON s.number = t.run
WHERE NOT coalesce(CASE WHEN t.driven THEN t.name = 'agent:' || s.agent AND s.worker IS NOT NULL
    ELSE t.name = 'exclusive:' || s.exclusive AND t.place = 0 AND s.ended IS NULL END, 0) GROUP BY t.run
UNION ALL SELECT 'slots', run, count(*) FROM limpet_slots GROUP BY name, run HAVING count(*) > 1
UNION ALL SELECT 'slots', s.number, count(*) FROM limpet_streams AS s
WHERE s.status = 'running' AND s.exclusive IS NOT NULL AND NOT s.cancelling AND NOT EXISTS (
    SELECT 1 FROM limpet_slots AS t WHERE t.name = 'exclusive:' || s.exclusive AND t.run = s.number
) GROUP BY s.number

-- name: streams
SELECT number, CAST(id AS BLOB) FROM limpet_streams WHERE number > ?1 ORDER BY number LIMIT ?2

-- name: commands
SELECT seq, command FROM limpet_events WHERE run = ?1 AND command IS NOT NULL ORDER BY seq

-- name: steps
SELECT seq, step FROM limpet_events WHERE run = ?1 AND step IS NOT NULL ORDER BY seq

-- name: drop_counters
DELETE FROM limpet_counters

-- name: count_anew
INSERT INTO limpet_counters SELECT agent, status, count(*) FROM limpet_streams WHERE type = 'run' GROUP BY agent, status

-- name: labels
SELECT name, value FROM limpet_labels WHERE run = ?1

-- Lists are composed of the parts that a filter needs. User input is bound, never inserted.

-- name: runs
SELECT {columns} FROM limpet_streams AS s WHERE s.type = :type

-- name: count
SELECT count(*) FROM limpet_streams AS s WHERE s.type = :type

-- name: runs.status
-- One status is read from the end of its index; several are searched among the newest rows.
AND s.status = :status

-- name: runs.statuses
AND s.status IN (SELECT value FROM json_each(:statuses))

-- name: runs.waits
AND s.waits LIKE :waits

-- name: runs.agent
AND s.agent = :agent

-- name: runs.session
AND s.session = :session

-- name: runs.user
AND s.user = :user

-- name: runs.parent
AND s.parent = :parent

-- name: runs.origin
AND s.origin = :origin

-- name: runs.conversation
AND s.conversation = :conversation

-- name: runs.label
AND s.number IN (SELECT l.run FROM limpet_labels AS l WHERE l.name = :label_name_%d AND l.value = :label_value_%d)

-- name: runs.scored
AND s.number IN (SELECT c.run FROM limpet_scores AS c WHERE c.name = :scored_name)

-- name: runs.scored_number
AND s.number IN (SELECT c.run FROM limpet_scores AS c WHERE c.name = :scored_name
    AND c.number >= :scored_least AND c.number <= :scored_most)

-- name: runs.scored_text
AND s.number IN (SELECT c.run FROM limpet_scores AS c WHERE c.name = :scored_name AND c.text = :scored_text)

-- name: runs.created_from
AND s.created >= :created_from

-- name: runs.created_before
AND s.created < :created_before

-- name: runs.text
AND (s.id LIKE :text ESCAPE '\' OR s.agent LIKE :text ESCAPE '\' OR s.goal LIKE :text ESCAPE '\'
    OR EXISTS (SELECT 1 FROM json_each(s.labels) AS l WHERE l.value LIKE :text ESCAPE '\'))

-- name: runs.before
AND s.number < :before

-- name: runs.order
ORDER BY s.number DESC LIMIT :limit

-- The runs that were updated last: those that no worker holds, from the end of their index, and the held ones, sorted.
-- Both are read by one statement, or a run that is claimed in between would be missed.

-- name: latest.start
SELECT * FROM (

-- name: latest.held_runs
-- There are few of them: as many as the workers have room for.
SELECT {columns} FROM limpet_streams AS s INDEXED BY limpet_streams_worker WHERE s.type = :type

-- name: latest.held
AND s.worker IS NOT NULL

-- name: latest.held_before
AND (s.time, s.number) < (:before_time, :before_number)

-- name: latest.held_order
ORDER BY s.time DESC, s.number DESC LIMIT :limit

-- name: latest.middle
) UNION ALL SELECT * FROM (

-- name: latest.rested_runs
{runs}

-- name: latest.rested
AND s.worker IS NULL

-- name: latest.rested_before
AND (s.time, s.number) < (:before_time, :before_number)

-- name: latest.rested_order
ORDER BY s.time DESC, s.number DESC LIMIT :limit

-- name: latest.end
) ORDER BY time DESC, number DESC LIMIT :limit
