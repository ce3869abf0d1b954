-- Work that workers do for the whole store, such as deleting old runs: one worker at a time, under a lease.
CREATE TABLE limpet_duties (
    name        TEXT    PRIMARY KEY,
    every       INTEGER NOT NULL DEFAULT 0 CHECK (every >= 0),
    worker      TEXT,
    lease_until INTEGER NOT NULL DEFAULT 0,
    done        INTEGER,
    done_by     TEXT,
    error       TEXT    NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
