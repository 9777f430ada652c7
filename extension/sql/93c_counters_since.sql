-- The newest of each series and the last one before that time: two looks for each, however
-- many minutes lie between them.
CREATE FUNCTION pulse.counters_since(since interval DEFAULT '1 hour')
RETURNS TABLE (
    lane text,
    kind text,
    at timestamptz,
    enqueued bigint,
    started bigint,
    completed bigint,
    failed bigint,
    dead bigint,
    retried bigint,
    cancelled bigint,
    reaped bigint,
    wait_seconds double precision,
    wait_counts bigint [],
    run_seconds double precision,
    run_counts bigint []
)
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
    PERFORM pulse._require_duration('since', counters_since.since, '1 minute', '400 days');
    v_from := clock_timestamp() - coalesce(counters_since.since, '1 hour');

    RETURN QUERY
    SELECT
        n.lane,
        n.kind,
        n.at,
        n.enqueued - coalesce(o.enqueued, 0),
        n.started - coalesce(o.started, 0),
        n.completed - coalesce(o.completed, 0),
        n.failed - coalesce(o.failed, 0),
        n.dead - coalesce(o.dead, 0),
        n.retried - coalesce(o.retried, 0),
        n.cancelled - coalesce(o.cancelled, 0),
        n.reaped - coalesce(o.reaped, 0),
        n.wait_seconds - coalesce(o.wait_seconds, 0),
        array(
            SELECT u.jobs - coalesce(u.before, 0)
            FROM unnest(n.wait_counts, o.wait_counts) WITH ORDINALITY AS u (jobs, before, place)
            ORDER BY u.place
        ),
        n.run_seconds - coalesce(o.run_seconds, 0),
        array(
            SELECT u.jobs - coalesce(u.before, 0)
            FROM unnest(n.run_counts, o.run_counts) WITH ORDINALITY AS u (jobs, before, place)
            ORDER BY u.place
        )
    FROM pulse.counters AS n
    LEFT JOIN LATERAL (
        SELECT s.*
        FROM pulse.stat AS s
        WHERE NOT s.total
            AND s.lane = n.lane
            AND s.kind = n.kind
            AND s.at <= v_from
        ORDER BY s.at DESC
        LIMIT 1
    ) AS o ON true
    WHERE n.at > v_from;
END;
$$;

COMMENT ON FUNCTION pulse.counters_since(interval) IS
'What happened to jobs in the last while (1 minute to 400 days), for each lane and kind of which something did: the columns of counters, as differences. PU002 for a time out of bounds. Writes nothing.';
