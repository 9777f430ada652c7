-- How runs and jobs end: fail_runs for runs that failed or expired, finish_cancelled for one job.
--
-- Rows of finished are written in four places: by complete_batch, by the two functions of this
-- file, where an end cancels the jobs that depend on the ended one (flows/cascade.sql), and by an
-- enqueue after a job that had ended badly (flows/after.sql).
--
-- fail_runs, numbered as in the function: 1. end the runs and decide what becomes of each job;
-- 2. follow up: groups, unique keys, dependents; 3. keep at most 100 errors of a job. It deletes
-- from lease, inserts into failure, waiting, finished and tally, and locks leases in the order of
-- their numbers. The dependents of an ended job are looked for in a later statement than the one
-- that ended it, and only in a database where a job was ever blocked.
--
-- report_statuses and reported_before answer a report: ok, lost or too_large.

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
    v_over bigint [];
    v_over_with_key bigint [];
    v_with_many_errors bigint [];
    v_groups pulse_internal.lane_group [];
BEGIN
    -- 1. End the runs. The arrays errors, retry_in and fatal have an element for each lease. The
    -- leases are in order, so width_bucket finds the subscript of a run by binary search. A reap
    -- passes only leases, in any order: then every element is NULL.
    WITH ended AS (
        DELETE FROM pulse_internal.lease AS l
        WHERE l.lease = ANY (fail_runs.leases)
        RETURNING l.*
    ),

    decided AS MATERIALIZED (
        SELECT
            e.*,
            coalesce(
                fail_runs.errors[n.nth],
                CASE
                    WHEN fail_runs.verb <> 'reap' THEN 'failed'
                    WHEN e.deadline <= v_now THEN 'max_runtime exceeded'
                    ELSE 'worker lease expired'
                END
            ) AS error,
            CASE
                WHEN e.cancel_by IS NOT NULL THEN 'cancelled'
                WHEN fail_runs.fatal[n.nth] OR e.failures + 1 >= b.max_attempts THEN 'dead'
                ELSE 'retrying'
            END AS new_state,
            coalesce(
                fail_runs.retry_in[n.nth],
                pulse_internal.backoff(
                    k.backoff, k.backoff_base, k.backoff_cap, k.backoff_jitter,
                    e.failures + 1
                )
            ) AS delay
        FROM ended AS e
        CROSS JOIN LATERAL (
            -- trim_array(…, 0) makes one flat copy for the whole statement; a reference to the
            -- argument would be copied for each row.
            SELECT width_bucket(e.lease, (SELECT trim_array(fail_runs.leases, 0))) AS nth
        ) AS n
        -- OFFSET 0 keeps the planner from making joins of these: one lookup by primary key for
        -- each run, whatever the statistics say.
        CROSS JOIN LATERAL (
            SELECT o.max_attempts FROM pulse_internal.body AS o WHERE o.job = e.job OFFSET 0
        ) AS b
        LEFT JOIN LATERAL (
            SELECT o.* FROM pulse_internal.kind AS o WHERE o.kind = e.kind OFFSET 0
        ) AS k ON true
    ),

    stored_errors AS (
        INSERT INTO pulse_internal.failure (job, attempt, lease, worker, claimed_at, error)
        SELECT d.job, d.attempt, d.lease, d.worker, d.claimed_at, d.error
        FROM decided AS d
    ),

    retried AS (
        INSERT INTO pulse_internal.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying,
            last_lease, last_verb, place, group_key
        )
        SELECT
            d.lane,
            greatest(
                clock_timestamp() + greatest(d.delay, '0'), (SELECT pulse_internal.due_floor())
            ),
            d.job, d.kind, d.rank, d.attempt, d.failures + 1, d.keyed, true, d.lease,
            fail_runs.verb, d.place, CASE WHEN d.place IS NOT NULL THEN d.group_key END
        FROM decided AS d
        WHERE d.new_state = 'retrying'
            -- Before the clock is read for this row: the filter comes before the list above.
            AND pulse_internal.enter_lane(d.lane)
    ),

    finished AS (
        INSERT INTO pulse_internal.finished (
            job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
            claimed_at, lease, worker, error
        )
        SELECT
            d.job, d.lane, d.kind, d.rank, d.new_state::pulse_internal.outcome, fail_runs.verb,
            d.attempt, d.failures + 1, d.keyed, d.claimed_at, d.lease, d.worker,
            CASE WHEN d.new_state = 'cancelled' THEN d.cancel_reason ELSE d.error END
        FROM decided AS d
        WHERE d.new_state <> 'retrying'
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
                d.lane, d.kind, 'failed' AS event,
                d.claimed_at - d.ready_at AS waited,
                v_now - d.claimed_at AS ran
            FROM decided AS d
            UNION ALL
            SELECT
                d.lane, d.kind,
                CASE d.new_state WHEN 'retrying' THEN 'retried' ELSE d.new_state END, NULL, NULL
            FROM decided AS d
            UNION ALL
            SELECT d.lane, d.kind, 'reaped', NULL, NULL
            FROM decided AS d
            WHERE fail_runs.verb = 'reap'
        ) AS e
        GROUP BY e.lane, e.kind, e.event, wait_bucket, run_bucket
    )

    SELECT
        array_agg(d.lease),
        array_agg(d.job) FILTER (WHERE d.new_state <> 'retrying'),
        array_agg(d.job) FILTER (WHERE d.new_state <> 'retrying' AND d.keyed),
        -- As many errors as attempts at most.
        array_agg(d.job) FILTER (WHERE d.attempt > 100),
        array_agg(ROW(d.lane, d.group_key)::pulse_internal.lane_group)
        FILTER (WHERE d.group_key IS NOT NULL)
    INTO v_ended, v_over, v_over_with_key, v_with_many_errors, v_groups
    FROM decided AS d;

    -- 2. Follow up. The last of these is a later statement than the one that ended the jobs: it
    -- also sees jobs that were blocked until then.
    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.notice_ends(v_groups);
    END IF;

    IF v_over_with_key IS NOT NULL THEN
        PERFORM pulse_internal.release_keys(v_over_with_key);
    END IF;

    IF v_over IS NOT NULL AND pg_sequence_last_value('pulse_internal.blocked_seq') IS NOT NULL THEN
        PERFORM pulse_internal.ended_badly(v_over);
    END IF;

    -- 3. Keep the newest 100 errors of a job.
    IF v_with_many_errors IS NOT NULL THEN
        DELETE FROM pulse_internal.failure AS f
        USING (
            SELECT x.job, max(x.attempt) AS newest
            FROM pulse_internal.failure AS x
            WHERE x.job = ANY (v_with_many_errors)
            GROUP BY x.job
        ) AS n
        WHERE f.job = n.job
            AND f.attempt <= n.newest - 100;
    END IF;

    RETURN coalesce(v_ended, '{}');
