-- How jobs end. finished is written in four places: by complete_batch (report/complete.sql),
-- whose one statement is the hottest of all; by the two functions below, for a run that
-- failed and a job that is cancelled; where a bad end cancels the jobs that depend on it
-- (flows/cascade.sql); and by an enqueue after a job that had ended badly (flows/after.sql).
-- After each, in a later statement, jobs that wait for the one that ended are looked for,
-- if any job was ever blocked.

-- For fail and reap alike: the run is charged, its error kept, and the job goes back into
-- waiting with a backoff, or is dead, or, when a cancel was requested, cancelled. The lists
-- are in the order of the leases, so that a run is found by a binary search; reap gives none but
-- that of the leases, which then may have any order.
-- Returns the leases that were ended; one that is not there was lost.
CREATE FUNCTION pulse_internal.fail_runs(
    leases bigint [],
    errors text [],
    retry_in interval [],
    fatal boolean [],
    verb text
)
RETURNS bigint []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_ended bigint [];
    v_keyed bigint [];
    v_many bigint [];
    v_over bigint [];
    v_groups pulse_internal.lane_group [];
BEGIN
    WITH gone AS (
        DELETE FROM pulse_internal.lease AS l
        WHERE l.lease = ANY (fail_runs.leases)
        RETURNING l.*
    ),

    judged AS MATERIALIZED (
        SELECT
            g.*,
            coalesce(
                fail_runs.errors[p.place],
                CASE
                    WHEN fail_runs.verb <> 'reap' THEN 'failed'
                    WHEN g.deadline <= v_now THEN 'max_runtime exceeded'
                    ELSE 'worker lease expired'
                END
            ) AS error,
            CASE
                WHEN g.cancel_by IS NOT NULL THEN 'cancelled'
                WHEN fail_runs.fatal[p.place] OR g.failures + 1 >= b.max_attempts THEN 'dead'
                ELSE 'retrying'
            END AS fate,
            coalesce(
                fail_runs.retry_in[p.place],
                pulse_internal.backoff(
                    k.backoff, k.backoff_base, k.backoff_cap, k.backoff_jitter,
                    g.failures + 1
                )
            ) AS pause
        FROM gone AS g
        CROSS JOIN LATERAL (
            -- As one flat value: of a variable, each look would make a copy.
            SELECT width_bucket(g.lease, (SELECT trim_array(fail_runs.leases, 0))) AS place
        ) AS p
        -- OFFSET 0 keeps these what they are: one look by key for each run.
        CROSS JOIN LATERAL (
            SELECT o.max_attempts FROM pulse_internal.body AS o WHERE o.job = g.job OFFSET 0
        ) AS b
        LEFT JOIN LATERAL (
            SELECT o.* FROM pulse_internal.kind AS o WHERE o.kind = g.kind OFFSET 0
        ) AS k ON true
    ),

    noted AS (
        INSERT INTO pulse_internal.failure (job, attempt, lease, worker, claimed_at, error)
        SELECT j.job, j.attempt, j.lease, j.worker, j.claimed_at, j.error
        FROM judged AS j
    ),

    retried AS (
        INSERT INTO pulse_internal.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying,
            last_lease, last_verb, place
        )
        SELECT
            j.lane,
            greatest(
                clock_timestamp() + greatest(j.pause, '0'), (SELECT pulse_internal.due_floor())
            ),
            j.job, j.kind, j.rank, j.attempt, j.failures + 1, j.keyed, true, j.lease,
            fail_runs.verb, j.place
        FROM judged AS j
        WHERE j.fate = 'retrying'
    ),

    ended AS (
        INSERT INTO pulse_internal.finished (
            job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
            claimed_at, lease, worker, error
        )
        SELECT
            j.job, j.lane, j.kind, j.rank, j.fate::pulse_internal.outcome, fail_runs.verb,
            j.attempt, j.failures + 1, j.keyed, j.claimed_at, j.lease, j.worker,
            CASE WHEN j.fate = 'cancelled' THEN j.cancel_reason ELSE j.error END
        FROM judged AS j
        WHERE j.fate <> 'retrying'
    ),

    counted AS (
        INSERT INTO pulse_internal.tally (
            lane, kind, event, jobs, wait_bucket, waited, run_bucket, ran
        )
        SELECT
            e.lane, e.kind, e.event, count(*),
            width_bucket(e.waited, pulse_internal.histogram_intervals()) AS wait_bucket,
            sum(e.waited),
            width_bucket(e.ran, pulse_internal.histogram_intervals()) AS run_bucket,
            sum(e.ran)
        FROM (
            SELECT
                j.lane, j.kind, 'failed' AS event,
                j.claimed_at - j.ready_at AS waited,
                v_now - j.claimed_at AS ran
            FROM judged AS j
            UNION ALL
            SELECT
                j.lane, j.kind,
                CASE j.fate WHEN 'retrying' THEN 'retried' ELSE j.fate END, NULL, NULL
            FROM judged AS j
            UNION ALL
            SELECT j.lane, j.kind, 'reaped', NULL, NULL
            FROM judged AS j
            WHERE fail_runs.verb = 'reap'
        ) AS e
        GROUP BY e.lane, e.kind, e.event, wait_bucket, run_bucket
    )

    SELECT
        array_agg(j.lease),
        array_agg(j.job) FILTER (WHERE j.keyed AND j.fate <> 'retrying'),
        array_agg(j.job) FILTER (WHERE j.attempt > 100),
        array_agg(j.job) FILTER (WHERE j.fate <> 'retrying'),
        array_agg(ROW(j.lane, j.group_key)::pulse_internal.lane_group)
        FILTER (WHERE j.group_key IS NOT NULL)
    INTO v_ended, v_keyed, v_many, v_over, v_groups
    FROM judged AS j;

    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.notice_ends(v_groups);
    END IF;

    IF v_keyed IS NOT NULL THEN
        PERFORM pulse_internal.release_keys(v_keyed);
    END IF;

    IF v_over IS NOT NULL AND pg_sequence_last_value('pulse_internal.blocked_seq') IS NOT NULL THEN
        PERFORM pulse_internal.ended_badly(v_over);
    END IF;

    -- The list of errors is capped.
    IF v_many IS NOT NULL THEN
        DELETE FROM pulse_internal.failure AS f
        USING (
            SELECT x.job, max(x.attempt) AS newest
            FROM pulse_internal.failure AS x
            WHERE x.job = ANY (v_many)
            GROUP BY x.job
        ) AS n
        WHERE f.job = n.job
            AND f.attempt <= n.newest - 100;
    END IF;

    RETURN coalesce(v_ended, '{}');
