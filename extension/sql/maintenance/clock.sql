-- tick_clock: correct times that a clock stored while it was ahead (common/clock.sql).
--
-- After the clock is set back, a stored time may be later than any that it could store now. Most
-- functions that read such a time correct it when they read it. Leases, schedules, approvals and
-- retries are read only when their time has come, so tick looks for them:
--   correct_leases      leases that end later than a claim or heartbeat could set now
--   correct_schedules   schedules that were handled at a later time than now
--   correct_approvals   approvals that were asked for later than now
--   correct_retries     retries after a failure later than now; once after each step back
--
-- It writes lease, schedule, schedule_run, approval, waiting and upkeep_run. Locks: rows of these,
-- SKIP LOCKED; a locked row is left to the next call.

CREATE FUNCTION pulse_internal.tick_clock(until timestamptz)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_found bigint;
BEGIN
    v_found := pulse_internal.correct_leases()
        + pulse_internal.correct_schedules()
        + pulse_internal.correct_approvals();
    IF v_found > 0 AND (pulse_internal.newest_upkeep_run('clock')).state ->> 'after' IS NULL THEN
        PERFORM pulse_internal.note_clock(NULL);
    END IF;
    RETURN v_found + pulse_internal.correct_retries(tick_clock.until);
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_clock(timestamptz) IS
'The step of tick: correct times that a clock stored while it was ahead. Returns how many rows.';

