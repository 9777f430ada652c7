CREATE FUNCTION pulse.prune(dry_run boolean DEFAULT false, max_jobs integer DEFAULT 10000)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- NULL is no order to act.
    v_dry_run boolean := coalesce(prune.dry_run, true);
    v_now timestamptz := clock_timestamp();
    v_pair record;
    v_some bigint;
    v_all bigint := 0;
BEGIN
    PERFORM pulse._require_read_committed('prune');
    PERFORM pulse._require_between('max_jobs', coalesce(prune.max_jobs, 0), 1, 1000000);

    FOR v_pair IN SELECT p.* FROM pulse._finished_lanes() AS p LOOP
        EXIT WHEN v_all >= prune.max_jobs;
        IF v_dry_run THEN
            SELECT count(*) INTO v_some
            FROM (
                SELECT 1
                FROM pulse.finished AS f
                WHERE f.lane = v_pair.lane
                    AND f.state = v_pair.state
                    AND f.finished_at < v_pair.before
                    AND NOT (
                        f.keyed
                        AND EXISTS (
                            SELECT 1
                            FROM pulse.job_key AS k
                            WHERE k.job = f.job
                                AND k.expires_at > v_now
                        )
                    )
                LIMIT prune.max_jobs - v_all
            ) AS c;
        ELSE
            v_some := pulse._prune_jobs(
                v_pair.lane, v_pair.state, v_pair.before, (prune.max_jobs - v_all)::integer
            );
        END IF;
        v_all := v_all + v_some;
    END LOOP;

    IF NOT v_dry_run THEN
        DELETE FROM pulse.job_key AS k
        WHERE k.job = ANY (array(
                SELECT o.job
                FROM pulse.job_key AS o
                WHERE o.expires_at < v_now
                ORDER BY o.expires_at
                LIMIT prune.max_jobs
                FOR UPDATE SKIP LOCKED
            ));
        DELETE FROM pulse.worker AS w
        WHERE w.seen_at < v_now - interval '1 day';
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse.prune(boolean, integer) IS
'Remove finished jobs that are older than their lane''s retention, at most max_jobs; with dry_run only count them. Returns how many. tick does this every 10 seconds.';

-- Retention. Deleting from finished decides; exactly those bodies follow: by age of the
-- body alone, a retried job would lose it.
CREATE FUNCTION pulse._prune_jobs(
    lane text, state pulse.outcome, before timestamptz, max_jobs integer
)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_jobs bigint [];
BEGIN
    -- A key that still dedups keeps its job.
    WITH old AS (
        DELETE FROM pulse.finished AS f
        WHERE f.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse.finished AS o
                WHERE o.lane = _prune_jobs.lane
                    AND o.state = _prune_jobs.state
                    AND o.finished_at < _prune_jobs.before
                    AND NOT (
                        o.keyed
                        AND EXISTS (
                            SELECT 1
                            FROM pulse.job_key AS k
                            WHERE k.job = o.job
                                AND k.expires_at > v_now
                        )
                    )
                ORDER BY o.finished_at
                LIMIT _prune_jobs.max_jobs
                FOR UPDATE SKIP LOCKED
            ))
        RETURNING f.job
    )

    SELECT array_agg(o.job) INTO v_jobs
    FROM old AS o;

    IF v_jobs IS NULL THEN
        RETURN 0;
    END IF;

    DELETE FROM pulse.body AS b WHERE b.job = ANY (v_jobs);
    DELETE FROM pulse.failure AS x WHERE x.job = ANY (v_jobs);
    DELETE FROM pulse.job_progress AS p WHERE p.job = ANY (v_jobs);
    DELETE FROM pulse.job_checkpoint AS c WHERE c.job = ANY (v_jobs);
    DELETE FROM pulse.job_key AS k WHERE k.job = ANY (v_jobs);
    RETURN cardinality(v_jobs);
END;
$$;

COMMENT ON FUNCTION pulse._prune_jobs(text, pulse.outcome, timestamptz, integer) IS
'Remove at most max_jobs jobs of a lane that ended in this state before that time.';

-- Each lane and state that finished has, by jumping to its newest row: the oldest ones
-- are where pruned rows lie dead.
CREATE FUNCTION pulse._finished_lanes()
RETURNS TABLE (lane text, state pulse.outcome, before timestamptz)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE pair AS (
        (
            SELECT f.lane, f.state
            FROM pulse.finished AS f
            ORDER BY f.lane DESC, f.state DESC, f.finished_at DESC
            LIMIT 1
        )
        UNION ALL
        SELECT n.lane, n.state
        FROM pair AS p
        CROSS JOIN LATERAL (
            SELECT f.lane, f.state
            FROM pulse.finished AS f
            WHERE (f.lane, f.state) < (p.lane, p.state)
            ORDER BY f.lane DESC, f.state DESC, f.finished_at DESC
            LIMIT 1
        ) AS n
    )

    SELECT
        p.lane,
        p.state,
        clock_timestamp() - CASE p.state
            WHEN 'completed' THEN s.retain_completed
            WHEN 'cancelled' THEN s.retain_cancelled
            ELSE s.retain_dead
        END
    FROM pair AS p
    CROSS JOIN LATERAL pulse._lane_settings(p.lane) AS s
$$;

COMMENT ON FUNCTION pulse._finished_lanes() IS
'Each lane and final state with the time before which its jobs may go.';

CREATE FUNCTION pulse._prune_audit(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_removed integer;
BEGIN
    DELETE FROM pulse.audit_entry AS e
    WHERE e.entry = ANY (
        ARRAY(
            SELECT o.entry
            FROM pulse.audit_entry AS o
            WHERE o.at < (SELECT clock_timestamp() - interval '90 days')
            ORDER BY o.at
            LIMIT _prune_audit.max_rows
            FOR UPDATE SKIP LOCKED
        )
    );

    GET DIAGNOSTICS v_removed = ROW_COUNT;
    RETURN v_removed;
END;
$$;

COMMENT ON FUNCTION pulse._prune_audit(integer) IS
'Remove audit entries older than 90 days, at most max_rows, oldest first; returns how many.';

CREATE FUNCTION pulse._prune_schedule_runs(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_deleted integer;
BEGIN
    DELETE FROM pulse.schedule_run AS r
    WHERE r.ctid = ANY (
        ARRAY(
            SELECT o.ctid
            FROM pulse.schedule_run AS o
            WHERE o.handled_at < (SELECT clock_timestamp() - interval '90 days')
            ORDER BY o.handled_at
            LIMIT _prune_schedule_runs.max_rows
            FOR UPDATE SKIP LOCKED
        )
    );
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_deleted;
END;
$$;

COMMENT ON FUNCTION pulse._prune_schedule_runs(integer) IS
'Delete at most so many rows of the ledger that are older than 90 days.';
