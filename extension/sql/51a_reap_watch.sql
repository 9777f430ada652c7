-- The sweep over new leases: 51_reap.sql says why.

CREATE FUNCTION pulse._watch_new_leases(
    lapsed_only boolean DEFAULT false,
    until timestamptz DEFAULT '-infinity',
    page integer DEFAULT 1000
)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_old pulse.upkeep_run := pulse._newest_upkeep_run('watch');
    v_from bigint := coalesce((v_old.state ->> 'from')::bigint, 0);
    v_next bigint := v_from;
    v_now timestamptz := clock_timestamp();
    v_horizon pulse.horizon;
    v_page bigint [];
    v_first bigint;
    v_to bigint;
    v_watched integer := 0;
BEGIN
    -- Decided first; looked at in later statements.
    v_horizon := pulse._see_horizon();

    -- Beyond all that was drawn: a lower node was set meanwhile.
    IF v_from >> 10 > (SELECT s.last_value + 1 FROM pulse.lease_seq AS s) THEN
        v_from := 0;
        v_next := 0;
    END IF;

    LOOP
        v_page := array(
            SELECT n.lease
            FROM pulse.lease AS n
            WHERE n.lease >= v_next
                AND n.reap_at IS NULL
                AND (NOT _watch_new_leases.lapsed_only OR n.lease_until <= v_now)
            ORDER BY n.lease
            LIMIT _watch_new_leases.page
            FOR NO KEY UPDATE SKIP LOCKED
        );

        -- Who still runs is counted as started here, the others by their end.
        INSERT INTO pulse.tally (lane, kind, event, jobs, wait_bucket, waited)
        SELECT
            l.lane, l.kind, 'started', count(*),
            width_bucket(l.claimed_at - l.ready_at, pulse._histogram_intervals()) AS bucket,
            sum(l.claimed_at - l.ready_at)
        FROM pulse.lease AS l
        WHERE l.lease = ANY (v_page)
            AND l.ready_at IS NOT NULL
        GROUP BY l.lane, l.kind, bucket;

        UPDATE pulse.lease AS l
        SET
            reap_at = l.lease_until,
            ready_at = NULL
        WHERE l.lease = ANY (v_page);

        v_watched := v_watched + cardinality(v_page);
        EXIT WHEN cardinality(v_page) < _watch_new_leases.page
            OR pulse._time_is_over(_watch_new_leases.until);
        v_next := v_page[_watch_new_leases.page] + 1;
    END LOOP;

    SELECT l.lease INTO v_first
    FROM pulse.lease AS l
    WHERE l.lease >= v_from
        AND l.reap_at IS NULL
    ORDER BY l.lease
    LIMIT 1;

    v_to := least(v_first, (v_horizon.lease_q + 1) << 10);
    IF v_to > v_from THEN
        PERFORM pulse._write_upkeep_run(
            v_old, 'watch', jsonb_build_object('from', v_to::text)
        );
    END IF;
    RETURN v_watched;
END;
$$;

COMMENT ON FUNCTION pulse._watch_new_leases(boolean, timestamptz, integer) IS
'Make leases that were claimed since the last sweep known to reap, or only those that have lapsed: a page, and more until the time is over.';
