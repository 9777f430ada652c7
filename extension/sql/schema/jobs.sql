-- A job is one row in body, written once, and one narrow row that says where it
-- stands. The table that row is in is the state: blocked (schema/flows.sql), approval,
-- waiting, ready, lease or finished. Rows of approval, waiting, ready and finished are inserted and
-- deleted, never updated; there is no foreign key between them (pulse.check()
-- proves what one would).

-- node << 43 | n: the sequence stands in the range of the node (settings/node.sql).
CREATE SEQUENCE pulse_internal.job_id MAXVALUE 9007199254740991;

COMMENT ON SEQUENCE pulse_internal.job_id IS
'Job ids: 1, 2, 3, above the node in the bits from the 43rd on.';

-- run_at, delay and expires_in are NULL unless the job has upstreams: an end of such a job
-- that is taken back blocks it again, and its times then count from the next unblocking.
CREATE TABLE pulse_internal.body (
    job bigint NOT NULL DEFAULT nextval('pulse_internal.job_id'),
    kind text COLLATE "C" NOT NULL,
    payload jsonb NOT NULL,
    max_attempts integer NOT NULL,
    max_runtime interval,
    unique_key text COLLATE "C",
    unique_for interval,
    group_key text COLLATE "C",
    tags text [],
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    owner integer NOT NULL,
    needed_approval boolean NOT NULL DEFAULT false,
    headers jsonb,
    start_by timestamptz,
    rerun_of bigint,
    flow text COLLATE "C",
    name text COLLATE "C",
    after_failed text COLLATE "C",
    run_at timestamptz,
    delay interval,
    expires_in interval,
    CONSTRAINT body_is_one_per_job PRIMARY KEY (job)
);

CREATE INDEX body_for_rerun ON pulse_internal.body (rerun_of) WHERE rerun_of IS NOT NULL;
CREATE INDEX body_of_flow ON pulse_internal.body (flow, job) WHERE flow IS NOT NULL;

COMMENT ON TABLE pulse_internal.body IS
'What was asked: one row for each job, written once.';

-- When to look whether a job has begun (maintenance/expire.sql). What counts is start_by of its
-- body; a row stays until its time has come, whatever became of the job.
CREATE TABLE pulse_internal.expiry (
    start_by timestamptz NOT NULL,
    job bigint NOT NULL,
    CONSTRAINT expiry_is_noted_once PRIMARY KEY (start_by, job)
);

COMMENT ON TABLE pulse_internal.expiry IS
'Jobs that are cancelled unless they have begun by then.';

CREATE TABLE pulse_internal.approval (
    job bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    rank integer NOT NULL,
    run_at timestamptz,
    expires_at timestamptz NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    keyed boolean NOT NULL,
    CONSTRAINT approval_is_one_per_job PRIMARY KEY (job)
);

CREATE INDEX approval_for_expiry ON pulse_internal.approval (expires_at);

COMMENT ON TABLE pulse_internal.approval IS
'Jobs that wait for an approver.';

-- attempts counts the runs that have begun; last_lease and last_verb let the report
-- that brought the job here succeed again when its answer was lost. place and group_key are
-- those of a job that keeps its place in a lane with in_order: its group waits for it.
CREATE TABLE pulse_internal.waiting (
    lane text COLLATE "C" NOT NULL,
    run_at timestamptz NOT NULL,
    job bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    rank integer NOT NULL,
    attempts integer NOT NULL,
    failures integer NOT NULL,
    keyed boolean NOT NULL,
    retrying boolean NOT NULL,
    last_lease bigint,
    last_verb text COLLATE "C",
    place bigint,
    group_key text COLLATE "C",
    CONSTRAINT waiting_is_one_per_job PRIMARY KEY (job)
);