END;
$$;

COMMENT ON FUNCTION pulse_internal.fail_runs(bigint [], text [], interval [], boolean [], text) IS
'End runs that failed or lapsed: retrying, dead or cancelled.';

-- For ack_cancel, cancel, reject, release, snooze and expired approvals: the caller has
-- taken the job out of its place. claimed_at, lease and worker are those of its run.
CREATE FUNCTION pulse_internal.finish_cancelled(
    job bigint,
    lane text,
    kind text,
    rank integer,
    verb text,
    attempts integer,
    failures integer,
    keyed boolean,
    error text,
    claimed_at timestamptz DEFAULT NULL,
    lease bigint DEFAULT NULL,
    worker text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO pulse_internal.finished (
        job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
        claimed_at, lease, worker, error
    )
    VALUES (
        finish_cancelled.job, finish_cancelled.lane, finish_cancelled.kind,
        finish_cancelled.rank, 'cancelled', finish_cancelled.verb,
        finish_cancelled.attempts, finish_cancelled.failures, finish_cancelled.keyed,
        finish_cancelled.claimed_at, finish_cancelled.lease, finish_cancelled.worker,
        finish_cancelled.error
    );

    INSERT INTO pulse_internal.tally (lane, kind, event)
    VALUES (finish_cancelled.lane, finish_cancelled.kind, 'cancelled');

    IF finish_cancelled.keyed THEN
        PERFORM pulse_internal.release_keys(ARRAY[finish_cancelled.job]);
    END IF;

    IF pg_sequence_last_value('pulse_internal.blocked_seq') IS NOT NULL THEN
        PERFORM pulse_internal.ended_badly(ARRAY[finish_cancelled.job]);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.finish_cancelled(
    bigint, text, text, integer, text, integer, integer, boolean, text, timestamptz, bigint, text
) IS
'Write that a job was cancelled, by which verb and why, and release its unique key.';

CREATE FUNCTION pulse_internal.verdicts(
    leases bigint [], sound bigint [], ended bigint [], verb text, quiet boolean
)
RETURNS SETOF pulse.verdict
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    -- Mostly that is all.
    IF cardinality(verdicts.ended) = cardinality(verdicts.leases) THEN
        IF verdicts.quiet IS NOT TRUE THEN
            RETURN QUERY
            SELECT u.lease, 'ok'
            FROM unnest(verdicts.leases) AS u (lease);
        END IF;
        RETURN;
    END IF;

    -- By hash: a batch may be long, and = ANY of an array would read all of it for each lease.
    RETURN QUERY
    SELECT j.lease, j.verdict
    FROM (
        SELECT
            u.lease,
            u.place,
            CASE
                WHEN u.lease IN (SELECT e.lease FROM unnest(verdicts.ended) AS e (lease))
                    THEN 'ok'
                WHEN u.lease IN (SELECT s.lease FROM unnest(verdicts.sound) AS s (lease))
                    THEN
                        CASE
                            WHEN pulse_internal.reported_before(u.lease, verdicts.verb) THEN 'ok'
                            ELSE 'lost'
                        END
                WHEN u.lease IS NULL THEN 'lost'
                ELSE 'too_large'
            END AS verdict
        FROM unnest(verdicts.leases) WITH ORDINALITY AS u (lease, place)
    ) AS j
    WHERE j.verdict <> 'ok' OR verdicts.quiet IS NOT TRUE
    ORDER BY j.place;
END;
$$;

COMMENT ON FUNCTION pulse_internal.verdicts(bigint [], bigint [], bigint [], text, boolean) IS
'What became of a batch of reports: sound are those that were small enough, ended those that this one ended; with quiet, only what is not ok.';

-- Same verb, same lease: the answer was lost, not the report.
CREATE FUNCTION pulse_internal.reported_before(lease bigint, verb text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1
        FROM pulse_internal.finished AS f
        WHERE f.lease = reported_before.lease
            AND f.ended_by = reported_before.verb
    )
    OR EXISTS (
        SELECT 1
        FROM pulse_internal.waiting AS w
        WHERE w.last_lease = reported_before.lease
            AND w.last_verb = reported_before.verb
    )
    OR EXISTS (
        SELECT 1
        FROM pulse_internal.in_line AS r
        WHERE r.last_lease = reported_before.lease
            AND r.last_verb = reported_before.verb
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.reported_before(bigint, text) IS
'Whether this verb with this lease is what brought its job where it stands.';
