-- Ends runs whose lease has lapsed.
--
-- reap must find lapsed leases without an index entry for every short job: such entries
-- would pile up dead under an old snapshot. So a new lease has no reap_at. The sweep reads
-- the leases in number order from where the one before stopped, and gives each one
-- that still runs a reap_at: from then on lease_for_reap finds it. Heartbeats do not move
-- reap_at (they stay HOT); when it comes and the lease was extended, reap moves it.
-- The sweep's place only goes forward over numbers that are decided (common/marks.sql): an
-- open claim may still commit a lease below it.

CREATE FUNCTION pulse.reap(max_jobs integer DEFAULT 10000)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_piece record;
    v_since timestamptz := '-infinity'::timestamptz;
    v_all bigint := 0;
BEGIN
    PERFORM pulse_internal.require_read_committed('reap');
    PERFORM pulse_internal.require_range('reap', 'max_jobs', coalesce(reap.max_jobs, 0));
    PERFORM pulse_internal.watch_new_leases(
        until => clock_timestamp() + pulse_internal.upkeep_budget()
    );

    LOOP
        SELECT r.* INTO v_piece
        FROM pulse_internal.reap(least(1000, reap.max_jobs - v_all)::integer, v_since) AS r;
        v_all := v_all + v_piece.ended;
        v_since := v_piece.next;
        EXIT WHEN v_since IS NULL OR v_all >= reap.max_jobs;
    END LOOP;
    PERFORM pulse_internal.look_again(1000, clock_timestamp() + pulse_internal.upkeep_budget());
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse.reap(integer) IS
'End the runs whose lease has lapsed (worker lost) or whose max_runtime or cancel grace is over: charged, then retrying, dead or cancelled. Returns how many. tick does this every 10 seconds. Writes lease, waiting, finished and failure.';

-- A step of tick. Half the time at most goes to leases that are only made known.
CREATE FUNCTION pulse_internal.tick_reap(until timestamptz)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_size integer := pulse_internal.upkeep_piece();
    v_now timestamptz;
    v_new integer;
    v_piece record;
    v_since timestamptz;
    v_all bigint := 0;
BEGIN
    LOOP
        v_now := clock_timestamp();
        v_new := pulse_internal.watch_new_leases(
            until => CASE
                WHEN isfinite(tick_reap.until) THEN v_now + (tick_reap.until - v_now) / 2
                ELSE tick_reap.until
            END,
            page => v_size
        );
        -- Each piece goes on where the last ended: it would step over what that one deleted.
        v_since := '-infinity';
        LOOP
            SELECT r.* INTO v_piece
            FROM pulse_internal.reap(v_size, v_since) AS r;
            v_all := v_all + v_piece.ended;
            v_since := v_piece.next;
            EXIT WHEN v_since IS NULL OR pulse_internal.time_is_over(tick_reap.until);
        END LOOP;
        -- A last page that was full: there may be more.
        EXIT WHEN v_new = 0 OR v_new % v_size > 0 OR pulse_internal.time_is_over(tick_reap.until);
    END LOOP;
    PERFORM pulse_internal.look_again(v_size, tick_reap.until);
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_reap(timestamptz) IS
'End runs whose lease has lapsed until it is done or the time is over; returns how many.';

