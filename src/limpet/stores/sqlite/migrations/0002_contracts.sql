-- The contracts of agents, as their apps declared them when they opened, for callers in other processes.
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
