-- What a run reports about itself while it goes on. Neither holds up a heartbeat.

CREATE FUNCTION pulse.progress(
    lease bigint, fraction double precision, note text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_job bigint;
BEGIN
    PERFORM pulse_internal.require_read_committed('progress');
    PERFORM pulse_internal.require_between(
        progress.fraction::numeric, pulse_internal.range_of('progress', 'fraction')
    );
    PERFORM pulse_internal.require_between(
        length(progress.note), pulse_internal.range_of('progress', 'note')
    );

    INSERT INTO pulse_internal.job_progress AS p (job, lease, fraction, note, reported_at)
    VALUES (
        pulse_internal.job_of(progress.lease), progress.lease, progress.fraction, progress.note,
        clock_timestamp()
    )
    ON CONFLICT ON CONSTRAINT job_progress_is_one_per_job DO UPDATE SET
        lease = excluded.lease,
        fraction = excluded.fraction,
        note = excluded.note,
        reported_at = excluded.reported_at
    RETURNING p.job INTO v_job;

    PERFORM pulse_internal.ring(v_job::text, 'pulse_progress');
END;
$$;

COMMENT ON FUNCTION pulse.progress(bigint, double precision, text) IS
'Say how far a running job has come: a fraction from 0 to 1 and a note. PU101 when the lease was lost, PU002 outside the bounds. Writes job_progress.';

CREATE FUNCTION pulse.checkpoint(lease bigint, data jsonb)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_read_committed('checkpoint');
    PERFORM pulse_internal.require_size(
        pulse_internal.text_size(checkpoint.data), pulse_internal.range_of('checkpoint', 'data'),
        'Store the data elsewhere and keep a reference.'
    );

    INSERT INTO pulse_internal.job_checkpoint AS c (job, data, saved_at)
    VALUES (
        pulse_internal.job_of(checkpoint.lease), coalesce(checkpoint.data, 'null'),
        clock_timestamp()
    )
    ON CONFLICT ON CONSTRAINT job_checkpoint_is_one_per_job DO UPDATE SET
        data = excluded.data,
        saved_at = excluded.saved_at;
END;
$$;

COMMENT ON FUNCTION pulse.checkpoint(bigint, jsonb) IS
'Keep data (at most 1 MB) for the next attempt of this job, which gets it with its claim. PU101 when the lease was lost, PU003 when it is too large. Writes job_checkpoint.';

-- Both take FOR KEY SHARE on the lease: nobody can take the lease away in between, and
-- a heartbeat is not held up.
CREATE FUNCTION pulse_internal.job_of(lease bigint)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_job bigint;
BEGIN
    SELECT l.job INTO v_job
    FROM pulse_internal.lease AS l
    WHERE l.lease = job_of.lease
    FOR KEY SHARE;

    IF NOT FOUND THEN
        PERFORM pulse_internal.raise_lease_lost(job_of.lease);
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.job_of(bigint) IS
'The job of a lease, which nobody can take away until this transaction ends; else PU101.';
