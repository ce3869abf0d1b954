-- Callers over HTTP. Of a token, only a hash is stored, so that a copy of the store is no use to log in with.
CREATE TABLE {schema}.tokens (
    id         TEXT   COLLATE "C" PRIMARY KEY,
    name       TEXT   NOT NULL,
    kind       TEXT   NOT NULL CHECK (kind IN ('person', 'service')),
    "groups"   TEXT   NOT NULL,
    roles      TEXT   NOT NULL,
    rights     TEXT   NOT NULL,
    digest     BYTEA  NOT NULL,
    created    BIGINT NOT NULL,
    created_by TEXT   NOT NULL,
    expires    BIGINT,
    revoked    BIGINT,
    revoked_by TEXT   NOT NULL,
    last_used  BIGINT
);

CREATE INDEX tokens_created ON {schema}.tokens (created, id);
