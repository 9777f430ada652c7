-- From the build that is kept as 0.9 (pulse--0.9.sql.gz) to the source, by hand: one block
-- for each change of what is stored, in the order of the parts. What is code needs nothing
-- here, unless CREATE OR REPLACE cannot do it (extension/upgrades/README.md).

-- Reports and enqueues call private functions that have other names in 1.0: those that
-- run are waited for (lease, body), and others wait before their first write.
-- locks: body, lease, ready, waiting, lane, kind, mark, due_mark, turn, schedule, audit_entry
-- locks: access_grant, node, horizon, stat, finished, job_key

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
ALTER TYPE pulse.claimed ADD ATTRIBUTE flow text;
ALTER TYPE pulse.claimed ADD ATTRIBUTE name text;
ALTER TYPE pulse.exchanged ADD ATTRIBUTE flow text;
ALTER TYPE pulse.exchanged ADD ATTRIBUTE name text;
ALTER TYPE pulse._item ADD ATTRIBUTE after bigint [];
ALTER TYPE pulse._item ADD ATTRIBUTE after_failed text;
ALTER TYPE pulse._item ADD ATTRIBUTE flow text;
ALTER TYPE pulse._item ADD ATTRIBUTE name text;

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
    approval_expiry interval
);

COMMENT ON TYPE pulse._kind_settings IS
'The settings of a kind with the defaults filled in.';

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
    flows text [],
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

ALTER TABLE pulse.lane ADD COLUMN fair boolean;
ALTER TABLE pulse.lane ADD COLUMN group_slots integer;
ALTER TABLE pulse.lane ADD COLUMN in_order boolean;
ALTER TABLE pulse.lane ADD COLUMN rate integer;
ALTER TABLE pulse.lane ADD COLUMN rate_per interval;
ALTER TABLE pulse.lane ADD COLUMN group_rate integer;
ALTER TABLE pulse.lane ADD COLUMN group_rate_per interval;
ALTER TABLE pulse.lane ADD COLUMN grouped boolean;
ALTER TABLE pulse.lane
ADD CONSTRAINT lane_group_slots_are_positive CHECK (group_slots BETWEEN 1 AND 10000);
ALTER TABLE pulse.lane
ADD CONSTRAINT lane_in_order_runs_one_of_a_group
CHECK (in_order IS NOT TRUE OR group_slots IS NOT DISTINCT FROM 1);
ALTER TABLE pulse.lane
ADD CONSTRAINT lane_is_grouped_for_a_reason
CHECK (grouped IS NOT TRUE OR fair OR num_nonnulls(group_slots, group_rate) > 0);
ALTER TABLE pulse.lane
ADD CONSTRAINT lane_rate_has_a_period
CHECK (num_nonnulls(rate, rate_per) <> 1 AND num_nonnulls(group_rate, group_rate_per) <> 1);
CREATE INDEX lane_for_groups ON pulse.lane (lane) WHERE grouped IS NOT NULL;

ALTER TABLE pulse.kind ADD COLUMN max_delay interval;
ALTER TABLE pulse.kind ADD COLUMN rate integer;
ALTER TABLE pulse.kind ADD COLUMN rate_per interval;
ALTER TABLE pulse.kind
ADD CONSTRAINT kind_rate_has_a_period CHECK (num_nonnulls(rate, rate_per) <> 1);
CREATE INDEX kind_for_claim ON pulse.kind (rate, kind)
WHERE lease_for IS NOT NULL OR max_runtime IS NOT NULL OR rate IS NOT NULL;

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

CREATE SEQUENCE pulse.signature_seq;

COMMENT ON SEQUENCE pulse.signature_seq IS
'Numbers of signatures.';

