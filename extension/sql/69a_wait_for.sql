CREATE FUNCTION pulse.wait_for(
    lease bigint,
    step text,
    timeout interval,
    signal text DEFAULT NULL,
    OUT verdict text,
    OUT payload jsonb
)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_job bigint;
    v_owner integer;
    v_step pulse.job_step;
    v_locked boolean := true;
BEGIN
    PERFORM pulse._require_read_committed('wait_for');
    PERFORM pulse._require_name('step', wait_for.step);
    IF wait_for.timeout IS NULL THEN
        PERFORM pulse._raise(
            'PU002', 'timeout must be given', 'It is NULL.', 'Pass timeout => ''3 days''.'
        );
    END IF;
    PERFORM pulse._require_duration('timeout', wait_for.timeout, '0', '10 years');
    IF wait_for.signal IS NOT NULL THEN
        PERFORM pulse._require_name('signal', wait_for.signal);
    END IF;

    -- Asked again because the answer was lost: it has been given back.
    IF pulse._reported_before(wait_for.lease, 'wait_for') THEN
        verdict := 'waiting';
        RETURN;
    END IF;
    v_job := pulse._job_of(wait_for.lease);

    INSERT INTO pulse.job_step (job, step, until)
    VALUES (v_job, wait_for.step, clock_timestamp() + wait_for.timeout)
    ON CONFLICT ON CONSTRAINT job_step_is_one_per_name DO NOTHING;
    v_step := pulse._step_of(v_job, wait_for.step, 'wait_for');

    IF v_step.saved_at IS NOT NULL THEN
        verdict := v_step.result ->> 'verdict';
        payload := v_step.result -> 'payload';
        RETURN;
    END IF;

    IF wait_for.signal IS NOT NULL THEN
        v_owner := (SELECT b.owner FROM pulse.body AS b WHERE b.job = v_job);
        v_locked := pg_try_advisory_xact_lock(
            'pulse.signal'::regclass::oid::integer, pulse._signal_key(wait_for.signal, 0)
        ) AND pg_try_advisory_xact_lock(
            'pulse.signal'::regclass::oid::integer, pulse._signal_key(wait_for.signal, v_owner)
        );

        -- A later statement than the lock.
        SELECT 'received', s.payload INTO verdict, payload
        FROM pulse.signal AS s
        WHERE s.signal = wait_for.signal
            AND (s.expires_at > clock_timestamp() OR s.undelivered_at IS NOT NULL)
            AND (s.owner = 0 OR pulse._owns(s.owner, v_job))
        ORDER BY s.sent_at
        LIMIT 1;
    END IF;

    IF verdict IS NULL AND v_locked AND v_step.until <= clock_timestamp() THEN
        verdict := 'timeout';
    END IF;

    IF verdict IS NULL THEN
        verdict := 'waiting';
        IF wait_for.signal IS NOT NULL AND v_locked THEN
            INSERT INTO pulse.signal_wait (job, lease, signal, owner, step)
            VALUES (v_job, wait_for.lease, wait_for.signal, v_owner, wait_for.step)
            ON CONFLICT ON CONSTRAINT signal_wait_is_one_per_job DO UPDATE SET
                lease = excluded.lease,
                signal = excluded.signal,
                owner = excluded.owner,
                step = excluded.step;
        END IF;
        PERFORM pulse._give_back(
            ARRAY[wait_for.lease],
            CASE
                WHEN v_locked THEN greatest(v_step.until - clock_timestamp(), '0')
                ELSE '1 second'
            END,
            'wait_for'
        );
        RETURN;
    END IF;

    UPDATE pulse.job_step AS s
    SET result = jsonb_build_object('verdict', wait_for.verdict, 'payload', wait_for.payload),
        saved_at = clock_timestamp()
    WHERE s.job = v_job
        AND s.step = wait_for.step;

    DELETE FROM pulse.signal_wait AS w
    WHERE w.job = v_job;
END;
$$;

COMMENT ON FUNCTION pulse.wait_for(bigint, text, interval, text) IS
'Wait until timeout has passed, counted from the first call with this step, or until a signal of this name was sent by the role that enqueued the job, an approver or an operator. The verdict is received (with the payload) or timeout, and stays so for this step; or waiting: the job has been given back and is not charged, stop now, it comes back in time. Without a signal it is a sleep. PU101 the lease was lost, PU002 bad argument, or the name is a step of another sort. Writes job_step; when it waits also lease, waiting and signal_wait.';
