-- unblock_after: how blocked jobs become ready when the jobs that they depend on have ended.
--
-- A job that is enqueued after others is a row of blocked. It may depend on many jobs (its
-- upstreams, rows of dependency), but it waits for one of them at a time: waits_for names an
-- upstream that has not ended well enough. "Well enough" is completed, or any end if the job has
-- after_failed = run. A counter of open upstreams would have to be updated by every end.
--
-- When a job ends, the same transaction calls unblock_after, in a later statement than the one
-- that ended the job: so it sees every job that was blocked until then. (ended_badly calls it for
-- the jobs that run after any end.) unblock_after calls unblock_dependents, which does this:
--
--   1. Lock the blocked jobs that wait for the ended one, without waiting for other sessions.
--   2. Find out whether some are left over: locked by others, or too many for one call.
--   3. For each locked job, look for an upstream that has not ended. These are later statements
--      than step 1, so they see what the sessions that held the rows before have committed.
--   4. If there is none, unblock the job (flows/unblock.sql). Else let it wait for that upstream.
--
-- It writes blocked, doubt and wake. It waits for no row lock. Jobs that are left over are noted
-- in wake, in portions of up to 200: the next claims take portions, tick takes the rest.
--
-- The race. Session A enqueues a job after job 1 and has not committed; session B ends job 1. B
-- does not see the blocked row, and A has not seen the end: the job would wait for ever.
-- Therefore A, which lets a job wait for a job of another transaction, also inserts a row into
-- doubt. tick or an idle claim checks it later, in another transaction (flows/settle.sql).
-- docs/decisions/flows.md has the proof.
--
-- unblock_dependents and what it calls set no planner options of their own: each option costs a
-- microsecond for each call. They run with those of unblock_after and take_portions, which alone
-- call unblock_dependents.

CREATE FUNCTION pulse_internal.unblock_after(jobs bigint [], completed boolean)
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
    v_result record;
    v_job bigint;
    v_last_noted bigint;
BEGIN
    -- At most 1,000 jobs now, or four for each ended job if that is more: a larger part would make
    -- the report slow.
    v_result := pulse_internal.unblock_dependents(
        unblock_after.jobs, unblock_after.completed, 0, 9223372036854775807,
        greatest(1000, 4 * cardinality(unblock_after.jobs))
    );

    -- Note those that are left over in wake, in portions: at most 200 dependents of one job, by a
    -- range of their seq.
    IF v_result.left_over THEN
        FOR v_job IN
            SELECT j.job
            FROM unnest(unblock_after.jobs) AS j (job)
            WHERE (
                    SELECT true
                    FROM pulse_internal.blocked AS o
                    WHERE o.waits_for = j.job
                    ORDER BY o.waits_for, o.seq
                    LIMIT 1
                )
        LOOP
            v_last_noted := 0;
            LOOP
                -- A portion starts at the first seq that is not noted. Usually the 200 were
                -- enqueued together and have consecutive numbers: then the row 199 further on is
                -- its end. Else the next 200 are read.
                INSERT INTO pulse_internal.wake AS w (job, from_seq, to_seq)
                SELECT
                    v_job,
                    a.seq,
                    coalesce(
                        (
                            SELECT o.seq
                            FROM pulse_internal.blocked AS o
                            WHERE o.waits_for = v_job
                                AND o.seq = a.seq + 199
                        ),
                        (
                            SELECT max(b.seq)
                            FROM (
                                SELECT o.seq
                                FROM pulse_internal.blocked AS o
                                WHERE o.waits_for = v_job
                                    AND o.seq >= a.seq
                                    AND (unblock_after.completed OR o.after_failed = 'run')
                                ORDER BY o.waits_for, o.seq
                                LIMIT 200
                            ) AS b
                        )
                    )
                FROM (
                    SELECT o.seq
                    FROM pulse_internal.blocked AS o
                    WHERE o.waits_for = v_job
                        AND o.seq > v_last_noted
                        AND (unblock_after.completed OR o.after_failed = 'run')
                    ORDER BY o.waits_for, o.seq
                    LIMIT 1
                ) AS a
                RETURNING w.to_seq INTO v_last_noted;
                EXIT WHEN NOT FOUND;
            END LOOP;
        END LOOP;
    END IF;
    RETURN v_result.unblocked;
