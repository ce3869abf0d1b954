-- What agents take and give, as their apps said when they opened: a caller in another process goes by it.
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
