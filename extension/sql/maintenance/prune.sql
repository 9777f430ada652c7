-- Retention: every step that removes what has outlived its time is here, so that one page
-- shows what pulse forgets and when. That is why the file is long. Which lanes tick looks
-- at, and when, is in maintenance/prune_walk.sql; counters are thinned out in stats/stats.sql.

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
    v_page record;
    v_since timestamptz;
    v_some bigint;
    v_all bigint := 0;
BEGIN
    PERFORM pulse_internal.require_read_committed('prune');
    PERFORM pulse_internal.require_range('prune', 'max_jobs', coalesce(prune.max_jobs, 0));

    FOR v_pair IN SELECT p.* FROM pulse_internal.finished_lanes() AS p LOOP
        EXIT WHEN v_all >= prune.max_jobs;
        IF v_dry_run THEN
            SELECT count(*) INTO v_some
            FROM (
                SELECT 1
                FROM pulse_internal.finished AS f
                WHERE f.lane = v_pair.lane
                    AND f.state = v_pair.state
                    AND f.finished_at < v_pair.before
                    AND NOT (
                        f.keyed
                        AND EXISTS (
                            SELECT 1
                            FROM pulse_internal.job_key AS k
                            WHERE k.job = f.job
                                AND k.expires_at > v_now
                        )
                    )
                    AND pulse_internal.needed_by(f.job) IS NULL
                LIMIT prune.max_jobs - v_all
            ) AS c;
            v_all := v_all + v_some;
        ELSE
            v_since := '-infinity';
            LOOP
                SELECT p.* INTO v_page
                FROM pulse_internal.prune_jobs(
                    v_pair.lane, v_pair.state, v_pair.before, v_since,
                    least(1000, prune.max_jobs - v_all)::integer
                ) AS p;
                v_all := v_all + v_page.removed;
                v_since := v_page.next;
                EXIT WHEN v_since IS NULL OR v_all >= prune.max_jobs;
            END LOOP;
        END IF;
    END LOOP;

    IF NOT v_dry_run THEN
        SELECT v_all + k.jobs INTO v_all
        FROM pulse_internal.prune_keys((prune.max_jobs - v_all)::integer) AS k;
        PERFORM pulse_internal.prune_workers(prune.max_jobs);
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse.prune(boolean, integer) IS
'Remove finished jobs that are older than their lane''s retention, at most max_jobs; with dry_run only count them. Returns how many. tick does this every 10 seconds, or without a pause while there is more to remove. Writes finished, body and what belongs to them, job_key and worker.';

-- PL/pgSQL keeps its plan: tick asks for 100 lanes, some at a time.
CREATE FUNCTION pulse_internal.retained_since(lanes text [], states pulse_internal.outcome [])
RETURNS TABLE (lane text, state pulse_internal.outcome, before timestamptz)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT
        p.lane,
        p.state,
        v_now - CASE p.state
            WHEN 'completed' THEN coalesce(l.retain_completed, d.retain_completed)
            WHEN 'cancelled' THEN coalesce(l.retain_cancelled, d.retain_cancelled)
            ELSE coalesce(l.retain_dead, d.retain_dead)
        END
    FROM unnest(retained_since.lanes, retained_since.states) AS p (lane, state)
    CROSS JOIN pulse_internal.lane_default AS d
    -- OFFSET 0 keeps it what it is: one look by key for each.
    LEFT JOIN LATERAL (
        SELECT o.retain_completed, o.retain_cancelled, o.retain_dead
        FROM pulse_internal.lane AS o
        WHERE o.lane = p.lane
        OFFSET 0
    ) AS l ON true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.retained_since(text [], pulse_internal.outcome []) IS
'Of each of these lanes, the time before which jobs that ended so may go.';

