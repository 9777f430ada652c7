-- run_now and reschedule give another time to a job that waits for its time or that is in
-- line. They write waiting, ready and audit_entry, and lock the one row that says where
-- the job stands (take_out). A job that is in line, and is wanted now, must not lose its
-- place there.

CREATE FUNCTION pulse.run_now(
    job_id bigint,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse_internal.reschedule_one(
        pulse_internal.redeem(run_now.signature), 'run_now', run_now.job_id, '-infinity',
        run_now.reason
    )
$$;

COMMENT ON FUNCTION pulse.run_now(bigint, text, pulse_internal.caller_signature) IS
'Put a scheduled or retrying job in line now, with its attempts and failures; returns ready. One that is ready keeps its place. PU004 no such job; PU105 it awaits approval, is running or has ended; PU107 it kept moving. Writes waiting, ready and audit_entry.';

CREATE FUNCTION pulse.reschedule(
    job_id bigint,
    run_at timestamptz,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(reschedule.signature);
BEGIN
    PERFORM pulse_internal.require_new_time(reschedule.run_at);
    RETURN pulse_internal.reschedule_one(
        v_who, 'reschedule', reschedule.job_id, reschedule.run_at,
        reschedule.reason
    );
END;
$$;

COMMENT ON FUNCTION pulse.reschedule(
    bigint, timestamptz, text, pulse_internal.caller_signature
) IS
'Let a scheduled, retrying or ready job run at another time; returns its state: scheduled or retrying, or ready when that time is not in the future. A start_by stays as it is. PU002 no time, or an infinite one; PU004 no such job; PU105 it awaits approval, is running or has ended; PU107 it kept moving. Writes waiting, ready and audit_entry.';

CREATE FUNCTION pulse_internal.reschedule_one(
    who integer, verb text, job_id bigint, run_at timestamptz, reason text
)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_done record;
BEGIN
    PERFORM pulse_internal.require_read_committed(reschedule_one.verb);
    PERFORM pulse_internal.require_reason(reschedule_one.reason);

    -- Nothing to do must not cost the job its place in line.
    IF NOT reschedule_one.run_at > clock_timestamp()
        AND EXISTS (SELECT FROM pulse_internal.in_line AS r WHERE r.job = reschedule_one.job_id)
    THEN
        RETURN 'ready';
    END IF;

    SELECT r.* INTO v_done
    FROM pulse_internal.reschedule(reschedule_one.job_id, reschedule_one.run_at) AS r;

    IF v_done.state IS NULL THEN
        PERFORM pulse_internal.raise_wrong_state(
            reschedule_one.job_id, v_done.was,
            CASE reschedule_one.verb WHEN 'run_now' THEN 'run now' ELSE 'reschedule' END,
            'Only a scheduled, retrying or ready job waits for its time.'
        );
    END IF;

    PERFORM pulse_internal.audit(
        reschedule_one.who, reschedule_one.verb, reschedule_one.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was, 'run_at', v_done.run_at),
        jsonb_strip_nulls(
            jsonb_build_object(
                'state', v_done.state,
                'run_at', CASE WHEN v_done.state <> 'ready' THEN reschedule_one.run_at END
            )
        ),
        reschedule_one.reason
    );
    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse_internal.reschedule_one(integer, text, bigint, timestamptz, text) IS
'What run_now and reschedule have in common: check, do, audit.';

-- was and run_at are the job's before; state stays NULL for one that waits for no time.
CREATE FUNCTION pulse_internal.reschedule(
    job_id bigint,
    to_time timestamptz,
    OUT was text,
    OUT lane text,
    OUT run_at timestamptz,
    OUT state text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_was record;
    v_retrying boolean;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse_internal.take_out(reschedule.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;
    run_at := v_was.run_at;

    IF was <> ALL (pulse_internal.acts_on('reschedule')) THEN
        RETURN;
    END IF;

    -- Of a job in line nobody knows any more whether it was a retry.
    v_retrying := was = 'retrying' OR (was = 'ready' AND v_was.failures > 0);
    PERFORM pulse_internal.put_in_line(
        reschedule.job_id, v_was.lane, v_was.kind, v_was.rank, reschedule.to_time,
        v_was.attempts, v_was.failures, v_was.keyed, v_retrying,
        v_was.last_lease, v_was.last_verb, v_was.place
    );
    state := CASE
        WHEN NOT reschedule.to_time > clock_timestamp() THEN 'ready'
        WHEN v_retrying THEN 'retrying'
        ELSE 'scheduled'
    END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.reschedule(bigint, timestamptz) IS
'Put a job that is scheduled, retrying or ready in line, or into waiting until a time.';

CREATE FUNCTION pulse_internal.require_new_time(run_at timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF isfinite(require_new_time.run_at) IS NOT TRUE THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'run_at must be a moment',
            format('It is %s.', coalesce(require_new_time.run_at::text, 'NULL')),
            'Pass a time, e.g. ''2030-01-01 06:00+00''; run_now is for now.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_new_time(timestamptz) IS
'Raise PU002 unless the value is a finite time.';