END;
$$;

COMMENT ON FUNCTION pulse_internal.fail_runs(bigint [], text [], interval [], boolean [], text) IS
'End runs that failed (verb fail) or whose lease has expired (reap): their jobs are retried, dead or, after a cancel request, cancelled. Returns the leases that it has ended; one that is missing was lost.';

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
'Store that a job was cancelled, by which verb and why, and release its unique key. The caller has deleted the row that said where the job stood. claimed_at, lease and worker are those of its run, if it had one.';

CREATE FUNCTION pulse_internal.report_statuses(
    leases bigint [], fitting bigint [], ended bigint [], verb text, quiet boolean
)
RETURNS SETOF pulse.verdict
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    -- Usually this call has ended every run.
    IF cardinality(report_statuses.ended) = cardinality(report_statuses.leases) THEN
        IF report_statuses.quiet IS NOT TRUE THEN
            RETURN QUERY
            SELECT u.lease, 'ok'
            FROM unnest(report_statuses.leases) AS u (lease);
        END IF;
        RETURN;
    END IF;

    -- IN a subquery becomes a hash table. = ANY of an array would read all of it for each lease
    -- of a long batch.
    RETURN QUERY
    SELECT s.lease, s.status
    FROM (
        SELECT
            u.lease,
            u.nth,
            CASE
                WHEN u.lease IN (SELECT e.lease FROM unnest(report_statuses.ended) AS e (lease))
                    THEN 'ok'
                WHEN u.lease IN (SELECT f.lease FROM unnest(report_statuses.fitting) AS f (lease))
                    THEN
                        CASE
                            WHEN pulse_internal.reported_before(u.lease, report_statuses.verb) THEN 'ok'
                            ELSE 'lost'
                        END
                WHEN u.lease IS NULL THEN 'lost'
                ELSE 'too_large'
            END AS status
        FROM unnest(report_statuses.leases) WITH ORDINALITY AS u (lease, nth)
    ) AS s
    WHERE s.status <> 'ok' OR report_statuses.quiet IS NOT TRUE
    ORDER BY s.nth;
END;
$$;

COMMENT ON FUNCTION pulse_internal.report_statuses(
    bigint [], bigint [], bigint [], text, boolean
) IS
'The status of each reported lease. fitting are the leases whose report was small enough, ended those whose run this call has ended. With quiet, only what is not ok.';

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
'Whether the run of this lease was ended by this verb: then a worker that did not get the answer repeats its report.';
