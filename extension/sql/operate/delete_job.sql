-- delete_job removes a job that has ended before its retention is over, with all that
-- belongs to it. It locks the row in finished first, so the job stays where it is while
-- the rest goes, and asks in a later statement whether a job that may still run depends
-- on it. Such a job must not lose its upstream. It writes audit_entry.

CREATE FUNCTION pulse.delete_job(
    job_id bigint,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(delete_job.signature);
    v_done record;
BEGIN
    PERFORM pulse_internal.require_read_committed('delete_job');
    PERFORM pulse_internal.require_reason(delete_job.reason);

    SELECT d.* INTO v_done
    FROM pulse_internal.discard(delete_job.job_id) AS d;

    IF v_done.needed_by IS NOT NULL THEN
        PERFORM pulse_internal.raise_wrong_state(
            delete_job.job_id,
            format('needed by job %s, which depends on it', v_done.needed_by), 'delete',
            'Cancel or delete the jobs that depend on it first.'
        );
    END IF;

    IF v_done.state IS NULL THEN
        PERFORM pulse_internal.raise_wrong_state(
            delete_job.job_id, v_done.was, 'delete', 'Cancel it first.'
        );
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'delete_job', delete_job.job_id, v_done.lane,
        jsonb_build_object(
            'state', v_done.was, 'kind', v_done.kind, 'attempts', v_done.attempts
        ),
        NULL, delete_job.reason
    );
END;
$$;

COMMENT ON FUNCTION pulse.delete_job(bigint, text, pulse_internal.caller_signature) IS
'Remove a finished job with its errors, progress, checkpoint and unique key, before its retention ends. PU004 no such job; PU105 it has not ended: cancel it first, or a job that depends on it may still run; PU107 it kept moving. Writes finished, body, failure, job_progress, job_checkpoint, job_step, signal_wait, dependency, job_key and audit_entry.';

-- state is deleted, or stays NULL for a job that has not ended, or that another may still
-- need.
CREATE FUNCTION pulse_internal.discard(
    job_id bigint,
    OUT was text,
    OUT lane text,
    OUT kind text,
    OUT attempts integer,
    OUT needed_by bigint,
    OUT state text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    SELECT t.state, t.lane, t.kind, t.attempts INTO was, lane, kind, attempts
    FROM pulse_internal.take_out(discard.job_id) AS t;

    IF was <> ALL (pulse_internal.acts_on('delete_job')) THEN
        RETURN;
    END IF;

    -- A later statement than the lock, which an enqueue with after shares.
    needed_by := pulse_internal.needed_by(discard.job_id);
    IF needed_by IS NOT NULL THEN
        RETURN;
    END IF;

    -- The row in finished is locked, so the job stays where it is while the rest goes.
    DELETE FROM pulse_internal.dependency AS d
    WHERE d.job = discard.job_id;

    DELETE FROM pulse_internal.job_step AS s
    WHERE s.job = discard.job_id;

    DELETE FROM pulse_internal.signal_wait AS w
    WHERE w.job = discard.job_id;

    DELETE FROM pulse_internal.job_key AS k
    WHERE k.job = discard.job_id;

    DELETE FROM pulse_internal.job_progress AS p
    WHERE p.job = discard.job_id;

    DELETE FROM pulse_internal.job_checkpoint AS c
    WHERE c.job = discard.job_id;

    DELETE FROM pulse_internal.failure AS f
    WHERE f.job = discard.job_id;

    DELETE FROM pulse_internal.finished AS f
    WHERE f.job = discard.job_id;

    DELETE FROM pulse_internal.body AS b
    WHERE b.job = discard.job_id;
    state := 'deleted';
END;
$$;

COMMENT ON FUNCTION pulse_internal.discard(bigint) IS
'Remove a job that has ended with all that belongs to it; says what it was.';