-- A page is what is looked at, gone or not, so that jobs whose keys still dedup cannot make
-- it long: those are kept, and go when their keys expire (prune_keys). next is where to go
-- on, NULL at the end; passed is how many were locked, or are still needed.
CREATE FUNCTION pulse_internal.prune_jobs(
    lane text,
    state pulse_internal.outcome,
    before timestamptz,
    since timestamptz,
    page integer,
    OUT removed integer,
    OUT kept integer,
    OUT passed integer,
    OUT next timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_seen integer;
    v_last timestamptz;
    v_rows tid [];
    v_keyed bigint [];
    v_free bigint [];
BEGIN
    -- One statement, so one snapshot: a row address seen here cannot be reused for
    -- another row before it is locked.
    WITH seen AS MATERIALIZED (
        SELECT
            o.ctid AS tid,
            o.finished_at,
            NOT o.keyed OR NOT EXISTS (
                SELECT 1
                FROM pulse_internal.job_key AS k
                WHERE k.job = o.job
                    AND k.expires_at > v_now
            ) AS goes
        FROM pulse_internal.finished AS o
        WHERE o.lane = prune_jobs.lane
            AND o.state = prune_jobs.state
            AND o.finished_at >= prune_jobs.since
            AND o.finished_at < prune_jobs.before
        ORDER BY o.finished_at
        LIMIT prune_jobs.page
    )

    SELECT
        count(*),
        count(*) FILTER (WHERE NOT s.goes),
        max(s.finished_at),
        array(
            SELECT f.ctid
            FROM pulse_internal.finished AS f
            WHERE f.ctid = ANY (array(SELECT g.tid FROM seen AS g WHERE g.goes))
            FOR UPDATE SKIP LOCKED
        )
    INTO v_seen, kept, v_last, v_rows
    FROM seen AS s;

    IF v_seen = prune_jobs.page THEN
        next := CASE
            WHEN v_last > prune_jobs.since THEN v_last
            ELSE v_last + interval '1 microsecond'
        END;
    END IF;

    v_keyed := array(
        SELECT f.job FROM pulse_internal.finished AS f WHERE f.ctid = ANY (v_rows) AND f.keyed
    );
    IF v_keyed <> '{}' THEN
        v_free := array(
            SELECT k.job
            FROM pulse_internal.job_key AS k
            WHERE k.job = ANY (v_keyed)
            FOR UPDATE SKIP LOCKED
        );
        -- A session is just taking the expired key over: the job goes another time.
        v_keyed := array(
            SELECT k.job
            FROM pulse_internal.job_key AS k
            WHERE k.job = ANY (v_keyed)
                AND k.job <> ALL (v_free)
        );
    END IF;

    removed := pulse_internal.forget_jobs(v_rows, v_keyed);
    passed := v_seen - kept - removed;
    DELETE FROM pulse_internal.job_key AS k
    WHERE k.job = ANY (v_free)
        AND k.job <> ALL (v_keyed);
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_jobs(
    text, pulse_internal.outcome, timestamptz, timestamptz, integer
) IS
'Look at a page of jobs of a lane that ended in this state before that time, and remove those that may go.';

-- Deleting from finished decides; exactly those bodies follow: by age of the body alone, a
-- retried job would lose it. What a job that may still run depends on stays.
CREATE FUNCTION pulse_internal.forget_jobs(rows_of_finished tid [], not_these bigint [] DEFAULT '{}')
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_rows tid [] := forget_jobs.rows_of_finished;
    v_jobs bigint [];
BEGIN
    -- A later statement than the lock, which an enqueue with after shares: those who depend
    -- on them are seen.
    IF (SELECT true FROM pulse_internal.dependency AS d ORDER BY d.job, d.after LIMIT 1) THEN
        v_rows := array(
            SELECT f.ctid
            FROM pulse_internal.finished AS f
            WHERE f.ctid = ANY (v_rows)
                AND pulse_internal.needed_by(f.job) IS NULL
        );
    END IF;

    WITH old AS (
        DELETE FROM pulse_internal.finished AS f
        WHERE f.ctid = ANY (v_rows)
            AND f.job <> ALL (forget_jobs.not_these)
        RETURNING f.job
    )

    SELECT array_agg(o.job) INTO v_jobs
    FROM old AS o;

    IF v_jobs IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM pulse_internal.body AS b WHERE b.job = ANY (v_jobs);
    DELETE FROM pulse_internal.failure AS x WHERE x.job = ANY (v_jobs);
    DELETE FROM pulse_internal.job_progress AS p WHERE p.job = ANY (v_jobs);
    DELETE FROM pulse_internal.job_checkpoint AS c WHERE c.job = ANY (v_jobs);
    DELETE FROM pulse_internal.dependency AS d WHERE d.job = ANY (v_jobs);
    DELETE FROM pulse_internal.job_step AS s WHERE s.job = ANY (v_jobs);
    DELETE FROM pulse_internal.signal_wait AS w WHERE w.job = ANY (v_jobs);
    RETURN cardinality(v_jobs);
END;
$$;

COMMENT ON FUNCTION pulse_internal.forget_jobs(tid [], bigint []) IS
'Delete these rows of finished, which the caller has locked, and all else of their jobs; returns how many.';

-- A job that was kept for its key alone goes with it: retention does not look again.
CREATE FUNCTION pulse_internal.prune_keys(max_keys integer, OUT keys integer, OUT jobs integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_jobs bigint [];
    v_rows tid [];
BEGIN
    WITH expired AS (
        DELETE FROM pulse_internal.job_key AS k
        WHERE k.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse_internal.job_key AS o
                WHERE o.expires_at < v_now
                ORDER BY o.expires_at
                LIMIT prune_keys.max_keys
                FOR UPDATE SKIP LOCKED
            ))
        RETURNING k.job
    )

    SELECT array_agg(e.job), count(*) INTO v_jobs, keys
    FROM expired AS e;

    jobs := 0;
    IF keys > 0 THEN
        WITH ended AS MATERIALIZED (
            SELECT f.ctid AS place, f.lane, f.state, f.finished_at
            FROM pulse_internal.finished AS f
            WHERE f.job = ANY (v_jobs)
        ),

        pair AS MATERIALIZED (
            SELECT r.lane, r.state, r.before
            FROM (
                SELECT array_agg(d.lane) AS lanes, array_agg(d.state) AS states
                FROM (SELECT DISTINCT e.lane, e.state FROM ended AS e) AS d
            ) AS p
            CROSS JOIN LATERAL pulse_internal.retained_since(p.lanes, p.states) AS r
        )

        SELECT
            array(
                SELECT f.ctid
                FROM pulse_internal.finished AS f
                WHERE f.ctid = ANY (array(
                        SELECT e.place
                        FROM ended AS e
                        INNER JOIN pair AS p ON p.lane = e.lane AND p.state = e.state
                        WHERE e.finished_at < p.before
                    ))
                FOR UPDATE SKIP LOCKED
            )
        INTO v_rows;
        -- As in prune_jobs: a later statement than the lock.
        jobs := pulse_internal.forget_jobs(array(
            SELECT f.ctid
            FROM pulse_internal.finished AS f
            WHERE f.ctid = ANY (v_rows)
                AND pulse_internal.needed_by(f.job) IS NULL
        ));
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_keys(integer) IS
'Remove unique keys whose unique_for is over, at most so many, oldest first, and jobs that were kept for them; returns how many of both.';

