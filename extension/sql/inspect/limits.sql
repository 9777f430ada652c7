-- Every limit of lanes and groups.

-- Every limit that set_lane, set_kind and set_group made, and of groups those that hold one
-- now. A group that is held runs something, waits for a start or was stopped.
CREATE FUNCTION pulse_internal.limits()
RETURNS TABLE (
    scope text, lane text, kind text, group_key text, what text, allowed integer, per interval,
    used bigint, free_at timestamptz, waiting bigint
)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    WITH running AS MATERIALIZED (
        SELECT e.lane, count(*) AS jobs FROM pulse_internal.lease AS e GROUP BY e.lane
    )

    SELECT
        'lane', l.lane, NULL, NULL, 'slots', l.max_slots, NULL::interval, coalesce(r.jobs, 0),
        NULL::timestamptz, NULL::bigint
    FROM pulse_internal.lane AS l
    LEFT JOIN running AS r ON r.lane = l.lane
    WHERE l.max_slots IS NOT NULL
    UNION ALL
    SELECT
        'lane', l.lane, NULL, NULL, 'rate', l.rate, l.rate_per, l.rate - f.free, f.free_at, NULL
    FROM pulse_internal.lane AS l
    CROSS JOIN LATERAL pulse_internal.free_starts(
        (pulse_internal.newest_quota(l.lane, '')).starts, l.rate, l.rate_per, clock_timestamp()
    ) AS f
    WHERE l.rate IS NOT NULL
    UNION ALL
    SELECT
        'kind', NULL, k.kind, NULL, 'rate', k.rate, k.rate_per, k.rate - f.free, f.free_at, NULL
    FROM pulse_internal.kind AS k
    CROSS JOIN LATERAL pulse_internal.free_starts(
        (pulse_internal.newest_quota('', k.kind)).starts, k.rate, k.rate_per, clock_timestamp()
    ) AS f
    WHERE k.rate IS NOT NULL
    UNION ALL
    SELECT 'each group', l.lane, NULL, NULL, w.what, w.allowed, w.per, NULL, NULL, NULL
    FROM pulse_internal.lane AS l
    CROSS JOIN LATERAL (
        VALUES
        (CASE WHEN l.in_order THEN 'order' ELSE 'slots' END, l.group_slots, NULL::interval),
        ('rate', l.group_rate, l.group_rate_per)
    ) AS w (what, allowed, per)
    WHERE l.grouped
        AND w.allowed IS NOT NULL
    UNION ALL
    SELECT
        'group', g.lane, NULL, g.group_key, w.what, w.allowed, w.per, w.used, w.free_at, n.waiting
    FROM (
        SELECT a.lane, a.group_key FROM pulse_internal.group_rule AS a
        UNION
        SELECT b.lane, b.group_key FROM pulse_internal.lease AS b WHERE b.group_key IS NOT NULL
        UNION
        SELECT c.lane, c.group_key
        FROM pulse_internal.group_state AS c
        WHERE c.wake_at IS NOT NULL
            AND c.rank IS NOT NULL
    ) AS g
    INNER JOIN pulse_internal.lane AS l ON l.lane = g.lane AND l.grouped
    LEFT JOIN pulse_internal.group_rule AS q ON q.lane = g.lane AND q.group_key = g.group_key
    LEFT JOIN LATERAL (
        SELECT o.jobs, o.starts
        FROM pulse_internal.group_state AS o
        WHERE o.lane = g.lane
            AND o.group_key = g.group_key
        ORDER BY o.version DESC
        LIMIT 1
    ) AS s ON true
    CROSS JOIN LATERAL (
        SELECT
            CASE WHEN l.in_order THEN 'order' ELSE 'slots' END,
            CASE WHEN l.in_order THEN 1 ELSE coalesce(q.max_slots, l.group_slots) END,
            NULL::interval,
            (
                SELECT count(*)
                FROM pulse_internal.lease AS e
                WHERE e.job = ANY (s.jobs) AND e.lane = g.lane
            ),
            NULL::timestamptz,
            q.max_slots IS NOT NULL
        UNION ALL
        SELECT
            'rate', coalesce(q.rate, l.group_rate), coalesce(q.rate_per, l.group_rate_per),
            coalesce(q.rate, l.group_rate) - f.free, f.free_at, q.rate IS NOT NULL
        FROM pulse_internal.free_starts(
            s.starts, coalesce(q.rate, l.group_rate),
            coalesce(q.rate_per, l.group_rate_per), clock_timestamp()
        ) AS f
        UNION ALL
        SELECT 'stopped', 0, NULL, 0, NULL, true
        WHERE NOT q.enabled
    ) AS w (what, allowed, per, used, free_at, own)
    CROSS JOIN LATERAL (
        SELECT count(*) AS waiting
        FROM (
            SELECT
            FROM pulse_internal.ready AS r
            WHERE r.lane = g.lane
                AND r.group_key = g.group_key
                AND r.group_key IS NOT NULL
            LIMIT 1000
        ) AS r
    ) AS n
    WHERE w.own
        OR w.used >= w.allowed AND n.waiting > 0
$$;

COMMENT ON FUNCTION pulse_internal.limits() IS
'What the view limits shows.';

CREATE VIEW pulse.limits
WITH (security_barrier)
AS
SELECT
    l.scope, l.lane, l.kind, l.group_key, l.what, l.allowed, l.per, l.used, l.free_at, l.waiting
FROM pulse_internal.limits() AS l;

COMMENT ON VIEW pulse.limits IS
'Every limit of lanes, kinds and groups, and the groups that one holds now.';

COMMENT ON COLUMN pulse.limits.scope IS
'lane, kind (in all lanes), each group (of the lane), or group (one that has a limit of its own, or is held by one).';

COMMENT ON COLUMN pulse.limits.lane IS
'The lane; none where the limit is of a kind.';

COMMENT ON COLUMN pulse.limits.kind IS
'The kind, where the limit is of one.';

COMMENT ON COLUMN pulse.limits.group_key IS
'The group, where the limit is of one.';

COMMENT ON COLUMN pulse.limits.what IS
'slots, order, rate, or stopped (by set_group).';

COMMENT ON COLUMN pulse.limits.allowed IS
'How many jobs may run at once, or start in a period.';

COMMENT ON COLUMN pulse.limits.per IS
'The period of a rate.';

COMMENT ON COLUMN pulse.limits.used IS
'How many run, or started in the period that ends now.';

COMMENT ON COLUMN pulse.limits.free_at IS
'When a rate that is used up has a start again.';

COMMENT ON COLUMN pulse.limits.waiting IS
'How many jobs of the group stand in line, counted up to 1000.';
