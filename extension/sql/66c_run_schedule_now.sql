CREATE FUNCTION pulse.run_schedule_now(name text, reason text DEFAULT NULL)
RETURNS bigint
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_run_schedule_now(
        pulse._sign(), run_schedule_now.name, run_schedule_now.reason
    )
$$;

COMMENT ON FUNCTION pulse.run_schedule_now(text, text) IS
'Enqueue the job of a schedule now, paused or not, and return its id; its next occurrence stays the same. PU005 no such schedule; PU102 its unique key is taken. Writes what enqueue writes, schedule_run and audit_entry.';

CREATE FUNCTION pulse._do_run_schedule_now(
    signature pulse._signature, name text, reason text
)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_run_schedule_now.signature);
    v_schedule pulse.schedule;
    v_job pulse._enqueued;
BEGIN
    PERFORM pulse._require_read_committed('run_schedule_now');
    PERFORM pulse._require_reason(_do_run_schedule_now.reason);
    v_schedule := pulse._require_schedule(_do_run_schedule_now.name);
    v_job := pulse._enqueue_scheduled(v_schedule);

    IF NOT v_job.created THEN
        PERFORM pulse._raise_key_taken(
            coalesce(v_schedule.options ->> 'lane', (pulse._kind_settings(v_schedule.kind)).lane),
            v_schedule.options ->> 'unique_key', v_job.job_id
        );
    END IF;

    INSERT INTO pulse.schedule_run (name, occurrence, job)
    VALUES (v_schedule.name, clock_timestamp(), v_job.job_id);

    PERFORM pulse._audit(
        v_who, 'run_schedule_now', v_job.job_id, NULL,
        NULL, jsonb_build_object('name', v_schedule.name), _do_run_schedule_now.reason
    );
    RETURN v_job.job_id;
END;
$$;

COMMENT ON FUNCTION pulse._do_run_schedule_now(pulse._signature, text, text) IS
'run_schedule_now for the role that signed. Writes the same.';
