-- Schedules. tick calls fire_schedules; it takes each due schedule by its row lock,
-- turns its occurrences into jobs and ledger rows, and moves next_at on, all in one
-- transaction. Who comes second finds the row locked, or next_at in the future, or (if
-- both failed) the occurrence in the ledger.

-- Each schedule in its own subtransaction: one that fails is tried again in 10 seconds
-- and keeps nobody else from firing. One that another session has locked is passed over, and so
-- are a hundred of them.
CREATE FUNCTION pulse_internal.fire_schedules(until timestamptz DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    -- A value, not the function: an index cannot be asked for "before whatever time it is".
    v_now timestamptz := clock_timestamp();
    v_retry_in constant interval := interval '10 seconds';
    -- What the ticks before had no time for is not late: they were there.
    v_ticking_since timestamptz := coalesce(pulse_internal.behind_since('schedules'), v_now);
    v_schedule pulse_internal.schedule;
    v_state text;
    v_message text;
    v_seen integer;
    v_fired integer := 0;
BEGIN
    PERFORM pulse_internal.require_read_committed('fire_schedules');

    <<pages>>
    LOOP
        v_seen := 0;
        FOR v_schedule IN
            SELECT s.*
            FROM pulse_internal.schedule AS s
            WHERE s.paused_at IS NULL
                AND s.next_at <= v_now
                AND (
                    s.retry_at IS NULL
                    OR s.retry_at <= v_now
                    -- Set while the clock was ahead.
                    OR s.retry_at > pulse_internal.by_clock(s.retry_at, v_now, v_retry_in)
                )
            ORDER BY s.next_at
            LIMIT 100
            FOR UPDATE SKIP LOCKED
        LOOP
            v_seen := v_seen + 1;
            BEGIN
                v_fired := v_fired + pulse_internal.fire_schedule(v_schedule, v_ticking_since);
            EXCEPTION WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS
                    v_state = RETURNED_SQLSTATE,
                    v_message = MESSAGE_TEXT;
                UPDATE pulse_internal.schedule AS s
                SET last_error = format('%s: %s', v_state, left(v_message, 1000)),
                    retry_at = clock_timestamp() + v_retry_in
                WHERE s.name = v_schedule.name;
            END;
            EXIT pages WHEN pulse_internal.time_is_over(fire_schedules.until);
        END LOOP;
        EXIT pages WHEN v_seen < 100 OR fire_schedules.until IS NULL;
    END LOOP;
    RETURN v_fired;
END;
$$;

COMMENT ON FUNCTION pulse_internal.fire_schedules(timestamptz) IS
'Fire what is due, at most 1000 occurrences of each schedule: a hundred schedules, and more until the time is over. Returns how many occurrences became jobs.';

-- A late occurrence is on time for a minute, so that a schedule of a few seconds loses
-- nothing between two ticks; counted from when a session ticked, not from when tick got
-- round to it.
CREATE FUNCTION pulse_internal.fire_schedule(
    schedule pulse_internal.schedule, ticking_since timestamptz
)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_schedule pulse_internal.schedule := fire_schedule.schedule;
    v_recurrence pulse_internal.recurrence := pulse_internal.recurrence(
        v_schedule.cron, v_schedule.every, v_schedule.at,
        v_schedule.anchor, v_schedule.timezone
    );
    v_now timestamptz := clock_timestamp();
    v_on_time timestamptz := least(v_now, fire_schedule.ticking_since) - interval '60 seconds';
    v_window timestamptz := v_now - v_schedule.catch_up_window;
    v_at timestamptz := v_schedule.next_at;
    v_skip_until timestamptz;
    v_reason text;
    v_fired integer := 0;
BEGIN
    -- Everything up to v_skip_until is too late; what follows fires.
    CASE
        WHEN v_schedule.at IS NOT NULL OR v_schedule.catch_up = 'all' THEN
            v_skip_until := least(v_on_time, v_window);
            v_reason := format(
                'missed, and older than the catch_up_window of %s', v_schedule.catch_up_window
            );
        WHEN v_schedule.catch_up = 'last' THEN
            v_skip_until := least(
                v_on_time,
                greatest(
                    v_window,
                    pulse_internal.occurrence_until(v_recurrence, v_at, v_now) - interval '1 microsecond'
                )
            );
            v_reason := format(
                'missed, and catch_up is last within %s', v_schedule.catch_up_window
            );
        ELSE
            v_skip_until := v_on_time;
            v_reason := 'missed by more than 60 seconds, and catch_up is skip';
    END CASE;

    IF v_at <= v_skip_until THEN
        PERFORM pulse_internal.skip_occurrences(
            v_schedule.name, v_recurrence, v_at, v_skip_until,
            concat_ws('; last error: ', v_reason, v_schedule.last_error)
        );
        v_at := pulse_internal.occurrence_after(v_recurrence, v_skip_until);
    END IF;

    FOR v_round IN 1..1000 LOOP
        EXIT WHEN v_at IS NULL OR v_at > v_now;
        v_fired := v_fired + pulse_internal.fire_occurrence(v_schedule, v_at);
        v_at := pulse_internal.occurrence_after(v_recurrence, v_at);
    END LOOP;

    UPDATE pulse_internal.schedule AS s
    SET next_at = v_at,
        last_error = NULL,
        retry_at = NULL
    WHERE s.name = v_schedule.name;

    RETURN v_fired;
END;
$$;

COMMENT ON FUNCTION pulse_internal.fire_schedule(pulse_internal.schedule, timestamptz) IS
'Handle the due occurrences of one schedule, whose row the caller has locked; returns how many became jobs.';

-- A unique key that an open transaction is just inserting cannot be seen, only waited
-- for: no longer than a moment, then the occurrence is tried again in 10 seconds.
CREATE FUNCTION pulse_internal.fire_occurrence(
    schedule pulse_internal.schedule, occurrence timestamptz
)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10ms'
AS $$
DECLARE
    v_schedule pulse_internal.schedule := fire_occurrence.schedule;
    v_job pulse_internal.enqueued;
BEGIN
    IF EXISTS (
        SELECT 1
        FROM pulse_internal.schedule_run AS r
        WHERE r.name = v_schedule.name
            AND r.occurrence = fire_occurrence.occurrence
    ) THEN
        RETURN 0;
    END IF;

    v_job := pulse_internal.enqueue_scheduled(v_schedule);

    INSERT INTO pulse_internal.schedule_run (name, occurrence, job, skipped)
    VALUES (
        v_schedule.name,
        fire_occurrence.occurrence,
        CASE WHEN v_job.created THEN v_job.job_id END,
        CASE
            WHEN NOT v_job.created THEN format('job %s has the unique key', v_job.job_id)
        END
    );
    RETURN v_job.created::integer;
END;
$$;

COMMENT ON FUNCTION pulse_internal.fire_occurrence(pulse_internal.schedule, timestamptz) IS
'Make one occurrence a job and write it down, unless that was done before.';

CREATE FUNCTION pulse_internal.enqueue_scheduled(schedule pulse_internal.schedule)
RETURNS pulse_internal.enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_schedule pulse_internal.schedule := enqueue_scheduled.schedule;
    v_options jsonb := v_schedule.options;
    v_job pulse_internal.enqueued;
BEGIN
    INSERT INTO pulse_internal.request AS r (kind, payload, lane, priority, options, owner)
    VALUES (
        v_schedule.kind,
        v_schedule.payload,
        v_options ->> 'lane',
        (v_options ->> 'priority')::integer,
        jsonb_populate_record(NULL::pulse_internal.item, v_options - '{lane,priority}'::text []),
        v_schedule.owner
    )
    RETURNING r.job_id, r.created, true INTO v_job;
    IF v_job.job_id IS NULL THEN
        PERFORM pulse_internal.raise_replica();
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.enqueue_scheduled(pulse_internal.schedule) IS
'Enqueue the job of a schedule, unless another one has its unique key.';

-- One row for each of the first hundred, and one for all the rest: a schedule of every
-- second that was away for a year must not write 31 million rows.
CREATE FUNCTION pulse_internal.skip_occurrences(
    name text,
    recurrence pulse_internal.recurrence,
    since timestamptz,
    until timestamptz,
    reason text
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_at timestamptz := skip_occurrences.since;
    v_rest timestamptz;
    v_last timestamptz;
    v_more bigint := 0;
    v_counted boolean := true;
    v_reason text := skip_occurrences.reason;
BEGIN
    FOR v_row IN 1..100 LOOP
        EXIT WHEN v_at IS NULL OR v_at > skip_occurrences.until;
        INSERT INTO pulse_internal.schedule_run (name, occurrence, skipped)
        VALUES (skip_occurrences.name, v_at, v_reason)
        ON CONFLICT ON CONSTRAINT schedule_run_is_one_per_occurrence DO NOTHING;
        v_at := pulse_internal.occurrence_after(skip_occurrences.recurrence, v_at);
    END LOOP;

    IF v_at IS NULL OR v_at > skip_occurrences.until THEN
        RETURN;
    END IF;

    v_rest := v_at;
    v_last := pulse_internal.occurrence_until(
        skip_occurrences.recurrence, v_rest, skip_occurrences.until
    );
    IF (skip_occurrences.recurrence).every IS NOT NULL THEN
        v_more := pulse_internal.interval_count(skip_occurrences.recurrence, v_last)
            - pulse_internal.interval_count(skip_occurrences.recurrence, v_rest) + 1;
    ELSE
        WHILE v_at <= v_last AND v_more < 1000 LOOP
            v_more := v_more + 1;
            v_at := pulse_internal.occurrence_after(skip_occurrences.recurrence, v_at);
        END LOOP;
        v_counted := v_at > v_last;
    END IF;

    INSERT INTO pulse_internal.schedule_run (name, occurrence, skipped)
    VALUES (
        skip_occurrences.name,
        v_rest,
        format(
            '%s; this row stands for %s%s occurrences, the last at %s',
            v_reason,
            CASE WHEN v_counted THEN '' ELSE 'more than ' END,
            v_more,
            to_char(v_last AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
        )
    )
    ON CONFLICT ON CONSTRAINT schedule_run_is_one_per_occurrence DO NOTHING;
END;
$$;

COMMENT ON FUNCTION pulse_internal.skip_occurrences(
    text, pulse_internal.recurrence, timestamptz, timestamptz, text
) IS
'Write down that the occurrences from one moment to another were skipped, and why.';
