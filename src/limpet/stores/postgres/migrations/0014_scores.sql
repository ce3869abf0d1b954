-- What people and services say about runs and steps: the newest score of each name, person and step. Comments are in the
-- events. Step 0 is the run itself.
CREATE TABLE {schema}.scores (
    run    BIGINT NOT NULL REFERENCES {schema}.streams (number),
    name   TEXT   COLLATE "C" NOT NULL,
    by     TEXT   COLLATE "C" NOT NULL,
    step   BIGINT NOT NULL CHECK (step >= 0),
    seq    BIGINT NOT NULL,
    time   BIGINT NOT NULL,
    number FLOAT8,
    text   TEXT   COLLATE "C",
    PRIMARY KEY (run, name, by, step)
);

CREATE INDEX scores_name ON {schema}.scores (name, run);

CREATE INDEX scores_time ON {schema}.scores (time);
