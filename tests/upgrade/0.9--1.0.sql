-- From the build that is kept as 0.9 (pulse--0.9.sql.gz) to the source, by hand: one block
-- for each change of what is stored, in the order of the parts. What is code needs nothing
-- here, unless CREATE OR REPLACE cannot do it (extension/upgrades/README.md).

-- Reports and enqueues call private functions that have other names in 1.0: those that
-- run are waited for (lease, body), and others wait before their first write.
-- locks: body, lease, ready, waiting, kind, mark, due_mark, turn, schedule, audit_entry
-- locks: access_grant, node, horizon, stat, finished

-- The views read columns that change. Each keeps its columns, and with them the views
-- and grants of others; what it selects comes with the code.
DO $$
DECLARE
    v_view text;
BEGIN
    FOR v_view IN
        SELECT format(
            'CREATE OR REPLACE VIEW %s AS SELECT %s',
            c.oid::regclass,
            string_agg(
                format(
                    'NULL::%s%s AS %I', format_type(a.atttypid, a.atttypmod),
                    ' COLLATE ' || nullif(a.attcollation, 0)::regcollation, a.attname
                ),
                ', ' ORDER BY a.attnum
            )
        )
        FROM pg_class AS c
        INNER JOIN pg_attribute AS a ON c.oid = a.attrelid
        WHERE c.relnamespace = 'pulse'::regnamespace
            AND c.relkind = 'v'
            AND a.attnum > 0
        GROUP BY c.oid
    LOOP
        EXECUTE v_view;
    END LOOP;
END;
$$;

-- 01_types

ALTER TYPE pulse.claimed ADD ATTRIBUTE headers jsonb;
ALTER TYPE pulse.exchanged ADD ATTRIBUTE headers jsonb;
ALTER TYPE pulse._item ADD ATTRIBUTE headers jsonb;
ALTER TYPE pulse._item ADD ATTRIBUTE start_by timestamptz;
ALTER TYPE pulse._item ADD ATTRIBUTE expires_in interval;

CREATE TYPE pulse._kind_settings AS (
    kind text,
    lane text,
    priority integer,
    max_attempts integer,
    backoff text,
    backoff_base interval,
    backoff_cap interval,
    backoff_jitter double precision,
    lease_for interval,
    max_runtime interval,
    requires_approval boolean,
    approval_expiry interval,
    owner integer
);

COMMENT ON TYPE pulse._kind_settings IS
'The settings of a kind with the defaults filled in, and the number of the role that enqueues it.';

CREATE TYPE pulse._job_filter AS (
    states text [],
    jobs bigint [],
    lanes text [],
    kinds text [],
    workers text [],
    rank integer,
    rank_above integer,
    rank_below integer,
    error_like text,
    error_contains text,
    asks_error boolean,
    tags text [],
    group_keys text [],
    owners integer [],
    enqueued_before timestamptz,
    enqueued_after timestamptz,
    payload jsonb,
    payload_contains text,
    asks_body boolean
);

COMMENT ON TYPE pulse._job_filter IS
'A filter of the bulk verbs and find_jobs, parsed: NULL where it says nothing.';

-- 02_lanes

CREATE INDEX kind_for_claim ON pulse.kind (kind)
WHERE lease_for IS NOT NULL OR max_runtime IS NOT NULL;

-- 09_roles, which the tables below refer to

CREATE FUNCTION pulse._role_oid(name name)
RETURNS oid
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT to_regrole(quote_ident(_role_oid.name))::oid
$$;

COMMENT ON FUNCTION pulse._role_oid(name) IS
'The role that has this name now; NULL when none has.';

CREATE TABLE pulse.role (
    role integer GENERATED ALWAYS AS IDENTITY,
    name name NOT NULL,
    gone boolean NOT NULL DEFAULT false,
    role_oid oid GENERATED ALWAYS AS (
        CASE WHEN NOT gone THEN pulse._role_oid(name) END
    ) STORED,
    CONSTRAINT role_is_numbered PRIMARY KEY (role)
);

CREATE INDEX role_by_oid ON pulse.role (role_oid);

COMMENT ON TABLE pulse.role IS
'Roles that own jobs or schedules, were given access or did something.';

