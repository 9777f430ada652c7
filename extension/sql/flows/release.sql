-- How blocked jobs are released.
--
-- A blocked job watches one upstream that has not ended well enough for it. Whoever ends
-- a job calls wake or ended_badly, in a later statement than the one that ended it:
-- who began to watch until then is seen. look locks the watchers without waiting. One that
-- had no other upstream is released; for the others it looks, in a later statement again, for
-- an upstream that has not ended. None: the job is released. Else its watch moves there.
--
-- The trap: an end may look before a watch is committed. Therefore whoever writes a watch of
-- a job that is not of its own transaction writes a doubt about it, and settle looks again
-- later, in another transaction. docs/decisions/flows.md has the proof.
--
-- Statements of look and what it calls are planned with the settings of wake and
-- take_portions, which alone call it: to enter a function costs a microsecond for each setting.
--
-- Nothing here waits for a row. What another session holds is written down, in portions of 200
-- (wake), and so is what a report has no time for. Claims take portions, tick takes the rest.

-- completed: these jobs have, which stays so for ever, and a watcher's only upstream needs no
-- second look, unless it had steps: one may have spawned more for the watcher to wait for. Else
-- they ended badly, and only who takes any end is looked at. left_over: there are more, or
-- another session holds some.
CREATE FUNCTION pulse_internal.look(
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
AS $$
DECLARE
    v_shown constant bigint := - pg_stat_get_xact_tuples_fetched(
        'pulse_internal.blocked_for_wake'::regclass
    );
    v_locked bigint;
    v_free tid [];
    v_lane text;
    v_tids tid [];
    v_held bigint [];
    v_at bigint [];
    v_any boolean [];
    v_found tid [];
    v_stuck tid [];
    v_next bigint [];
BEGIN
    released := 0;

    -- One scan of blocked_for_wake that locks as it goes and never waits.
    SELECT
        array_agg(g.ctid) FILTER (WHERE g.is_free),
        CASE WHEN min(g.lane) = max(g.lane) AND bool_and(g.is_plain) THEN min(g.lane) END,
        array_agg(g.ctid) FILTER (WHERE NOT g.is_free),
        array_agg(g.job) FILTER (WHERE NOT g.is_free),
        array_agg(g.waits_for) FILTER (WHERE NOT g.is_free),
        array_agg(g.after_failed = 'run') FILTER (WHERE NOT g.is_free),
        count(*)
    INTO v_free, v_lane, v_tids, v_held, v_at, v_any, v_locked
    FROM (
        SELECT
            b.ctid,
            b.job,
            b.waits_for,
            b.after_failed,
            b.lane,
            num_nonnulls(b.run_at, b.delay, b.expires_in) = 0
            AND NOT (b.needs_approval OR b.keyed) AS is_plain,
            look.completed
            AND b.alone
            AND b.waits_for <> ALL (array(
                SELECT DISTINCT s.job
                FROM pulse_internal.job_step AS s
                WHERE s.job = ANY (look.jobs)
            )) AS is_free
        FROM pulse_internal.blocked AS b
        WHERE b.waits_for = ANY (look.jobs)
            AND b.seq BETWEEN look.from_seq AND look.to_seq
            AND (look.completed OR b.after_failed = 'run')
        ORDER BY b.waits_for, b.seq
        LIMIT look.max_jobs
        FOR UPDATE SKIP LOCKED
    ) AS g;

    -- If it came to its end and locked all that the index has shown, nobody holds one. Else they
    -- are counted, where counters are off as well: those that we hold are still there, so no
    -- newcomer hides one that was skipped.
    left_over := false;
    IF v_locked NOT BETWEEN 1 AND look.max_jobs - 1
        OR v_locked <> v_shown
        + pg_stat_get_xact_tuples_fetched('pulse_internal.blocked_for_wake'::regclass)
    THEN
        left_over := v_locked < (
            SELECT count(*)
            FROM (
                SELECT
                FROM pulse_internal.blocked AS b
                WHERE b.waits_for = ANY (look.jobs)
                    AND b.seq BETWEEN look.from_seq AND look.to_seq
                    AND (look.completed OR b.after_failed = 'run')
                ORDER BY b.waits_for, b.seq
                LIMIT look.max_jobs + 1
            ) AS there
        );
    END IF;

    -- Later statements than the lock: what those who held them before have committed is seen.
    -- Where there are several, mostly all that they wait for has completed, and they have few
    -- edges: one scan looks for the first edge of which that is not so, or for too many. Not
    -- where any end counts: edges that were met are rewritten, and would be stepped over.
    IF cardinality(v_tids) > 5 AND look.completed AND NOT true = ANY (v_any) THEN
        PERFORM
        FROM (
            SELECT
                e.after,
                row_number() OVER () AS nth
            FROM (
                SELECT o.after
                FROM pulse_internal.dependency AS o
                WHERE o.job = ANY (v_held)
                    AND NOT o.met
                ORDER BY o.job, o.after
                LIMIT 10 * cardinality(v_tids)
            ) AS e
        ) AS d
        WHERE d.nth = 10 * cardinality(v_tids)
            OR (
                look.jobs[width_bucket(d.after, look.jobs)] = d.after
                OR (
                    SELECT f.state = 'completed'
                    FROM pulse_internal.finished AS f
                    WHERE f.job = d.after
                )
            ) IS NOT TRUE
        LIMIT 1;
        IF NOT FOUND THEN
            v_found := v_tids;
        END IF;
    END IF;

    IF v_tids IS NOT NULL AND v_found IS NULL THEN
        SELECT
            array_agg(e.tid) FILTER (WHERE e.next IS NULL),
            array_agg(e.tid) FILTER (WHERE e.next IS NOT NULL),
            array_agg(e.next) FILTER (WHERE e.next IS NOT NULL)
        INTO v_found, v_stuck, v_next
        FROM (
            SELECT
                h.tid,
                CASE
                    WHEN u.edges < 10 THEN u.next
                    ELSE pulse_internal.next_upstream(h.job, h.at, h.any_end)
                END AS next
            FROM unnest(v_tids, v_held, v_at, v_any) AS h (tid, job, at, any_end)
            CROSS JOIN LATERAL (
                SELECT
                    max(d.after) FILTER (WHERE d.is_ended IS NOT TRUE) AS next,
                    count(*) AS edges
                FROM (
                    SELECT
                        o.after,
                        -- Mostly they ended together: found by a binary search, where jobs
                        -- are in order.
                        CASE
                            WHEN look.completed
                                AND look.jobs[width_bucket(o.after, look.jobs)] = o.after
                                THEN true
                            ELSE (
                                SELECT f.state = 'completed' OR h.any_end
                                FROM pulse_internal.finished AS f
                                WHERE f.job = o.after
                            )
                        END AS is_ended
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

    IF v_free || v_found IS NOT NULL THEN
        released := pulse_internal.release(v_free || v_found, v_lane);
    END IF;

    IF v_stuck IS NOT NULL THEN
        -- No longer alone: it has another upstream, or one was added.
        UPDATE pulse_internal.blocked AS b
        SET waits_for = s.next,
            alone = false
        FROM unnest(v_stuck, v_next) AS s (tid, next)
        WHERE b.ctid = s.tid;

        INSERT INTO pulse_internal.doubt (job)
        SELECT DISTINCT s.next
        FROM unnest(v_next) AS s (next);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.look(bigint [], boolean, bigint, bigint, integer) IS
'Release those who watch jobs that have ended, or let them watch another: at most max_jobs, with numbers in a range.';

-- Of a large fan-in: first downwards from the one that has ended, by growing pages, so that
-- little is read that was not passed for good; then once at those above it (spawned jobs have
-- greater ids). The last of all is asked after the first page: where each job spawns the next one,
-- it is that. Pages of neighbours that have all ended are passed by one range of finished, the
-- others one by one.
CREATE FUNCTION pulse_internal.next_upstream(job bigint, ended bigint, any_end boolean)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_upto bigint := next_upstream.ended;
    v_page integer := 100;
    v_first bigint;
    v_last bigint;
    v_edges bigint;
    v_next bigint;
BEGIN
    LOOP
        SELECT min(e.after), max(e.after), count(*) INTO v_first, v_last, v_edges
        FROM (
            SELECT d.after
            FROM pulse_internal.dependency AS d
            WHERE d.job = next_upstream.job
                AND d.after <= v_upto
                AND NOT d.met
            ORDER BY d.job DESC, d.after DESC
            LIMIT v_page
        ) AS e;

        EXIT WHEN v_edges = 0;

        IF v_last - v_first >= v_edges OR v_edges > (
            SELECT count(*)
            FROM pulse_internal.finished AS f
            WHERE f.job BETWEEN v_first AND v_last
                AND (f.state = 'completed' OR next_upstream.any_end)
        ) THEN
            SELECT e.after INTO v_next
            FROM (
                SELECT d.after
                FROM pulse_internal.dependency AS d
                WHERE d.job = next_upstream.job
                    AND d.after <= v_upto
                    AND NOT d.met
                ORDER BY d.job DESC, d.after DESC
                LIMIT v_page
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

        IF v_page = 100 THEN
            SELECT d.after INTO v_next
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
        v_upto := v_first - 1;
        v_page := least(2 * v_page, 10000);
    END LOOP;

    RETURN coalesce(
        v_next,
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
'An upstream of a job that has not ended well enough, the nearest one below one that has; NULL when there is none.';

-- What an end calls: the look of flows/release.sql, and notes of what it left.

-- The rest, and what another session holds, in portions for whoever comes next.
CREATE FUNCTION pulse_internal.wake(jobs bigint [], completed boolean)
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
    v_job bigint;
    v_last bigint;
BEGIN
    -- As many as a report of so many jobs has time for.
    v_looked := pulse_internal.look(
        wake.jobs, wake.completed, 0, 9223372036854775807,
        greatest(1000, 4 * cardinality(wake.jobs))
    );

    IF v_looked.left_over THEN
        FOR v_job IN
            SELECT j.job
            FROM unnest(wake.jobs) AS j (job)
            WHERE (
                    SELECT true
                    FROM pulse_internal.blocked AS o
                    WHERE o.waits_for = j.job
                    ORDER BY o.waits_for, o.seq
                    LIMIT 1
                )
        LOOP
            v_last := 0;
            LOOP
                -- Numbers that were drawn at once need not be read: the one at the end shows
                -- that they are there, and between there are no more than 200.
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
                                    AND (wake.completed OR o.after_failed = 'run')
                                ORDER BY o.waits_for, o.seq
                                LIMIT 200
                            ) AS b
                        )
                    )
                FROM (
                    SELECT o.seq
                    FROM pulse_internal.blocked AS o
                    WHERE o.waits_for = v_job
                        AND o.seq > v_last
                        AND (wake.completed OR o.after_failed = 'run')
                    ORDER BY o.waits_for, o.seq
                    LIMIT 1
                ) AS a
                RETURNING w.to_seq INTO v_last;
                EXIT WHEN NOT FOUND;
            END LOOP;
        END LOOP;
    END IF;
    RETURN v_looked.released;
END;
$$;

COMMENT ON FUNCTION pulse_internal.wake(bigint [], boolean) IS
'Look at the blocked jobs that watch jobs which have ended: a thousand now, or four for each job that has ended, the rest is noted in portions; returns how many were released.';
