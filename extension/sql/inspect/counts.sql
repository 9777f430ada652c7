-- How many jobs are in each state, without reading all of them.

CREATE FUNCTION pulse.counts()
RETURNS TABLE (state text, jobs bigint, more boolean)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT 'blocked', count(*), count(*) = 10000
    FROM (
        SELECT
        FROM pulse_internal.blocked AS b
        ORDER BY b.job DESC
        LIMIT 10000
    ) AS c;

    RETURN QUERY
    SELECT 'awaiting_approval', count(*), count(*) = 10000
    FROM (
        SELECT
        FROM pulse_internal.approval AS a
        ORDER BY a.job DESC
        LIMIT 10000
    ) AS c;

    RETURN QUERY
    SELECT s.state, s.jobs, s.more
    FROM (
        SELECT
            count(*) FILTER (WHERE NOT w.retrying) AS scheduled,
            count(*) FILTER (WHERE w.retrying) AS retrying,
            count(*) = 10000 AS more
        FROM (
            SELECT x.retrying
            FROM pulse_internal.waiting AS x
            ORDER BY x.job DESC
            LIMIT 10000
        ) AS w
    ) AS c
    CROSS JOIN LATERAL (
        VALUES ('scheduled', c.scheduled, c.more), ('retrying', c.retrying, c.more)
    ) AS s (state, jobs, more);

    RETURN QUERY
    SELECT 'ready', least(count(*), 10000), count(*) >= 10000
    FROM (
        SELECT
        FROM pulse_internal.ready AS r
        ORDER BY r.job DESC
        LIMIT 10000
    ) AS c;

    RETURN QUERY
    SELECT 'running', count(*), count(*) = 10000
    FROM (
        SELECT
        FROM pulse_internal.lease AS l
        ORDER BY l.job DESC
        LIMIT 10000
    ) AS c;

    RETURN QUERY
    SELECT 'completed', count(*) FILTER (WHERE c.state = 'completed'), count(*) = 10000
    FROM (
        SELECT f.state
        FROM pulse_internal.finished AS f
        ORDER BY f.job DESC
        LIMIT 10000
    ) AS c;

    RETURN QUERY
    SELECT 'dead', coalesce(sum(d.jobs), 0)::bigint, coalesce(bool_or(d.estimated), false)
    FROM pulse_internal.dead_counts() AS d;

    RETURN QUERY
    SELECT 'cancelled', count(*) FILTER (WHERE c.state = 'cancelled'), count(*) = 10000
    FROM (
        SELECT f.state
        FROM pulse_internal.finished AS f
        WHERE f.state <> 'completed'
        ORDER BY f.job DESC
        LIMIT 10000
    ) AS c;
END;
$$;

COMMENT ON FUNCTION pulse.counts() IS
'How many jobs are in each state, counted among the newest 10,000 of a table, dead ones up to 100,000 and estimated beyond; more says that there are more than were looked at. Writes nothing.';
