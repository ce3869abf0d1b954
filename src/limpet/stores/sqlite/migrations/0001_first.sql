-- The log, and what is derived from it. Every table is named limpet_*: a user's own tables may be in the same file.

CREATE TABLE limpet_meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Runs and conversations: one row each, derived from their events. Numbers are never reused.
CREATE TABLE limpet_streams (
    number        INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE CHECK (length(id) BETWEEN 1 AND 200),
    type          TEXT    NOT NULL CHECK (type IN ('run', 'conversation')),
    agent         TEXT    NOT NULL,
    agent_version TEXT    NOT NULL,
    status        TEXT    NOT NULL
                  CHECK (status IN ('pending', 'running', 'waiting', 'completed', 'failed', 'cancelled', 'open')),
    waits         TEXT    NOT NULL CHECK (json_valid(waits)),
    ready_at      INTEGER,
    seq           INTEGER NOT NULL CHECK (seq >= 1),
    hash          BLOB    NOT NULL CHECK (length(hash) = 32),
    time          INTEGER NOT NULL,
    fence         INTEGER NOT NULL CHECK (fence >= 0),
    worker        TEXT,
    deaths        INTEGER NOT NULL CHECK (deaths >= 0),
    created       INTEGER NOT NULL,
    start_at      INTEGER,
    ended         INTEGER,
    user          TEXT,
    session       TEXT,
    conversation  TEXT,
    parent        TEXT,
    exclusive     TEXT,
    goal          TEXT    NOT NULL,
    step          INTEGER NOT NULL,
    steps         INTEGER,
    item          INTEGER,
    items         INTEGER NOT NULL,
    undoing       INTEGER NOT NULL CHECK (undoing IN (0, 1)),
    cancelling    INTEGER NOT NULL CHECK (cancelling IN (0, 1)),
    labels        TEXT    NOT NULL CHECK (json_valid(labels)),
    CHECK ((type = 'conversation') = (status = 'open')),
    CHECK ((status = 'running') = (worker IS NOT NULL)),
    CHECK ((status IN ('completed', 'failed', 'cancelled')) = (ended IS NOT NULL)),
    CHECK (ready_at IS NULL OR status IN ('pending', 'waiting'))
) STRICT;

-- Claiming reads only ready runs, however many runs have ended.
CREATE INDEX limpet_streams_ready ON limpet_streams (agent, ready_at, number) WHERE ready_at IS NOT NULL;
CREATE INDEX limpet_streams_worker ON limpet_streams (worker) WHERE worker IS NOT NULL;
-- Lists are ordered by number, newest first; every index implicitly ends with it.
CREATE INDEX limpet_streams_type ON limpet_streams (type);
CREATE INDEX limpet_streams_status ON limpet_streams (type, status);
CREATE INDEX limpet_streams_agent ON limpet_streams (type, agent);
CREATE INDEX limpet_streams_session ON limpet_streams (type, session) WHERE session IS NOT NULL;
CREATE INDEX limpet_streams_user ON limpet_streams (type, user) WHERE user IS NOT NULL;
CREATE INDEX limpet_streams_parent ON limpet_streams (type, parent) WHERE parent IS NOT NULL;
CREATE INDEX limpet_streams_created ON limpet_streams (type, created);

-- The source of truth. Positions are never reused, or a cursor over all runs would miss an event after a prune.
CREATE TABLE limpet_events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    run      INTEGER NOT NULL REFERENCES limpet_streams (number),
    seq      INTEGER NOT NULL CHECK (seq >= 1),
    time     INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    version  INTEGER NOT NULL CHECK (version >= 1),
    fence    INTEGER NOT NULL CHECK (fence >= 0),
    actor    TEXT    NOT NULL,
    codec    TEXT    NOT NULL,
    key_id   TEXT    NOT NULL,
    body     BLOB    NOT NULL,
    hash     BLOB    NOT NULL CHECK (length(hash) = 32),
    command  TEXT,
    UNIQUE (run, seq)
) STRICT;
CREATE UNIQUE INDEX limpet_events_command ON limpet_events (run, command) WHERE command IS NOT NULL;

CREATE TABLE limpet_labels (
    name  TEXT    NOT NULL,
    value TEXT    NOT NULL,
    run   INTEGER NOT NULL REFERENCES limpet_streams (number),
    PRIMARY KEY (name, value, run)
) STRICT, WITHOUT ROWID;

