-- Schedules. tick calls _fire_schedules; it takes each due schedule by its row lock,
-- turns its occurrences into jobs and ledger rows, and moves next_at on, all in one
-- transaction. Who comes second finds the row locked, or next_at in the future, or (if
-- both failed) the occurrence in the ledger.

-- The moment a wall time stands for: of two the first, of none the end of the gap.
CREATE FUNCTION pulse._wall_moment(wall timestamp, timezone text)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_moment timestamptz := _wall_moment.wall AT TIME ZONE _wall_moment.timezone;
    v_day_before timestamptz := v_moment - interval '24 hours';
    v_earlier timestamptz;
BEGIN
    IF (v_moment AT TIME ZONE _wall_moment.timezone) <> _wall_moment.wall THEN
        RETURN pulse._clock_change(v_day_before, v_moment, _wall_moment.timezone);
    END IF;

    v_earlier := (
        _wall_moment.wall - pulse._utc_offset(v_day_before, _wall_moment.timezone)
    ) AT TIME ZONE 'UTC';
    IF v_earlier < v_moment
        AND (v_earlier AT TIME ZONE _wall_moment.timezone) = _wall_moment.wall
    THEN
        RETURN v_earlier;
    END IF;
    RETURN v_moment;
END;
$$;

COMMENT ON FUNCTION pulse._wall_moment(timestamp, text) IS
'The moment at which the wall clock of a time zone (first) shows a time.';

-- anchor + n × every: nothing adds up, so nothing drifts. Months and days are days of
-- the wall clock, hours and less are time that passes.
CREATE FUNCTION pulse._interval_occurrence(rhythm pulse.rhythm, number bigint)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_every interval := (_interval_occurrence.rhythm).every;
    v_anchor timestamptz := (_interval_occurrence.rhythm).anchor;
    v_timezone text := (_interval_occurrence.rhythm).timezone;
    v_calendar interval := make_interval(
        months => (12 * extract(year FROM v_every) + extract(month FROM v_every))::integer,
        days => extract(day FROM v_every)::integer
    );
BEGIN
    IF v_calendar = interval '0' THEN
        RETURN v_anchor + v_every * _interval_occurrence.number;
    END IF;
    RETURN pulse._wall_moment(
        (v_anchor AT TIME ZONE v_timezone) + v_calendar * _interval_occurrence.number,
        v_timezone
    ) + (v_every - v_calendar) * _interval_occurrence.number;
END;
$$;

COMMENT ON FUNCTION pulse._interval_occurrence(pulse.rhythm, bigint) IS
'The occurrence of an interval with the given number; the first has number 1.';

CREATE FUNCTION pulse._interval_count(rhythm pulse.rhythm, until timestamptz)
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_every interval := (_interval_count.rhythm).every;
    v_months integer := 12 * extract(year FROM v_every) + extract(month FROM v_every);
    -- A month is 30.436875 days on average; the estimate is put right below.
    v_seconds numeric := v_months * 2629746.0
        + extract(epoch FROM v_every - make_interval(months => v_months));
    v_passed numeric := extract(
        epoch FROM _interval_count.until - (_interval_count.rhythm).anchor
    );
    v_count bigint := greatest(0, floor(v_passed / v_seconds));
BEGIN
    WHILE v_count > 0
        AND pulse._interval_occurrence(_interval_count.rhythm, v_count) > _interval_count.until
    LOOP
        v_count := v_count - 1;
    END LOOP;
    WHILE pulse._interval_occurrence(_interval_count.rhythm, v_count + 1) <= _interval_count.until
    LOOP
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END;
$$;

COMMENT ON FUNCTION pulse._interval_count(pulse.rhythm, timestamptz) IS
'How many occurrences an interval has had up to a moment.';

CREATE FUNCTION pulse._rhythm(
    cron text, every interval, at timestamptz, anchor timestamptz, timezone text
)
RETURNS pulse.rhythm
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ROW(
        CASE WHEN _rhythm.cron IS NOT NULL THEN pulse._cron_parse(_rhythm.cron) END,
        _rhythm.every,
        _rhythm.at,
        _rhythm.anchor,
        _rhythm.timezone
    )::pulse.rhythm
$$;

COMMENT ON FUNCTION pulse._rhythm(text, interval, timestamptz, timestamptz, text) IS
'What says when a schedule is due, with its cron expression read.';