-- Those that became due since then, oldest first; next is where to go on, NULL at the end.
-- What another session has locked is left to the next sweep.
CREATE FUNCTION pulse_internal.reap(
    max_jobs integer,
    since timestamptz DEFAULT '-infinity',
    OUT ended integer,
    OUT next timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lapsed bigint [];
BEGIN
    -- The condition is checked again on the locked row: a heartbeat may just have
    -- revived it.
    SELECT
        count(*),
        CASE WHEN count(*) = reap.max_jobs THEN max(s.reap_at) END,
        array_agg(s.lease)
    INTO ended, next, v_lapsed
    FROM (
        SELECT l.lease, l.reap_at
        FROM pulse_internal.lease AS l
        WHERE l.reap_at >= reap.since
            AND l.reap_at <= v_now
            AND l.lease_until <= v_now
        ORDER BY l.reap_at
        LIMIT reap.max_jobs
        FOR UPDATE SKIP LOCKED
    ) AS s;

    IF ended > 0 THEN
        PERFORM pulse_internal.fail_runs(v_lapsed, NULL, NULL, NULL, 'reap');
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.reap(integer, timestamptz) IS
'End at most max_jobs runs whose lease has lapsed.';

-- Still alive when their time came: look again when it comes again. In pieces as above.
CREATE FUNCTION pulse_internal.look_again(piece integer, until timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_since timestamptz := '-infinity'::timestamptz;
    v_leases bigint [];
BEGIN
    LOOP
        SELECT array_agg(s.lease), max(s.reap_at) INTO v_leases, v_since
        FROM (
            SELECT l.lease, l.reap_at
            FROM pulse_internal.lease AS l
            WHERE l.reap_at >= v_since
                AND l.reap_at <= v_now
                AND l.lease_until > v_now
            ORDER BY l.reap_at
            LIMIT look_again.piece
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS s;

        UPDATE pulse_internal.lease AS l
        SET reap_at = l.lease_until
        WHERE l.lease = ANY (v_leases);

        EXIT WHEN (cardinality(v_leases) = look_again.piece) IS NOT TRUE
            OR pulse_internal.time_is_over(look_again.until);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.look_again(integer, timestamptz) IS
'Have reap look at leases that were extended when their time comes again: a piece, and more until the time is over.';

-- So that a missing watchdog costs latency only: a claim reaps when nobody has for a
-- while, within its own bound. A claim inside a long transaction keeps what it
-- locked, so it has a turn of its own, which does not keep tick from sweeping, and it
-- touches no lease that is alive.
CREATE FUNCTION pulse_internal.reap_if_overdue(max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_sweep pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('sweep');
BEGIN
    IF v_sweep.taken_at BETWEEN clock_timestamp() - interval '15 seconds' AND clock_timestamp()
        OR NOT pulse_internal.start_upkeep_run('inline', '15 seconds')
    THEN
        RETURN 0;
    END IF;

    PERFORM pulse_internal.watch_new_leases(true);
    RETURN (SELECT r.ended FROM pulse_internal.reap(greatest(reap_if_overdue.max_jobs, 100)) AS r);
END;
$$;

COMMENT ON FUNCTION pulse_internal.reap_if_overdue(integer) IS
'Reap from inside a claim when nobody has swept for 15 seconds; returns how many.';

-- The sweep over new leases: maintenance/reap.sql says why.

CREATE FUNCTION pulse_internal.watch_new_leases(
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
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('watch');
    v_from bigint := coalesce((v_old.state ->> 'from')::bigint, 0);
    v_next bigint := v_from;
    v_now timestamptz := clock_timestamp();
    v_horizon pulse_internal.horizon;
    v_page bigint [];
    v_first bigint;
    v_to bigint;
    v_watched integer := 0;
BEGIN
    -- Decided first; looked at in later statements.
    v_horizon := pulse_internal.see_horizon();

    -- Beyond all that was drawn: a lower node was set meanwhile.
    IF v_from >> 10 > (SELECT s.last_value + 1 FROM pulse_internal.lease_seq AS s) THEN
        v_from := 0;
        v_next := 0;
    END IF;

    LOOP
        v_page := array(
            SELECT n.lease
            FROM pulse_internal.lease AS n
            WHERE n.lease >= v_next
                AND n.reap_at IS NULL
                AND (NOT watch_new_leases.lapsed_only OR n.lease_until <= v_now)
            ORDER BY n.lease
            LIMIT watch_new_leases.page
            FOR NO KEY UPDATE SKIP LOCKED
        );

        -- Who still runs is counted as started here, the others by their end.
        INSERT INTO pulse_internal.tally (lane, kind, event, jobs, wait_bucket, waited)
        SELECT
            l.lane, l.kind, 'started', count(*),
            width_bucket(l.claimed_at - l.ready_at, pulse_internal.histogram_intervals()) AS bucket,
            sum(l.claimed_at - l.ready_at)
        FROM pulse_internal.lease AS l
        WHERE l.lease = ANY (v_page)
            AND l.ready_at IS NOT NULL
        GROUP BY l.lane, l.kind, bucket;

        UPDATE pulse_internal.lease AS l
        SET
            reap_at = l.lease_until,
            ready_at = NULL
        WHERE l.lease = ANY (v_page);

        v_watched := v_watched + cardinality(v_page);
        EXIT WHEN cardinality(v_page) < watch_new_leases.page
            OR pulse_internal.time_is_over(watch_new_leases.until);
        v_next := v_page[watch_new_leases.page] + 1;
    END LOOP;

    SELECT l.lease INTO v_first
    FROM pulse_internal.lease AS l
    WHERE l.lease >= v_from
        AND l.reap_at IS NULL
    ORDER BY l.lease
    LIMIT 1;

    v_to := least(v_first, (v_horizon.lease_q + 1) << 10);
    IF v_to > v_from THEN
        PERFORM pulse_internal.write_upkeep_run(
            v_old, 'watch', jsonb_build_object('from', v_to::text)
        );
    END IF;
    RETURN v_watched;
END;
$$;

COMMENT ON FUNCTION pulse_internal.watch_new_leases(boolean, timestamptz, integer) IS
'Make leases that were claimed since the last sweep known to reap, or only those that have lapsed: a page, and more until the time is over.';