CREATE DOMAIN pulse._signature AS bigint;

COMMENT ON DOMAIN pulse._signature IS
'Stands for the role that called: made by _sign, good for one use in one transaction.';

CREATE UNLOGGED TABLE pulse.signature (
    signature bigint GENERATED ALWAYS AS IDENTITY,
    signer name NOT NULL,
    transaction xid8 NOT NULL,
    CONSTRAINT signature_is_numbered PRIMARY KEY (signature)
);

COMMENT ON TABLE pulse.signature IS
'Signatures that were not used yet; empty between calls.';

-- Names become numbers. The owner of most jobs is the default of the new column, so that
-- their rows are not written: body is read once, and only the jobs of others change.
-- What belonged to a name that no role has now stays with that name, and no role that
-- takes it later gets it.
DO $$
DECLARE
    v_names name [] := ARRAY(
        SELECT b.enqueued_by
        FROM pulse.body AS b
        GROUP BY b.enqueued_by
        ORDER BY count(*) DESC
    );
    v_owner integer;
BEGIN

    INSERT INTO pulse.role (name, gone)
    SELECT n.name, pulse._role_oid(n.name) IS NULL
    FROM (
        SELECT o.name FROM unnest(v_names) AS o (name)
        UNION
        SELECT s.created_by FROM pulse.schedule AS s
        UNION
        SELECT a.who FROM pulse.audit_entry AS a
        UNION
        SELECT g.role FROM pulse.access_grant AS g
    ) AS n
    ORDER BY n.name;

    SELECT r.role INTO v_owner
    FROM pulse.role AS r
    WHERE r.name = v_names[1];

    EXECUTE format(
        'ALTER TABLE pulse.body ADD COLUMN owner integer NOT NULL DEFAULT %s',
        coalesce(v_owner, 0)
    );

    UPDATE pulse.body AS b
    SET owner = r.role
    FROM pulse.role AS r
    WHERE r.name = b.enqueued_by
        AND r.role <> v_owner;
END;
$$;

CREATE FUNCTION pulse._number_of_name(name name)
RETURNS integer
LANGUAGE sql
STABLE
AS $$
    SELECT r.role
    FROM pulse.role AS r
    WHERE r.name = _number_of_name.name
$$;

-- 03_jobs

ALTER TABLE pulse.body ALTER COLUMN owner DROP DEFAULT;
ALTER TABLE pulse.body DROP COLUMN enqueued_by;
ALTER TABLE pulse.body ADD COLUMN needed_approval boolean NOT NULL DEFAULT false;
ALTER TABLE pulse.body ADD COLUMN headers jsonb;
ALTER TABLE pulse.body ADD COLUMN start_by timestamptz;

CREATE TABLE pulse.expiry (
    start_by timestamptz NOT NULL,
    job bigint NOT NULL,
    CONSTRAINT expiry_is_noted_once PRIMARY KEY (start_by, job)
);

COMMENT ON TABLE pulse.expiry IS
'Jobs that are cancelled unless they have begun by then.';

-- Of jobs that were approved by a filter nothing is known.
UPDATE pulse.body AS b
SET needed_approval = true
WHERE b.job IN (
        SELECT a.job FROM pulse.approval AS a
        UNION
        SELECT e.job FROM pulse.audit_entry AS e WHERE e.verb = 'approve'
    );

COMMENT ON TABLE pulse.approval IS
'Jobs that wait for an approver.';

ALTER TABLE pulse.body ADD COLUMN rerun_of bigint;
CREATE INDEX body_for_rerun ON pulse.body (rerun_of) WHERE rerun_of IS NOT NULL;

DROP INDEX pulse.waiting_for_promotion;
CREATE INDEX waiting_by_time ON pulse.waiting (lane, run_at) WHERE attempts >= 0;
CREATE INDEX waiting_for_promotion ON pulse.waiting (lane, rank, run_at)
WHERE failures >= 0;

DROP INDEX pulse.ready_for_claim;
DROP INDEX pulse.ready_for_claim_by_kind;
CREATE INDEX ready_for_claim ON pulse.ready (lane, rank, seq) WHERE failures >= 0;
CREATE INDEX ready_for_claim_by_kind ON pulse.ready (lane, kind, rank, seq)
WHERE attempts >= 0;

