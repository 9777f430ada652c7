-- schedule stores what to enqueue and when; schedules/fire.sql enqueues it. A name that
-- exists is replaced: its row is locked first, which waits for the tick that fires it. A
-- schedule that is said again with the same recurrence must keep its next occurrence,
-- since deployments repeat it. Writes schedule, schedule_run for occurrences that a new
-- recurrence skips, and audit_entry.

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
    expires_in interval DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS timestamptz
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(schedule.signature);
    v_now timestamptz := clock_timestamp();
    v_timezone text;
    v_anchor timestamptz;
    v_next_at timestamptz;
    v_old pulse_internal.schedule;
    v_new pulse_internal.schedule;
BEGIN
    PERFORM pulse_internal.require_read_committed('schedule');
    PERFORM pulse_internal.require_name('name', schedule.name);
    PERFORM pulse_internal.require_recurrence(schedule.cron, schedule.every, schedule.at);
    PERFORM pulse_internal.require_range(
        '*', 'catch_up', coalesce(schedule.catch_up, 'NULL')
    );
    PERFORM pulse_internal.require_range(
        'schedule', 'catch_up_window', coalesce(schedule.catch_up_window, '-1 s')
    );
    PERFORM pulse_internal.require_job_options(
        schedule.kind, schedule.payload, schedule.lane,
        schedule.priority, NULL, NULL,
        schedule.max_attempts, schedule.unique_key, schedule.unique_for, NULL,
        schedule.group_key, schedule.tags, schedule.max_runtime,
        schedule.headers, NULL, schedule.expires_in
    );
    v_timezone := pulse_internal.require_timezone(schedule.timezone);

    -- Waits for the tick that just fires it.
    SELECT s.* INTO v_old
    FROM pulse_internal.schedule AS s
    WHERE s.name = schedule.name
    FOR UPDATE;

    IF (schedule.cron, schedule.every::text, schedule.at, v_timezone)
        IS NOT DISTINCT FROM (v_old.cron, v_old.every::text, v_old.at, v_old.timezone)
    THEN
        -- The same recurrence goes on: a deployment that says it again moves nothing.
        v_anchor := v_old.anchor;
        v_next_at := v_old.next_at;
    ELSE
        PERFORM pulse_internal.require_future(schedule.at);
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
            schedule.at,
            pulse_internal.occurrence_after(
                pulse_internal.recurrence(
                    schedule.cron, schedule.every, NULL, v_anchor, v_timezone
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
        schedule.name, schedule.kind, coalesce(schedule.payload, '{}'),
        schedule.cron,
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
                'max_runtime', schedule.max_runtime,
                'expires_in', schedule.expires_in
            )
        ) || CASE
            WHEN schedule.headers IS NULL THEN '{}'
            ELSE jsonb_build_object('headers', schedule.headers)
        END,
        schedule.catch_up, schedule.catch_up_window, v_anchor, v_next_at,
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
        v_who, 'schedule', NULL, schedule.lane,
        CASE WHEN v_old.name IS NOT NULL THEN pulse_internal.schedule_facts(v_old) END,
        pulse_internal.schedule_facts(v_new), NULL
    );
    RETURN v_new.next_at;
END;
$$;

COMMENT ON FUNCTION pulse.schedule(
    text, text, jsonb, text, interval, timestamptz, text, text, integer, text, interval,
    integer, text, interval, text, boolean, text [], interval, jsonb, interval,
    pulse_internal.caller_signature
) IS
'Enqueue a job on a schedule: by a cron expression, every so often, or once at a moment (exactly one of cron, every and at), in a time zone. A name that exists is replaced; its ledger and its pause stay, and so does its next occurrence when the recurrence is the same. catch_up says what becomes of occurrences missed while nothing ticked: skip, last or all, none older than catch_up_window. The rest is handed to enqueue. Returns the next occurrence. PU002 bad argument, PU003 payload too large, PU007 bad cron expression, PU008 unknown time zone. Writes schedule, schedule_run and audit_entry.';

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