CREATE UNLOGGED TABLE pulse.signature (
    signature bigint NOT NULL DEFAULT nextval('pulse.signature_seq'),
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
ALTER TABLE pulse.body ADD COLUMN flow text COLLATE "C";
ALTER TABLE pulse.body ADD COLUMN name text COLLATE "C";
ALTER TABLE pulse.body ADD COLUMN after_failed text COLLATE "C";
CREATE INDEX body_of_flow ON pulse.body (flow, job) WHERE flow IS NOT NULL;

DROP INDEX pulse.waiting_for_promotion;
CREATE INDEX waiting_by_time ON pulse.waiting (lane, run_at) WHERE attempts >= 0;
CREATE INDEX waiting_for_promotion ON pulse.waiting (lane, rank, run_at)
WHERE failures >= 0;
ALTER TABLE pulse.waiting ADD COLUMN place bigint;
CREATE INDEX waiting_in_order ON pulse.waiting (lane, job) WHERE place > 0;

DROP INDEX pulse.ready_for_claim;
DROP INDEX pulse.ready_for_claim_by_kind;
CREATE INDEX ready_for_claim ON pulse.ready (lane, rank, seq)
WITH (deduplicate_items = off) WHERE failures >= 0;
CREATE INDEX ready_for_claim_by_kind ON pulse.ready (lane, kind, rank, seq)
WITH (deduplicate_items = off) WHERE attempts >= 0;

ALTER TABLE pulse.job_key ADD COLUMN follows boolean NOT NULL DEFAULT false;
ALTER TABLE pulse.job_key DROP CONSTRAINT job_key_is_held_once;
ALTER TABLE pulse.job_key
ADD CONSTRAINT job_key_is_held_once PRIMARY KEY (lane, unique_key, follows);
ALTER TABLE pulse.job_key
ADD CONSTRAINT job_key_of_a_follower_does_not_expire
CHECK (NOT follows OR expires_at IS NULL);

-- 04_leases, 05_finished

ALTER TABLE pulse.lease ADD COLUMN group_key text COLLATE "C";
ALTER TABLE pulse.lease ADD COLUMN place bigint;
ALTER TABLE pulse.lease ADD COLUMN ready_at timestamptz;
ALTER INDEX pulse.finished_for_retention SET (deduplicate_items = off);
ALTER INDEX pulse.finished_for_repeated_report SET (deduplicate_items = off);
CREATE INDEX finished_for_dead_letters ON pulse.finished (finished_at, job)
WHERE state = 'dead' AND failures >= 0;

COMMENT ON TABLE pulse.worker IS
'Workers that said hello, which lanes and kinds they take, and when they were last seen.';
COMMENT ON TABLE pulse.failure IS
'The error of every run that failed, the newest 100 for each job.';

-- 06_marks: what is in these caches stays right, as no number goes back.

ALTER TABLE pulse.roster ADD COLUMN bank integer NOT NULL DEFAULT 0;
ALTER TABLE pulse.roster ADD COLUMN banks integer NOT NULL DEFAULT 1;
ALTER TABLE pulse.roster DROP CONSTRAINT roster_is_versioned;
ALTER TABLE pulse.roster
ADD CONSTRAINT roster_is_versioned PRIMARY KEY (lane, bank, version);

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
ADD COLUMN tally_holders text [] NOT NULL,
ADD COLUMN note_q bigint NOT NULL,
ADD COLUMN next_note_q bigint NOT NULL,
ADD COLUMN note_holders text [] NOT NULL;
COMMENT ON TABLE pulse.horizon IS
'A cache: up to where every place in line, due time, lease number and tally is decided.';

-- 07_schedules

ALTER TABLE pulse.schedule
RENAME CONSTRAINT schedule_has_one_rhythm TO schedule_has_one_recurrence;
ALTER TABLE pulse.schedule
ALTER COLUMN created_by TYPE integer USING pulse._number_of_name(created_by);
ALTER TABLE pulse.schedule RENAME COLUMN created_by TO owner;
COMMENT ON TABLE pulse.schedule IS
'What is enqueued on a schedule. options holds the further arguments of enqueue.';

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

-- 0a_groups

CREATE TYPE pulse._level AS (
    rank integer,
    place bigint,
    kind text
);

COMMENT ON TYPE pulse._level IS
'Of one priority of a group: the smallest place that can be live, and the kind that stands there.';

CREATE TYPE pulse._group AS (
    lane text,
    group_key text
);

COMMENT ON TYPE pulse._group IS
'A group of a lane.';

CREATE TYPE pulse._window AS (
    times timestamptz [],
    counts integer []
);

COMMENT ON TYPE pulse._window IS
'How many starts there were, by hundredths of a period, each dated by its latest one.';

CREATE TABLE pulse.group_ready (
    lane text COLLATE "C" NOT NULL,
    group_key text COLLATE "C" NOT NULL,
    rank integer NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('pulse.ready_seq'),
    kind text COLLATE "C" NOT NULL,
    job bigint NOT NULL,
    attempts integer NOT NULL,
    failures integer NOT NULL,
    keyed boolean NOT NULL,
    ready_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_lease bigint,
    last_verb text COLLATE "C",
    CONSTRAINT group_ready_is_one_per_job PRIMARY KEY (job)
);

CREATE INDEX group_ready_for_claim ON pulse.group_ready (lane, group_key, rank, seq)
WITH (deduplicate_items = off) WHERE failures >= 0;
CREATE INDEX group_ready_for_repeated_report ON pulse.group_ready (last_lease)
WHERE last_lease IS NOT NULL;

COMMENT ON TABLE pulse.group_ready IS
'Jobs in line in grouped lanes, each in the line of its group.';

CREATE TABLE pulse.group_notice (
    lane text COLLATE "C" NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('pulse.ready_seq'),
    group_key text COLLATE "C" NOT NULL,
    rank integer,
    place bigint,
    kind text COLLATE "C",
    ended text [] COLLATE "C",
    CONSTRAINT group_notice_is_in_order PRIMARY KEY (lane, seq)
);

COMMENT ON TABLE pulse.group_notice IS
'Groups that the next claim of their lane has to look at: a job arrived, or a run ended.';

CREATE TABLE pulse.group_rule (
    lane text COLLATE "C" NOT NULL,
    group_key text COLLATE "C" NOT NULL,
    max_slots integer,
    weight integer,
    rate integer,
    rate_per interval,
    enabled boolean NOT NULL DEFAULT true,
    held_by name,
    held_at timestamptz,
    reason text,
    CONSTRAINT group_rule_is_one_per_group PRIMARY KEY (lane, group_key),
    CONSTRAINT group_rule_is_for_a_named_group CHECK (group_key <> ''),
    CONSTRAINT group_rule_slots_are_positive CHECK (max_slots BETWEEN 1 AND 10000),
    CONSTRAINT group_rule_weight_is_bounded CHECK (weight BETWEEN 2 AND 100),
    CONSTRAINT group_rule_rate_has_a_period CHECK (num_nonnulls(rate, rate_per) <> 1),
    CONSTRAINT group_rule_says_something
    CHECK (num_nonnulls(max_slots, weight, rate) > 0 OR NOT enabled)
);

CREATE INDEX group_rule_with_rate ON pulse.group_rule (lane) WHERE rate IS NOT NULL;

COMMENT ON TABLE pulse.group_rule IS
'Exceptions that set_group made for groups of a lane.';

CREATE TABLE pulse.group_state (
    lane text COLLATE "C" NOT NULL,
    group_key text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse.version'),
    rank integer,
    place bigint,
    kind text COLLATE "C",
    more pulse._level [],
    rest integer,
    leases bigint [],
    turn bigint,
    credit integer,
    starts pulse._window,
    wake_at timestamptz,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lasting boolean NOT NULL DEFAULT true
);

CREATE UNIQUE INDEX group_state_is_versioned
ON pulse.group_state (lane, group_key, version DESC);
ALTER TABLE pulse.group_state REPLICA IDENTITY USING INDEX group_state_is_versioned;

CREATE INDEX group_state_in_turn ON pulse.group_state (lane, rank, turn)
WHERE turn IS NOT NULL AND version > 0;
CREATE INDEX group_state_in_turn_by_kind ON pulse.group_state (lane, kind, rank, turn)
WHERE turn IS NOT NULL AND place >= 0;

CREATE INDEX group_state_to_wake ON pulse.group_state (lane, wake_at)
WHERE wake_at IS NOT NULL AND rank IS NOT NULL;

COMMENT ON TABLE pulse.group_state IS
'A cache: what the last claim knew of a group, newest version first.';

CREATE TABLE pulse.group_mark (
    lane text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse.version'),
    notice_from bigint NOT NULL,
    ranks integer [] NOT NULL,
    turns bigint [] NOT NULL,
    roll_from text COLLATE "C",
    roll_rank integer NOT NULL DEFAULT -2147483648,
    woken_until timestamptz NOT NULL DEFAULT '-infinity'
);

CREATE UNIQUE INDEX group_mark_is_versioned ON pulse.group_mark (lane, version DESC);
ALTER TABLE pulse.group_mark REPLICA IDENTITY USING INDEX group_mark_is_versioned;

COMMENT ON TABLE pulse.group_mark IS
'A cache: for each grouped lane, the smallest notice that can be unread, and for each level the smallest turn that can be live.';

CREATE TABLE pulse.quota (
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    version bigint NOT NULL DEFAULT nextval('pulse.version'),
    starts pulse._window,
    CONSTRAINT quota_is_versioned PRIMARY KEY (lane, kind, version)
);

COMMENT ON TABLE pulse.quota IS
'A cache: the starts that count against the rate of a lane or of a kind, newest version first.';

-- 0c_stats: the samples of lanes have another name, stat is what is counted.

ALTER VIEW pulse.stats RENAME TO samples;
ALTER TABLE pulse.stat RENAME TO sample;
ALTER TABLE pulse.sample
RENAME CONSTRAINT stat_is_one_per_lane_and_minute TO sample_is_one_per_lane_and_minute;

CREATE TABLE pulse.depth (
    kind text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL,
    ready bigint NOT NULL,
    running bigint NOT NULL,
    CONSTRAINT depth_is_one_per_kind_and_minute PRIMARY KEY (kind, at)
);

COMMENT ON TABLE pulse.depth IS
'How many jobs of each kind, and of all together, stood in line and ran, about once a minute.';

CREATE SEQUENCE pulse.tally_seq;

COMMENT ON SEQUENCE pulse.tally_seq IS
'Numbers of what happened and was not yet counted.';

CREATE TABLE pulse.tally (
    seq bigint NOT NULL DEFAULT nextval('pulse.tally_seq'),
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    event text COLLATE "C" NOT NULL,
    jobs bigint NOT NULL DEFAULT 1,
    wait_bucket integer,
    waited interval,
    run_bucket integer,
    ran interval,
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
    total boolean NOT NULL DEFAULT false,
    CONSTRAINT stat_is_one_per_moment PRIMARY KEY (total, lane, kind, at)
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

-- 0b_flows

CREATE SEQUENCE pulse.blocked_seq;

COMMENT ON SEQUENCE pulse.blocked_seq IS
'Numbers of blocked jobs; never drawn means that no job was ever blocked.';

CREATE TABLE pulse.blocked (
    job bigint NOT NULL,
    waits_for bigint NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('pulse.blocked_seq'),
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    rank integer NOT NULL,
    run_at timestamptz,
    delay interval,
    expires_in interval,
    attempts integer NOT NULL,
    failures integer NOT NULL,
    keyed boolean NOT NULL,
    alone boolean NOT NULL,
    after_failed text COLLATE "C" NOT NULL,
    needs_approval boolean NOT NULL,
    CONSTRAINT blocked_is_one_per_job PRIMARY KEY (job)
);

CREATE INDEX blocked_for_wake ON pulse.blocked (waits_for, seq)
WITH (deduplicate_items = off);
CREATE INDEX blocked_by_lane ON pulse.blocked (lane);

COMMENT ON TABLE pulse.blocked IS
'Jobs that wait until other jobs have ended.';

CREATE TABLE pulse.dependency (
    job bigint NOT NULL,
    after bigint NOT NULL,
    met boolean NOT NULL DEFAULT false,
    CONSTRAINT dependency_is_one_per_pair PRIMARY KEY (job, after)
);

CREATE INDEX dependency_by_upstream ON pulse.dependency (after, job)
WITH (deduplicate_items = off);

COMMENT ON TABLE pulse.dependency IS
'Which job waits, or waited, for which.';

CREATE SEQUENCE pulse.note_seq;

COMMENT ON SEQUENCE pulse.note_seq IS
'Numbers of doubts, wakes and pauses of flows; never drawn means that there was none.';

CREATE TABLE pulse.doubt (
    seq bigint NOT NULL DEFAULT nextval('pulse.note_seq'),
    job bigint NOT NULL,
    by xid8 NOT NULL DEFAULT pg_current_xact_id(),
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT doubt_is_numbered PRIMARY KEY (seq)
);

COMMENT ON TABLE pulse.doubt IS
'Jobs whose end may not have seen who waits for them.';

CREATE TABLE pulse.wake (
    seq bigint NOT NULL DEFAULT nextval('pulse.note_seq'),
    job bigint NOT NULL,
    from_seq bigint NOT NULL,
    to_seq bigint NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT wake_is_numbered PRIMARY KEY (seq)
);

COMMENT ON TABLE pulse.wake IS
'Portions of blocked jobs whose upstream has ended, for whoever claims next.';

CREATE TABLE pulse.note_mark (
    version bigint NOT NULL DEFAULT nextval('pulse.version'),
    wake_from bigint NOT NULL,
    doubt_from bigint NOT NULL,
    unsure bigint [] NOT NULL,
    unsure_until xid8,
    CONSTRAINT note_mark_is_versioned PRIMARY KEY (version)
);

COMMENT ON TABLE pulse.note_mark IS
'A cache: the smallest doubt and wake that can still be live.';

CREATE TABLE pulse.flow_hold (
    number bigint NOT NULL DEFAULT nextval('pulse.note_seq'),
    flow text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    reason text,
    held_by name NOT NULL,
    held_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT flow_hold_is_one_per_holder PRIMARY KEY (flow, holder)
);

COMMENT ON TABLE pulse.flow_hold IS
'Who keeps the jobs of which flow from being claimed, and why.';

CREATE TABLE pulse.job_step (
    job bigint NOT NULL,
    step text COLLATE "C" NOT NULL,
    until timestamptz,
    result jsonb,
    jobs bigint [],
    saved_at timestamptz,
    CONSTRAINT job_step_is_one_per_name PRIMARY KEY (job, step)
);

COMMENT ON TABLE pulse.job_step IS
'Steps that a job has done, or waits in, kept for its later attempts.';

CREATE TABLE pulse.signal (
    signal text COLLATE "C" NOT NULL,
    owner integer NOT NULL,
    payload jsonb,
    sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    undelivered_at timestamptz,
    CONSTRAINT signal_is_sent_once PRIMARY KEY (signal, owner)
);

CREATE INDEX signal_for_expiry ON pulse.signal (expires_at);
CREATE INDEX signal_to_deliver ON pulse.signal (undelivered_at) WHERE undelivered_at IS NOT NULL;

COMMENT ON TABLE pulse.signal IS
'Signals that were sent, the first of each name.';

CREATE TABLE pulse.signal_wait (
    job bigint NOT NULL,
    lease bigint NOT NULL,
    signal text COLLATE "C" NOT NULL,
    owner integer NOT NULL,
    step text COLLATE "C" NOT NULL,
    CONSTRAINT signal_wait_is_one_per_job PRIMARY KEY (job)
);

CREATE INDEX signal_wait_by_signal ON pulse.signal_wait (signal, owner);

COMMENT ON TABLE pulse.signal_wait IS
'Jobs that wait for a signal, each with the lease that it gave back to do so.';

-- Functions whose result or arguments have other names: CREATE OR REPLACE refuses those.
-- `python -m tests.upgrade.drops` prints what is missing here.
DROP FUNCTION pulse._kind_settings(text);
DROP FUNCTION pulse._take_out(bigint);
DROP FUNCTION pulse._advance_due(text, timestamptz);
DROP FUNCTION pulse._advance_line(text, text, bigint, timestamptz);
DROP FUNCTION pulse._counted(text);
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
DROP FUNCTION pulse.pause_status();
DROP FUNCTION pulse._health_lanes();

-- Public functions that have other arguments or names now; what begins with _ goes by itself.
DROP FUNCTION pulse.hello(text, text [], text []);
DROP FUNCTION pulse.set_lane(
    text, integer, integer, interval, interval, interval,
    interval, interval, interval, interval, boolean, text
);
DROP FUNCTION pulse.set_kind(
    text, text, integer, integer, text, interval, interval,
    double precision, interval, interval, boolean, interval, text
);
DROP FUNCTION pulse.watch();
DROP FUNCTION pulse.unwatch();