-- By time, and by priority and time. As with ready, each has a condition that every row
-- meets, and a statement states that of the one it is meant for.
CREATE INDEX waiting_by_time ON pulse_internal.waiting (lane, run_at) WHERE attempts >= 0;
CREATE INDEX waiting_for_promotion ON pulse_internal.waiting (lane, rank, run_at)
WHERE failures >= 0;
CREATE INDEX waiting_for_repeated_report ON pulse_internal.waiting (last_lease)
WHERE last_lease IS NOT NULL;
CREATE INDEX waiting_in_order ON pulse_internal.waiting (lane, group_key, place)
WHERE group_key IS NOT NULL;

COMMENT ON TABLE pulse_internal.waiting IS
'Jobs that are not due yet: scheduled ones, and retrying ones in their backoff.';

-- rank is minus the priority, so that one ascending index reads in claim order and
-- a range of it is one row comparison. seq is drawn by the DEFAULT, inside the INSERT that
-- holds the table lock: low-water marks (common/marks.sql) rest on that. A job of a group
-- that had a place may keep its seq: no mark is a bound of the line of a group.
CREATE SEQUENCE pulse_internal.ready_seq;

COMMENT ON SEQUENCE pulse_internal.ready_seq IS
'Places in line: drawn each time a job becomes ready.';

CREATE TABLE pulse_internal.ready (
    lane text COLLATE "C" NOT NULL,
    rank integer NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('pulse_internal.ready_seq'),
    kind text COLLATE "C" NOT NULL,
    job bigint NOT NULL,
    attempts integer NOT NULL,
    failures integer NOT NULL,
    keyed boolean NOT NULL,
    ready_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_lease bigint,
    last_verb text COLLATE "C",
    group_key text COLLATE "C",
    CONSTRAINT ready_is_one_per_job PRIMARY KEY (job)
);

-- A row without group_key stands in the line of its lane, which the first two indexes have. A row
-- with one stands in the line of its group, which the third index has, and no claim of a lane
-- without groups meets it. failures and attempts are never negative. A statement that states
-- one of these conditions can be served by that index alone, so that no statistics can make
-- the planner take the other one (docs/decisions/pinned-plans.md).
-- No two keys are equal, so nothing is deduplicated, as in the other indexes that many jobs
-- are written to: a page that is full would be searched for it in vain.
CREATE INDEX ready_for_claim ON pulse_internal.ready (lane, rank, seq)
WITH (deduplicate_items = off) WHERE failures >= 0 AND group_key IS NULL;
CREATE INDEX ready_for_claim_by_kind ON pulse_internal.ready (lane, kind, rank, seq)
WITH (deduplicate_items = off) WHERE attempts >= 0 AND group_key IS NULL;
CREATE INDEX ready_in_group ON pulse_internal.ready (lane, group_key, rank, seq)
WITH (deduplicate_items = off) WHERE group_key IS NOT NULL;
CREATE INDEX ready_for_repeated_report ON pulse_internal.ready (last_lease)
WHERE last_lease IS NOT NULL;

COMMENT ON TABLE pulse_internal.ready IS
'Jobs in line, of their lane or of their group: the transaction that deletes the row has claimed the job.';

-- At most one waiting-or-running job per key and lane, and one that follows it, which gets
-- the key when that one has ended (enqueue/follow.sql). Until the job has ended, expires_at is
-- NULL; afterwards the row stays for unique_for.
CREATE TABLE pulse_internal.job_key (
    lane text COLLATE "C" NOT NULL,
    unique_key text COLLATE "C" NOT NULL,
    job bigint NOT NULL,
    unique_for interval,
    expires_at timestamptz,
    follows boolean NOT NULL DEFAULT false,
    CONSTRAINT job_key_is_held_once PRIMARY KEY (lane, unique_key, follows),
    CONSTRAINT job_key_of_a_follower_does_not_expire
    CHECK (NOT follows OR expires_at IS NULL)
);

CREATE UNIQUE INDEX job_key_is_one_per_job ON pulse_internal.job_key (job);
CREATE INDEX job_key_for_expiry ON pulse_internal.job_key (expires_at)
WHERE expires_at IS NOT NULL;

COMMENT ON TABLE pulse_internal.job_key IS
'Unique keys that are taken, and by which job.';
