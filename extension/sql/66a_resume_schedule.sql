CREATE FUNCTION pulse.resume_schedule(name text)
RETURNS timestamptz
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_resume_schedule(pulse._sign(), resume_schedule.name)
$$;

COMMENT ON FUNCTION pulse.resume_schedule(text) IS
'Let a paused schedule fire again and return its next occurrence; what was missed meanwhile is written down as skipped. PU005 no such schedule. Writes schedule, schedule_run and audit_entry.';

CREATE FUNCTION pulse._do_resume_schedule(signature pulse._signature, name text)
RETURNS timestamptz
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_resume_schedule.signature);
    v_now timestamptz := clock_timestamp();
    v_schedule pulse.schedule;
    v_recurrence pulse.recurrence;
    v_next_at timestamptz;
BEGIN
    PERFORM pulse._require_read_committed('resume_schedule');
    v_schedule := pulse._require_schedule(_do_resume_schedule.name);
    IF v_schedule.paused_at IS NULL THEN
        RETURN v_schedule.next_at;
    END IF;

    v_next_at := v_schedule.next_at;
    IF v_next_at <= v_now THEN
        v_recurrence := pulse._recurrence(
            v_schedule.cron, v_schedule.every, v_schedule.at,
            v_schedule.anchor, v_schedule.timezone
        );
        PERFORM pulse._skip_occurrences(
            v_schedule.name, v_recurrence, v_schedule.next_at, v_now,
            concat_ws(
                ': ', format('paused by %s', v_schedule.paused_by), v_schedule.pause_reason
            )
        );
        v_next_at := pulse._occurrence_after(v_recurrence, v_now);
    END IF;

    UPDATE pulse.schedule AS s
    SET paused_at = NULL,
        paused_by = NULL,
        pause_reason = NULL,
        retry_at = NULL,
        next_at = v_next_at
    WHERE s.name = v_schedule.name;

    PERFORM pulse._audit(
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

COMMENT ON FUNCTION pulse._do_resume_schedule(pulse._signature, text) IS
'resume_schedule for the role that signed. Writes the same.';