CREATE FUNCTION pulse_internal.note_clock(back interval)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- after is the job behind which correct_retries goes on: it starts with the first one.
    PERFORM pulse_internal.write_upkeep_run(
        pulse_internal.newest_upkeep_run('clock'), 'clock',
        jsonb_strip_nulls(
            jsonb_build_object('back', date_part('epoch', note_clock.back), 'after', '0')
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_clock(interval) IS
'Note that the clock was set back, and by how much if that is known.';

CREATE FUNCTION pulse_internal.correct_leases()
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_leases bigint [];
    v_found integer;
BEGIN
    -- A lease ends at most the time that it was claimed for after now. Those that end within 30
    -- seconds, the default, expire soon enough. Of the others the 10,000 latest are read: if the
    -- clock was far ahead, the wrong ones are among them.
    v_leases := array(
        SELECT l.lease
        FROM pulse_internal.lease AS l
        WHERE l.lease = ANY (array(
                SELECT t.lease
                FROM (
                    SELECT o.lease, o.lease_until, o.lease_for, o.claimed_at
                    FROM pulse_internal.lease AS o
                    WHERE o.reap_at > v_now + interval '30 seconds'
                    ORDER BY o.reap_at DESC
                    LIMIT 10000
                ) AS t
                WHERE t.lease_until > pulse_internal.by_clock(t.lease_until, v_now, t.lease_for)
                    OR t.claimed_at > v_now
            ))
        FOR NO KEY UPDATE SKIP LOCKED
    );
    IF v_leases = '{}' THEN
        RETURN 0;
    END IF;

    -- max_runtime counts from the claim, the grace of a cancel from the request.
    UPDATE pulse_internal.lease AS l
    SET claimed_at = c.claimed_at,
        deadline = c.deadline,
        cancel_by = c.cancel_by,
        lease_until = least(c.lease_until, c.deadline, c.cancel_by),
        reap_at = least(c.lease_until, c.deadline, c.cancel_by)
    FROM (
        SELECT
            o.lease,
            pulse_internal.by_clock(o.lease_until, v_now, o.lease_for) AS lease_until,
            pulse_internal.by_clock(o.claimed_at, v_now) AS claimed_at,
            o.deadline - (o.claimed_at - pulse_internal.by_clock(o.claimed_at, v_now)) AS deadline,
            pulse_internal.by_clock(
                o.cancel_by, v_now, (pulse_internal.lane_settings(o.lane)).cancel_grace
            ) AS cancel_by
        FROM pulse_internal.lease AS o
        WHERE o.lease = ANY (v_leases)
        OFFSET 0
    ) AS c
    WHERE l.lease = c.lease;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse_internal.correct_leases() IS
'Shorten leases that end later than a claim or heartbeat could set now. Returns how many.';

CREATE FUNCTION pulse_internal.correct_schedules()
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_schedule pulse_internal.schedule;
    v_anchor timestamptz;
    v_next timestamptz;
    v_found integer := 0;
BEGIN
    FOR v_schedule IN
        SELECT s.*
        FROM pulse_internal.schedule AS s
        WHERE s.name IN (
                SELECT r.name
                FROM pulse_internal.schedule_run AS r
                WHERE r.handled_at > v_now
                UNION
                SELECT o.name
                FROM pulse_internal.schedule AS o
                WHERE o.next_at > v_now
                    AND o.paused_at IS NULL
                    AND o.created_at > v_now
            )
            AND s.at IS NULL
        FOR UPDATE SKIP LOCKED
    LOOP
        -- The schedule goes on with its next occurrence from now on. Occurrences from then on that
        -- were skipped as missed were not missed. Those that became a job stay in the run history:
        -- an occurrence fires once.
        v_anchor := pulse_internal.by_clock(v_schedule.anchor, v_now);
        v_next := pulse_internal.occurrence_after(
            pulse_internal.recurrence(
                v_schedule.cron, v_schedule.every, v_schedule.at, v_anchor, v_schedule.timezone
            ),
            v_now
        );
        CONTINUE WHEN (v_next < v_schedule.next_at) IS NOT TRUE;

        DELETE FROM pulse_internal.schedule_run AS r
        WHERE r.name = v_schedule.name
            AND r.occurrence >= v_next
            AND r.handled_at > v_now
            AND r.job IS NULL;

        UPDATE pulse_internal.schedule AS s
        SET anchor = v_anchor,
            created_at = pulse_internal.by_clock(s.created_at, v_now),
            next_at = v_next,
            retry_at = NULL
        WHERE s.name = v_schedule.name;
        v_found := v_found + 1;
    END LOOP;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse_internal.correct_schedules() IS
'Let schedules that a clock ahead of now has fired or created go on from now. Returns how many.';

CREATE FUNCTION pulse_internal.correct_approvals()
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_found integer;
BEGIN
    WITH ahead AS (
        DELETE FROM pulse_internal.approval AS a
        WHERE a.job = ANY (array(
                SELECT o.job
                FROM pulse_internal.approval AS o
                WHERE o.job = ANY (array(
                        SELECT t.job
                        FROM (
                            SELECT n.job, n.asked_at
                            FROM pulse_internal.approval AS n
                            WHERE n.expires_at > v_now
                            ORDER BY n.expires_at DESC
                            LIMIT 1000
                        ) AS t
                        WHERE t.asked_at > v_now
                    ))
                FOR UPDATE SKIP LOCKED
            ))
        RETURNING a.*
    )

    INSERT INTO pulse_internal.approval (
        job, lane, kind, rank, run_at, expires_at, asked_at, keyed
    )
    SELECT
        a.job, a.lane, a.kind, a.rank, a.run_at, a.expires_at - (a.asked_at - v_now), v_now,
        a.keyed
    FROM ahead AS a;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse_internal.correct_approvals() IS
'Let approvals that were asked for later than now expire as if they were asked for now: their rows are deleted and inserted anew. Returns how many.';

CREATE FUNCTION pulse_internal.correct_retries(until timestamptz)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('clock');
    v_after bigint := (v_old.state ->> 'after')::bigint;
    v_size integer := pulse_internal.upkeep_piece();
    v_now timestamptz := clock_timestamp();
    v_page bigint [];
    v_corrected integer;
    v_found bigint := 0;
BEGIN
    IF v_after IS NULL THEN
        RETURN 0;
    END IF;

    LOOP
        v_page := array(
            SELECT w.job
            FROM pulse_internal.waiting AS w
            WHERE w.job > v_after
            ORDER BY w.job
            LIMIT v_size
        );

        WITH ahead AS (
            DELETE FROM pulse_internal.waiting AS w
            WHERE w.ctid = ANY (array(
                    SELECT o.ctid
                    FROM pulse_internal.waiting AS o
                    INNER JOIN pulse_internal.failure AS f
                        ON f.job = o.job
                        AND f.attempt = o.attempts
                    WHERE o.job = ANY (v_page)
                        AND o.retrying
                        AND f.failed_at > v_now
                        AND o.run_at > f.failed_at
                    FOR UPDATE OF o SKIP LOCKED
                ))
            RETURNING w.*
        )

        INSERT INTO pulse_internal.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying, last_lease,
            last_verb, place, group_key
        )
        SELECT
            a.lane,
            greatest(
                clock_timestamp() + (a.run_at - f.failed_at),
                (SELECT pulse_internal.due_floor())
            ),
            a.job, a.kind, a.rank, a.attempts, a.failures, a.keyed, a.retrying, a.last_lease,
            a.last_verb, a.place, a.group_key
        FROM ahead AS a
        INNER JOIN pulse_internal.failure AS f
            ON f.job = a.job
            AND f.attempt = a.attempts
        WHERE pulse_internal.enter_lane(a.lane);
        GET DIAGNOSTICS v_corrected = ROW_COUNT;
        v_found := v_found + v_corrected;

        v_after := CASE WHEN cardinality(v_page) = v_size THEN v_page[v_size] END;
        EXIT WHEN v_after IS NULL OR pulse_internal.time_is_over(correct_retries.until);
    END LOOP;

    PERFORM pulse_internal.write_upkeep_run(
        v_old, 'clock',
        v_old.state - 'after' || jsonb_strip_nulls(jsonb_build_object('after', v_after::text))
    );
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse_internal.correct_retries(timestamptz) IS
'After the clock was set back: let retries after a failure later than now wait from now on, until all waiting jobs were checked or the time is over. Their rows are deleted and inserted anew. Returns how many.';
