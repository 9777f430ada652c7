-- How many dead letters there are, the same figure for health, counts and gauges: counted,
-- so that it is seen to grow, to 100,000 in all and to a thousand in each lane, off an
-- index alone; beyond that estimated. Lanes come last name first, as _finished_lanes has them.

CREATE FUNCTION pulse._dead_counts(most bigint DEFAULT 100000)
RETURNS TABLE (lane text, jobs bigint, estimated boolean)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_left bigint := _dead_counts.most;
    v_most bigint;
    v_estimate jsonb;
BEGIN
    FOR lane IN SELECT p.lane FROM pulse._finished_lanes() AS p WHERE p.state = 'dead' LOOP
        v_most := greatest(v_left, 1000);
        SELECT count(*) INTO jobs
        FROM (
            SELECT
            FROM pulse.finished AS f
            WHERE f.lane = _dead_counts.lane
                AND f.state = 'dead'
            ORDER BY f.finished_at DESC
            LIMIT v_most + 1
        ) AS capped;
        v_left := v_left - jobs;

        estimated := jobs > v_most;
        IF estimated THEN
            v_estimate := coalesce(
                v_estimate,
                (SELECT jsonb_object_agg(e.lane, e.jobs) FROM pulse._dead_estimate AS e),
                '{}'
            );
            jobs := greatest(jobs, (v_estimate ->> lane)::bigint);
        END IF;
        RETURN NEXT;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._dead_counts(bigint) IS
'How many dead letters each lane has, counted up to 1,000 in each lane and so many in all; estimated says that they are more.';

-- Of some 1000 pages, as 7aa_lane_estimates.sql has it for jobs that wait.
CREATE VIEW pulse._dead_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            100000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse.finished'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT f.lane
        FROM pulse.finished AS f TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
        WHERE f.state = 'dead'
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse._dead_estimate IS
'About how many dead letters each lane has, from a sample of the table.';

COMMENT ON COLUMN pulse._dead_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse._dead_estimate.jobs IS
'About how many.';
