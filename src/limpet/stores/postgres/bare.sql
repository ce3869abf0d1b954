-- A plain log, as a baseline for benchmarks.

-- name: make_schema
CREATE SCHEMA {schema}

-- name: drop_schema
DROP SCHEMA {schema} CASCADE

-- name: layout
CREATE TABLE {schema}.bare_events (
    position BIGSERIAL PRIMARY KEY,
    run BIGINT NOT NULL, seq BIGINT NOT NULL, time BIGINT NOT NULL, kind TEXT NOT NULL,
    body BYTEA NOT NULL, hash BYTEA NOT NULL, UNIQUE (run, seq)
)

-- name: insert
INSERT INTO {schema}.bare_events (run, seq, time, kind, body, hash) VALUES (%b, %b, %b, %b, %b, %b)

-- name: copy
COPY {schema}.bare_events (run, seq, time, kind, body, hash) FROM STDIN (FORMAT BINARY)
