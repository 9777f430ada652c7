-- What keeps the jobs of a lane from being claimed: for why and health.

-- What keeps any job of a lane from being claimed, whatever the job.
CREATE FUNCTION pulse._lane_holds(lane text)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT
        format(
            '%s by %s%s since %s (%s), held by role %s',
            CASE
                WHEN h.lane = '' THEN 'everything is paused'
                WHEN h.holder = 'drain' THEN format('lane %s is drained', h.lane)
                ELSE format('lane %s is paused', h.lane)
            END,
            h.holder,
            coalesce(': ' || nullif(h.reason, '') || ',', ''),
            to_char(h.held_at, 'YYYY-MM-DD HH24:MI:SS TZ'),
            pulse._duration(clock_timestamp() - h.held_at),
            h.held_by
        )
    FROM pulse.hold AS h
    WHERE h.lane IN ('', _lane_holds.lane)
    ORDER BY h.lane, h.held_at, h.holder;

    RETURN QUERY
    SELECT format('lane %s is disabled: set_lane(%L, enabled => true)', l.lane, l.lane)
    FROM pulse.lane AS l
    WHERE l.lane = _lane_holds.lane
        AND NOT l.enabled;
END;
$$;

COMMENT ON FUNCTION pulse._lane_holds(text) IS
'In words: every pause, drain or setting that keeps a lane from being claimed.';

CREATE FUNCTION pulse._lane_obstacles(lane text)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT pulse._lane_holds(_lane_obstacles.lane);

    RETURN QUERY
    SELECT
        format(
            'claims are kept out by %s, which is no call of pulse: %s',
            f.holder, pulse._foreign_lock_remedy(f.pid)
        )
    FROM pulse._foreign_locks() AS f
    WHERE f.class = 'pulse.hold'::regclass AND f.key = 0 AND f.exclusive
        OR f.class = 'pulse.lane'::regclass
        AND f.key = hashtext(_lane_obstacles.lane)
        AND f.exclusive
        -- One for each bank of slots.
        OR f.class = 'pulse.roster'::regclass
        AND f.key & -8 = hashtext(_lane_obstacles.lane) & -8;
END;
$$;

COMMENT ON FUNCTION pulse._lane_obstacles(text) IS
'In words: what keeps a lane from being claimed: pauses, drains, settings, and locks that are no call of pulse.';

CREATE FUNCTION pulse._slot_obstacle(lane text)
RETURNS SETOF text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        format(
            'lane %s has %s of %s slots in use, by %s%s',
            s.lane, u.used, s.max_slots,
            array_to_string(u.workers [1:5], ', '),
            CASE WHEN cardinality(u.workers) > 5 THEN ' and others' ELSE '' END
        )
    FROM pulse.lane AS s
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS used,
            array_agg(DISTINCT l.worker) AS workers
        FROM pulse.lease AS l
        WHERE l.lane = s.lane
    ) AS u
    WHERE s.lane = _slot_obstacle.lane
        AND u.used >= s.max_slots
$$;

COMMENT ON FUNCTION pulse._slot_obstacle(text) IS
'In words: that all slots of a lane are in use, and by whom; nothing when one is free.';

CREATE FUNCTION pulse._worker_obstacle(lane text, kind text)
RETURNS SETOF text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE
            WHEN count(*) = 0
                THEN format(
                    'no live worker takes lane %s (none said hello or runs a job of it in 2 min)',
                    _worker_obstacle.lane
                )
            ELSE format(
                'no live worker takes kind %s: the %s of lane %s take other kinds',
                _worker_obstacle.kind, count(*), _worker_obstacle.lane
            )
        END
    FROM pulse._live_workers(_worker_obstacle.lane) AS w
    HAVING count(*) FILTER (
        WHERE w.kinds IS NULL OR _worker_obstacle.kind = ANY (w.kinds)
    ) = 0
$$;

COMMENT ON FUNCTION pulse._worker_obstacle(text, text) IS
'In words: that no live worker takes a lane or a kind of it; nothing when one does.';

CREATE FUNCTION pulse._live_workers(lane text)
RETURNS TABLE (worker text, kinds text [])
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        w.worker,
        w.kinds
    FROM pulse.workers AS w
    WHERE w.live
        AND _live_workers.lane = ANY (w.lanes)
$$;

COMMENT ON FUNCTION pulse._live_workers(text) IS
'The live workers of a lane, and their kinds (NULL is every kind).';

CREATE FUNCTION pulse._duration(duration interval)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE
            WHEN e.seconds < 10 THEN format('%s s', round(e.seconds, 1))
            WHEN e.seconds < 120 THEN format('%s s', floor(e.seconds))
            WHEN e.seconds < 7200 THEN format('%s min', floor(e.seconds / 60))
            WHEN e.seconds < 172800 THEN format('%s h', floor(e.seconds / 3600))
            ELSE format('%s days', floor(e.seconds / 86400))
        END
    FROM (
        SELECT greatest(extract(EPOCH FROM _duration.duration)::numeric, 0) AS seconds
    ) AS e
    WHERE _duration.duration IS NOT NULL
$$;

COMMENT ON FUNCTION pulse._duration(interval) IS
'An interval in few words, as people say it.';
