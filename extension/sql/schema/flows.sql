-- Jobs that wait for jobs. flows/release.sql has the algorithm, docs/decisions/flows.md why.

-- A job that waits for others. It watches one of them, waits_for, that has not ended well
-- enough for it; alone says that it has no other. The row may be updated: a watch moves,
-- a job gets another lane or priority. seq never changes, and is drawn by the DEFAULT.
CREATE SEQUENCE pulse_internal.blocked_seq;

COMMENT ON SEQUENCE pulse_internal.blocked_seq IS
'Numbers of blocked jobs; never drawn means that no job was ever blocked.';

CREATE TABLE pulse_internal.blocked (
    job bigint NOT NULL,
    waits_for bigint NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('pulse_internal.blocked_seq'),
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

-- By seq and not by job: an index with job in it could stand in for the primary key, and
-- the primary key for it (docs/decisions/pinned-plans.md).
CREATE INDEX blocked_for_wake ON pulse_internal.blocked (waits_for, seq)
WITH (deduplicate_items = off);
CREATE INDEX blocked_by_lane ON pulse_internal.blocked (lane);

COMMENT ON TABLE pulse_internal.blocked IS
'Jobs that wait until other jobs have ended.';

-- Written with the job and deleted with it or with the upstream: no row of it dies on the
-- path of a job. met: the upstream has ended once, which is enough for this job, and was
-- retried since.
CREATE TABLE pulse_internal.dependency (
    job bigint NOT NULL,
    after bigint NOT NULL,
    met boolean NOT NULL DEFAULT false,
    CONSTRAINT dependency_is_one_per_pair PRIMARY KEY (job, after)
);

CREATE INDEX dependency_by_upstream ON pulse_internal.dependency (after, job)
WITH (deduplicate_items = off);

COMMENT ON TABLE pulse_internal.dependency IS
'Which job waits, or waited, for which.';

-- Notes are drawn from one sequence by the DEFAULT alone, so that one low-water mark is
-- right for both tables (common/marks.sql).
CREATE SEQUENCE pulse_internal.note_seq;

COMMENT ON SEQUENCE pulse_internal.note_seq IS
'Numbers of doubts and wakes; never drawn means that there was none.';

-- by is the top transaction that wrote it: as long as that is open, its watch is seen by
-- nobody and nothing about it is sure.
CREATE TABLE pulse_internal.doubt (
    seq bigint NOT NULL DEFAULT nextval('pulse_internal.note_seq'),
    job bigint NOT NULL,
    by xid8 NOT NULL DEFAULT pg_current_xact_id(),
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT doubt_is_numbered PRIMARY KEY (seq)
);

COMMENT ON TABLE pulse_internal.doubt IS
'Jobs whose end may not have seen who waits for them.';

CREATE TABLE pulse_internal.wake (
    seq bigint NOT NULL DEFAULT nextval('pulse_internal.note_seq'),
    job bigint NOT NULL,
    from_seq bigint NOT NULL,
    to_seq bigint NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT wake_is_numbered PRIMARY KEY (seq)
);

COMMENT ON TABLE pulse_internal.wake IS
'Portions of blocked jobs whose upstream has ended, for whoever claims next.';

-- A cache like those of schema/marks.sql. unsure are doubts that could not be settled, and can
-- be once every transaction below unsure_until has ended.
CREATE TABLE pulse_internal.note_mark (
    version bigint NOT NULL DEFAULT nextval('pulse_internal.version'),
    wake_from bigint NOT NULL,
    doubt_from bigint NOT NULL,
    unsure bigint [] NOT NULL,
    unsure_until xid8,
    CONSTRAINT note_mark_is_versioned PRIMARY KEY (version)
);

COMMENT ON TABLE pulse_internal.note_mark IS
'A cache: the smallest doubt and wake that can still be live.';

-- A step is something a job does once, whatever its attempt: saved (result), spawned (jobs),
-- or waited for (until). saved_at is NULL while it waits.
CREATE TABLE pulse_internal.job_step (
    job bigint NOT NULL,
    step text COLLATE "C" NOT NULL,
    until timestamptz,
    result jsonb,
    jobs bigint [],
    saved_at timestamptz,
    CONSTRAINT job_step_is_one_per_name PRIMARY KEY (job, step)
);

COMMENT ON TABLE pulse_internal.job_step IS
'Steps that a job has done, or waits in, kept for its later attempts.';

-- owner is the role whose jobs it counts for; 0 is all roles. undelivered_at: a job that waits
-- for it was held by another session, or there were too many; tick has looked again by then.
CREATE TABLE pulse_internal.signal (
    signal text COLLATE "C" NOT NULL,
    owner integer NOT NULL,
    payload jsonb,
    sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    undelivered_at timestamptz,
    CONSTRAINT signal_is_sent_once PRIMARY KEY (signal, owner)
);

CREATE INDEX signal_for_expiry ON pulse_internal.signal (expires_at);
CREATE INDEX signal_to_deliver ON pulse_internal.signal (undelivered_at)
WHERE undelivered_at IS NOT NULL;

COMMENT ON TABLE pulse_internal.signal IS
'Signals that were sent, the first of each name.';

-- Written by whoever has the job: its run, who takes it out of waiting, retention.
CREATE TABLE pulse_internal.signal_wait (
    job bigint NOT NULL,
    lease bigint NOT NULL,
    signal text COLLATE "C" NOT NULL,
    owner integer NOT NULL,
    step text COLLATE "C" NOT NULL,
    CONSTRAINT signal_wait_is_one_per_job PRIMARY KEY (job)
);

CREATE INDEX signal_wait_by_signal ON pulse_internal.signal_wait (signal, owner);

COMMENT ON TABLE pulse_internal.signal_wait IS
'Jobs that wait for a signal, each with the lease that it gave back to do so.';