-- 04_leases, 05_finished

CREATE INDEX finished_for_dead_letters ON pulse.finished (finished_at, job)
WHERE state = 'dead' AND failures >= 0;

COMMENT ON TABLE pulse.worker IS
'Workers that said hello, which lanes and kinds they take, and when they were last seen.';
COMMENT ON TABLE pulse.failure IS
'The error of every run that failed, the newest 100 for each job.';

-- 06_marks: what is in these caches stays right, as no number goes back.

ALTER TABLE pulse.mark ADD COLUMN dry_at timestamptz;

ALTER TABLE pulse.due_mark ADD COLUMN ranks integer [] NOT NULL DEFAULT '{}';
ALTER TABLE pulse.due_mark ADD COLUMN run_ats timestamptz [] NOT NULL DEFAULT '{}';
ALTER TABLE pulse.due_mark ADD COLUMN dry_at timestamptz;

COMMENT ON TABLE pulse.due_mark IS
'A cache: for each lane and its levels, the earliest due time that can still be live in waiting.';

ALTER TABLE pulse.turn RENAME TO upkeep_run;
ALTER INDEX pulse.turn_is_versioned RENAME TO upkeep_run_is_versioned;

-- It begins anew.
DELETE FROM pulse.horizon;
ALTER TABLE pulse.horizon
ADD COLUMN tally_q bigint NOT NULL,
ADD COLUMN next_tally_q bigint NOT NULL,
ADD COLUMN tally_holders text [] NOT NULL;
COMMENT ON TABLE pulse.horizon IS
'A cache: up to where every place in line, due time, lease number and tally is decided.';

-- 07_schedules

ALTER TABLE pulse.schedule
RENAME CONSTRAINT schedule_has_one_rhythm TO schedule_has_one_recurrence;
ALTER TABLE pulse.schedule
ALTER COLUMN created_by TYPE integer USING pulse._number_of_name(created_by);
ALTER TABLE pulse.schedule RENAME COLUMN created_by TO owner;

ALTER TYPE pulse.rhythm RENAME TO recurrence;

-- 08_audit

ALTER TABLE pulse.audit_entry
ALTER COLUMN who TYPE integer USING pulse._number_of_name(who);
ALTER TABLE pulse.access_grant
ALTER COLUMN role TYPE integer USING pulse._number_of_name(role);

DROP FUNCTION pulse._number_of_name(name);

CREATE SEQUENCE pulse.server_start;

COMMENT ON SEQUENCE pulse.server_start IS
'When the server that drew the last numbers was started, in microseconds.';

CREATE SEQUENCE pulse.server_history;

COMMENT ON SEQUENCE pulse.server_history IS
'A hash of the cluster and the timeline that drew the last numbers.';

ALTER TABLE pulse.node DROP CONSTRAINT node_has_one_row;
ALTER TABLE pulse.node DROP CONSTRAINT node_is_one;
ALTER TABLE pulse.node DROP COLUMN only_one;
ALTER TABLE pulse.node ADD COLUMN last_job bigint;
ALTER TABLE pulse.node ADD COLUMN last_lease bigint;
ALTER TABLE pulse.node ADD CONSTRAINT node_is_known_once PRIMARY KEY (node);

COMMENT ON TABLE pulse.node IS
'The node numbers that this database has or had, and where they were set.';

-- An id was n << 10 | node and a lease n << 20 | random bits, whatever the node. Both
-- stay as they are, below every new one: the numbers of node 0 go on after them, those of
-- another node begin in its range, and node 0 keeps where it stopped.
DO $$
DECLARE
    v_job bigint;
    v_lease bigint;
    v_node bigint;
    v_start bigint;
