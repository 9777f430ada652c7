-- pause_schedule, resume_schedule, unschedule and run_schedule_now act on a schedule by
-- its name. Each locks the row in schedule first, so it waits for the tick that fires it.
-- They write schedule, schedule_run and audit_entry; run_schedule_now writes what enqueue
-- writes too, and must not move the next occurrence.

CREATE FUNCTION pulse.pause_schedule(
    name text,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(pause_schedule.signature);
    v_schedule pulse_internal.schedule;
BEGIN
    PERFORM pulse_internal.require_read_committed('pause_schedule');
    PERFORM pulse_internal.require_reason(pause_schedule.reason);
    v_schedule := pulse_internal.require_schedule(pause_schedule.name);
    IF v_schedule.paused_at IS NOT NULL THEN
        RETURN false;
    END IF;

    UPDATE pulse_internal.schedule AS s
    SET paused_at = clock_timestamp(),
        paused_by = pulse_internal.role_name(v_who),
        pause_reason = pause_schedule.reason
    WHERE s.name = v_schedule.name;

    PERFORM pulse_internal.audit(
        v_who, 'pause_schedule', NULL, NULL,
        NULL, jsonb_build_object('name', v_schedule.name), pause_schedule.reason
    );
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse.pause_schedule(text, text, pulse_internal.caller_signature) IS
'Keep a schedule from firing until resume_schedule; false when it is paused already. PU005 no such schedule. Writes schedule and audit_entry.';

CREATE FUNCTION pulse_internal.require_schedule(name text)
RETURNS pulse_internal.schedule
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_schedule pulse_internal.schedule;
BEGIN
    -- Waits for the tick that just fires it.
    SELECT s.* INTO v_schedule
    FROM pulse_internal.schedule AS s
    WHERE s.name = require_schedule.name
    FOR UPDATE;

    IF NOT FOUND THEN
        PERFORM pulse_internal.raise(
            'PU005',
            format('schedule %L does not exist', left(require_schedule.name, 200)),
            'It was never made, or was unscheduled.',
            'SELECT name FROM pulse.schedules lists them.'
        );
    END IF;
    RETURN v_schedule;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_schedule(text) IS
'Lock a schedule and return it; PU005 when there is none of that name.';

CREATE FUNCTION pulse.resume_schedule(
    name text,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS timestamptz
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(resume_schedule.signature);
    v_now timestamptz := clock_timestamp();
    v_schedule pulse_internal.schedule;
    v_recurrence pulse_internal.recurrence;
    v_next_at timestamptz;
BEGIN
    PERFORM pulse_internal.require_read_committed('resume_schedule');
    v_schedule := pulse_internal.require_schedule(resume_schedule.name);
    IF v_schedule.paused_at IS NULL THEN
        RETURN v_schedule.next_at;
    END IF;

    v_next_at := v_schedule.next_at;
    IF v_next_at <= v_now THEN
        v_recurrence := pulse_internal.recurrence(
            v_schedule.cron, v_schedule.every, v_schedule.at,
            v_schedule.anchor, v_schedule.timezone
        );
        PERFORM pulse_internal.skip_occurrences(
            v_schedule.name, v_recurrence, v_schedule.next_at, v_now,
            concat_ws(
                ': ', format('paused by %s', v_schedule.paused_by), v_schedule.pause_reason
            )
        );
        v_next_at := pulse_internal.occurrence_after(v_recurrence, v_now);
    END IF;

    UPDATE pulse_internal.schedule AS s
    SET paused_at = NULL,
        paused_by = NULL,
        pause_reason = NULL,
        retry_at = NULL,
        next_at = v_next_at
    WHERE s.name = v_schedule.name;

    PERFORM pulse_internal.audit(
        v_who, 'resume_schedule', NULL, NULL,
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

COMMENT ON FUNCTION pulse.resume_schedule(text, pulse_internal.caller_signature) IS
'Let a paused schedule fire again and return its next occurrence; what was missed meanwhile is written down as skipped. PU005 no such schedule. Writes schedule, schedule_run and audit_entry.';

CREATE FUNCTION pulse.unschedule(
    name text,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(unschedule.signature);
    v_schedule pulse_internal.schedule;
BEGIN
    PERFORM pulse_internal.require_read_committed('unschedule');
    v_schedule := pulse_internal.require_schedule(unschedule.name);

    DELETE FROM pulse_internal.schedule AS s
    WHERE s.name = v_schedule.name;

    PERFORM pulse_internal.audit(
        v_who, 'unschedule', NULL, NULL, pulse_internal.schedule_facts(v_schedule), NULL, NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse.unschedule(text, pulse_internal.caller_signature) IS
'Remove a schedule. Its ledger stays for 90 days and its jobs go on. PU005 no such schedule. Writes schedule and audit_entry.';

CREATE FUNCTION pulse.run_schedule_now(
    name text,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(run_schedule_now.signature);
    v_schedule pulse_internal.schedule;
    v_job pulse_internal.enqueued;
BEGIN
    PERFORM pulse_internal.require_read_committed('run_schedule_now');
    PERFORM pulse_internal.require_reason(run_schedule_now.reason);
    v_schedule := pulse_internal.require_schedule(run_schedule_now.name);
    v_job := pulse_internal.enqueue_scheduled(v_schedule);

    IF NOT v_job.created THEN
        PERFORM pulse_internal.raise_key_taken(
            coalesce(v_schedule.options ->> 'lane', (pulse_internal.kind_settings(v_schedule.kind)).lane),
            v_schedule.options ->> 'unique_key', v_job.job_id
        );
    END IF;

    INSERT INTO pulse_internal.schedule_run (name, occurrence, job)
    VALUES (v_schedule.name, clock_timestamp(), v_job.job_id);

    PERFORM pulse_internal.audit(
        v_who, 'run_schedule_now', v_job.job_id, NULL,
        NULL, jsonb_build_object('name', v_schedule.name), run_schedule_now.reason
    );
    RETURN v_job.job_id;
END;
$$;

COMMENT ON FUNCTION pulse.run_schedule_now(text, text, pulse_internal.caller_signature) IS
'Enqueue the job of a schedule now, paused or not, and return its id; its next occurrence stays the same. PU005 no such schedule; PU102 its unique key is taken; PU111 its unique key is taken or freed by a transaction that stays open. Writes what enqueue writes, schedule_run and audit_entry.';
