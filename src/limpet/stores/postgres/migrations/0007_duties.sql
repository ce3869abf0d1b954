-- Work that workers do for the whole store, such as deleting old runs: one worker at a time, under a lease.
CREATE TABLE {schema}.duties (
    name        TEXT   COLLATE "C" PRIMARY KEY,
    every       BIGINT NOT NULL DEFAULT 0 CHECK (every >= 0),
    worker      TEXT   COLLATE "C",
    lease_until BIGINT NOT NULL DEFAULT 0,
    done        BIGINT,
    done_by     TEXT   COLLATE "C",
    error       TEXT   NOT NULL DEFAULT ''
);
