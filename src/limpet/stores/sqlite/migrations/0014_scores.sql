-- What people and services say about runs and steps: the newest score of each name, person and step. Comments are in the
-- events. Step 0 is the run itself.
CREATE TABLE limpet_scores (
    run    INTEGER NOT NULL REFERENCES limpet_streams (number),
    name   TEXT    NOT NULL,
    by     TEXT    NOT NULL,
    step   INTEGER NOT NULL CHECK (step >= 0),
    seq    INTEGER NOT NULL,
    time   INTEGER NOT NULL,
    number REAL,
    text   TEXT,
    PRIMARY KEY (run, name, by, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX limpet_scores_name ON limpet_scores (name, run);
CREATE INDEX limpet_scores_time ON limpet_scores (time);
