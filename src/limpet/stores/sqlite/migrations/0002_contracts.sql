-- What agents take and give, as their apps said when they opened: a caller in another process goes by it.
CREATE TABLE limpet_contracts (
    agent    TEXT    NOT NULL,
    version  TEXT    NOT NULL,
    hash     TEXT    NOT NULL,
    contract BLOB    NOT NULL,
    saved    INTEGER NOT NULL,
    codec    TEXT    NOT NULL,
    key_id   TEXT    NOT NULL,
    PRIMARY KEY (agent, version)
) STRICT;
