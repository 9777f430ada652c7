-- How blocked jobs are released.
--
-- A blocked job watches one upstream that has not ended well enough for it. Whoever ends
-- a job calls _ended_well or _ended_badly, in a later statement than the one that ended it:
-- who began to watch until then is seen. _look locks the watchers without waiting and
-- then, in a later statement again, looks for another upstream that has not ended: first
-- downwards from the one that has, then once at those above it (spawned jobs have
-- greater ids). None: the job is released. Else its watch moves there.
--
-- The trap: an end may look before a watch is committed. Therefore whoever writes a watch of
-- a job that is not of its own transaction writes a doubt about it, and _settle looks again
-- later, in another transaction. docs/decisions/flows.md has the proof.
--
-- Nothing here waits for a row. What somebody else holds is written down, in portions of 200
-- (wake), and so is what a report has no time for. Claims take portions, tick takes the rest.

-- completed: these jobs have, which stays so for ever, and a watcher's only upstream needs no
-- second look. Else they ended badly, and only who takes any end is looked at. left_over:
-- there are more, or somebody else holds some.
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
                    WHERE d.job = h.job
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

-- The rest, and what somebody else holds, in portions for whoever comes next.
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
'Look at those who watch jobs that have ended: a thousand now, portions of the rest are noted; returns how many were released.';

CREATE FUNCTION pulse._ended_badly(jobs bigint [], max_jobs integer DEFAULT 1000)
RETURNS void
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
    v_jobs bigint [] := _ended_badly.jobs;
    v_children bigint [];
    v_causes bigint [];
    v_cancelled bigint [];
    v_keyed bigint [];
    v_all integer := 0;
BEGIN
    -- Level by level down the graph, by each job's own policy.
    WHILE v_jobs IS NOT NULL LOOP
        IF v_all >= _ended_badly.max_jobs THEN
            INSERT INTO pulse.doubt (job)
            SELECT unnest(v_jobs);
            RETURN;
        END IF;

        PERFORM pulse._wake(v_jobs, false);

        SELECT array_agg(c.job), array_agg(c.after) INTO v_children, v_causes
        FROM (
            SELECT d.job, d.after
            FROM unnest(v_jobs) AS u (job)
            CROSS JOIN LATERAL (
                SELECT o.job, o.after
                FROM pulse.dependency AS o
                WHERE o.after = u.job
                ORDER BY o.after, o.job
                OFFSET 0
            ) AS d
            WHERE (
                SELECT b.after_failed
                FROM pulse.blocked AS b
                WHERE b.job = d.job
            ) = 'cancel'
            LIMIT 1000
        ) AS c;
        EXIT WHEN v_children IS NULL;

        WITH gone AS (
            DELETE FROM pulse.blocked AS b
            WHERE b.job = ANY (array(
                    SELECT o.job
                    FROM pulse.blocked AS o
                    WHERE o.job = ANY (v_children)
                        AND o.after_failed = 'cancel'
                    FOR UPDATE SKIP LOCKED
                ))
            RETURNING b.*
        ),

        ended AS (
            INSERT INTO pulse.finished (
                job, lane, kind, rank, state, ended_by, attempts, failures, keyed, error
            )
            SELECT
                g.job, g.lane, g.kind, g.rank, 'cancelled', 'upstream', g.attempts,
                g.failures, g.keyed,
                pulse._upstream_error(v_causes[array_position(v_children, g.job)])
            FROM gone AS g
            RETURNING job, keyed
        ),

        counted AS (
            INSERT INTO pulse.tally (lane, kind, event, jobs)
            SELECT g.lane, g.kind, 'cancelled', count(*)
            FROM gone AS g
            GROUP BY g.lane, g.kind
        )

        SELECT array_agg(e.job), array_agg(e.job) FILTER (WHERE e.keyed)
        INTO v_cancelled, v_keyed
        FROM ended AS e;

        IF v_keyed IS NOT NULL THEN
            PERFORM pulse._release_keys(v_keyed);
        END IF;

        -- More than a thousand, or somebody holds one: another look.
        INSERT INTO pulse.doubt (job)
        SELECT DISTINCT c.after
        FROM unnest(v_children, v_causes) AS c (job, after)
        WHERE cardinality(v_children) = 1000
            OR (c.job = ANY (v_cancelled)) IS NOT TRUE;

        v_jobs := v_cancelled;
        v_all := v_all + coalesce(cardinality(v_cancelled), 0);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._ended_badly(bigint [], integer) IS
'After jobs died or were cancelled: cancel those who depend on them, release those for whom any end counts, and so on down the graph, about max_jobs; a doubt is left of the rest.';

