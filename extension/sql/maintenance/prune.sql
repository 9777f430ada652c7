-- prune: retention. It deletes finished jobs, unique keys and records that are old enough.
--
-- prune deletes finished jobs by the retention of their lane and state, unique keys when their
-- unique_for is over, and workers after a day of silence. tick alone deletes the audit and the run
-- history of schedules after 90 days (prune_rows) and expired signals (flows/signals.sql), and
-- thins out counters (stats/stats.sql). maintenance/prune_walk.sql says which lanes tick visits.
--
-- The delete from finished decides that a job goes; the rows of its other tables follow. Their own
-- age never counts, because a retried job still needs its old payload. Two kinds of jobs stay: a
-- job whose unique key still counts goes with its key, and a job that an unfinished one depends on
-- goes after that one.
--
-- Locks: rows of finished and of job_key, in either order, always SKIP LOCKED: retention waits for
-- no session. A locked row stays for a later call.

CREATE FUNCTION pulse.prune(dry_run boolean DEFAULT false, max_jobs integer DEFAULT 10000)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- NULL counts as a dry run.
    v_dry_run boolean := coalesce(prune.dry_run, true);
    v_now timestamptz := clock_timestamp();
    v_pair record;
    v_page record;
    v_next timestamptz;
    v_count bigint;
    v_all bigint := 0;
BEGIN
    PERFORM pulse_internal.require_read_committed('prune');
    PERFORM pulse_internal.require_range('prune', 'max_jobs', coalesce(prune.max_jobs, 0));

    FOR v_pair IN SELECT p.* FROM pulse_internal.finished_lanes() AS p LOOP
        EXIT WHEN v_all >= prune.max_jobs;
        IF v_dry_run THEN
            SELECT count(*) INTO v_count
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
            v_all := v_all + v_count;
        ELSE
            v_next := '-infinity';
            LOOP
                SELECT p.* INTO v_page
                FROM pulse_internal.prune_jobs(
                    v_pair.lane, v_pair.state, v_pair.before, v_next,
                    least(1000, prune.max_jobs - v_all)::integer
                ) AS p;
                v_all := v_all + v_page.removed;
                v_next := v_page.next;
                EXIT WHEN v_next IS NULL OR v_all >= prune.max_jobs;
            END LOOP;
        END IF;
    END LOOP;

    IF NOT v_dry_run THEN
        SELECT v_all + k.jobs INTO v_all
        FROM pulse_internal.prune_keys((prune.max_jobs - v_all)::integer) AS k;
        PERFORM pulse_internal.prune_rows(
            'pulse_internal.worker', 'seen_at', '1 day', prune.max_jobs
        );
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse.prune(boolean, integer) IS
'Delete finished jobs that are older than the retention of their lane, with all that belongs to them, expired unique keys and workers that have been silent for a day. Returns how many jobs. tick does this every 10 seconds, and goes on while there is more to delete.

- dry_run: only count, without the jobs that go with expired keys. NULL counts as true.
- max_jobs: delete or count at most so many.

Errors: PU001 above READ COMMITTED, PU002 bad max_jobs.';

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
    FROM pulse_internal.retention_cutoffs(
        array(SELECT p.lane FROM page AS p), array(SELECT p.state FROM page AS p)
    ) AS r;
END;
$$;

COMMENT ON FUNCTION pulse_internal.finished_lanes(text, pulse_internal.outcome, integer) IS
'Each lane and final state that finished has, the last first, with the time before which its jobs may go; or so many after the given one. It jumps to the newest row of each: dead rows of pruned jobs are at the oldest.';

CREATE FUNCTION pulse_internal.retention_cutoffs(lanes text [], states pulse_internal.outcome [])
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
    FROM unnest(retention_cutoffs.lanes, retention_cutoffs.states) AS p (lane, state)
    CROSS JOIN pulse_internal.lane_default AS d
    -- OFFSET 0 keeps the planner from making a join of it: one lookup by key for each.
    LEFT JOIN LATERAL (
        SELECT o.retain_completed, o.retain_cancelled, o.retain_dead
        FROM pulse_internal.lane AS o
        WHERE o.lane = p.lane
        OFFSET 0
    ) AS l ON true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.retention_cutoffs(text [], pulse_internal.outcome []) IS
'For each of these lanes and final states, the time before which its jobs may go.';

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
    v_jobs_with_key bigint [];
    v_jobs_of_locked_keys bigint [];
    v_jobs_of_busy_keys bigint [];
