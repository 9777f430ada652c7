-- progress, checkpoint: a running job reports how far it is, and saves data for its next attempt.
--
-- progress writes one row of job_progress for each job, and notifies the channel pulse_progress.
-- checkpoint writes one row of job_checkpoint. Both lock the lease FOR KEY SHARE: until they
-- commit, no other session can end the run. A heartbeat takes a lock that goes together with
-- theirs, so neither waits for the other.

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
'Report how far a running job is.

- fraction: from 0 to 1.
- note: a short text, shown beside the fraction.

Errors: PU001 above READ COMMITTED, PU002 a value out of range, PU101 the lease was lost.';

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
'Save data of a running job, at most 1 MB, for its next attempt: the claim of that attempt returns it. A new call replaces the data.

Errors: PU001 above READ COMMITTED, PU003 the data is too large, PU101 the lease was lost.';

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
'The job of a lease; PU101 if the lease was lost. Locks the lease FOR KEY SHARE, so no other session can end the run before this transaction ends.';