CREATE FUNCTION pulse._upstream_error(job bigint)
RETURNS text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format(
        'job %s, which it depends on, is %s',
        _upstream_error.job,
        coalesce(
            (SELECT f.state::text FROM pulse.finished AS f WHERE f.job = _upstream_error.job),
            'gone'
        )
    )
$$;

COMMENT ON FUNCTION pulse._upstream_error(bigint) IS
'Why a job is cancelled that depends on this one.';

CREATE FUNCTION pulse._newest_note_mark()
RETURNS pulse.note_mark
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark pulse.note_mark;
BEGIN
    SELECT m.* INTO v_mark
    FROM pulse.note_mark AS m
    ORDER BY m.version DESC
    LIMIT 1;

    IF NOT FOUND THEN
        v_mark.wake_from := 0;
        v_mark.doubt_from := 0;
        v_mark.unsure := '{}';
    END IF;
    RETURN v_mark;
END;
$$;

COMMENT ON FUNCTION pulse._newest_note_mark() IS
'From which numbers on there can be live doubts and wakes.';

-- For claims, three notes at most, and for tick.
CREATE FUNCTION pulse._take_wakes(need integer, max_notes integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_from bigint;
    v_note pulse.wake;
    v_looked record;
    v_released integer := 0;
BEGIN
    -- A look first: a claim that writes nothing here holds no lock on the table.
    SELECT w.seq INTO v_from
    FROM pulse.wake AS w
    WHERE w.seq >= coalesce(
            (
                SELECT m.wake_from
                FROM pulse.note_mark AS m
                ORDER BY m.version DESC
                LIMIT 1
            ),
            0
        )
    ORDER BY w.seq
    LIMIT 1;

    IF NOT FOUND THEN
        RETURN 0;
    END IF;

    FOR v_round IN 1.._take_wakes.max_notes LOOP
        DELETE FROM pulse.wake AS w
        WHERE w.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse.wake AS o
                WHERE o.seq >= v_from
                ORDER BY o.seq
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            ))
        RETURNING w.* INTO v_note;
        EXIT WHEN NOT FOUND;

        -- It may have been retried since: then what ended once is in dependency.met.
        v_looked := pulse._look(
            ARRAY[v_note.job],
            coalesce(
                (
                    SELECT f.state = 'completed'
                    FROM pulse.finished AS f
                    WHERE f.job = v_note.job
                ),
                false
            ),
            v_note.from_seq, v_note.to_seq, 1000
        );
        v_released := v_released + v_looked.released;

        IF v_looked.left_over THEN
            INSERT INTO pulse.wake (job, from_seq, to_seq)
            VALUES (v_note.job, v_note.from_seq, v_note.to_seq);
            EXIT;
        END IF;
        EXIT WHEN v_released >= _take_wakes.need;
    END LOOP;
    RETURN v_released;
END;
$$;

COMMENT ON FUNCTION pulse._take_wakes(integer, integer) IS
'Look at some of the portions that were left for later; returns how many jobs were released.';

