-- Callers over HTTP. Of a token, only a hash is stored, so that a copy of the store is no use to log in with.
CREATE TABLE limpet_tokens (
    id         TEXT    PRIMARY KEY,
    name       TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('person', 'service')),
    "groups"   TEXT    NOT NULL CHECK (json_valid("groups")),
    roles      TEXT    NOT NULL CHECK (json_valid(roles)),
    rights     TEXT    NOT NULL CHECK (json_valid(rights)),
    digest     BLOB    NOT NULL,
    created    INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    expires    INTEGER,
    revoked    INTEGER,
    revoked_by TEXT    NOT NULL,
    last_used  INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX limpet_tokens_created ON limpet_tokens (created, id);
