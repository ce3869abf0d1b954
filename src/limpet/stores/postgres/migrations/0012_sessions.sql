-- A session of a browser is a token whose parent is the token of the person who logged in; the code of a login link is
-- one, too. Both are left out of lists.
ALTER TABLE {schema}.tokens
    ADD COLUMN purpose TEXT NOT NULL DEFAULT 'token' CHECK (purpose IN ('token', 'session', 'login')),
    ADD COLUMN parent TEXT NOT NULL DEFAULT '';

DROP INDEX {schema}.tokens_created;

CREATE INDEX tokens_listed ON {schema}.tokens (created, id) WHERE purpose = 'token';

CREATE INDEX tokens_expiring ON {schema}.tokens (expires) WHERE purpose <> 'token';