-- Reads first, then locks what can be settled. Sure: the row that says where the job stands
-- has no deleter, so its end, when it comes, sees who watches. An idle claim
-- leaves bad ends to tick, and what tick was not sure of.
CREATE FUNCTION pulse._settle(
    max_notes integer,
    from_seq bigint,
    decided bigint [],
    skipped bigint [],
    is_tick boolean,
    OUT released integer,
    OUT seen integer,
    OUT last bigint,
    OUT unsure bigint []
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
    v_sure bigint [];
    v_well bigint [];
    v_bad bigint [];
    v_held bigint [];
    v_completed bigint [];
    v_failed bigint [];
    v_gone bigint [];
BEGIN
    released := 0;

    SELECT
        count(*),
        max(x.seq),
        coalesce(array_agg(x.seq) FILTER (WHERE x.state IS NULL AND x.is_sure), '{}'),
        coalesce(array_agg(x.seq) FILTER (WHERE x.state = 'completed'), '{}'),
        coalesce(
            array_agg(x.seq) FILTER (
                WHERE x.state <> 'completed' OR x.state IS NULL AND x.is_sure IS NULL
            ),
            '{}'
        ),
        coalesce(
            array_agg(x.seq) FILTER (WHERE x.state IS NULL AND NOT x.is_sure), '{}'
        )
    INTO seen, last, v_sure, v_well, v_bad, unsure
    FROM (
        SELECT
            n.seq,
            (SELECT f.state FROM pulse.finished AS f WHERE f.job = n.job) AS state,
            -- NULL where it stands nowhere: it was pruned.
            p.is_sure OR (p.is_sure IS NOT NULL AND n.seq = ANY (_settle.decided)) AS is_sure
        FROM (
            SELECT o.seq, o.job
            FROM pulse.doubt AS o
            WHERE o.seq >= _settle.from_seq
                -- Not our own: who watches is seen by nobody yet.
                AND o.by IS DISTINCT FROM pg_current_xact_id_if_assigned()
                AND o.seq <> ALL (_settle.skipped)
            ORDER BY o.seq
            LIMIT _settle.max_notes
        ) AS n
        CROSS JOIN LATERAL (
            SELECT
                coalesce(
                    (SELECT l.xmax = 0 FROM pulse.lease AS l WHERE l.job = n.job),
                    (SELECT r.xmax = 0 FROM pulse.ready AS r WHERE r.job = n.job),
                    (SELECT g.xmax = 0 FROM pulse.group_ready AS g WHERE g.job = n.job),
                    (SELECT b.xmax = 0 FROM pulse.blocked AS b WHERE b.job = n.job),
                    (SELECT w.xmax = 0 FROM pulse.waiting AS w WHERE w.job = n.job),
                    (SELECT a.xmax = 0 FROM pulse.approval AS a WHERE a.job = n.job)
                ) AS is_sure
            OFFSET 0
        ) AS p
        OFFSET 0
    ) AS x;

    IF NOT _settle.is_tick THEN
        v_bad := '{}';
    END IF;

    v_held := array(
        SELECT n.seq
        FROM pulse.doubt AS n
        WHERE n.seq = ANY (v_sure || v_well || v_bad)
        ORDER BY n.seq
        FOR UPDATE SKIP LOCKED
    );
    IF v_held = '{}' THEN
        RETURN;
    END IF;

    v_completed := array(
        SELECT DISTINCT n.job
        FROM pulse.doubt AS n
        WHERE n.seq = ANY (v_held) AND n.seq = ANY (v_well)
    );

    IF v_bad <> '{}' THEN
        -- Nobody retries them until we are through.
        v_failed := array(
            SELECT f.job
            FROM pulse.finished AS f
            WHERE f.job = ANY (array(
                    SELECT n.job
                    FROM pulse.doubt AS n
                    WHERE n.seq = ANY (v_held) AND n.seq = ANY (v_bad)
                ))
                AND f.state <> 'completed'
            FOR KEY SHARE SKIP LOCKED
        );
        v_gone := array(
            SELECT DISTINCT n.job
            FROM pulse.doubt AS n
            WHERE n.seq = ANY (v_held)
                AND n.seq = ANY (v_bad)
                AND NOT EXISTS (SELECT FROM pulse.body AS b WHERE b.job = n.job)
        );
        -- Those that moved meanwhile are looked at again.
        v_held := array(
            SELECT n.seq
            FROM pulse.doubt AS n
            WHERE n.seq = ANY (v_held)
                AND (n.seq <> ALL (v_bad) OR n.job = ANY (v_failed || v_gone))
        );
    END IF;

    DELETE FROM pulse.doubt AS n
    WHERE n.seq = ANY (v_held);

    IF v_completed <> '{}' THEN
        released := pulse._wake(v_completed, true);
    END IF;
    IF v_gone <> '{}' THEN
        PERFORM pulse._note_met(v_gone);
    END IF;
    IF v_failed || v_gone <> '{}' THEN
        PERFORM pulse._ended_badly(v_failed || v_gone, 10000);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._settle(
    integer, bigint, bigint [], bigint [], boolean
) IS
'Look at doubts: those whose job has ended, and drop those that cannot end unnoticed; decided were unsure until all who might have ended them were gone.';

-- What has ended once is enough for who takes any end, also when it is retried or pruned.
CREATE FUNCTION pulse._note_met(jobs bigint [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    UPDATE pulse.dependency AS d
    SET met = true
    WHERE d.after = ANY (_note_met.jobs)
        AND NOT d.met
        AND (SELECT b.after_failed FROM pulse.body AS b WHERE b.job = d.job) = 'run';
END;
$$;

COMMENT ON FUNCTION pulse._note_met(bigint []) IS
'Remember for those who take any end that these jobs have ended once.';

-- A claim that found nothing to do.
CREATE FUNCTION pulse._settle_some()
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_mark pulse.note_mark := pulse._newest_note_mark();
BEGIN
    RETURN (
        SELECT s.released
        FROM pulse._settle(100, v_mark.doubt_from, '{}', v_mark.unsure, false) AS s
        -- Each of them is stepped over.
        WHERE cardinality(v_mark.unsure) < 100
    );
END;
$$;

COMMENT ON FUNCTION pulse._settle_some() IS
'Look at up to a hundred doubts; returns how many jobs were released.';

-- A step of tick.
CREATE FUNCTION pulse._tick_flows(until timestamptz DEFAULT 'infinity')
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_horizon pulse.horizon;
    v_old pulse.note_mark;
    v_new pulse.note_mark;
    v_decided bigint [] := ARRAY[]::bigint [];
    v_unsure bigint [] := ARRAY[]::bigint [];
    v_from bigint;
    v_some record;
    v_released integer;
    v_all bigint := 0;
BEGIN
    IF pg_sequence_last_value('pulse.note_seq') IS NULL THEN
        RETURN 0;
    END IF;

    -- Decided first; looked at in later statements.
    v_horizon := pulse._see_horizon();
    v_old := pulse._newest_note_mark();
    v_new := v_old;

    -- Every transaction that was open at an earlier look has ended.
    IF pg_snapshot_xmin(pg_current_snapshot()) >= v_old.unsure_until THEN
        v_decided := v_old.unsure;
    END IF;

    v_from := v_old.doubt_from;
    LOOP
        v_some := pulse._settle(1000, v_from, v_decided, '{}', true);
        v_from := v_some.last + 1;
        v_unsure := v_unsure || v_some.unsure;
        v_all := v_all + v_some.released;
        EXIT WHEN v_some.seen < 1000 OR clock_timestamp() >= _tick_flows.until;
    END LOOP;

    LOOP
        v_released := pulse._take_wakes(1000, 100);
        v_all := v_all + v_released;
        EXIT WHEN v_released < 1000 OR clock_timestamp() >= _tick_flows.until;
    END LOOP;

    -- What is still unsure of the doubts that were remembered waits for the same transactions.
    IF v_decided <> '{}' OR v_old.unsure_until IS NULL THEN
        v_new.unsure := v_unsure [1:10000];
        v_new.unsure_until := CASE
            WHEN v_unsure <> '{}' THEN pg_snapshot_xmax(pg_current_snapshot())
        END;
    END IF;

    v_new.wake_from := greatest(
        v_old.wake_from,
        least(
            v_horizon.note_q + 1,
            (
                SELECT w.seq
                FROM pulse.wake AS w
                WHERE w.seq >= v_old.wake_from
                ORDER BY w.seq
                LIMIT 1
            )
        )
    );
    v_new.doubt_from := greatest(
        v_old.doubt_from,
        least(
            v_horizon.note_q + 1,
            (
                SELECT n.seq
                FROM pulse.doubt AS n
                WHERE n.seq >= v_old.doubt_from
                ORDER BY n.seq
                LIMIT 1
            )
        )
    );

    IF (v_new.wake_from, v_new.doubt_from, v_new.unsure, v_new.unsure_until)
        IS DISTINCT FROM
        (v_old.wake_from, v_old.doubt_from, v_old.unsure, v_old.unsure_until)
    THEN
        INSERT INTO pulse.note_mark (wake_from, doubt_from, unsure, unsure_until)
        VALUES (v_new.wake_from, v_new.doubt_from, v_new.unsure, v_new.unsure_until);

        DELETE FROM pulse.note_mark AS m
        WHERE m.version = (
                SELECT o.version
                FROM pulse.note_mark AS o
                WHERE o.version = v_old.version
                FOR UPDATE SKIP LOCKED
            );
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse._tick_flows(timestamptz) IS
'Settle doubts, take the portions that were left for later, and move the marks of both; returns how many jobs were released.';

-- A part of the backstop: what no note told. A watch of a job that ended well is a bug; a job
-- to be cancelled may be late, where an enqueue named more than 1,000 jobs of others.
CREATE FUNCTION pulse._backstop_flows()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_missed bigint [] := array(
        SELECT DISTINCT b.waits_for
        FROM pulse.blocked AS b
        INNER JOIN pulse.finished AS f ON f.job = b.waits_for
        WHERE (f.state = 'completed' OR b.after_failed = 'run')
            AND NOT EXISTS (SELECT FROM pulse.doubt AS n WHERE n.job = b.waits_for)
            AND NOT EXISTS (SELECT FROM pulse.wake AS w WHERE w.job = b.waits_for)
        LIMIT 10000
    );
BEGIN
    INSERT INTO pulse.doubt (job)
    SELECT unnest(v_missed)
    UNION
    (
        SELECT f.job
        FROM pulse.blocked AS b
        INNER JOIN pulse.dependency AS d ON d.job = b.job
        INNER JOIN pulse.finished AS f ON f.job = d.after
        WHERE f.state <> 'completed'
            AND b.after_failed = 'cancel'
        LIMIT 10000
    );
    RETURN cardinality(v_missed);
END;
$$;

COMMENT ON FUNCTION pulse._backstop_flows() IS
'Look for blocked jobs that should have been released or cancelled, and have them looked at; returns how many upstreams went unnoticed.';