BEGIN
    -- Read a page, and lock those of its jobs that are not kept for their keys. This is one
    -- statement, so one snapshot: a row address that it has read cannot be reused for another row
    -- before it is locked.
    WITH seen AS MATERIALIZED (
        SELECT
            o.ctid AS tid,
            o.finished_at,
            NOT o.keyed OR NOT EXISTS (
                SELECT 1
                FROM pulse_internal.job_key AS k
                WHERE k.job = o.job
                    AND k.expires_at > v_now
            ) AS may_go
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
        count(*) FILTER (WHERE NOT s.may_go),
        max(s.finished_at),
        array(
            SELECT f.ctid
            FROM pulse_internal.finished AS f
            WHERE f.ctid = ANY (array(SELECT g.tid FROM seen AS g WHERE g.may_go))
            FOR UPDATE SKIP LOCKED
        )
    INTO v_seen, kept, v_last, v_rows
    FROM seen AS s;

    -- Step past a full page of one moment, or it would be read again and again. Jobs of that
    -- moment that are left over wait for a later walk.
    IF v_seen = prune_jobs.page THEN
        next := CASE
            WHEN v_last > prune_jobs.since THEN v_last
            ELSE v_last + interval '1 microsecond'
        END;
    END IF;

    -- Lock the expired keys of these jobs. Where another session is just taking over an expired
    -- key, the job stays for now.
    v_jobs_with_key := array(
        SELECT f.job FROM pulse_internal.finished AS f WHERE f.ctid = ANY (v_rows) AND f.keyed
    );
    IF v_jobs_with_key <> '{}' THEN
        v_jobs_of_locked_keys := array(
            SELECT k.job
            FROM pulse_internal.job_key AS k
            WHERE k.job = ANY (v_jobs_with_key)
            FOR UPDATE SKIP LOCKED
        );
        v_jobs_of_busy_keys := array(
            SELECT k.job
            FROM pulse_internal.job_key AS k
            WHERE k.job = ANY (v_jobs_with_key)
                AND k.job <> ALL (v_jobs_of_locked_keys)
        );
        IF v_jobs_of_busy_keys <> '{}' THEN
            v_rows := array(
                SELECT f.ctid
                FROM pulse_internal.finished AS f
                WHERE f.ctid = ANY (v_rows)
                    AND f.job <> ALL (v_jobs_of_busy_keys)
            );
        END IF;
    END IF;

    removed := pulse_internal.forget_jobs(v_rows);
    passed := v_seen - kept - removed;
    -- The keys are expired, so they go even where the job stays.
    DELETE FROM pulse_internal.job_key AS k
    WHERE k.job = ANY (v_jobs_of_locked_keys);
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_jobs(
    text, pulse_internal.outcome, timestamptz, timestamptz, integer
) IS
'Read a page of jobs of a lane that ended in this state between since and before, and delete those that may go. Returns how many it has removed, how many are kept for their unique keys, how many were locked or are needed by a dependent, and where to go on (NULL at the end). A page counts all jobs that were read, so kept ones cannot make it long.';

CREATE FUNCTION pulse_internal.forget_jobs(rows_of_finished tid [])
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
    -- An enqueue with after locks its finished upstreams FOR KEY SHARE. This is a later statement
    -- than the one that took the lock, so it sees the dependents that were committed until then.
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

COMMENT ON FUNCTION pulse_internal.forget_jobs(tid []) IS
'Delete these rows of finished, which the caller has locked, and all that belongs to their jobs, unless an unfinished job depends on them. Returns how many.';

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
        -- The jobs that were kept for these keys alone.
        jobs := pulse_internal.forget_jobs((
            WITH ended AS MATERIALIZED (
                SELECT f.ctid AS tid, f.lane, f.state, f.finished_at
                FROM pulse_internal.finished AS f
                WHERE f.job = ANY (v_jobs)
            ),

            cutoff AS MATERIALIZED (
                SELECT c.lane, c.state, c.before
                FROM (
                    SELECT array_agg(d.lane) AS lanes, array_agg(d.state) AS states
                    FROM (SELECT DISTINCT e.lane, e.state FROM ended AS e) AS d
                ) AS p
                CROSS JOIN LATERAL pulse_internal.retention_cutoffs(p.lanes, p.states) AS c
            )

            SELECT
                array(
                    SELECT f.ctid
                    FROM pulse_internal.finished AS f
                    WHERE f.ctid = ANY (array(
                            SELECT e.tid
                            FROM ended AS e
                            INNER JOIN cutoff AS c ON c.lane = e.lane AND c.state = e.state
                            WHERE e.finished_at < c.before
                        ))
                    FOR UPDATE SKIP LOCKED
                )
        ));
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_keys(integer) IS
'Delete unique keys whose unique_for is over, at most so many, the oldest first, and the jobs that were kept for them: retention does not look at those again. Returns how many of both.';

CREATE FUNCTION pulse_internal.prune_rows(
    table_name regclass, time_column name, keep interval, max_rows integer
)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_sort = off
AS $$
DECLARE
    v_deleted integer;
BEGIN
    EXECUTE format(
        'DELETE FROM %1$s AS t
        WHERE t.ctid = ANY (array(
                SELECT o.ctid
                FROM %1$s AS o
                WHERE o.%2$I < $1
                ORDER BY o.%2$I
                LIMIT $2
                FOR UPDATE SKIP LOCKED
            ))',
        prune_rows.table_name, prune_rows.time_column
    )
    USING clock_timestamp() - prune_rows.keep, prune_rows.max_rows;
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_deleted;
END;
$$;

COMMENT ON FUNCTION pulse_internal.prune_rows(regclass, name, interval, integer) IS
'Delete rows of a table whose time is longer ago than keep, at most so many, the oldest first. Returns how many.';
