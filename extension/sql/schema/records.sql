-- The records: what operators did, which role has which access, and the number of this database.

CREATE TABLE pulse_internal.audit_entry (
    entry bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    who integer NOT NULL,
    verb text NOT NULL,
    job bigint,
    lane text COLLATE "C",
    before jsonb,
    after jsonb,
    reason text,
    CONSTRAINT audit_entry_is_numbered PRIMARY KEY (entry)
);

CREATE INDEX audit_entry_for_job ON pulse_internal.audit_entry (job) WHERE job IS NOT NULL;
CREATE INDEX audit_entry_for_retention ON pulse_internal.audit_entry (at);

COMMENT ON TABLE pulse_internal.audit_entry IS
'What operators did: who, when, what, before, after, why. Kept 90 days.';

CREATE TABLE pulse_internal.access_grant (
    role integer NOT NULL,
    access text COLLATE "C" NOT NULL,
    granted_by name NOT NULL,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT access_grant_is_given_once PRIMARY KEY (role, access),
    CONSTRAINT access_grant_is_a_known_level
    CHECK (access IN ('producer', 'worker', 'viewer', 'approver', 'operator', 'admin'))
);

COMMENT ON TABLE pulse_internal.access_grant IS
'Which role was given which access, so that an upgrade can grant new functions too.';

-- Which node this database is says its sequence job_id. Where it was set is remembered so
-- that health can ask a restored copy to choose one of its own; where its sequences stood
-- when another node was set, so that no number comes again.
CREATE TABLE pulse_internal.node (
    node integer NOT NULL,
    system_identifier bigint NOT NULL,
    database oid NOT NULL,
    set_at timestamptz NOT NULL,
    last_job bigint,
    last_lease bigint,
    CONSTRAINT node_is_known_once PRIMARY KEY (node),
    CONSTRAINT node_fits_ten_bits CHECK (node BETWEEN 0 AND 1023)
);

COMMENT ON TABLE pulse_internal.node IS
'The node numbers that this database has or had, and where they were set.';

-- Not rows: every session must see them at once, whatever becomes of the transaction that
-- wrote them.
CREATE SEQUENCE pulse_internal.server_start;

COMMENT ON SEQUENCE pulse_internal.server_start IS
'When the server that drew the last numbers was started, in microseconds.';

CREATE SEQUENCE pulse_internal.server_history;

COMMENT ON SEQUENCE pulse_internal.server_history IS
'A hash of the cluster and the timeline that drew the last numbers.';
