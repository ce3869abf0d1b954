-- A plain log, as a baseline for benchmarks.

-- name: layout
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
CREATE TABLE bare_events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL, seq INTEGER NOT NULL, time INTEGER NOT NULL, kind TEXT NOT NULL,
    body BLOB NOT NULL, hash BLOB NOT NULL, UNIQUE (run, seq)
);

-- name: begin
BEGIN IMMEDIATE

-- name: insert
INSERT INTO bare_events (run, seq, time, kind, body, hash) VALUES (?, ?, ?, ?, ?, ?)

-- name: commit
COMMIT
