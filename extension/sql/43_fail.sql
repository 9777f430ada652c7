-- How a run ends badly, for fail and reap alike: charged, its error kept, and then back
-- into waiting with a backoff, or dead, or, when a cancel was asked for, cancelled.
-- Returns the leases that were ended; one that is not there was lost.
CREATE FUNCTION pulse._end_badly(
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
    v_ended bigint [];
    v_keyed bigint [];
    v_many bigint [];
BEGIN
    WITH gone AS (
        DELETE FROM pulse.lease AS l
        WHERE l.lease = ANY (_end_badly.leases)
        RETURNING l.*
    ),

    judged AS MATERIALIZED (
        SELECT
            g.*,
            coalesce(_end_badly.errors[p.place], 'failed') AS error,
            CASE
                WHEN g.cancel_by IS NOT NULL THEN 'cancelled'
                WHEN _end_badly.fatal[p.place] OR g.failures + 1 >= b.max_attempts THEN 'dead'
                ELSE 'retrying'
            END AS fate,
            coalesce(
                _end_badly.retry_in[p.place],
                pulse._backoff(
                    k.backoff, k.backoff_base, k.backoff_cap, k.backoff_jitter,
                    g.failures + 1
                )
            ) AS pause
        FROM gone AS g
        CROSS JOIN LATERAL (
            SELECT array_position(_end_badly.leases, g.lease) AS place
        ) AS p
        INNER JOIN pulse.body AS b ON b.job = g.job
        LEFT JOIN pulse.kind AS k ON k.kind = g.kind
    ),

    noted AS (
        INSERT INTO pulse.failure (job, attempt, lease, worker, claimed_at, error)
        SELECT j.job, j.attempt, j.lease, j.worker, j.claimed_at, j.error
        FROM judged AS j
    ),

    retried AS (
        INSERT INTO pulse.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying,
            last_lease, last_verb
        )
        SELECT
            j.lane, clock_timestamp() + greatest(j.pause, '0'), j.job, j.kind, j.rank,
            j.attempt, j.failures + 1, j.keyed, true, j.lease, _end_badly.verb
        FROM judged AS j
        WHERE j.fate = 'retrying'
    ),

    ended AS (
        INSERT INTO pulse.finished (
            job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
            claimed_at, lease, worker, error
        )
        SELECT
            j.job, j.lane, j.kind, j.rank, j.fate::pulse.outcome, _end_badly.verb,
            j.attempt, j.failures + 1, j.keyed, j.claimed_at, j.lease, j.worker,
            CASE WHEN j.fate = 'cancelled' THEN j.cancel_reason ELSE j.error END
        FROM judged AS j
        WHERE j.fate <> 'retrying'
    )

    SELECT
        array_agg(j.lease),
        array_agg(j.job) FILTER (WHERE j.keyed AND j.fate <> 'retrying'),
        array_agg(j.job) FILTER (WHERE j.attempt > 100)
    INTO v_ended, v_keyed, v_many
    FROM judged AS j;

    IF v_keyed IS NOT NULL THEN
        PERFORM pulse._release_keys(v_keyed);
    END IF;

    -- The list of errors is capped.
    IF v_many IS NOT NULL THEN
        DELETE FROM pulse.failure AS f
        USING (
            SELECT x.job, max(x.attempt) AS newest
            FROM pulse.failure AS x
            WHERE x.job = ANY (v_many)
            GROUP BY x.job
        ) AS n
        WHERE f.job = n.job
            AND f.attempt <= n.newest - 100;
    END IF;

    RETURN coalesce(v_ended, '{}');
END;
$$;

COMMENT ON FUNCTION pulse._end_badly(bigint [], text [], interval [], boolean [], text) IS
'End runs that failed or lapsed: retrying, dead or cancelled.';

CREATE FUNCTION pulse.fail_batch(
    leases bigint [],
    errors text [] DEFAULT NULL,
    retry_in interval [] DEFAULT NULL,
    fatal boolean [] DEFAULT NULL,
    quiet boolean DEFAULT false
)
RETURNS SETOF pulse.verdict
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_sound bigint [];
    v_ended bigint [];
BEGIN
    PERFORM pulse._require_read_committed('fail');
    PERFORM pulse._require_duration('retry_in', u.pause, '0', '1 year')
    FROM unnest(fail_batch.retry_in) AS u (pause);

    v_sound := array(
        SELECT CASE WHEN coalesce(octet_length(u.error), 0) <= 1048576 THEN u.lease END
        FROM unnest(fail_batch.leases, fail_batch.errors)
        WITH ORDINALITY AS u (lease, error, place)
        WHERE u.place <= cardinality(fail_batch.leases)
        ORDER BY u.place
    );

    v_ended := pulse._end_badly(
        v_sound, fail_batch.errors, fail_batch.retry_in, fail_batch.fatal, 'fail'
    );

    RETURN QUERY
    SELECT v.*
    FROM pulse._verdicts(
        fail_batch.leases, v_sound, v_ended, 'fail', fail_batch.quiet
    ) AS v;
END;
$$;

COMMENT ON FUNCTION pulse.fail_batch(bigint [], text [], interval [], boolean [], boolean) IS
'Fail the jobs of several leases; errors, retry_in and fatal are read at the same place. One row for each lease: ok, lost, or too_large (an error above 1 MB; that job goes on running); with quiet, only for those that are not ok. A repeated report is ok again. PU002 for a retry_in that is negative or above a year.';

CREATE FUNCTION pulse.fail(
    lease bigint,
    error text DEFAULT NULL,
    retry_in interval DEFAULT NULL,
    fatal boolean DEFAULT false
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_verdict text;
BEGIN
    PERFORM pulse._require_size(
        'error', octet_length(fail.error), 1048576,
        'Keep the end of the trace and the message.'
    );

    SELECT v.verdict INTO v_verdict
    FROM pulse.fail_batch(
        ARRAY[fail.lease], ARRAY[fail.error], ARRAY[fail.retry_in], ARRAY[fail.fatal]
    ) AS v;

    IF v_verdict <> 'ok' THEN
        PERFORM pulse._raise_lease_lost(fail.lease);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.fail(bigint, text, interval, boolean) IS
'End a run badly: the job is charged one failure, its error is kept, and it is retried after the backoff of its kind (or retry_in), or dead when failures reach max_attempts or fatal is true. Repeating it with the same lease is harmless. PU101 when the lease was lost, PU003 when the error is above 1 MB.';
