-- A schedule is what to enqueue and when; schedules/fire.sql enqueues it.

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
    max_runtime interval DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    expires_in interval DEFAULT NULL
)
RETURNS timestamptz
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse_internal.do_schedule(
        pulse_internal.sign(), schedule.name, schedule.kind, schedule.payload, schedule.cron,
        schedule.every, schedule.at, schedule.timezone, schedule.lane,
        schedule.priority, schedule.catch_up, schedule.catch_up_window,
        schedule.max_attempts, schedule.unique_key, schedule.unique_for,
        schedule.group_key, schedule.requires_approval, schedule.tags,
        schedule.max_runtime, schedule.headers, schedule.expires_in
    )
$$;

COMMENT ON FUNCTION pulse.schedule(
    text, text, jsonb, text, interval, timestamptz, text, text, integer, text, interval,
    integer, text, interval, text, boolean, text [], interval, jsonb, interval
) IS
'Enqueue a job on a schedule: by a cron expression, every so often, or once at a moment (exactly one of cron, every and at), in a time zone. A name that exists is replaced; its ledger and its pause stay, and so does its next occurrence when the recurrence is the same. catch_up says what becomes of occurrences missed while nothing ticked: skip, last or all, none older than catch_up_window. The rest is handed to enqueue. Returns the next occurrence. PU002 bad argument, PU003 payload too large, PU007 bad cron expression, PU008 unknown time zone. Writes schedule, schedule_run and audit_entry.';

CREATE FUNCTION pulse_internal.do_schedule(
    signature pulse_internal.caller_signature,
    name text,
    kind text,
    payload jsonb,
    cron text,
    every interval,
    at timestamptz,
    timezone text,
    lane text,
    priority integer,
    catch_up text,
    catch_up_window interval,
    max_attempts integer,
    unique_key text,
    unique_for interval,
    group_key text,
    requires_approval boolean,
    tags text [],
    max_runtime interval,
    headers jsonb,
    expires_in interval
)
RETURNS timestamptz
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(do_schedule.signature);
    v_now timestamptz := clock_timestamp();
    v_timezone text;
    v_anchor timestamptz;
    v_next_at timestamptz;
    v_old pulse_internal.schedule;
    v_new pulse_internal.schedule;