END;
$$;

COMMENT ON FUNCTION pulse_internal.unblock_after(bigint [], boolean) IS
'After jobs have ended: unblock the jobs that depend on them, or let them wait for another upstream, and note those that are left over. Returns how many were unblocked.';

CREATE FUNCTION pulse_internal.unblock_dependents(
    jobs bigint [],
    completed boolean,
    from_seq bigint,
    to_seq bigint,
    max_jobs integer,
    OUT unblocked integer,
    OUT left_over boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Step 1: the rows that are locked.
    v_rows_before constant bigint := pg_stat_get_xact_tuples_fetched(
        'pulse_internal.blocked_for_wake'::regclass
    );
    v_locked bigint;
    v_one_plain_lane text;
    -- Those with no other upstream.
    v_single_tids tid [];
    -- Those to check in step 3: row, job, the upstream that ended, whether any end counts.
    v_tids tid [];
    v_jobs bigint [];
    v_ended bigint [];
    v_any_end boolean [];
    -- Step 3: those with no open upstream, and the others with the upstream to wait for.
    v_free_tids tid [];
    v_moving_tids tid [];
    v_next bigint [];
BEGIN
    unblocked := 0;

    -- 1. Lock, by one scan of the index blocked_for_wake. A job with a single upstream needs no
    -- check in step 3 if that upstream was completed and has no steps; a step may have spawned
    -- another upstream. A job is plain if it goes straight to ready; if all of them are plain
    -- and of one lane, unblock_rows has less to look up.
    SELECT
        array_agg(g.ctid) FILTER (WHERE g.is_single),
        CASE WHEN min(g.lane) = max(g.lane) AND bool_and(g.is_plain) THEN min(g.lane) END,
        array_agg(g.ctid) FILTER (WHERE NOT g.is_single),
        array_agg(g.job) FILTER (WHERE NOT g.is_single),
        array_agg(g.waits_for) FILTER (WHERE NOT g.is_single),
        array_agg(g.after_failed = 'run') FILTER (WHERE NOT g.is_single),
        count(*)
    INTO v_single_tids, v_one_plain_lane, v_tids, v_jobs, v_ended, v_any_end, v_locked
    FROM (
        SELECT
            b.ctid,
            b.job,
            b.waits_for,
            b.after_failed,
            b.lane,
            num_nonnulls(b.run_at, b.delay, b.expires_in) = 0
            AND NOT (b.needs_approval OR b.keyed) AS is_plain,
            unblock_dependents.completed
            AND b.alone
            AND b.waits_for <> ALL (array(
                SELECT DISTINCT s.job
                FROM pulse_internal.job_step AS s
                WHERE s.job = ANY (unblock_dependents.jobs)
            )) AS is_single
        FROM pulse_internal.blocked AS b
        WHERE b.waits_for = ANY (unblock_dependents.jobs)
            AND b.seq BETWEEN unblock_dependents.from_seq AND unblock_dependents.to_seq
            AND (unblock_dependents.completed OR b.after_failed = 'run')
        ORDER BY b.waits_for, b.seq
        LIMIT unblock_dependents.max_jobs
        FOR UPDATE SKIP LOCKED
    ) AS g;

    -- 2. Is anything left over? Not if the scan ended before its LIMIT and locked every row
    -- that the index has returned, which the statistics of this transaction tell for free.
    -- Otherwise count. The rows locked in step 1 are still there, so a row that was added
    -- since cannot make up for one that was skipped.
    left_over := false;
    IF v_locked NOT BETWEEN 1 AND unblock_dependents.max_jobs - 1
        OR v_locked <> pg_stat_get_xact_tuples_fetched('pulse_internal.blocked_for_wake'::regclass)
        - v_rows_before
    THEN
        left_over := v_locked < (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse_internal.blocked AS b
                WHERE b.waits_for = ANY (unblock_dependents.jobs)
                    AND b.seq
                    BETWEEN unblock_dependents.from_seq AND unblock_dependents.to_seq
                    AND (unblock_dependents.completed OR b.after_failed = 'run')
                ORDER BY b.waits_for, b.seq
                LIMIT unblock_dependents.max_jobs + 1
            ) AS there
        );
    END IF;

    -- 3. Look for open upstreams.
    --
    -- 3a. If there are several jobs (more than five pays), try all of them in one scan.
    -- Usually everything that they depend on was completed. The scan stops at the first
    -- upstream that was not, and gives up at ten edges for each job. It is not tried where any
    -- end counts: there edges are updated to met, and the scan would read dead tuples. The
    -- argument jobs is sorted, so width_bucket finds an upstream in it by binary search.
    IF cardinality(v_tids) > 5
        AND unblock_dependents.completed
        AND NOT true = ANY (v_any_end)
    THEN
        PERFORM
        FROM (
            SELECT
                e.after,
                row_number() OVER () AS nth
            FROM (
                SELECT o.after
                FROM pulse_internal.dependency AS o
                WHERE o.job = ANY (v_jobs)
                    AND NOT o.met
                ORDER BY o.job, o.after
                LIMIT 10 * cardinality(v_tids)
            ) AS e
        ) AS d
        WHERE d.nth = 10 * cardinality(v_tids)
            OR (
                unblock_dependents.jobs[width_bucket(d.after, unblock_dependents.jobs)] = d.after
                OR (
                    SELECT f.state = 'completed'
                    FROM pulse_internal.finished AS f
                    WHERE f.job = d.after
                )
            ) IS NOT TRUE
        LIMIT 1;
        IF NOT FOUND THEN
            v_free_tids := v_tids;
        END IF;
    END IF;

    -- 3b. Otherwise job by job: the last upstream that has not ended. Ten edges or more are
    -- left to next_upstream.
    IF v_tids IS NOT NULL AND v_free_tids IS NULL THEN
        SELECT
            array_agg(e.tid) FILTER (WHERE e.next IS NULL),
            array_agg(e.tid) FILTER (WHERE e.next IS NOT NULL),
            array_agg(e.next) FILTER (WHERE e.next IS NOT NULL)
        INTO v_free_tids, v_moving_tids, v_next
        FROM (
            SELECT
                h.tid,
                CASE
                    WHEN u.edges < 10 THEN u.next
                    ELSE pulse_internal.next_upstream(h.job, h.ended, h.any_end)
                END AS next
            FROM unnest(v_tids, v_jobs, v_ended, v_any_end) AS h (tid, job, ended, any_end)
            CROSS JOIN LATERAL (
                SELECT
                    max(d.after) FILTER (WHERE d.has_ended IS NOT TRUE) AS next,
                    count(*) AS edges
                FROM (
                    SELECT
                        o.after,
                        -- An upstream that ended in the same report is found in the argument,
                        -- by binary search.
                        CASE
                            WHEN unblock_dependents.completed
                                AND unblock_dependents.jobs[
                                    width_bucket(o.after, unblock_dependents.jobs)
                                ] = o.after
                                THEN true
                            ELSE (
                                SELECT f.state = 'completed' OR h.any_end
                                FROM pulse_internal.finished AS f
                                WHERE f.job = o.after
                            )
                        END AS has_ended
                    FROM pulse_internal.dependency AS o
                    WHERE o.job = h.job
                        AND NOT o.met
                    ORDER BY o.job DESC, o.after DESC
                    LIMIT 10
                ) AS d
            ) AS u
            OFFSET 0
        ) AS e;
    END IF;

    -- 4. Unblock the jobs without an open upstream.
    IF v_single_tids || v_free_tids IS NOT NULL THEN
        unblocked := pulse_internal.unblock_rows(v_single_tids || v_free_tids, v_one_plain_lane);
    END IF;

    -- The others wait for the upstream that was found. alone becomes false, because there are
    -- several upstreams. Another transaction may be ending that upstream: note a doubt.
    IF v_moving_tids IS NOT NULL THEN
        UPDATE pulse_internal.blocked AS b
        SET waits_for = s.next,
            alone = false
        FROM unnest(v_moving_tids, v_next) AS s (tid, next)
        WHERE b.ctid = s.tid;

        INSERT INTO pulse_internal.doubt (job)
        SELECT DISTINCT s.next
        FROM unnest(v_next) AS s (next);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.unblock_dependents(
    bigint [], boolean, bigint, bigint, integer
) IS
'Unblock the jobs that wait for jobs which have ended (in order of their ids), or let them wait for another upstream: at most max_jobs, with seq in a range. completed: they were completed; else they ended badly, and only jobs with after_failed = run count. Returns how many were unblocked, and whether some are left over.';

