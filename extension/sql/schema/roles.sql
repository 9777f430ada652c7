-- Jobs, schedules, grants and the audit belong to roles, not to names: a role that is
-- renamed keeps what is its own, and one that takes the old name gets nothing. An oid means
-- something in its own cluster alone and a regrole cannot be restored where the role is
-- missing, so all of them refer to a number of this table.

-- Stands behind a generated column, and is IMMUTABLE for that reason only: it is asked when
-- a row is written and when a dump of it is restored, and never between. So a row keeps
-- its role through a RENAME, and a copy in another cluster finds the role of that name.
CREATE FUNCTION pulse_internal.role_oid(name name)
RETURNS oid
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT to_regrole(quote_ident(role_oid.name))::oid
$$;

COMMENT ON FUNCTION pulse_internal.role_oid(name) IS
'The role that has this name now; NULL when none has.';

-- A role may have several numbers: two sessions that need the first one at the same time
-- do not wait for each other. gone says that the role was dropped and another took its name.
CREATE TABLE pulse_internal.role (
    role integer GENERATED ALWAYS AS IDENTITY,
    name name NOT NULL,
    gone boolean NOT NULL DEFAULT false,
    role_oid oid GENERATED ALWAYS AS (
        CASE WHEN NOT gone THEN pulse_internal.role_oid(name) END
    ) STORED,
    CONSTRAINT role_is_numbered PRIMARY KEY (role)
);

CREATE INDEX role_by_oid ON pulse_internal.role (role_oid);

COMMENT ON TABLE pulse_internal.role IS
'Roles that own jobs or schedules, were given access or did something.';

-- The answer of pulse_internal.sign(), which a verb takes as its last argument (access/caller.sql).
-- A type of its own, so that verbs(), the reference and the listing of the API can leave it out.
CREATE DOMAIN pulse_internal.caller_signature AS uuid;

COMMENT ON DOMAIN pulse_internal.caller_signature IS
'Stands for the role that calls a verb: made by sign, good for one call in the statement that made it.';

-- Every column is filled by its default: the form in which a caller signs has the first one only.
-- The signer is an oid and not a name: a name may belong to another role by the time it is read.
-- Random numbers, because a sequence would tell one role what another was given, and the
-- sequence of an unlogged table cannot be read on a standby that was promoted before its
-- next restartpoint.
CREATE UNLOGGED TABLE pulse_internal.signature (
    signature pulse_internal.caller_signature NOT NULL DEFAULT gen_random_uuid(),
    signer oid NOT NULL DEFAULT to_regrole(quote_ident(current_user)),
    transaction xid8 NOT NULL DEFAULT pg_current_xact_id(),
    statement timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT signature_is_used_once PRIMARY KEY (signature)
);

COMMENT ON TABLE pulse_internal.signature IS
'Signatures that were not redeemed yet; empty between calls.';