CREATE FUNCTION pulse._occurrence_after(rhythm pulse.rhythm, after timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_rhythm pulse.rhythm := _occurrence_after.rhythm;
BEGIN
    IF v_rhythm.at IS NOT NULL THEN
        RETURN CASE WHEN v_rhythm.at > _occurrence_after.after THEN v_rhythm.at END;
    END IF;
    IF v_rhythm.every IS NOT NULL THEN
        RETURN pulse._interval_occurrence(
            v_rhythm, pulse._interval_count(v_rhythm, _occurrence_after.after) + 1
        );
    END IF;
    RETURN pulse._cron_next(v_rhythm.cron, v_rhythm.timezone, _occurrence_after.after);
END;
$$;

COMMENT ON FUNCTION pulse._occurrence_after(pulse.rhythm, timestamptz) IS
'The first occurrence after a moment; NULL when there is none.';

-- A cron expression is looked for further and further back, then followed.
CREATE FUNCTION pulse._occurrence_until(
    rhythm pulse.rhythm, since timestamptz, until timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_rhythm pulse.rhythm := _occurrence_until.rhythm;
    v_back interval := interval '1 minute';
    v_number bigint;
    v_found timestamptz;
    v_next timestamptz;
BEGIN
    IF v_rhythm.at IS NOT NULL THEN
        RETURN _occurrence_until.since;
    END IF;
    IF v_rhythm.every IS NOT NULL THEN
        v_number := pulse._interval_count(v_rhythm, _occurrence_until.until);
        IF v_number > 0 THEN
            v_found := pulse._interval_occurrence(v_rhythm, v_number);
        END IF;
        RETURN greatest(v_found, _occurrence_until.since);
    END IF;

    LOOP
        v_next := pulse._cron_next(
            v_rhythm.cron, v_rhythm.timezone,
            greatest(_occurrence_until.since, _occurrence_until.until - v_back)
        );
        EXIT WHEN v_next <= _occurrence_until.until
            OR _occurrence_until.until - v_back <= _occurrence_until.since;
        v_back := v_back * 2;
    END LOOP;
    v_found := _occurrence_until.since;
    WHILE v_next <= _occurrence_until.until LOOP
        v_found := v_next;
        v_next := pulse._cron_next(v_rhythm.cron, v_rhythm.timezone, v_next);
    END LOOP;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse._occurrence_until(pulse.rhythm, timestamptz, timestamptz) IS
'The newest occurrence up to a moment, given one that is known.';

-- One row for each of the first hundred, and one for all the rest: a schedule of every
-- second that was away for a year must not write 31 million rows.
CREATE FUNCTION pulse._skip_occurrences(
    name text,
    rhythm pulse.rhythm,
    since timestamptz,
    until timestamptz,
    reason text
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_at timestamptz := _skip_occurrences.since;
    v_rest timestamptz;
    v_last timestamptz;
    v_more bigint := 0;
    v_counted boolean := true;
    v_reason text := _skip_occurrences.reason;
BEGIN
    FOR v_row IN 1..100 LOOP
        EXIT WHEN v_at IS NULL OR v_at > _skip_occurrences.until;
        INSERT INTO pulse.schedule_run (name, occurrence, skipped)
        VALUES (_skip_occurrences.name, v_at, v_reason)
        ON CONFLICT ON CONSTRAINT schedule_run_is_one_per_occurrence DO NOTHING;
        v_at := pulse._occurrence_after(_skip_occurrences.rhythm, v_at);
    END LOOP;

    IF v_at IS NULL OR v_at > _skip_occurrences.until THEN
        RETURN;
    END IF;

    v_rest := v_at;
    v_last := pulse._occurrence_until(
        _skip_occurrences.rhythm, v_rest, _skip_occurrences.until
    );
    IF (_skip_occurrences.rhythm).every IS NOT NULL THEN
        v_more := pulse._interval_count(_skip_occurrences.rhythm, v_last)
            - pulse._interval_count(_skip_occurrences.rhythm, v_rest) + 1;
    ELSE
        WHILE v_at <= v_last AND v_more < 1000 LOOP
            v_more := v_more + 1;
            v_at := pulse._occurrence_after(_skip_occurrences.rhythm, v_at);
        END LOOP;
        v_counted := v_at > v_last;
    END IF;

    INSERT INTO pulse.schedule_run (name, occurrence, skipped)
    VALUES (
        _skip_occurrences.name,
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

COMMENT ON FUNCTION pulse._skip_occurrences(
    text, pulse.rhythm, timestamptz, timestamptz, text
) IS
'Write down that the occurrences from one moment to another were skipped, and why.';

-- A late occurrence is on time for a minute, so that a schedule of a few seconds loses
-- nothing between two ticks.
CREATE FUNCTION pulse._fire_schedule(schedule pulse.schedule)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_schedule pulse.schedule := _fire_schedule.schedule;
    v_rhythm pulse.rhythm := pulse._rhythm(
        v_schedule.cron, v_schedule.every, v_schedule.at,
        v_schedule.anchor, v_schedule.timezone
    );
    v_now timestamptz := clock_timestamp();
    v_on_time timestamptz := v_now - interval '60 seconds';
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
                    pulse._occurrence_until(v_rhythm, v_at, v_now) - interval '1 microsecond'
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
        PERFORM pulse._skip_occurrences(
            v_schedule.name, v_rhythm, v_at, v_skip_until,
            concat_ws('; last error: ', v_reason, v_schedule.last_error)
        );
        v_at := pulse._occurrence_after(v_rhythm, v_skip_until);
    END IF;

    FOR v_round IN 1..1000 LOOP
        EXIT WHEN v_at IS NULL OR v_at > v_now;
        v_fired := v_fired + pulse._fire_occurrence(v_schedule, v_at);
        v_at := pulse._occurrence_after(v_rhythm, v_at);
    END LOOP;

    UPDATE pulse.schedule AS s
    SET next_at = v_at,
        last_error = NULL,
        retry_at = NULL
    WHERE s.name = v_schedule.name;

    RETURN v_fired;
END;
$$;

COMMENT ON FUNCTION pulse._fire_schedule(pulse.schedule) IS
'Handle the due occurrences of one schedule, whose row the caller has locked; returns how many became jobs.';

-- Waits for a unique key that an open transaction holds only for a moment: tick must go
-- on, and the occurrence is tried again.
CREATE FUNCTION pulse._fire_occurrence(schedule pulse.schedule, occurrence timestamptz)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_schedule pulse.schedule := _fire_occurrence.schedule;
    v_options jsonb := v_schedule.options;
    v_job bigint;
    v_created boolean;
BEGIN
    IF EXISTS (
        SELECT 1
        FROM pulse.schedule_run AS r
        WHERE r.name = v_schedule.name
            AND r.occurrence = _fire_occurrence.occurrence
    ) THEN
        RETURN 0;
    END IF;

    SELECT e.job_id, e.created INTO v_job, v_created
    FROM pulse._enqueue(
        kind => v_schedule.kind,
        payload => v_schedule.payload,
        lane => v_options ->> 'lane',
        priority => (v_options ->> 'priority')::integer,
        run_at => NULL,
        delay => NULL,
        max_attempts => (v_options ->> 'max_attempts')::integer,
        unique_key => v_options ->> 'unique_key',
        unique_for => (v_options ->> 'unique_for')::interval,
        on_conflict => 'skip',
        group_key => v_options ->> 'group_key',
        requires_approval => (v_options ->> 'requires_approval')::boolean,
        tags => CASE
            WHEN v_options ? 'tags'
                THEN ARRAY(SELECT jsonb_array_elements_text(v_options -> 'tags'))
        END,
        max_runtime => (v_options ->> 'max_runtime')::interval,
        enqueued_by => v_schedule.created_by
    ) AS e;

    INSERT INTO pulse.schedule_run (name, occurrence, job, skipped)
    VALUES (
        v_schedule.name,
        _fire_occurrence.occurrence,
        CASE WHEN v_created THEN v_job END,
        CASE WHEN NOT v_created THEN format('job %s has the unique key', v_job) END
    );
    RETURN v_created::integer;
END;
$$;

COMMENT ON FUNCTION pulse._fire_occurrence(pulse.schedule, timestamptz) IS
'Make one occurrence a job and write it down, unless that was done before.';

-- Each schedule in its own subtransaction: one that fails is tried again in 10 seconds
-- and keeps nobody else from firing.
CREATE FUNCTION pulse._fire_schedules()
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- A value, not the function: an index cannot be asked for "before whatever time it is".
    v_now timestamptz := clock_timestamp();
    v_name text;
    v_schedule pulse.schedule;
    v_state text;
    v_message text;
    v_fired integer := 0;
BEGIN
    PERFORM pulse._require_read_committed('_fire_schedules');

    FOR v_name IN
        SELECT s.name
        FROM pulse.schedule AS s
        WHERE s.paused_at IS NULL
            AND s.next_at <= v_now
            AND (s.retry_at IS NULL OR s.retry_at <= v_now)
        ORDER BY s.next_at
        LIMIT 100
    LOOP
        -- Whoever ticks at the same time has it, or has had it: both mean "not mine".
        SELECT s.* INTO v_schedule
        FROM pulse.schedule AS s
        WHERE s.name = v_name
            AND s.paused_at IS NULL
            AND s.next_at <= v_now
            AND (s.retry_at IS NULL OR s.retry_at <= v_now)
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;

        BEGIN
            v_fired := v_fired + pulse._fire_schedule(v_schedule);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS
                v_state = RETURNED_SQLSTATE,
                v_message = MESSAGE_TEXT;
            UPDATE pulse.schedule AS s
            SET last_error = format('%s: %s', v_state, left(v_message, 1000)),
                retry_at = clock_timestamp() + interval '10 seconds'
            WHERE s.name = v_name;
        END;
    END LOOP;
    RETURN v_fired;
END;
$$;

COMMENT ON FUNCTION pulse._fire_schedules() IS
'Fire what is due, at most 100 schedules and 1000 occurrences of each; returns how many became jobs.';

CREATE FUNCTION pulse._prune_schedule_runs(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_deleted integer;
BEGIN
    DELETE FROM pulse.schedule_run AS r
    WHERE r.ctid = ANY (
        ARRAY(
            SELECT o.ctid
            FROM pulse.schedule_run AS o
            WHERE o.handled_at < (SELECT clock_timestamp() - interval '90 days')
            ORDER BY o.handled_at
            LIMIT _prune_schedule_runs.max_rows
            FOR UPDATE SKIP LOCKED
        )
    );
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_deleted;
END;
$$;

COMMENT ON FUNCTION pulse._prune_schedule_runs(integer) IS
'Delete at most so many rows of the ledger that are older than 90 days.';

CREATE FUNCTION pulse._require_schedule(name text)
RETURNS pulse.schedule
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_schedule pulse.schedule;
BEGIN
    -- Waits for the tick that just fires it.
    SELECT s.* INTO v_schedule
    FROM pulse.schedule AS s
    WHERE s.name = _require_schedule.name
    FOR UPDATE;

    IF NOT FOUND THEN
        PERFORM pulse._raise(
            'PU005',
            format('schedule %L does not exist', left(_require_schedule.name, 200)),
            'It was never made, or was unscheduled.',
            'SELECT name FROM pulse.schedules lists them.'
        );
    END IF;
    RETURN v_schedule;
END;
$$;

COMMENT ON FUNCTION pulse._require_schedule(text) IS
'Lock a schedule and return it; PU005 when there is none of that name.';

CREATE FUNCTION pulse._schedule_facts(schedule pulse.schedule)
RETURNS jsonb
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_strip_nulls(
        jsonb_build_object(
            'name', (_schedule_facts.schedule).name,
            'kind', (_schedule_facts.schedule).kind,
            'cron', (_schedule_facts.schedule).cron,
            'every', (_schedule_facts.schedule).every,
            'at', (_schedule_facts.schedule).at,
            'timezone', (_schedule_facts.schedule).timezone,
            'options', (_schedule_facts.schedule).options,
            'catch_up', (_schedule_facts.schedule).catch_up,
            'catch_up_window', (_schedule_facts.schedule).catch_up_window,
            'paused_by', (_schedule_facts.schedule).paused_by
        )
    )
$$;

COMMENT ON FUNCTION pulse._schedule_facts(pulse.schedule) IS
'A schedule as the audit shows it.';

-- The name as the server's own list spells it. AT TIME ZONE would take any POSIX
-- string as well, and 'UTC+3' means three hours behind there.
CREATE FUNCTION pulse._require_timezone(timezone text)
RETURNS text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_timezone text;
BEGIN
    IF _require_timezone.timezone = 'UTC' THEN
        RETURN 'UTC';
    END IF;

    SELECT z.name INTO v_timezone
    FROM pg_timezone_names AS z
    WHERE lower(z.name) = lower(left(_require_timezone.timezone, 100))
    LIMIT 1;

    IF NOT FOUND THEN
        PERFORM pulse._raise(
            'PU008',
            format(
                'time zone %s is not known',
                coalesce(quote_literal(left(_require_timezone.timezone, 100)), 'NULL')
            ),
            'It must be a name of the time zone database.',
            'Pass timezone => ''Europe/Berlin''; SELECT name FROM pg_timezone_names lists them.'
        );
    END IF;
    RETURN v_timezone;
END;
$$;

COMMENT ON FUNCTION pulse._require_timezone(text) IS
'The name of a time zone, or PU008.';

CREATE FUNCTION pulse._require_rhythm(cron text, every interval, at timestamptz)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF num_nonnulls(_require_rhythm.cron, _require_rhythm.every, _require_rhythm.at) <> 1 THEN
        PERFORM pulse._raise(
            'PU002',
            'a schedule needs exactly one of cron, every and at',
            format(
                '%s of them are given.',
                num_nonnulls(_require_rhythm.cron, _require_rhythm.every, _require_rhythm.at)
            ),
            'Pass cron => ''0 3 * * *'', every => ''15 minutes'' or at => ''2030-01-01 12:00+00''.'
        );
    END IF;

    PERFORM pulse._require_duration('every', _require_rhythm.every, '1 second', '10 years');
    IF extract(year FROM _require_rhythm.every) < 0
        OR extract(month FROM _require_rhythm.every) < 0
        OR extract(day FROM _require_rhythm.every) < 0
        OR extract(epoch FROM _require_rhythm.every)
        < extract(epoch FROM date_trunc('day', _require_rhythm.every))
    THEN
        PERFORM pulse._raise(
            'PU002',
            'every must not count backwards',
            format('It is %s.', _require_rhythm.every),
            'Pass an interval whose months, days and hours are all positive.'
        );
    END IF;
    IF NOT isfinite(_require_rhythm.at) THEN
        PERFORM pulse._raise(
            'PU002',
            'at must be a moment in time',
            format('It is %s.', _require_rhythm.at),
            'Pass a finite timestamptz.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_rhythm(text, interval, timestamptz) IS
'Raise PU002 unless exactly one is given and it can be followed.';

CREATE FUNCTION pulse.schedule(
    name text,
    kind text,
    payload jsonb DEFAULT '{}',
    cron text DEFAULT NULL,
    every interval DEFAULT NULL,
    at timestamptz DEFAULT NULL,
    timezone text DEFAULT 'UTC',
    lane text DEFAULT NULL,
    priority integer DEFAULT NULL,
    catch_up text DEFAULT 'skip',
    catch_up_window interval DEFAULT '1 day',
    max_attempts integer DEFAULT NULL,
    unique_key text DEFAULT NULL,
    unique_for interval DEFAULT NULL,
    group_key text DEFAULT NULL,
    requires_approval boolean DEFAULT NULL,
    tags text [] DEFAULT NULL,
    max_runtime interval DEFAULT NULL
)
RETURNS timestamptz
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_timezone text;
    v_anchor timestamptz;
    v_next_at timestamptz;
    v_old pulse.schedule;
    v_new pulse.schedule;
BEGIN
    PERFORM pulse._require_read_committed('schedule');
    PERFORM pulse._require_name('name', schedule.name);
    PERFORM pulse._require_rhythm(schedule.cron, schedule.every, schedule.at);
    PERFORM pulse._require_one_of(
        'catch_up', coalesce(schedule.catch_up, 'NULL'), '{skip,last,all}'
    );
    PERFORM pulse._require_duration(
        'catch_up_window', coalesce(schedule.catch_up_window, '-1 s'), '0', '10 years'
    );
    PERFORM pulse._require_job(
        schedule.kind, schedule.payload, schedule.lane, schedule.priority,
        schedule.max_attempts, schedule.unique_key, schedule.unique_for,
        schedule.group_key, schedule.tags, schedule.max_runtime
    );

    v_timezone := pulse._require_timezone(schedule.timezone);

    -- Waits for the tick that just fires it.
    SELECT s.* INTO v_old
    FROM pulse.schedule AS s
    WHERE s.name = schedule.name
    FOR UPDATE;

    IF (schedule.cron, schedule.every::text, schedule.at, v_timezone)
        IS NOT DISTINCT FROM (v_old.cron, v_old.every::text, v_old.at, v_old.timezone)
    THEN
        -- The same rhythm goes on: a deployment that says it again moves nothing.
        v_anchor := v_old.anchor;
        v_next_at := v_old.next_at;
    ELSE
        PERFORM pulse._require_future(schedule.at);
        IF v_old.next_at <= v_now THEN
            PERFORM pulse._skip_occurrences(
                v_old.name,
                pulse._rhythm(
                    v_old.cron, v_old.every, v_old.at, v_old.anchor, v_old.timezone
                ),
                v_old.next_at, v_now, 'the schedule was replaced'
            );
        END IF;
        v_anchor := v_now;
        v_next_at := coalesce(
            schedule.at,
            pulse._occurrence_after(
                pulse._rhythm(schedule.cron, schedule.every, NULL, v_anchor, v_timezone),
                v_now
            )
        );
    END IF;

    INSERT INTO pulse.schedule AS s (
        name, kind, payload, cron, every, at, timezone, options, catch_up,
        catch_up_window, anchor, next_at, created_by, created_at
    )
    VALUES (
        schedule.name, schedule.kind, coalesce(schedule.payload, '{}'), schedule.cron,
        schedule.every, schedule.at, v_timezone,
        jsonb_strip_nulls(
            jsonb_build_object(
                'lane', schedule.lane,
                'priority', schedule.priority,
                'max_attempts', schedule.max_attempts,
                'unique_key', schedule.unique_key,
                'unique_for', schedule.unique_for,
                'group_key', schedule.group_key,
                'requires_approval', schedule.requires_approval,
                'tags', to_jsonb(schedule.tags),
                'max_runtime', schedule.max_runtime
            )
        ),
        schedule.catch_up, schedule.catch_up_window, v_anchor, v_next_at,
        pulse._caller(), v_now
    )
    ON CONFLICT ON CONSTRAINT schedule_is_named_once DO UPDATE
    SET kind = excluded.kind,
        payload = excluded.payload,
        cron = excluded.cron,
        every = excluded.every,
        at = excluded.at,
        timezone = excluded.timezone,
        options = excluded.options,
        catch_up = excluded.catch_up,
        catch_up_window = excluded.catch_up_window,
        anchor = excluded.anchor,
        next_at = excluded.next_at,
        created_by = excluded.created_by,
        created_at = excluded.created_at,
        last_error = NULL,
        retry_at = NULL
    RETURNING s.* INTO v_new;

    PERFORM pulse._audit(
        'schedule', NULL, schedule.lane,
        CASE WHEN v_old.name IS NOT NULL THEN pulse._schedule_facts(v_old) END,
        pulse._schedule_facts(v_new), NULL
    );
    RETURN v_new.next_at;
END;
$$;

COMMENT ON FUNCTION pulse.schedule(
    text, text, jsonb, text, interval, timestamptz, text, text, integer, text, interval,
    integer, text, interval, text, boolean, text [], interval
) IS
'Enqueue a job by the clock: by a cron expression, every so often, or once at a moment (exactly one of cron, every and at), in a time zone. A name that exists is replaced; its ledger and its pause stay, and so does its next occurrence when the rhythm is the same. catch_up says what becomes of occurrences missed while nothing ticked: skip, last or all, none older than catch_up_window. The rest is handed to enqueue. Returns the next occurrence. PU002 bad argument, PU003 payload too large, PU007 bad cron expression, PU008 unknown time zone.';

CREATE FUNCTION pulse._require_future(at timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _require_future.at < clock_timestamp() - interval '60 seconds' THEN
        PERFORM pulse._raise(
            'PU002',
            'at must not be in the past',
            format('It is %s.', _require_future.at),
            'Pass a moment to come, or enqueue the job directly.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_future(timestamptz) IS
'Raise PU002 when a moment is past by more than a minute.';

-- What enqueue will check when the time has come, checked while somebody looks.
CREATE FUNCTION pulse._require_job(
    kind text,
    payload jsonb,
    lane text,
    priority integer,
    max_attempts integer,
    unique_key text,
    unique_for interval,
    group_key text,
    tags text [],
    max_runtime interval
)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_name('kind', _require_job.kind);
    PERFORM pulse._require_name('lane', coalesce(_require_job.lane, 'default'));
    PERFORM pulse._require_payload(_require_job.payload);
    PERFORM pulse._require_between(
        'priority', _require_job.priority, -2000000000, 2000000000
    );
    PERFORM pulse._require_between('max_attempts', _require_job.max_attempts, 1, 100000);
    PERFORM pulse._require_between(
        'length of unique_key', length(_require_job.unique_key), 1, 1000
    );
    PERFORM pulse._require_duration('unique_for', _require_job.unique_for, '0', '10 years');
    IF _require_job.unique_for IS NOT NULL AND _require_job.unique_key IS NULL THEN
        PERFORM pulse._raise(
            'PU002',
            'unique_for needs a unique_key',
            'There is no key that could stay taken.',
            'Pass unique_key => ''…'' as well.'
        );
    END IF;
    PERFORM pulse._require_between(
        'length of group_key', length(_require_job.group_key), 0, 1000
    );
    PERFORM pulse._require_between('number of tags', cardinality(_require_job.tags), 0, 100);
    PERFORM pulse._require_duration(
        'max_runtime', _require_job.max_runtime, '1 ms', '1 year'
    );
END;
$$;

COMMENT ON FUNCTION pulse._require_job(
    text, jsonb, text, integer, integer, text, interval, text, text [], interval
) IS
'Raise PU002 or PU003 for what enqueue would not take.';

CREATE FUNCTION pulse.pause_schedule(name text, reason text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_schedule pulse.schedule;
BEGIN
    PERFORM pulse._require_read_committed('pause_schedule');
    v_schedule := pulse._require_schedule(pause_schedule.name);
    IF v_schedule.paused_at IS NOT NULL THEN
        RETURN false;
    END IF;

    UPDATE pulse.schedule AS s
    SET paused_at = clock_timestamp(),
        paused_by = pulse._caller(),
        pause_reason = pause_schedule.reason
    WHERE s.name = v_schedule.name;

    PERFORM pulse._audit(
        'pause_schedule', NULL, NULL,
        NULL, jsonb_build_object('name', v_schedule.name), pause_schedule.reason
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse.pause_schedule(text, text) IS
'Keep a schedule from firing until resume_schedule; false when it is paused already. PU005 no such schedule.';

CREATE FUNCTION pulse.resume_schedule(name text)
RETURNS timestamptz
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_schedule pulse.schedule;
    v_rhythm pulse.rhythm;
    v_next_at timestamptz;
BEGIN
    PERFORM pulse._require_read_committed('resume_schedule');
    v_schedule := pulse._require_schedule(resume_schedule.name);
    IF v_schedule.paused_at IS NULL THEN
        RETURN v_schedule.next_at;
    END IF;

    v_next_at := v_schedule.next_at;
    IF v_next_at <= v_now THEN
        v_rhythm := pulse._rhythm(
            v_schedule.cron, v_schedule.every, v_schedule.at,
            v_schedule.anchor, v_schedule.timezone
        );
        PERFORM pulse._skip_occurrences(
            v_schedule.name, v_rhythm, v_schedule.next_at, v_now,
            concat_ws(
                ': ', format('paused by %s', v_schedule.paused_by), v_schedule.pause_reason
            )
        );
        v_next_at := pulse._occurrence_after(v_rhythm, v_now);
    END IF;

    UPDATE pulse.schedule AS s
    SET paused_at = NULL,
        paused_by = NULL,
        pause_reason = NULL,
        retry_at = NULL,
        next_at = v_next_at
    WHERE s.name = v_schedule.name;

    PERFORM pulse._audit(
        'resume_schedule', NULL, NULL,
        jsonb_build_object(
            'name', v_schedule.name,
            'paused_by', v_schedule.paused_by,
            'pause_reason', v_schedule.pause_reason
        ),
        jsonb_build_object('name', v_schedule.name, 'next_at', v_next_at), NULL
    );
    RETURN v_next_at;
END;
$$;

COMMENT ON FUNCTION pulse.resume_schedule(text) IS
'Let a paused schedule fire again and return its next occurrence; what was missed meanwhile is written down as skipped. PU005 no such schedule.';

CREATE FUNCTION pulse.unschedule(name text)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_schedule pulse.schedule;
BEGIN
    PERFORM pulse._require_read_committed('unschedule');
    v_schedule := pulse._require_schedule(unschedule.name);

    DELETE FROM pulse.schedule AS s
    WHERE s.name = v_schedule.name;

    PERFORM pulse._audit(
        'unschedule', NULL, NULL, pulse._schedule_facts(v_schedule), NULL, NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse.unschedule(text) IS
'Remove a schedule. Its ledger stays for 90 days and its jobs go on. PU005 no such schedule.';
