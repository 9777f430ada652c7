-- The pause of a flow.
--
-- Its jobs stand in many lanes, and more come while it lasts, so nobody goes and looks for
-- them. A claim that sees any such pause, under the hold lock as with every pause, puts the
-- jobs of the flow that it has picked into blocked instead of leasing them: parked, they wait
-- for minus the number of the pause. So each job is met once, pausing costs one row, and
-- what stands behind them in line is reached.
--
-- resume keeps claims out while it looks, so that it sees all that were parked, and leaves
-- portions of 200 in wake: claims and tick put them back in line (flows/settle.sql).

CREATE FUNCTION pulse_internal.hold_flow(who integer, flow text, holder text, reason text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_read_committed('pause');
    PERFORM pulse_internal.require_reason(hold_flow.reason);

    -- Waits for open claims.
    PERFORM pulse_internal.lock_out_claims('pulse_internal.hold', 0, 'pause');

    INSERT INTO pulse_internal.flow_hold (flow, holder, reason, held_by)
    VALUES (
        hold_flow.flow, hold_flow.holder, hold_flow.reason,
        pulse_internal.role_name(hold_flow.who)
    )
    ON CONFLICT ON CONSTRAINT flow_hold_is_one_per_holder DO NOTHING;

    IF NOT FOUND THEN
        RETURN false;
    END IF;

    PERFORM pulse_internal.audit(
        hold_flow.who, 'pause', NULL, NULL, NULL,
        jsonb_build_object('holder', hold_flow.holder, 'flow', hold_flow.flow),
        hold_flow.reason
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.hold_flow(integer, text, text, text) IS
'Put a hold on a flow; false when this holder has it already.';

CREATE FUNCTION pulse_internal.unhold_flow(who integer, flow text, holder text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_number bigint;
BEGIN
    PERFORM pulse_internal.require_read_committed('resume');
    PERFORM pulse_internal.require_name('flow', unhold_flow.flow);

    -- A claim that still saw the pause has committed what it parked.
    PERFORM pulse_internal.lock_out_claims('pulse_internal.hold', 0, 'resume');

    DELETE FROM pulse_internal.flow_hold AS h
    WHERE h.flow = unhold_flow.flow
        AND h.holder = unhold_flow.holder
    RETURNING h.number INTO v_number;

    IF NOT FOUND THEN
        RETURN false;
    END IF;

    INSERT INTO pulse_internal.wake (job, from_seq, to_seq)
    SELECT -v_number, min(p.seq), max(p.seq)
    FROM (
        SELECT b.seq, (row_number() OVER (ORDER BY b.seq) - 1) / 200 AS portion
        FROM pulse_internal.blocked AS b
        WHERE b.waits_for = -v_number
    ) AS p
    GROUP BY p.portion
    ORDER BY p.portion;

    PERFORM pulse_internal.ring(p.lane)
    FROM (
        SELECT DISTINCT b.lane
        FROM pulse_internal.blocked AS b
        WHERE b.waits_for = -v_number
    ) AS p;

    PERFORM pulse_internal.audit(
        unhold_flow.who, 'resume', NULL, NULL,
        jsonb_build_object('holder', unhold_flow.holder, 'flow', unhold_flow.flow),
        NULL, NULL
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.unhold_flow(integer, text, text) IS
'Take a hold of a flow away, and note who has to be put back in line; false when it was not there.';

-- How claims park the jobs of a paused flow, and how they come back (flows/pause_flow.sql).

-- The rows are locked by us, so their addresses hold.
CREATE FUNCTION pulse_internal.park(tids tid [])
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_parked tid [];
    v_numbers bigint [];
BEGIN
    -- As flow_number finds them, without a call for each.
    SELECT array_agg(p.tid), array_agg(p.number) INTO v_parked, v_numbers
    FROM (
        SELECT
            r.ctid AS tid,
            (
                SELECT min(h.number)
                FROM pulse_internal.flow_hold AS h
                WHERE h.flow = (SELECT b.flow FROM pulse_internal.body AS b WHERE b.job = r.job)
            ) AS number
        FROM pulse_internal.ready AS r
        WHERE r.ctid = ANY (park.tids)
        OFFSET 0
    ) AS p
    WHERE p.number IS NOT NULL;

    IF v_parked IS NULL THEN
        RETURN park.tids;
    END IF;

    WITH gone AS (
        DELETE FROM pulse_internal.ready AS r
        USING unnest(v_parked, v_numbers) AS p (tid, number)
        WHERE r.ctid = p.tid
        RETURNING r.*, p.number
    )

    INSERT INTO pulse_internal.blocked (
        job, waits_for, lane, kind, rank, attempts, failures, keyed, alone, after_failed,
        needs_approval
    )
    SELECT
        g.job, -g.number, g.lane, g.kind, g.rank, g.attempts, g.failures, g.keyed, true,
        'hold', false
    FROM gone AS g
    ORDER BY g.rank, g.seq;

    RETURN array(
        SELECT t.tid
        FROM unnest(park.tids) WITH ORDINALITY AS t (tid, nth)
        WHERE t.tid <> ALL (v_parked)
        ORDER BY t.nth
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.park(tid []) IS
'Take jobs of paused flows out of line; returns the addresses of the others.';

CREATE FUNCTION pulse_internal.park_runs(leases bigint [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_lease pulse_internal.lease;
    v_groups pulse_internal.lane_group [];
BEGIN
    FOR v_lease IN
        DELETE FROM pulse_internal.lease AS l
        WHERE l.lease = ANY (park_runs.leases)
        RETURNING l.*
    LOOP
        INSERT INTO pulse_internal.blocked (
            job, waits_for, lane, kind, rank, attempts, failures, keyed, alone,
            after_failed, needs_approval
        )
        VALUES (
            v_lease.job, -pulse_internal.flow_number(v_lease.job), v_lease.lane, v_lease.kind,
            v_lease.rank, v_lease.attempt, v_lease.failures, v_lease.keyed, true, 'hold',
            false
        );
        PERFORM pulse_internal.count_start(v_lease);
        IF v_lease.group_key IS NOT NULL THEN
            v_groups := v_groups || ROW(v_lease.lane, v_lease.group_key)::pulse_internal.lane_group;
        END IF;
    END LOOP;

    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.notice_ends(v_groups);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.park_runs(bigint []) IS
'Park jobs of paused flows that were just leased.';

-- A lane whose jobs stand in groups claims as ever; what is of a paused flow is not handed
-- out but parked, which counts as an attempt.
CREATE FUNCTION pulse_internal.claim_unpaused(
    worker text,
    lane text,
    max_jobs integer,
    lease_for interval,
    kinds text [],
    mark pulse_internal.mark
)
RETURNS SETOF pulse.claimed
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_job pulse.claimed;
    v_found boolean := false;
    v_parked bigint [];
BEGIN
    LOOP
        v_parked := '{}';
        FOR v_job IN
            SELECT c.*
            FROM pulse_internal.claim_grouped(
                claim_unpaused.worker, claim_unpaused.lane, claim_unpaused.max_jobs,
                claim_unpaused.lease_for, claim_unpaused.kinds, claim_unpaused.mark
            ) AS c
        LOOP
            IF pulse_internal.flow_number(v_job.job_id) IS NULL THEN
                v_found := true;
                RETURN NEXT v_job;
            ELSE
                v_parked := v_parked || v_job.lease;
            END IF;
        END LOOP;

        PERFORM pulse_internal.park_runs(v_parked);
        EXIT WHEN v_found OR v_parked = '{}';
        IF clock_timestamp() >= v_until THEN
            PERFORM pulse_internal.ring(claim_unpaused.lane);
            EXIT;
        END IF;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.claim_unpaused(
    text, text, integer, interval, text [], pulse_internal.mark
) IS
'claim_grouped while a flow is paused: its jobs are parked.';

-- pause is minus the number of one that was taken back. left_over: there are more, or
-- another session holds some.
CREATE FUNCTION pulse_internal.unpark(
    pause bigint,
    from_seq bigint,
    to_seq bigint,
    OUT released integer,
    OUT left_over boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_tids tid [] := array(
        SELECT b.ctid
        FROM pulse_internal.blocked AS b
        WHERE b.waits_for = unpark.pause
            AND b.seq BETWEEN unpark.from_seq AND unpark.to_seq
        ORDER BY b.waits_for, b.seq
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    );
BEGIN
    released := cardinality(v_tids);
    IF released > 0 THEN
        PERFORM pulse_internal.release(v_tids);
    END IF;
    left_over := (
        SELECT true
        FROM pulse_internal.blocked AS b
        WHERE b.waits_for = unpark.pause
            AND b.seq BETWEEN unpark.from_seq AND unpark.to_seq
        ORDER BY b.waits_for, b.seq
        LIMIT 1
    ) IS TRUE;
END;
$$;

COMMENT ON FUNCTION pulse_internal.unpark(bigint, bigint, bigint) IS
'Put jobs whose flow was paused back in line: at most a thousand, with numbers in a range.';

-- Pauses of flows, looked up.

CREATE FUNCTION pulse_internal.flow_holds(flow text)
RETURNS SETOF text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        format(
            'flow %s is paused by %s%s since %s (%s), held by role %s',
            h.flow, h.holder, coalesce(': ' || nullif(h.reason, '') || ',', ''),
            to_char(h.held_at, 'YYYY-MM-DD HH24:MI:SS TZ'),
            pulse_internal.duration(clock_timestamp() - h.held_at), h.held_by
        )
    FROM pulse_internal.flow_hold AS h
    WHERE h.flow = flow_holds.flow
    ORDER BY h.held_at, h.holder
$$;

COMMENT ON FUNCTION pulse_internal.flow_holds(text) IS
'In words: every pause of a flow.';

CREATE FUNCTION pulse_internal.flow_number(job bigint)
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT min(h.number)
        FROM pulse_internal.flow_hold AS h
        WHERE h.flow = (SELECT b.flow FROM pulse_internal.body AS b WHERE b.job = flow_number.job)
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.flow_number(bigint) IS
'The number of the first pause of the flow of a job; NULL when it is not paused.';

CREATE FUNCTION pulse_internal.require_flow(flow text, new boolean)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM pulse_internal.require_name('flow', require_flow.flow);
    IF (
        require_flow.new
        OR EXISTS (SELECT FROM pulse_internal.body AS b WHERE b.flow = require_flow.flow)
        OR EXISTS (SELECT FROM pulse_internal.flow_hold AS h WHERE h.flow = require_flow.flow)
    ) IS NOT TRUE THEN
        PERFORM pulse_internal.raise(
            'PU013',
            format('there is no flow %L', require_flow.flow),
            'No job is in it.',
            'SELECT flow FROM pulse.jobs; to hold a flow before it is enqueued: new => true.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_flow(text, boolean) IS
'Raise PU002 unless the value can be a flow, and PU013 unless a job is in it or it may be new.';

CREATE FUNCTION pulse_internal.require_lane_or_flow(lane text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF require_lane_or_flow.lane IS NOT NULL THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'lane and flow cannot be held together',
            format('The lane is %L.', require_lane_or_flow.lane),
            'Pause one of them, or each in a call of its own.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_lane_or_flow(text) IS
'Raise PU002 when a lane is named beside a flow.';
