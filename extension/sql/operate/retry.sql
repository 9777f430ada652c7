-- retry puts a dead or cancelled job back in line. It deletes from finished, and writes
-- ready, blocked or approval, dependency, doubt, job_key and audit_entry. It locks the
-- row in finished, and then the unique key of the job, for which it waits a bounded time.
-- What the end of the job had cancelled comes back with it (flows/revive.sql). It must
-- not take a key that another job has by now.

CREATE FUNCTION pulse.retry(
    job_id bigint,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(retry.signature);
    v_done record;
BEGIN
    PERFORM pulse_internal.require_read_committed('retry');
    PERFORM pulse_internal.require_reason(retry.reason);

    SELECT r.* INTO v_done
    FROM pulse_internal.retry(retry.job_id) AS r;

    IF v_done.key_holder IS NOT NULL THEN
        PERFORM pulse_internal.raise_key_taken(
            v_done.lane, pulse_internal.key_of(retry.job_id), v_done.key_holder
        );
    END IF;

    IF v_done.state IS NULL THEN
        PERFORM pulse_internal.raise_wrong_state(
            retry.job_id, v_done.was, 'retry', 'Only a dead or cancelled job can be retried.'
        );
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'retry', retry.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was),
        jsonb_build_object('state', v_done.state),
        retry.reason
    );
    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse.retry(bigint, text, pulse_internal.caller_signature) IS
'Put a dead or cancelled job back in line, with all its attempts before it; returns ready. One that never ran is blocked again while it depends on a job that has not ended well, and awaits approval again if it needs one (it was rejected, or nobody approved it in time): returns blocked or awaiting_approval. What its end had cancelled comes back with it, as blocked. Its failures start at 0 again, attempt numbers go on growing, a cancel and a start_by are forgotten. PU004 no such job; PU102 its unique key is taken by now; PU105 it is neither dead nor cancelled; PU107 it kept moving; PU111 its unique key is taken or freed by a transaction that stays open. Writes finished, ready, blocked or approval, dependency, doubt, job_key and audit_entry.';

CREATE FUNCTION pulse_internal.retry(
    job_id bigint, OUT was text, OUT lane text, OUT state text, OUT key_holder bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_was record;
    v_ended pulse_internal.finished;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse_internal.take_out(retry.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;

    IF was <> ALL (pulse_internal.acts_on('retry')) THEN
        RETURN;
    END IF;

    IF v_was.keyed THEN
        key_holder := pulse_internal.rekey_in_time(retry.job_id, v_was.lane);

        IF key_holder IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;

    -- For those who take any end it has ended.
    PERFORM pulse_internal.note_met(ARRAY[retry.job_id]);

    DELETE FROM pulse_internal.finished AS f
    WHERE f.job = retry.job_id
    RETURNING f.* INTO v_ended;

    -- Whoever wants it to run wants it however late.
    UPDATE pulse_internal.body AS b
    SET start_by = NULL
    WHERE b.job = retry.job_id
        AND b.start_by IS NOT NULL;

    state := pulse_internal.block_again(v_ended, true);

    INSERT INTO pulse_internal.tally (lane, kind, event)
    VALUES (v_was.lane, v_was.kind, 'retried');

    IF pg_sequence_last_value('pulse_internal.blocked_seq') IS NOT NULL THEN
        PERFORM pulse_internal.unblock_after(ARRAY[retry.job_id], false);
        PERFORM pulse_internal.revive(retry.job_id);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.retry(bigint) IS
'Put a dead or cancelled job back in line, or block it again; state stays NULL when it is neither or its key is taken.';