BEGIN
    SELECT s.last_value & 1023, CASE WHEN s.is_called THEN s.last_value ELSE 0 END
    INTO v_node, v_job
    FROM pulse.job_id AS s;

    SELECT CASE WHEN s.is_called THEN s.last_value << 10 | 1023 ELSE 0 END INTO v_lease
    FROM pulse.lease_seq AS s;

    IF v_node > 0 THEN
        INSERT INTO pulse.node (
            node, system_identifier, database, set_at, last_job, last_lease
        )
        SELECT 0, d.system_identifier, d.database, d.set_at, v_job, v_lease
        FROM pulse.node AS d
        WHERE d.node = v_node;
        v_job := v_node << 43;
        v_lease := v_node << 43;
    END IF;

    EXECUTE format(
        'ALTER SEQUENCE pulse.job_id INCREMENT 1 MINVALUE 1 MAXVALUE 9007199254740991 START 1 RESTART %s',
        v_job + 1
    );
    EXECUTE format(
        'ALTER SEQUENCE pulse.lease_seq MAXVALUE 9007199254740991 RESTART %s', v_lease + 1
    );
END;
$$;

COMMENT ON SEQUENCE pulse.job_id IS
'Job ids: 1, 2, 3, above the node in the bits from the 43rd on.';
COMMENT ON SEQUENCE pulse.lease_seq IS
'The growing part of lease numbers, above the node in the bits from the 43rd on.';

-- 0c_stats: the samples of lanes have another name, stat is what is counted.

ALTER VIEW pulse.stats RENAME TO samples;
ALTER TABLE pulse.stat RENAME TO sample;
ALTER TABLE pulse.sample
RENAME CONSTRAINT stat_is_one_per_lane_and_minute TO sample_is_one_per_lane_and_minute;

CREATE SEQUENCE pulse.tally_seq;

COMMENT ON SEQUENCE pulse.tally_seq IS
'Numbers of what happened and was not yet counted.';

CREATE TABLE pulse.tally (
    seq bigint NOT NULL DEFAULT nextval('pulse.tally_seq'),
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    event text COLLATE "C" NOT NULL,
    jobs bigint NOT NULL DEFAULT 1,
    bucket integer,
    seconds double precision,
    CONSTRAINT tally_is_numbered PRIMARY KEY (seq)
);

COMMENT ON TABLE pulse.tally IS
'What happened to jobs and was not yet counted.';

CREATE TABLE pulse.stat (
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL,
    enqueued bigint NOT NULL,
    started bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    dead bigint NOT NULL,
    retried bigint NOT NULL,
    cancelled bigint NOT NULL,
    reaped bigint NOT NULL,
    wait_seconds double precision NOT NULL,
    wait_counts bigint [] NOT NULL,
    run_seconds double precision NOT NULL,
    run_counts bigint [] NOT NULL,
    CONSTRAINT stat_is_one_per_moment PRIMARY KEY (lane, kind, at)
);

CREATE INDEX stat_by_time ON pulse.stat (at);

COMMENT ON TABLE pulse.stat IS
'Counters of each lane and kind, as they were at a moment.';

-- 0d_declarations

CREATE TABLE pulse.declaration (
    item text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    application text COLLATE "C" NOT NULL,
    declared jsonb NOT NULL,
    applied jsonb,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT declaration_has_one_owner PRIMARY KEY (item, name),
    CONSTRAINT declaration_is_of_a_known_item CHECK (item IN ('kind', 'schedule'))
);

COMMENT ON TABLE pulse.declaration IS
'Settings of kinds and schedules that an application declares, and how they were written.';

-- Functions whose result or arguments have other names: CREATE OR REPLACE refuses those.
-- `python -m tests.upgrade.drops` prints what is missing here.
DROP FUNCTION pulse._cron_entries();
DROP FUNCTION pulse._register(text, text, text);
DROP FUNCTION pulse._occurrence_after(pulse.recurrence, timestamptz);
DROP FUNCTION pulse._occurrence_until(pulse.recurrence, timestamptz, timestamptz);
DROP FUNCTION pulse._interval_occurrence(pulse.recurrence, bigint);
DROP FUNCTION pulse._interval_count(pulse.recurrence, timestamptz);
DROP FUNCTION pulse._skip_occurrences(
    text, pulse.recurrence, timestamptz, timestamptz, text
);
DROP FUNCTION pulse._watchdog_round(integer, timestamptz, integer);
DROP FUNCTION pulse.health();
DROP FUNCTION pulse._health_lanes();

-- Public functions that have other names now; what begins with _ goes by itself.
DROP FUNCTION pulse.watch();
DROP FUNCTION pulse.unwatch();
