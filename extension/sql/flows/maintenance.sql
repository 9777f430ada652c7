-- tick_flows, backstop_flows: what tick does for blocked jobs.
--
-- tick_flows settles doubts, takes the portions that claims have left (flows/settle.sql), and then
-- moves the marks of both: numbers below which doubt and wake have no row. A mark never passes a
-- number that an open transaction may still write (common/horizon.sql). Doubts that are unsure are
-- stored with the mark; when each transaction that was open then is over, they are settled.
--
-- backstop_flows looks once an hour for blocked jobs that no doubt and no portion names.
--
-- They delete from doubt and wake, insert into doubt, note_mark and upkeep_run, and wait for no
-- lock.

CREATE FUNCTION pulse_internal.tick_flows(until timestamptz DEFAULT 'infinity')
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_horizon pulse_internal.horizon;
    v_old pulse_internal.note_mark;
    v_new pulse_internal.note_mark;
    v_last constant bigint := pg_sequence_last_value('pulse_internal.note_seq');
    v_piece constant integer := pulse_internal.upkeep_piece();
    v_run pulse_internal.upkeep_run;
    v_decided bigint [] := ARRAY[]::bigint [];
    v_unsure bigint [] := ARRAY[]::bigint [];
    v_from bigint;
    v_some record;
    v_all bigint := 0;
BEGIN
    IF v_last IS NULL THEN
        RETURN 0;
    END IF;

    -- First which numbers are decided, then the doubts, in later statements: those see every row
    -- below the decided number.
    v_horizon := pulse_internal.see_horizon();
    v_old := pulse_internal.newest_note_mark();
    v_new := v_old;

    -- Each transaction that was open when these doubts were unsure has ended.
    IF pg_snapshot_xmin(pg_current_snapshot()) >= v_old.unsure_until THEN
        v_decided := v_old.unsure;
    END IF;

    -- Start where the last call stopped: doubts that an open transaction keeps unsure are read
    -- again each time, and must not take the time of the others. But start at the decided ones if
    -- there are some: the next call does not know them any more.
    v_run := pulse_internal.newest_upkeep_run('flows');
    v_from := greatest(
        v_old.doubt_from, coalesce(v_decided[1], (v_run.state ->> 'from')::bigint)
    );
    LOOP
        v_some := pulse_internal.settle_doubts(v_piece, v_from, v_decided, '{}', tick_flows.until);
        v_from := CASE WHEN v_some.seen = v_piece THEN v_some.last + 1 END;
        v_unsure := v_unsure || v_some.unsure;
        v_all := v_all + v_some.unblocked;
        EXIT WHEN v_from IS NULL OR pulse_internal.time_is_over(tick_flows.until);
    END LOOP;
    IF v_from IS DISTINCT FROM (v_run.state ->> 'from')::bigint THEN
        PERFORM pulse_internal.write_upkeep_run(v_run, 'flows', jsonb_build_object('from', v_from));
    END IF;

    LOOP
        SELECT w.seq INTO v_from
        FROM pulse_internal.wake AS w
        WHERE w.seq >= v_old.wake_from
            AND w.seq <= v_last
        ORDER BY w.seq
        LIMIT 1;
        EXIT WHEN v_from IS NULL;

        v_some := pulse_internal.take_portions(1000, 100, v_from, v_last);
        v_all := v_all + v_some.released;
        EXIT WHEN v_some.taken = 0 OR pulse_internal.time_is_over(tick_flows.until);
    END LOOP;

    -- Store which doubts are unsure now, unless the earlier ones still wait for their
    -- transactions.
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
                FROM pulse_internal.wake AS w
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
                FROM pulse_internal.doubt AS n
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
        INSERT INTO pulse_internal.note_mark (wake_from, doubt_from, unsure, unsure_until)
        VALUES (v_new.wake_from, v_new.doubt_from, v_new.unsure, v_new.unsure_until);

        DELETE FROM pulse_internal.note_mark AS m
        WHERE m.version = (
                SELECT o.version
                FROM pulse_internal.note_mark AS o
                WHERE o.version = v_old.version
                FOR UPDATE SKIP LOCKED
            );
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_flows(timestamptz) IS
'The step of tick: settle doubts, take portions, and move the marks of both. Returns how many jobs were unblocked.';

CREATE FUNCTION pulse_internal.backstop_flows(
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
    next := backstop_flows.from_job;
    LOOP
        v_jobs := array(
            SELECT b.job
            FROM pulse_internal.blocked AS b
            WHERE b.job > next ORDER BY b.job LIMIT 1000
        );
        -- Blocked jobs that wait for one that has ended: this would be a bug.
        v_upstreams := array(
            SELECT DISTINCT b.waits_for
            FROM pulse_internal.blocked AS b
            INNER JOIN pulse_internal.finished AS f ON f.job = b.waits_for
            WHERE b.job = ANY (v_jobs)
                AND (f.state = 'completed' OR b.after_failed = 'run')
                AND NOT EXISTS (SELECT FROM pulse_internal.doubt AS n WHERE n.job = b.waits_for)
                AND NOT EXISTS (SELECT FROM pulse_internal.wake AS w WHERE w.job = b.waits_for)
        );
        missed := missed + cardinality(v_upstreams);

        -- Doubts for these; and for upstreams that failed: an enqueue after more than 1,000 jobs
        -- writes no doubts about the rest, so a job to be cancelled may have been missed.

        INSERT INTO pulse_internal.doubt (job)
        SELECT unnest(v_upstreams)
        UNION
        SELECT d.after
        FROM (
            SELECT o.job
            FROM pulse_internal.blocked AS o
            WHERE o.job = ANY (v_jobs)
                AND o.after_failed = 'cancel'
            OFFSET 0
        ) AS b
        CROSS JOIN LATERAL (
            SELECT o.after
            FROM pulse_internal.dependency AS o
            WHERE o.job = b.job
            OFFSET 0
        ) AS d
        WHERE (
            SELECT f.state <> 'completed'
            FROM pulse_internal.finished AS f
            WHERE f.job = d.after
        );

        next := CASE WHEN cardinality(v_jobs) = 1000 THEN v_jobs[1000] END;
        EXIT WHEN next IS NULL OR pulse_internal.time_is_over(v_until);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.backstop_flows(bigint) IS
'A part of the backstop: look for blocked jobs that should have been unblocked or cancelled, for 0.3 seconds, and write doubts for them. Returns how many upstreams were missed, and where to go on (NULL at the end).';