CREATE FUNCTION pulse_internal.prune_workers(max_workers integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_removed integer;
BEGIN
    DELETE FROM pulse_internal.worker AS w
    WHERE w.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse_internal.worker AS o
            WHERE o.seen_at < v_now - interval '1 day'
            LIMIT prune_workers.max_workers
            FOR UPDATE SKIP LOCKED
        ));
    GET DIAGNOSTICS v_removed = ROW_COUNT;
    RETURN v_removed;
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_workers(integer) IS
'Forget workers that have not reported for a day, at most so many; returns how many.';

-- Each lane and state that finished has, by jumping to its newest row: the oldest ones
-- are where pruned rows lie dead.
CREATE FUNCTION pulse_internal.finished_lanes(
    after_lane text DEFAULT NULL,
    after_state pulse_internal.outcome DEFAULT NULL,
    pairs integer DEFAULT NULL
)
RETURNS TABLE (lane text, state pulse_internal.outcome, before timestamptz)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE pair AS (
        (
            SELECT f.lane, f.state
            FROM pulse_internal.finished AS f
            WHERE finished_lanes.after_lane IS NULL
                AND f.lane > ''
            ORDER BY f.lane DESC, f.state DESC, f.finished_at DESC
            LIMIT 1
        )
        UNION ALL
        (
            SELECT f.lane, f.state
            FROM pulse_internal.finished AS f
            WHERE (f.lane, f.state) < (finished_lanes.after_lane, finished_lanes.after_state)
            ORDER BY f.lane DESC, f.state DESC, f.finished_at DESC
            LIMIT 1
        )
        UNION ALL
        SELECT n.lane, n.state
        FROM pair AS p
        CROSS JOIN LATERAL (
            SELECT f.lane, f.state
            FROM pulse_internal.finished AS f
            WHERE (f.lane, f.state) < (p.lane, p.state)
            ORDER BY f.lane DESC, f.state DESC, f.finished_at DESC
            LIMIT 1
        ) AS n
    ),

    page AS MATERIALIZED (
        SELECT p.lane, p.state
        FROM pair AS p
        LIMIT finished_lanes.pairs
    )

    SELECT r.*
    FROM pulse_internal.retained_since(
        array(SELECT p.lane FROM page AS p), array(SELECT p.state FROM page AS p)
    ) AS r;
