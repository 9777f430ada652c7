-- Once an hour: blocked jobs that no note names.

-- A part of the backstop. A watch of a job that ended well is a bug; a job
-- to be cancelled may be late, where an enqueue named more than 1,000 jobs of others. It has
-- 0.3 seconds: next is where to go on, NULL at the end.
CREATE FUNCTION pulse._backstop_flows(
    from_job bigint DEFAULT 0, OUT missed bigint, OUT next bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + interval '300 milliseconds';
    v_jobs bigint [];
    v_upstreams bigint [];
BEGIN
    missed := 0;
    next := _backstop_flows.from_job;
    IF next = 0 THEN
        -- Of a pause that was taken back.
        WITH parked AS (
            INSERT INTO pulse.wake (job, from_seq, to_seq)
            SELECT b.waits_for, min(b.seq), max(b.seq)
            FROM pulse.blocked AS b
            WHERE b.waits_for < 0
                AND NOT EXISTS (
                    SELECT FROM pulse.flow_hold AS h WHERE h.number = -b.waits_for
                )
                AND NOT EXISTS (SELECT FROM pulse.wake AS w WHERE w.job = b.waits_for)
            GROUP BY b.waits_for
            RETURNING job
        )

        SELECT count(*) INTO missed
        FROM parked AS p;
    END IF;

    LOOP
        v_jobs := array(
            SELECT b.job FROM pulse.blocked AS b WHERE b.job > next ORDER BY b.job LIMIT 1000
        );
        v_upstreams := array(
            SELECT DISTINCT b.waits_for
            FROM pulse.blocked AS b
            INNER JOIN pulse.finished AS f ON f.job = b.waits_for
            WHERE b.job = ANY (v_jobs)
                AND (f.state = 'completed' OR b.after_failed = 'run')
                AND NOT EXISTS (SELECT FROM pulse.doubt AS n WHERE n.job = b.waits_for)
                AND NOT EXISTS (SELECT FROM pulse.wake AS w WHERE w.job = b.waits_for)
        );
        missed := missed + cardinality(v_upstreams);

        INSERT INTO pulse.doubt (job)
        SELECT unnest(v_upstreams)
        UNION
        SELECT d.after
        FROM (
            SELECT o.job
            FROM pulse.blocked AS o
            WHERE o.job = ANY (v_jobs)
                AND o.after_failed = 'cancel'
            OFFSET 0
        ) AS b
        CROSS JOIN LATERAL (
            SELECT o.after
            FROM pulse.dependency AS o
            WHERE o.job = b.job
            OFFSET 0
        ) AS d
        WHERE (
            SELECT f.state <> 'completed'
            FROM pulse.finished AS f
            WHERE f.job = d.after
        );

        next := CASE WHEN cardinality(v_jobs) = 1000 THEN v_jobs[1000] END;
        EXIT WHEN next IS NULL OR pulse._time_is_over(v_until);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._backstop_flows(bigint) IS
'Look for blocked jobs that should have been released or cancelled, and have them looked at; says how many upstreams went unnoticed.';