CREATE FUNCTION pulse_internal.next_upstream(job bigint, ended bigint, any_end boolean)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_from bigint := next_upstream.ended;
    v_page_size integer := 100;
    v_lowest bigint;
    v_highest bigint;
    v_edges bigint;
    v_open bigint;
BEGIN
    -- The search starts at the one that has ended and goes down, page by page; upstreams above it
    -- are searched once, at the end. Upstreams usually end in the order of their ids and jobs
    -- wait for the highest open one, so what is above has usually ended. (Spawned jobs are the
    -- exception: they have higher ids.) Pages double, so all searches of one job together read
    -- its edges only a few times.
    --
    -- Two shortcuts. A page whose ids are consecutive is skipped if finished has as many rows in
    -- their range: one index scan in place of a lookup for each. And after the first page the
    -- highest upstream of all is checked: where each job spawns the next, it is the open one.
    LOOP
        -- The next page downwards.
        SELECT min(e.after), max(e.after), count(*) INTO v_lowest, v_highest, v_edges
        FROM (
            SELECT d.after
            FROM pulse_internal.dependency AS d
            WHERE d.job = next_upstream.job
                AND d.after <= v_from
                AND NOT d.met
            ORDER BY d.job DESC, d.after DESC
            LIMIT v_page_size
        ) AS e;

        EXIT WHEN v_edges = 0;

        -- If the page has gaps or open upstreams: find its highest open one.
        IF v_highest - v_lowest >= v_edges OR v_edges > (
            SELECT count(*)
            FROM pulse_internal.finished AS f
            WHERE f.job BETWEEN v_lowest AND v_highest
                AND (f.state = 'completed' OR next_upstream.any_end)
        ) THEN
            SELECT e.after INTO v_open
            FROM (
                SELECT d.after
                FROM pulse_internal.dependency AS d
                WHERE d.job = next_upstream.job
                    AND d.after <= v_from
                    AND NOT d.met
                ORDER BY d.job DESC, d.after DESC
                LIMIT v_page_size
            ) AS e
            WHERE (
                SELECT f.state = 'completed' OR next_upstream.any_end
                FROM pulse_internal.finished AS f
                WHERE f.job = e.after
            ) IS NOT TRUE
            ORDER BY e.after DESC
            LIMIT 1;
            EXIT WHEN FOUND;
        END IF;

        -- After the first page: the highest upstream of all.
        IF v_page_size = 100 THEN
            SELECT d.after INTO v_open
            FROM (
                SELECT o.after, o.met
                FROM pulse_internal.dependency AS o
                WHERE o.job = next_upstream.job
                ORDER BY o.job DESC, o.after DESC
                LIMIT 1
            ) AS d
            WHERE NOT d.met
                AND (SELECT true FROM pulse_internal.finished AS f WHERE f.job = d.after) IS NULL;
            EXIT WHEN FOUND;
        END IF;

        v_from := v_lowest - 1;
        v_page_size := least(2 * v_page_size, 10000);
    END LOOP;

    -- Nothing open below: search above the one that has ended.
    RETURN coalesce(
        v_open,
        (
            SELECT d.after
            FROM pulse_internal.dependency AS d
            WHERE d.job = next_upstream.job
                AND d.after > next_upstream.ended
                AND NOT d.met
                AND (
                    SELECT f.state = 'completed' OR next_upstream.any_end
                    FROM pulse_internal.finished AS f
                    WHERE f.job = d.after
                ) IS NOT TRUE
            ORDER BY d.job DESC, d.after DESC
            LIMIT 1
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.next_upstream(bigint, bigint, boolean) IS
'An upstream of a job that has not ended well enough, if possible the highest; NULL if there is none.';
