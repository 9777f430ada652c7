-- Samples for pulse.stats and pulse.lanes. A job whose finish commits after the sample
-- that covers its finished_at is not counted: these are figures for people.

CREATE FUNCTION pulse._sample_stats()
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lanes integer;
BEGIN
    -- A lane where nothing happens is written once and then left alone.
    INSERT INTO pulse.stat (lane, at, took, completed, dead, cancelled, ready, running)
    SELECT
        k.lane,
        v_now,
        v_now - s.since,
        f.completed,
        f.dead,
        f.cancelled,
        r.ready,
        coalesce(u.running, 0)
    FROM pulse._known_lanes AS k
    LEFT JOIN LATERAL (
        SELECT
            t.at,
            t.completed + t.dead + t.cancelled + t.ready + t.running = 0 AS idle
        FROM pulse.stat AS t
        WHERE t.lane = k.lane
        ORDER BY t.at DESC
        LIMIT 1
    ) AS l ON true
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN l.idle IS NOT FALSE
                    THEN greatest(l.at, v_now - interval '1 minute')
                ELSE greatest(l.at, v_now - interval '1 hour')
            END AS since
    ) AS s
    CROSS JOIN LATERAL (
        SELECT
            (
                SELECT count(*)
                FROM pulse.finished AS f
                WHERE f.lane = k.lane
                    AND f.state = 'completed'
                    AND f.finished_at > s.since
                    AND f.finished_at <= v_now
            ) AS completed,
            (
                SELECT count(*)
                FROM pulse.finished AS f
                WHERE f.lane = k.lane
                    AND f.state = 'dead'
                    AND f.finished_at > s.since
                    AND f.finished_at <= v_now
            ) AS dead,
            (
                SELECT count(*)
                FROM pulse.finished AS f
                WHERE f.lane = k.lane
                    AND f.state = 'cancelled'
                    AND f.finished_at > s.since
                    AND f.finished_at <= v_now
            ) AS cancelled
    ) AS f
    CROSS JOIN LATERAL (
        SELECT count(*) AS ready
        FROM (
            SELECT
            FROM pulse.ready AS r
            WHERE r.lane = k.lane
                AND r.failures >= 0
            ORDER BY r.rank, r.seq
            LIMIT 100000
        ) AS capped
    ) AS r
    LEFT JOIN (
        SELECT
            e.lane,
            count(*) AS running
        FROM pulse.lease AS e
        GROUP BY e.lane
    ) AS u ON u.lane = k.lane
    WHERE s.since < v_now
        AND (
            f.completed + f.dead + f.cancelled + r.ready + coalesce(u.running, 0) > 0
            OR l.idle IS FALSE
        );

    GET DIAGNOSTICS v_lanes = ROW_COUNT;

    -- Lane by lane, by the primary key: a lane may be gone and leave samples.
    WITH RECURSIVE sampled (lane) AS (
        (
            SELECT t.lane
            FROM pulse.stat AS t
            ORDER BY t.lane
            LIMIT 1
        )
        UNION ALL
        SELECT
            (
                SELECT t.lane
                FROM pulse.stat AS t
                WHERE t.lane > n.lane
                ORDER BY t.lane
                LIMIT 1
            )
        FROM sampled AS n
        WHERE n.lane IS NOT NULL
    )

    DELETE FROM pulse.stat AS t
    USING sampled AS n
    WHERE t.lane = n.lane
        AND t.at < v_now - interval '48 hours';

    RETURN v_lanes;
END;
$$;

COMMENT ON FUNCTION pulse._sample_stats() IS
'Write a sample for each lane where something happens, remove those older than 48 hours; returns how many were written. tick calls it once a minute.';