-- The inbox. The question of a request is in its event.
CREATE TABLE limpet_requests (
    id      TEXT    PRIMARY KEY,
    run     INTEGER NOT NULL REFERENCES limpet_streams (number),
    seq     INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    status  TEXT    NOT NULL CHECK (status IN (
            'open', 'answered', 'approved', 'rejected', 'used', 'expired', 'withdrawn')),
    "to"    TEXT    NOT NULL CHECK (json_valid("to")),
    risk    TEXT,
    tool    TEXT,
    opened  INTEGER NOT NULL,
    expires INTEGER,
    digest  TEXT    NOT NULL,
    by      TEXT
) STRICT;
CREATE INDEX limpet_requests_open ON limpet_requests (opened, id) WHERE status = 'open';
CREATE INDEX limpet_requests_run ON limpet_requests (run);

CREATE TABLE limpet_workers (
    id          TEXT    PRIMARY KEY,
    host        TEXT    NOT NULL,
    agents      TEXT    NOT NULL CHECK (json_valid(agents)),
    started     INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Limits: a slot can be taken once.
CREATE TABLE limpet_slots (
    name   TEXT    NOT NULL,
    place  INTEGER NOT NULL CHECK (place >= 0),
    run    INTEGER NOT NULL REFERENCES limpet_streams (number),
    driven INTEGER NOT NULL CHECK (driven IN (0, 1)),
    PRIMARY KEY (name, place)
) STRICT, WITHOUT ROWID;
CREATE INDEX limpet_slots_run ON limpet_slots (run);

-- Caches, and late events, which are never folded.
CREATE TABLE limpet_snapshots (
    run    INTEGER NOT NULL REFERENCES limpet_streams (number),
    seq    INTEGER NOT NULL,
    hash   BLOB    NOT NULL,
    time   INTEGER NOT NULL,
    data   BLOB    NOT NULL,
    codec  TEXT    NOT NULL,
    key_id TEXT    NOT NULL,
    UNIQUE (run, seq)
) STRICT;

CREATE TABLE limpet_late (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    run      INTEGER NOT NULL REFERENCES limpet_streams (number),
    kept     INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    time     INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    fence    INTEGER NOT NULL,
    actor    TEXT    NOT NULL,
    codec    TEXT    NOT NULL,
    key_id   TEXT    NOT NULL,
    body     BLOB    NOT NULL,
    hash     BLOB    NOT NULL,
    UNIQUE (run, hash)
) STRICT;
CREATE INDEX limpet_late_run ON limpet_late (run);

-- Content by name. Blobs without references are loose, and are collected after a grace period.
CREATE TABLE limpet_blobs (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE,
    size        INTEGER NOT NULL CHECK (size >= 0),
    name        TEXT    NOT NULL,
    loose_since INTEGER
) STRICT;
CREATE INDEX limpet_blobs_loose ON limpet_blobs (loose_since) WHERE loose_since IS NOT NULL;

CREATE TABLE limpet_chunks (
    blob   INTEGER NOT NULL REFERENCES limpet_blobs (number) ON DELETE CASCADE,
    place  INTEGER NOT NULL CHECK (place >= 0),
    codec  TEXT    NOT NULL,
    key_id TEXT    NOT NULL,
    data   BLOB    NOT NULL,
    UNIQUE (blob, place)
) STRICT;

-- Written in the event's transaction: a blob with references cannot be deleted.
CREATE TABLE limpet_blob_refs (
    run  INTEGER NOT NULL REFERENCES limpet_streams (number),
    blob INTEGER NOT NULL REFERENCES limpet_blobs (number),
    PRIMARY KEY (run, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX limpet_blob_refs_blob ON limpet_blob_refs (blob);

-- The keys that encrypt content, each wrapped with a master key that is not stored here.
CREATE TABLE limpet_keys (
    id      TEXT    PRIMARY KEY,
    purpose TEXT    NOT NULL CHECK (purpose IN ('data', 'index')),
    master  TEXT    NOT NULL,
    wrapped BLOB    NOT NULL,
    created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Counters that triggers maintain, so that they cannot drift and are never recounted.
CREATE TABLE limpet_counters (
    agent  TEXT    NOT NULL,
    status TEXT    NOT NULL,
    n      INTEGER NOT NULL CHECK (n >= 0),
    PRIMARY KEY (agent, status)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER limpet_count_new AFTER INSERT ON limpet_streams WHEN new.type = 'run' BEGIN
    INSERT INTO limpet_counters VALUES (new.agent, new.status, 1) ON CONFLICT DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER limpet_count_change AFTER UPDATE OF status ON limpet_streams
WHEN new.type = 'run' AND new.status <> old.status BEGIN
    UPDATE limpet_counters SET n = n - 1 WHERE agent = old.agent AND status = old.status;
    INSERT INTO limpet_counters VALUES (new.agent, new.status, 1) ON CONFLICT DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER limpet_count_gone AFTER DELETE ON limpet_streams WHEN old.type = 'run' BEGIN
    UPDATE limpet_counters SET n = n - 1 WHERE agent = old.agent AND status = old.status;
END;
