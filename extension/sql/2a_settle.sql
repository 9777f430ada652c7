-- What became of blocked jobs later: portions of watchers that were held or too many (wake) and
-- watches that an end may have missed (doubt), each looked at again in another transaction.
-- Claims take portions, tick takes the rest; 29_release.sql has the essay.

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

-- For claims, three notes at most, and for tick. Notes above upto were written meanwhile,
-- some by this: what another session holds is noted anew, behind all others.
CREATE FUNCTION pulse._take_wakes(
    need integer,
    max_notes integer,
    upto bigint DEFAULT pg_sequence_last_value('pulse.note_seq'),
    OUT released integer,
    OUT taken integer
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
    v_from bigint;
    v_note pulse.wake;
    v_looked record;
BEGIN
    released := 0;
    taken := 0;

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
        RETURN;
    END IF;

    FOR v_round IN 1.._take_wakes.max_notes LOOP
        DELETE FROM pulse.wake AS w
        WHERE w.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse.wake AS o
                WHERE o.seq >= v_from
                    AND o.seq <= _take_wakes.upto
                ORDER BY o.seq
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            ))
        RETURNING w.* INTO v_note;
        EXIT WHEN NOT FOUND;

        v_from := v_note.seq + 1;
        taken := taken + 1;
        IF v_note.job < 0 THEN
            v_looked := pulse._unpark(v_note.job, v_note.from_seq, v_note.to_seq);
        ELSE
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
        END IF;
        released := released + v_looked.released;

        IF v_looked.left_over THEN
            INSERT INTO pulse.wake (job, from_seq, to_seq)
            VALUES (v_note.job, v_note.from_seq, v_note.to_seq);
        END IF;
        EXIT WHEN released >= _take_wakes.need;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._take_wakes(integer, integer, bigint) IS
'Look at some of the portions that were left for later; says how many, and how many jobs were released.';

-- Reads first, then locks what can be settled. Sure: the row that says where the job stands
-- has no deleter, so its end, when it comes, sees who watches. An idle claim, which has no
-- until, leaves bad ends to tick, and what tick was not sure of.
CREATE FUNCTION pulse._settle(
    max_notes integer,
    from_seq bigint,
    decided bigint [],
    skipped bigint [],
    until timestamptz,
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

    IF _settle.until IS NULL THEN
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
        PERFORM pulse._ended_badly(v_failed || v_gone, _settle.max_notes, _settle.until);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._settle(
    integer, bigint, bigint [], bigint [], timestamptz
) IS
'Look at doubts: those whose job has ended, and drop those that cannot end unnoticed; decided were unsure until all who might have ended them were gone.';

-- What has ended once is enough for who takes any end, also when it is retried or pruned.
-- One that has run needs no gate any more. Of others that have ended their row is shared, so
-- that retention, which waits for nobody, leaves them until we are through.
CREATE FUNCTION pulse._note_met(jobs bigint [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_children bigint [] := array(
        SELECT d.job
        FROM pulse.dependency AS d
        WHERE d.after = ANY (_note_met.jobs)
            AND NOT d.met
            AND (SELECT b.after_failed FROM pulse.body AS b WHERE b.job = d.job) = 'run'
    );
    v_kept bigint [] := array(
        SELECT f.job
        FROM pulse.finished AS f
        WHERE f.job = ANY (v_children)
            AND f.attempts = 0
        FOR KEY SHARE SKIP LOCKED
    );
BEGIN
    UPDATE pulse.dependency AS d
    SET met = true
    WHERE d.after = ANY (_note_met.jobs)
        -- + 0 leaves one index to read (docs/decisions/pinned-plans.md).
        AND d.job + 0 = ANY (v_children)
        AND (
            d.job = ANY (v_kept)
            OR (SELECT true FROM pulse.finished AS f WHERE f.job = d.job) IS NOT TRUE
        );
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
        FROM pulse._settle(100, v_mark.doubt_from, '{}', v_mark.unsure, NULL) AS s
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
    v_last constant bigint := pg_sequence_last_value('pulse.note_seq');
    v_piece constant integer := pulse._upkeep_piece();
    v_run pulse.upkeep_run;
    v_decided bigint [] := ARRAY[]::bigint [];
    v_unsure bigint [] := ARRAY[]::bigint [];
    v_from bigint;
    v_some record;
    v_all bigint := 0;
BEGIN
    IF v_last IS NULL THEN
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

    -- From where the last one stopped: what an open transaction keeps unsure is met again
    -- each time, and must not use up the time of all others. But what is decided now nobody
    -- remembers later.
    v_run := pulse._newest_upkeep_run('flows');
    v_from := greatest(
        v_old.doubt_from, coalesce(v_decided[1], (v_run.state ->> 'from')::bigint)
    );
    LOOP
        v_some := pulse._settle(v_piece, v_from, v_decided, '{}', _tick_flows.until);
        v_from := CASE WHEN v_some.seen = v_piece THEN v_some.last + 1 END;
        v_unsure := v_unsure || v_some.unsure;
        v_all := v_all + v_some.released;
        EXIT WHEN v_from IS NULL OR pulse._time_is_over(_tick_flows.until);
    END LOOP;
    IF v_from IS DISTINCT FROM (v_run.state ->> 'from')::bigint THEN
        PERFORM pulse._write_upkeep_run(v_run, 'flows', jsonb_build_object('from', v_from));
    END IF;

    LOOP
        v_some := pulse._take_wakes(1000, 100, v_last);
        v_all := v_all + v_some.released;
        EXIT WHEN v_some.taken = 0 OR pulse._time_is_over(_tick_flows.until);
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
        SELECT f.job
        FROM pulse.blocked AS b
        INNER JOIN pulse.dependency AS d ON d.job = b.job
        INNER JOIN pulse.finished AS f ON f.job = d.after
        WHERE b.job = ANY (v_jobs)
            AND b.after_failed = 'cancel'
            AND f.state <> 'completed';

        next := CASE WHEN cardinality(v_jobs) = 1000 THEN v_jobs[1000] END;
        EXIT WHEN next IS NULL OR pulse._time_is_over(v_until);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._backstop_flows(bigint) IS
'Look for blocked jobs that should have been released or cancelled, and have them looked at; says how many upstreams went unnoticed.';
