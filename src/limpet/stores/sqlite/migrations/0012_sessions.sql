-- A session of a browser is a token whose parent is the token of the person who logged in; the code of a login link is
-- one, too. Both are left out of lists.
ALTER TABLE limpet_tokens ADD COLUMN purpose TEXT NOT NULL DEFAULT 'token'
    CHECK (purpose IN ('token', 'session', 'login'));
ALTER TABLE limpet_tokens ADD COLUMN parent TEXT NOT NULL DEFAULT '';
DROP INDEX limpet_tokens_created;
CREATE INDEX limpet_tokens_listed ON limpet_tokens (created, id) WHERE purpose = 'token';
CREATE INDEX limpet_tokens_expiring ON limpet_tokens (expires) WHERE purpose <> 'token';
