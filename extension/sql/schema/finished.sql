-- lease and ended_by let the report that ended a job succeed again when its answer
-- was lost. A retried job leaves this table; retention deletes by lane and state.
CREATE TABLE pulse_internal.finished (
    job bigint NOT NULL,
    lane text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    rank integer NOT NULL,
    state pulse_internal.outcome NOT NULL,
    ended_by text COLLATE "C" NOT NULL,
    attempts integer NOT NULL,
    failures integer NOT NULL,
    keyed boolean NOT NULL,
    claimed_at timestamptz,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease bigint,
    worker text,
    result jsonb,
    error text,
    CONSTRAINT finished_is_one_per_job PRIMARY KEY (job)
);

CREATE INDEX finished_for_retention ON pulse_internal.finished (lane, state, finished_at)
WITH (deduplicate_items = off);
CREATE INDEX finished_for_repeated_report ON pulse_internal.finished (lease)
WITH (deduplicate_items = off) WHERE lease IS NOT NULL;
CREATE INDEX finished_badly ON pulse_internal.finished (job) WHERE state <> 'completed';
-- Every row meets the second condition: a statement that states it means this index, and no
-- other statement is served by it (docs/decisions/pinned-plans.md).
CREATE INDEX finished_for_dead_letters ON pulse_internal.finished (finished_at, job)
WHERE state = 'dead' AND failures >= 0;

COMMENT ON TABLE pulse_internal.finished IS
'How jobs ended: completed, dead or cancelled.';

CREATE TABLE pulse_internal.failure (
    job bigint NOT NULL,
    attempt integer NOT NULL,
    lease bigint NOT NULL,
    worker text NOT NULL,
    claimed_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    error text NOT NULL,
    CONSTRAINT failure_is_one_per_attempt PRIMARY KEY (job, attempt)
);

COMMENT ON TABLE pulse_internal.failure IS
'The error of every run that failed, the newest 100 for each job.';
