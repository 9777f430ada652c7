-- reap: end the runs whose lease has expired, so that their jobs are retried.
--
-- Only leases with a reap_at are in the index that reap reads. A new lease has none: entries of
-- short jobs would pile up dead while another transaction has an old snapshot. So tick first reads
-- the new leases, in the order of their numbers, and gives a reap_at to those that still run
-- (watch_new_leases). A heartbeat extends lease_until and leaves reap_at as it is, so it stays a
-- HOT update. When reap_at comes and the lease was extended, reap_at is moved (postpone_reaps).
--
-- watch_new_leases starts where the last call stopped. This position passes only numbers that no
-- open claim can still commit (common/marks.sql).
--
-- It writes lease, tally, upkeep_run and what fail_runs writes (report/endings.sql). Locks:
-- leases, SKIP LOCKED. A locked lease is left to the next call: its worker may be reporting it.

CREATE FUNCTION pulse.reap(max_jobs integer DEFAULT 10000)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_piece record;
    v_next timestamptz := '-infinity'::timestamptz;
    v_all bigint := 0;
BEGIN
    PERFORM pulse_internal.require_read_committed('reap');
    PERFORM pulse_internal.require_range('reap', 'max_jobs', coalesce(reap.max_jobs, 0));
    PERFORM pulse_internal.watch_new_leases(
        until => clock_timestamp() + pulse_internal.upkeep_budget()
    );

    LOOP
        SELECT r.* INTO v_piece
        FROM pulse_internal.reap(least(1000, reap.max_jobs - v_all)::integer, v_next) AS r;
        v_all := v_all + v_piece.ended;
        v_next := v_piece.next;
        EXIT WHEN v_next IS NULL OR v_all >= reap.max_jobs;
    END LOOP;
    PERFORM pulse_internal.postpone_reaps(1000, clock_timestamp() + pulse_internal.upkeep_budget());
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse.reap(integer) IS
'End the runs whose lease has expired, or whose max_runtime or cancel grace is over: each counts as a failed attempt, and the job is retried, dead or, after a cancel request, cancelled. Returns how many. tick does this every 10 seconds.

- max_jobs: end at most so many runs.

Errors: PU001 above READ COMMITTED, PU002 bad max_jobs.';

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
    -- First which numbers are decided, then the leases, in later statements: those see every
    -- lease below the decided number.
    v_horizon := pulse_internal.see_horizon();

    -- A position above every number that was drawn: the node got a lower number meanwhile. The
    -- last ten bits of a lease are random (claim/claim.sql).
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

        -- A run is counted as started either here, or when it ends if that comes first. ready_at
        -- is NULL once it is counted.
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
'Give leases that were claimed since the last call a reap_at: a page, and more until the time is over; with lapsed_only only those that have expired. Returns how many.';

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
    v_expired bigint [];
BEGIN
    -- The server checks the condition again on the locked row: a heartbeat may just have extended
    -- the lease.
    SELECT
        count(*),
        CASE WHEN count(*) = reap.max_jobs THEN max(s.reap_at) END,
        array_agg(s.lease)
    INTO ended, next, v_expired
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
        PERFORM pulse_internal.fail_runs(v_expired, NULL, NULL, NULL, 'reap');
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.reap(integer, timestamptz) IS
'End at most max_jobs runs whose lease has expired, the oldest reap_at first, from since on. Returns how many, and where to go on (NULL at the end).';

CREATE FUNCTION pulse_internal.postpone_reaps(piece integer, until timestamptz)
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
            LIMIT postpone_reaps.piece
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS s;

        UPDATE pulse_internal.lease AS l
        SET reap_at = l.lease_until
        WHERE l.lease = ANY (v_leases);

        EXIT WHEN (cardinality(v_leases) = postpone_reaps.piece) IS NOT TRUE
            OR pulse_internal.time_is_over(postpone_reaps.until);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.postpone_reaps(integer, timestamptz) IS
'Set the reap_at that has come of leases that were extended to the end of the lease: a piece, and more until the time is over.';

CREATE FUNCTION pulse_internal.tick_reap(until timestamptz)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_size integer := pulse_internal.upkeep_piece();
    v_now timestamptz;
    v_watched integer;
    v_piece record;
    v_next timestamptz;
    v_all bigint := 0;
BEGIN
    LOOP
        -- Half of the time at most is for leases that only get a reap_at.
        v_now := clock_timestamp();
        v_watched := pulse_internal.watch_new_leases(
            until => CASE
                WHEN isfinite(tick_reap.until) THEN v_now + (tick_reap.until - v_now) / 2
                ELSE tick_reap.until
            END,
            page => v_size
        );
        -- A piece starts where the last one ended: else it would step over the dead rows of it.
        v_next := '-infinity';
        LOOP
            SELECT r.* INTO v_piece
            FROM pulse_internal.reap(v_size, v_next) AS r;
            v_all := v_all + v_piece.ended;
            v_next := v_piece.next;
            EXIT WHEN v_next IS NULL OR pulse_internal.time_is_over(tick_reap.until);
        END LOOP;
        -- If the last page of new leases was full, there may be more.
        EXIT WHEN v_watched = 0
            OR v_watched % v_size > 0
            OR pulse_internal.time_is_over(tick_reap.until);
    END LOOP;
    PERFORM pulse_internal.postpone_reaps(v_size, tick_reap.until);
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_reap(timestamptz) IS
'The step of tick: end runs whose lease has expired, until none is left or the time is over. Returns how many.';

CREATE FUNCTION pulse_internal.reap_if_overdue(max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_sweep pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('sweep');
BEGIN
    -- tick reaps every 10 seconds, so after 15 it is late. The claim takes the lock of a part of
    -- its own, inline: its transaction may stay open, and must not keep tick from reaping.
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
'Reap from inside a claim, if tick has not done so for 15 seconds. It writes no lease that is still valid. Returns how many runs it has ended.';
