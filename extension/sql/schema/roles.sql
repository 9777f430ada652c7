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

-- A signature lives inside one call of one transaction (access/caller.sql).
CREATE DOMAIN pulse_internal.caller_signature AS bigint;

COMMENT ON DOMAIN pulse_internal.caller_signature IS
'Stands for the role that called: made by sign, good for one use in one transaction.';

-- Not the column's own: the sequence of an unlogged table would be unlogged as well, and
-- a standby that is promoted before its next restartpoint cannot read such a one.
CREATE SEQUENCE pulse_internal.signature_seq;

COMMENT ON SEQUENCE pulse_internal.signature_seq IS
'Numbers of signatures.';

CREATE UNLOGGED TABLE pulse_internal.signature (
    signature bigint NOT NULL DEFAULT nextval('pulse_internal.signature_seq'),
    signer name NOT NULL,
    transaction xid8 NOT NULL,
    CONSTRAINT signature_is_numbered PRIMARY KEY (signature)
);

COMMENT ON TABLE pulse_internal.signature IS
'Signatures that were not used yet; empty between calls.';
