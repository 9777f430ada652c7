-- From the totals of each kind: the newest, and the last one before that time.
CREATE FUNCTION pulse.failing_kinds(since interval DEFAULT '15 minutes')
RETURNS TABLE (kind text, failed bigint, started bigint, dead bigint)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_from timestamptz;
BEGIN
    PERFORM pulse._require_duration('since', failing_kinds.since, '1 minute', '400 days');
    v_from := clock_timestamp() - coalesce(failing_kinds.since, '15 minutes');

    RETURN QUERY
    WITH RECURSIVE known (kind) AS (
        (
            SELECT s.kind
            FROM pulse.stat AS s
            WHERE s.total
                AND s.lane = ''
                AND s.kind > ''
            ORDER BY s.kind
            LIMIT 1
        )
        UNION ALL
        SELECT n.kind
        FROM known AS k
        CROSS JOIN LATERAL (
            SELECT s.kind
            FROM pulse.stat AS s
            WHERE s.total
                AND s.lane = ''
                AND s.kind > k.kind
            ORDER BY s.kind
            LIMIT 1
        ) AS n
    ),

    happened AS (
        SELECT
            k.kind,
            n.failed - coalesce(o.failed, 0) AS failed,
            n.started - coalesce(o.started, 0) AS started,
            n.dead - coalesce(o.dead, 0) AS dead
        FROM known AS k
        CROSS JOIN LATERAL (
            SELECT s.*
            FROM pulse.stat AS s
            WHERE s.total
                AND s.lane = ''
                AND s.kind = k.kind
            ORDER BY s.at DESC
            LIMIT 1
        ) AS n
        LEFT JOIN LATERAL (
            SELECT s.*
            FROM pulse.stat AS s
            WHERE s.total
                AND s.lane = ''
                AND s.kind = k.kind
                AND s.at <= v_from
            ORDER BY s.at DESC
            LIMIT 1
        ) AS o ON true
        WHERE n.at > v_from
    )

    SELECT h.kind::text, h.failed, h.started, h.dead
    FROM happened AS h
    WHERE h.failed >= 3
        AND h.failed * 20 >= h.started
    ORDER BY h.failed DESC, h.kind;
END;
$$;

COMMENT ON FUNCTION pulse.failing_kinds(interval) IS
'Kinds of which three runs or more failed lately, and one in twenty or more: how many failed and began, and how many jobs died; the most failures first. PU002 since outside the bounds. Writes nothing.';
