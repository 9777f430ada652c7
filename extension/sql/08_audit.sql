-- The records: what operators did, samples of each lane, who was given which access, and
-- the number of this database.

CREATE TABLE pulse.audit_entry (
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

CREATE INDEX audit_entry_for_job ON pulse.audit_entry (job) WHERE job IS NOT NULL;
CREATE INDEX audit_entry_for_retention ON pulse.audit_entry (at);

COMMENT ON TABLE pulse.audit_entry IS
'What operators did: who, when, what, before, after, why. Kept 90 days.';

CREATE TABLE pulse.stat (
    lane text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL,
    took interval NOT NULL,
    completed bigint NOT NULL,
    dead bigint NOT NULL,
    cancelled bigint NOT NULL,
    ready bigint NOT NULL,
    running bigint NOT NULL,
    CONSTRAINT stat_is_one_per_lane_and_minute PRIMARY KEY (lane, at)
);

COMMENT ON TABLE pulse.stat IS
'A sample of each lane about once a minute: what finished since the one before, what stood in line.';

CREATE TABLE pulse.access_grant (
    role integer NOT NULL,
    access text COLLATE "C" NOT NULL,
    granted_by name NOT NULL,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT access_grant_is_given_once PRIMARY KEY (role, access),
    CONSTRAINT access_grant_is_a_known_level
    CHECK (access IN ('producer', 'worker', 'viewer', 'approver', 'operator', 'admin'))
);

COMMENT ON TABLE pulse.access_grant IS
'Which role was given which access, so that an upgrade can grant new functions too.';

-- Remembered so that a restored copy can be told to choose a node of its own.
CREATE TABLE pulse.node (
    only_one boolean NOT NULL DEFAULT true,
    node integer NOT NULL,
    system_identifier bigint NOT NULL,
    database oid NOT NULL,
    set_at timestamptz NOT NULL,
    CONSTRAINT node_is_one PRIMARY KEY (only_one),
    CONSTRAINT node_has_one_row CHECK (only_one),
    CONSTRAINT node_fits_ten_bits CHECK (node BETWEEN 0 AND 1023)
);

COMMENT ON TABLE pulse.node IS
'The node number of this database, and where it was set.';