BEGIN
    PERFORM pulse_internal.require_read_committed('schedule');
    PERFORM pulse_internal.require_name('name', do_schedule.name);
    PERFORM pulse_internal.require_recurrence(do_schedule.cron, do_schedule.every, do_schedule.at);
    PERFORM pulse_internal.require_range(
        '*', 'catch_up', coalesce(do_schedule.catch_up, 'NULL')
    );
    PERFORM pulse_internal.require_range(
        'schedule', 'catch_up_window', coalesce(do_schedule.catch_up_window, '-1 s')
    );
    PERFORM pulse_internal.require_job_options(
        do_schedule.kind, do_schedule.payload, do_schedule.lane,
        do_schedule.priority, NULL, NULL,
        do_schedule.max_attempts, do_schedule.unique_key, do_schedule.unique_for, NULL,
        do_schedule.group_key, do_schedule.tags, do_schedule.max_runtime,
        do_schedule.headers, NULL, do_schedule.expires_in
    );
    v_timezone := pulse_internal.require_timezone(do_schedule.timezone);

    -- Waits for the tick that just fires it.
    SELECT s.* INTO v_old
    FROM pulse_internal.schedule AS s
    WHERE s.name = do_schedule.name
    FOR UPDATE;

    IF (do_schedule.cron, do_schedule.every::text, do_schedule.at, v_timezone)
        IS NOT DISTINCT FROM (v_old.cron, v_old.every::text, v_old.at, v_old.timezone)
    THEN
        -- The same recurrence goes on: a deployment that says it again moves nothing.
        v_anchor := v_old.anchor;
        v_next_at := v_old.next_at;
    ELSE
        PERFORM pulse_internal.require_future(do_schedule.at);
        IF v_old.next_at <= v_now THEN
            PERFORM pulse_internal.skip_occurrences(
                v_old.name,
                pulse_internal.recurrence(
                    v_old.cron, v_old.every, v_old.at, v_old.anchor, v_old.timezone
                ),
                v_old.next_at, v_now, 'the schedule was replaced'
            );
        END IF;
        v_anchor := v_now;
        v_next_at := coalesce(
            do_schedule.at,
            pulse_internal.occurrence_after(
                pulse_internal.recurrence(
                    do_schedule.cron, do_schedule.every, NULL, v_anchor, v_timezone
                ),
                v_now
            )
        );
    END IF;

    INSERT INTO pulse_internal.schedule AS s (
        name, kind, payload, cron, every, at, timezone, options, catch_up,
        catch_up_window, anchor, next_at, owner, created_at
    )
    VALUES (
        do_schedule.name, do_schedule.kind, coalesce(do_schedule.payload, '{}'),
        do_schedule.cron,
        do_schedule.every, do_schedule.at, v_timezone,
        jsonb_strip_nulls(
            jsonb_build_object(
                'lane', do_schedule.lane,
                'priority', do_schedule.priority,
                'max_attempts', do_schedule.max_attempts,
                'unique_key', do_schedule.unique_key,
                'unique_for', do_schedule.unique_for,
                'group_key', do_schedule.group_key,
                'requires_approval', do_schedule.requires_approval,
                'tags', to_jsonb(do_schedule.tags),
                'max_runtime', do_schedule.max_runtime,
                'expires_in', do_schedule.expires_in
            )
        ) || CASE
            WHEN do_schedule.headers IS NULL THEN '{}'
            ELSE jsonb_build_object('headers', do_schedule.headers)
        END,
        do_schedule.catch_up, do_schedule.catch_up_window, v_anchor, v_next_at,
        v_who, v_now
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
        owner = excluded.owner,
        created_at = excluded.created_at,
        last_error = NULL,
        retry_at = NULL
    RETURNING s.* INTO v_new;

    PERFORM pulse_internal.audit(
        v_who, 'schedule', NULL, do_schedule.lane,
        CASE WHEN v_old.name IS NOT NULL THEN pulse_internal.schedule_facts(v_old) END,
        pulse_internal.schedule_facts(v_new), NULL
    );
    RETURN v_new.next_at;
END;
$$;

COMMENT ON FUNCTION pulse_internal.do_schedule(
    pulse_internal.caller_signature, text, text, jsonb, text, interval, timestamptz, text, text,
    integer, text, interval, integer, text, interval, text, boolean, text [], interval,
    jsonb, interval
) IS
'schedule for the role that signed. Writes the same.';

CREATE FUNCTION pulse_internal.schedule_facts(schedule pulse_internal.schedule)
RETURNS jsonb
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_strip_nulls(
        jsonb_build_object(
            'name', (schedule_facts.schedule).name,
            'kind', (schedule_facts.schedule).kind,
            'cron', (schedule_facts.schedule).cron,
            'every', (schedule_facts.schedule).every,
            'at', (schedule_facts.schedule).at,
            'timezone', (schedule_facts.schedule).timezone,
            'options', (schedule_facts.schedule).options,
            'catch_up', (schedule_facts.schedule).catch_up,
            'catch_up_window', (schedule_facts.schedule).catch_up_window,
            'paused_by', (schedule_facts.schedule).paused_by
        )
    )
$$;

COMMENT ON FUNCTION pulse_internal.schedule_facts(pulse_internal.schedule) IS
'A schedule as the audit shows it.';

-- When a schedule may fire; what its job may be is in enqueue/options.sql.

CREATE FUNCTION pulse_internal.require_recurrence(cron text, every interval, at timestamptz)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_given integer := num_nonnulls(
        require_recurrence.cron, require_recurrence.every, require_recurrence.at
    );
BEGIN
    IF v_given <> 1 THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'a schedule needs exactly one of cron, every and at',
            format('%s of them are given.', v_given),
            'Pass cron => ''0 3 * * *'', every => ''15 minutes'' or at => ''2030-01-01 12:00+00''.'
        );
    END IF;

    PERFORM pulse_internal.require_range('schedule', 'every', require_recurrence.every);
    IF NOT isfinite(require_recurrence.at) THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'at must be a moment in time',
            format('It is %s.', require_recurrence.at),
            'Pass a finite timestamptz.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_recurrence(text, interval, timestamptz) IS
'Raise PU002 unless exactly one is given and it can be followed.';

-- The name as the server's own list spells it. AT TIME ZONE would take any POSIX
-- string as well, and 'UTC+3' means three hours behind there.
CREATE FUNCTION pulse_internal.require_timezone(timezone text)
RETURNS text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_timezone text;
BEGIN
    IF require_timezone.timezone = 'UTC' THEN
        RETURN 'UTC';
    END IF;

    SELECT z.name INTO v_timezone
    FROM pg_timezone_names AS z
    WHERE lower(z.name) = lower(left(require_timezone.timezone, 100))
    LIMIT 1;

    IF NOT FOUND THEN
        PERFORM pulse_internal.raise(
            'PU008',
            format(
                'time zone %s is not known',
                coalesce(quote_literal(left(require_timezone.timezone, 100)), 'NULL')
            ),
            'It must be a name of the time zone database.',
            'Pass timezone => ''Europe/Berlin''; SELECT name FROM pg_timezone_names lists them.'
        );
    END IF;
    RETURN v_timezone;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_timezone(text) IS
'The name of a time zone, or PU008.';

CREATE FUNCTION pulse_internal.require_future(at timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF require_future.at < clock_timestamp() - interval '60 seconds' THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'at must not be in the past',
            format('It is %s.', require_future.at),
            'Pass a moment to come, or enqueue the job directly.'
        );
    END IF;
    PERFORM pulse_internal.require_run_at(require_future.at, NULL);
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_future(timestamptz) IS
'Raise PU002 when a moment is past by more than a minute, or too far for clients to read.';
