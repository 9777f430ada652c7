-- How blocked jobs are released.
--
-- A blocked job watches one upstream that has not ended well enough for it. Whoever ends
-- a job calls _wake or _ended_badly, in a later statement than the one that ended it:
-- who began to watch until then is seen. _look locks the watchers without waiting and
-- then, in a later statement again, looks for another upstream that has not ended: first
-- downwards from the one that has, then once at those above it (spawned jobs have
-- greater ids). None: the job is released. Else its watch moves there.
--
-- The trap: an end may look before a watch is committed. Therefore whoever writes a watch of
-- a job that is not of its own transaction writes a doubt about it, and _settle looks again
-- later, in another transaction. docs/decisions/flows.md has the proof.
--
-- Nothing here waits for a row. What another session holds is written down, in portions of 200
-- (wake), and so is what a report has no time for. Claims take portions, tick takes the rest.

-- completed: these jobs have, which stays so for ever, and a watcher's only upstream needs no
-- second look, unless it had steps: one may have spawned more for the watcher to wait for. Else
-- they ended badly, and only who takes any end is looked at. left_over: there are more, or
-- another session holds some.
CREATE FUNCTION pulse._look(
    jobs bigint [],
    completed boolean,
    from_seq bigint,
    to_seq bigint,
    max_jobs integer,
    OUT released integer,
    OUT left_over boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_tids tid [];
    v_held bigint [];
    v_at bigint [];
    v_alone boolean [];
    v_any boolean [];
    v_free tid [];
    v_stuck tid [];
    v_next bigint [];
BEGIN
    released := 0;

    -- One scan of blocked_for_wake that locks as it goes and never waits.
    SELECT
        array_agg(g.ctid), array_agg(g.job), array_agg(g.waits_for),
        array_agg(g.alone AND _look.completed), array_agg(g.after_failed = 'run')
    INTO v_tids, v_held, v_at, v_alone, v_any
    FROM (
        SELECT l.*
        FROM unnest(_look.jobs) AS u (job)
        CROSS JOIN LATERAL (
            SELECT b.ctid, b.job, b.waits_for, b.after_failed, b.alone
            FROM pulse.blocked AS b
            WHERE b.waits_for = u.job
                AND b.seq BETWEEN _look.from_seq AND _look.to_seq
                AND (_look.completed OR b.after_failed = 'run')
            ORDER BY b.waits_for, b.seq
            FOR UPDATE SKIP LOCKED
        ) AS l
        LIMIT _look.max_jobs
    ) AS g;

    -- A later statement than the lock: what those who held them before have committed is
    -- seen. What was locked is counted again, so that no newcomer hides one that was skipped.
    SELECT
        array_agg(e.tid) FILTER (WHERE e.next IS NULL),
        array_agg(e.tid) FILTER (WHERE e.next IS NOT NULL),
        array_agg(e.next) FILTER (WHERE e.next IS NOT NULL),
        coalesce(cardinality(v_tids), 0) < (
            SELECT count(*)
            FROM (
                SELECT
                FROM unnest(_look.jobs) AS u (job)
                CROSS JOIN LATERAL (
                    SELECT
                    FROM pulse.blocked AS b
                    WHERE b.waits_for = u.job
                        AND b.seq BETWEEN _look.from_seq AND _look.to_seq
                        AND (_look.completed OR b.after_failed = 'run')
                    ORDER BY b.waits_for, b.seq
                    OFFSET 0
                ) AS l
                LIMIT _look.max_jobs + 1
            ) AS there
        )
    INTO v_free, v_stuck, v_next, left_over
    FROM (
        SELECT
            h.tid,
            coalesce(
                (
                    SELECT d.after
                    FROM pulse.dependency AS d
                    WHERE NOT h.alone
                        AND d.job = h.job
                        AND d.after <= h.at
                        AND NOT d.met
                        AND (
                            SELECT f.state = 'completed' OR h.any_end
                            FROM pulse.finished AS f
                            WHERE f.job = d.after
                        ) IS NOT TRUE
                    ORDER BY d.job DESC, d.after DESC
                    LIMIT 1
                ),
                (
                    SELECT d.after
                    FROM pulse.dependency AS d
                    WHERE (NOT h.alone OR h.at = ANY (array(
                            SELECT s.job FROM pulse.job_step AS s WHERE s.job = ANY (v_at)
                        )))
                        AND d.job = h.job
                        AND d.after > h.at
                        AND NOT d.met
                        AND (
                            SELECT f.state = 'completed' OR h.any_end
                            FROM pulse.finished AS f
                            WHERE f.job = d.after
                        ) IS NOT TRUE
                    ORDER BY d.job DESC, d.after DESC
                    LIMIT 1
                )
            ) AS next
        FROM unnest(v_tids, v_held, v_at, v_alone, v_any) AS h (tid, job, at, alone, any_end)
        OFFSET 0
    ) AS e;

    IF v_free IS NOT NULL THEN
        released := pulse._release(v_free);
    END IF;

    IF v_stuck IS NOT NULL THEN
        -- No longer alone: it has another upstream, or one was added.
        UPDATE pulse.blocked AS b
        SET waits_for = s.next,
            alone = false
        FROM unnest(v_stuck, v_next) AS s (tid, next)
        WHERE b.ctid = s.tid;

        INSERT INTO pulse.doubt (job)
        SELECT DISTINCT s.next
        FROM unnest(v_next) AS s (next);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._look(bigint [], boolean, bigint, bigint, integer) IS
'Release those who watch jobs that have ended, or let them watch another: at most max_jobs, with numbers in a range.';

-- The rows are locked by us, so their addresses hold.
CREATE FUNCTION pulse._release(tids tid [])
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_grouped text [] := array(
        SELECT l.lane FROM pulse.lane AS l WHERE l.grouped IS NOT NULL AND l.grouped
    );
    v_lanes text [];
    v_gone integer;
    v_free tid [];
    v_job pulse.blocked;
BEGIN
    WITH gone AS (
        DELETE FROM pulse.blocked AS b
        WHERE b.ctid = ANY (_release.tids)
            AND NOT b.needs_approval
            AND b.run_at IS NULL
            AND b.delay IS NULL
            AND b.expires_in IS NULL
            AND b.lane <> ALL (v_grouped)
            AND (
                NOT b.keyed
                OR (SELECT k.follows FROM pulse.job_key AS k WHERE k.job = b.job) IS NOT TRUE
            )
        RETURNING b.lane, b.rank, b.kind, b.job, b.attempts, b.failures, b.keyed
    ),

    placed AS (
        INSERT INTO pulse.ready AS r (lane, rank, kind, job, attempts, failures, keyed)
        SELECT g.lane, g.rank, g.kind, g.job, g.attempts, g.failures, g.keyed
        FROM gone AS g
        RETURNING r.lane
    )

    SELECT array_agg(DISTINCT p.lane), count(*) INTO v_lanes, v_gone
    FROM placed AS p;

    PERFORM pulse._ring(u.lane)
    FROM unnest(v_lanes) AS u (lane);

    IF v_gone < cardinality(_release.tids) THEN
        -- Those that are to be approved, wait for a time, join a group or are still to get
        -- their unique key, one by one.
        v_free := pulse._inherit_keys(_release.tids);
        FOR v_job IN
            DELETE FROM pulse.blocked AS b
            WHERE b.ctid = ANY (v_free)
            RETURNING b.*
        LOOP
            PERFORM pulse._unblock(v_job);
            v_gone := v_gone + 1;
        END LOOP;
    END IF;
    RETURN v_gone;
END;
$$;

COMMENT ON FUNCTION pulse._release(tid []) IS
'Take blocked jobs out and put them where they belong: in line, into waiting or before an approver; returns how many could go.';

-- job is the row that was taken out, or would have been written. Approval is asked for now,
-- so that the approver sees the results of the upstreams, and its expiry starts now.
CREATE FUNCTION pulse._unblock(job pulse.blocked)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_run_at timestamptz := greatest(
        (_unblock.job).run_at, clock_timestamp() + (_unblock.job).delay
    );
    v_start_by timestamptz := greatest(v_run_at, clock_timestamp())
        + (_unblock.job).expires_in;
BEGIN
    IF v_start_by IS NOT NULL THEN
        UPDATE pulse.body AS b
        SET start_by = v_start_by
        WHERE b.job = (_unblock.job).job;

        PERFORM pulse._note_expiry((_unblock.job).job, v_start_by);
    END IF;

    IF (_unblock.job).needs_approval THEN
        INSERT INTO pulse.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        VALUES (
            (_unblock.job).job, (_unblock.job).lane, (_unblock.job).kind,
            (_unblock.job).rank, v_run_at,
            clock_timestamp() + (pulse._kind_settings((_unblock.job).kind)).approval_expiry,
            (_unblock.job).keyed
        );
        RETURN 'awaiting_approval';
    END IF;

    PERFORM pulse._put_in_line(
        (_unblock.job).job, (_unblock.job).lane, (_unblock.job).kind, (_unblock.job).rank,
        v_run_at, (_unblock.job).attempts, (_unblock.job).failures, (_unblock.job).keyed,
        false, group_key => pulse._group_key((_unblock.job).job)
    );
    RETURN CASE WHEN v_run_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END;
END;
$$;

COMMENT ON FUNCTION pulse._unblock(pulse.blocked) IS
'Put a job whose upstreams have ended where it belongs; returns its state.';

-- The rest, and what another session holds, in portions for whoever comes next.
CREATE FUNCTION pulse._wake(jobs bigint [], completed boolean)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_looked record;
BEGIN
    v_looked := pulse._look(_wake.jobs, _wake.completed, 0, 9223372036854775807, 1000);

    IF v_looked.left_over THEN
        INSERT INTO pulse.wake (job, from_seq, to_seq)
        SELECT p.job, min(p.seq), max(p.seq)
        FROM (
            SELECT
                u.job,
                b.seq,
                (row_number() OVER (PARTITION BY u.job ORDER BY b.seq) - 1) / 200 AS portion
            FROM unnest(_wake.jobs) AS u (job)
            CROSS JOIN LATERAL (
                SELECT o.seq
                FROM pulse.blocked AS o
                WHERE o.waits_for = u.job
                    AND (_wake.completed OR o.after_failed = 'run')
                ORDER BY o.waits_for, o.seq
                OFFSET 0
            ) AS b
        ) AS p
        GROUP BY p.job, p.portion
        ORDER BY p.job, p.portion;
    END IF;
    RETURN v_looked.released;
END;
$$;

COMMENT ON FUNCTION pulse._wake(bigint [], boolean) IS
'Look at the blocked jobs that watch jobs which have ended: a thousand now, the rest is noted in portions; returns how many were released.';
