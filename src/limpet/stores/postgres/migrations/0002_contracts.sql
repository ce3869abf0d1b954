-- The contracts of agents, as their apps declared them when they opened, for callers in other processes.
CREATE TABLE {schema}.contracts (
    agent    TEXT   COLLATE "C" NOT NULL,
    version  TEXT   COLLATE "C" NOT NULL,
    hash     TEXT   COLLATE "C" NOT NULL,
    contract BYTEA  NOT NULL,
    saved    BIGINT NOT NULL,
    codec    TEXT   NOT NULL,
    key_id   TEXT   NOT NULL,
    PRIMARY KEY (agent, version)
);
