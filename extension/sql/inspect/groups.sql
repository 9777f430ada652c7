-- The groups of a lane, for who looks: within bounds, whatever there is.

CREATE FUNCTION pulse.groups(
    lane text, keys text [] DEFAULT NULL, max_groups integer DEFAULT 100
)
RETURNS TABLE (
    group_key text,
    state text,
    waiting bigint,
    running bigint,
    max_slots integer,
    held_by name,
    held_at timestamptz,
    reason text,
    rate integer,
    rate_per interval,
    free_at timestamptz
)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
BEGIN
    PERFORM pulse_internal.require_name('lane', groups.lane);
    PERFORM pulse_internal.require_range('groups', 'max_groups', groups.max_groups);
    PERFORM pulse_internal.require_range('groups', 'keys', cardinality(groups.keys));

    RETURN QUERY
    -- Key by key through the index, so that a long line is one step.
    WITH RECURSIVE in_line AS (
        (
            SELECT r.group_key AS key, 1 AS place
            FROM pulse_internal.ready AS r
            WHERE r.lane = groups.lane
                AND r.group_key IS NOT NULL
                AND groups.keys IS NULL
            ORDER BY r.group_key
            LIMIT 1
        )
        UNION ALL
        SELECT
            (
                SELECT r.group_key
                FROM pulse_internal.ready AS r
                WHERE r.lane = groups.lane
                    AND r.group_key IS NOT NULL
                    AND r.group_key > p.key
                ORDER BY r.group_key
                LIMIT 1
            ),
            p.place + 1
        FROM in_line AS p
        WHERE p.key IS NOT NULL
            AND p.place < groups.max_groups
    ),

    at_work AS MATERIALIZED (
        SELECT pulse_internal.group_of(b.group_key) COLLATE "C" AS key, count(*) AS jobs
        FROM (
            SELECT l.job
            FROM pulse_internal.lease AS l
            WHERE l.lane = groups.lane
            LIMIT 10000
        ) AS x
        INNER JOIN pulse_internal.body AS b ON b.job = x.job
        GROUP BY 1
    ),

    asked AS (
        SELECT u.key COLLATE "C" AS key
        FROM unnest(groups.keys) AS u (key)
        WHERE u.key IS NOT NULL
        UNION
        SELECT i.key
        FROM in_line AS i
        WHERE i.key IS NOT NULL
        UNION
        SELECT w.key
        FROM at_work AS w
        WHERE groups.keys IS NULL
        UNION
        (
            SELECT r.group_key
            FROM pulse_internal.group_rule AS r
            WHERE r.lane = groups.lane
                AND groups.keys IS NULL
            ORDER BY r.enabled, r.group_key
            LIMIT 1000
        )
    ),

    judged AS (
        SELECT
            a.key,
            coalesce(w.jobs, 0) AS running,
            CASE WHEN a.key <> '' THEN coalesce(r.max_slots, l.group_slots) END AS max_slots,
            coalesce(r.enabled, true) AS enabled,
            r.held_by,
            r.held_at,
            r.reason,
            CASE WHEN a.key <> '' THEN coalesce(r.rate, l.group_rate) END AS rate,
            coalesce(r.rate_per, l.group_rate_per) AS rate_per
        FROM asked AS a
        LEFT JOIN at_work AS w ON w.key = a.key
        LEFT JOIN pulse_internal.lane AS l ON l.lane = groups.lane
        LEFT JOIN pulse_internal.group_rule AS r ON r.lane = groups.lane AND r.group_key = a.key
    )

    SELECT
        j.key::text,
        CASE
            WHEN NOT j.enabled THEN 'held'
            WHEN j.running >= j.max_slots THEN 'full'
            WHEN n.waiting > 0 AND f.free_at IS NOT NULL THEN 'rate'
            WHEN n.waiting > 0 THEN 'waiting'
            WHEN j.running > 0 THEN 'running'
            ELSE 'idle'
        END AS condition,
        n.waiting, j.running, j.max_slots, j.held_by, j.held_at, j.reason,
        j.rate, CASE WHEN j.rate IS NOT NULL THEN j.rate_per END, f.free_at
    FROM judged AS j
    CROSS JOIN LATERAL (
        SELECT count(*) AS waiting
        FROM (
            SELECT
            FROM pulse_internal.ready AS r
            WHERE r.lane = groups.lane
                AND r.group_key IS NOT NULL
                AND r.group_key = j.key
            LIMIT 1001
        ) AS capped
    ) AS n
    LEFT JOIN LATERAL (
        SELECT o.free_at
        FROM (
            SELECT s.starts
            FROM pulse_internal.group_state AS s
            WHERE s.lane = groups.lane
                AND s.group_key = j.key
            ORDER BY s.version DESC
            LIMIT 1
        ) AS s
        CROSS JOIN LATERAL pulse_internal.free_starts(
            s.starts, j.rate, j.rate_per, clock_timestamp()
        ) AS o
        WHERE j.rate IS NOT NULL
    ) AS f ON true
    ORDER BY
        j.enabled, j.running >= j.max_slots DESC NULLS LAST,
        n.waiting > 0 AND f.free_at IS NOT NULL DESC, n.waiting DESC, j.running DESC, j.key
    LIMIT groups.max_groups;
END;
$$;

COMMENT ON FUNCTION pulse.groups(text, text [], integer) IS
'Groups of a lane with fair or group_slots: those that are held by set_group first, then those at their slots, those whose rate is used up, then by how many jobs wait (1001: more than a thousand). state is held, full, rate (its rate is used up until free_at), waiting, running or idle; max_slots NULL is no limit. Looks at the first max_groups groups that have jobs in line, at those that run and at those with a rule, or only at those of keys. The group of the jobs without a key is ''''. PU002 a bad lane name, more than 1,000 groups or keys. Writes nothing.';
