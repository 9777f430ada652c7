-- Figures of this moment that no other view has: for Prometheus, and for whoever graphs. Each
-- is read off an index, from as many rows as there are lanes; dead letters are counted.

CREATE FUNCTION pulse.gauges()
RETURNS TABLE (gauge text, label text, value double precision)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT 'dead', d.lane, d.jobs::double precision
    FROM pulse_internal.dead_counts() AS d;

    -- Of each lane and state the oldest job: what is older than it may be.
    RETURN QUERY
    SELECT
        'retention_lag_seconds', NULL::text,
        greatest(coalesce(max(date_part('epoch', p.before - o.finished_at)), 0), 0)
    FROM pulse_internal.finished_lanes() AS p
    CROSS JOIN LATERAL (
        SELECT f.finished_at
        FROM pulse_internal.finished AS f
        WHERE f.lane = p.lane
            AND f.state = p.state
        ORDER BY f.finished_at
        LIMIT 1
    ) AS o;

    RETURN QUERY
    SELECT 'workers', l.lane, count(*)::double precision
    FROM pulse.workers AS w
    CROSS JOIN LATERAL unnest(w.lanes) AS l (lane)
    WHERE w.live
    GROUP BY l.lane;

    RETURN QUERY
    SELECT
        'schedule_lag_seconds', NULL::text,
        greatest(coalesce(max(date_part('epoch', v_now - s.next_at)), 0), 0)
    FROM pulse_internal.schedule AS s
    WHERE s.paused_at IS NULL;

    -- A tick that never came is as old as the installation may be: without end.
    RETURN QUERY
    SELECT
        'tick_age_seconds', NULL::text,
        CASE
            WHEN t.taken_at IS NULL THEN 'infinity'
            ELSE greatest(date_part('epoch', v_now - t.taken_at), 0)
        END
    FROM (
        SELECT
            greatest(
                (pulse_internal.newest_upkeep_run('due')).taken_at,
                (pulse_internal.newest_upkeep_run('sweep')).taken_at
            ) AS taken_at
    ) AS t;

    RETURN QUERY
    SELECT 'tick_seconds', t.part, t.seconds::double precision
    FROM jsonb_each_text((pulse_internal.newest_upkeep_run('took')).state) AS t (part, seconds);

    RETURN QUERY
    SELECT
        'oldest_snapshot_seconds', NULL::text,
        coalesce(max(date_part('epoch', v_now - x.held_since)), 0)
    FROM (
        SELECT a.xact_start AS held_since
        FROM pg_stat_activity AS a
        WHERE a.backend_xmin IS NOT NULL
            AND a.pid <> pg_backend_pid()
            AND coalesce(a.datname, current_database()) = current_database()
        UNION ALL
        SELECT p.prepared
        FROM pg_prepared_xacts AS p
        WHERE p.database = current_database()
    ) AS x;

    RETURN QUERY
    SELECT
        'oldest_producer_seconds', NULL::text,
        coalesce(max(date_part('epoch', o.held_for)), 0)
    FROM pulse_internal.open_producers() AS o;
END;
$$;

COMMENT ON FUNCTION pulse.gauges() IS
'Figures of this moment: dead (letters, by lane; counted up to 1,000 in each lane and 100,000 in all, estimated beyond), workers (live ones, by lane), retention_lag_seconds (how much older than its retention the oldest job is), schedule_lag_seconds (how late the latest schedule is), tick_age_seconds (since the last tick), tick_seconds (how long each part of tick took), oldest_snapshot_seconds (for how long vacuum has been held back, as far as the owner of pulse may see), oldest_producer_seconds (for how long a transaction that has put a job into a lane has been open). Writes nothing.';