END;
$$;

COMMENT ON FUNCTION pulse_internal.finished_lanes(text, pulse_internal.outcome, integer) IS
'Each lane and final state, or so many after the given one, the last first, with the time before which its jobs may go.';

CREATE FUNCTION pulse_internal.prune_audit(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_removed integer;
BEGIN
    DELETE FROM pulse_internal.audit_entry AS e
    WHERE e.entry = ANY (
        ARRAY(
            SELECT o.entry
            FROM pulse_internal.audit_entry AS o
            WHERE o.at < (SELECT clock_timestamp() - interval '90 days')
            ORDER BY o.at
            LIMIT prune_audit.max_rows
            FOR UPDATE SKIP LOCKED
        )
    );

    GET DIAGNOSTICS v_removed = ROW_COUNT;
    RETURN v_removed;
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_audit(integer) IS
'Remove audit entries older than 90 days, at most max_rows, oldest first; returns how many.';

CREATE FUNCTION pulse_internal.prune_schedule_runs(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_deleted integer;
BEGIN
    DELETE FROM pulse_internal.schedule_run AS r
    WHERE r.ctid = ANY (
        ARRAY(
            SELECT o.ctid
            FROM pulse_internal.schedule_run AS o
            WHERE o.handled_at < (SELECT clock_timestamp() - interval '90 days')
            ORDER BY o.handled_at
            LIMIT prune_schedule_runs.max_rows
            FOR UPDATE SKIP LOCKED
        )
    );
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_deleted;
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_schedule_runs(integer) IS
'Delete at most so many rows of the ledger that are older than 90 days.';

-- Lane by lane, by the primary key: a lane may be gone and leave samples.
-- After two days those of the first two minutes of each hour are enough. What is kept is not
-- read through each time: only the hours that have just become so old.
CREATE FUNCTION pulse_internal.prune_samples(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_thin timestamptz := clock_timestamp() - interval '48 hours';
    v_before timestamptz := clock_timestamp() - interval '8 days';
    v_lanes integer;
    v_kinds integer;
BEGIN
    DELETE FROM pulse_internal.sample AS t
    WHERE t.ctid = ANY (array(
            SELECT l.ctid
            FROM pulse_internal.sample AS l
            WHERE l.ctid = ANY (array(
                    WITH RECURSIVE sampled (lane) AS (
                        (
                            SELECT s.lane
                            FROM pulse_internal.sample AS s
                            ORDER BY s.lane
                            LIMIT 1
                        )
                        UNION ALL
                        SELECT
                            (
                                SELECT s.lane
                                FROM pulse_internal.sample AS s
                                WHERE s.lane > n.lane
                                ORDER BY s.lane
                                LIMIT 1
                            )
                        FROM sampled AS n
                        WHERE n.lane IS NOT NULL
                    )

                    SELECT o.ctid
                    FROM sampled AS n
                    CROSS JOIN LATERAL (
                        SELECT s.ctid
                        FROM pulse_internal.sample AS s
                        WHERE s.lane = n.lane
                            AND s.at < v_before
                        UNION ALL
                        SELECT s.ctid
                        FROM pulse_internal.sample AS s
                        WHERE s.lane = n.lane
                            AND s.at >= v_thin - interval '3 hours'
                            AND s.at < v_thin
                            AND extract(EPOCH FROM s.at)::bigint % 3600 >= 120
                    ) AS o
                    LIMIT prune_samples.max_rows
                ))
            FOR UPDATE SKIP LOCKED
        ));
    GET DIAGNOSTICS v_lanes = ROW_COUNT;

    DELETE FROM pulse_internal.depth AS t
    WHERE t.ctid = ANY (array(
            SELECT l.ctid
            FROM pulse_internal.depth AS l
            WHERE l.ctid = ANY (array(
                    WITH RECURSIVE sampled (kind) AS (
                        (
                            SELECT s.kind
                            FROM pulse_internal.depth AS s
                            ORDER BY s.kind
                            LIMIT 1
                        )
                        UNION ALL
                        SELECT
                            (
                                SELECT s.kind
                                FROM pulse_internal.depth AS s
                                WHERE s.kind > n.kind
                                ORDER BY s.kind
                                LIMIT 1
                            )
                        FROM sampled AS n
                        WHERE n.kind IS NOT NULL
                    )

                    SELECT o.ctid
                    FROM sampled AS n
                    CROSS JOIN LATERAL (
                        SELECT s.ctid
                        FROM pulse_internal.depth AS s
                        WHERE s.kind = n.kind
                            AND s.at < v_before
                        UNION ALL
                        SELECT s.ctid
                        FROM pulse_internal.depth AS s
                        WHERE s.kind = n.kind
                            AND s.at >= v_thin - interval '3 hours'
                            AND s.at < v_thin
                            AND extract(EPOCH FROM s.at)::bigint % 3600 >= 120
                    ) AS o
                    LIMIT prune_samples.max_rows
                ))
            FOR UPDATE SKIP LOCKED
        ));
    GET DIAGNOSTICS v_kinds = ROW_COUNT;
    RETURN greatest(v_lanes, v_kinds);
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_samples(integer) IS
'Thin samples out after 48 hours and remove them after 8 days, at most max_rows of lanes and of kinds; returns how many of one of them.';

CREATE FUNCTION pulse_internal.prune_signals(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_sort = off
AS $$
DECLARE
    -- A variable: the index cannot stop at clock_timestamp(), which is volatile.
    v_now timestamptz := clock_timestamp();
    v_removed integer;
BEGIN
    DELETE FROM pulse_internal.signal AS s
    WHERE s.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse_internal.signal AS o
            WHERE o.expires_at <= v_now
                AND o.undelivered_at IS NULL
            ORDER BY o.expires_at
            LIMIT prune_signals.max_rows
            FOR UPDATE SKIP LOCKED
        ));
    GET DIAGNOSTICS v_removed = ROW_COUNT;
    RETURN v_removed;
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_signals(integer) IS
'Remove signals whose keep is over, at most max_rows, oldest first; returns how many.';
