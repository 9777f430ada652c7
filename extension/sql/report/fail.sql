-- Reports of runs that failed; what becomes of their jobs is in report/endings.sql.

CREATE FUNCTION pulse.fail(
    lease bigint,
    error text DEFAULT NULL,
    retry_in interval DEFAULT NULL,
    fatal boolean DEFAULT false
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_verdict text;
BEGIN
    IF octet_length(fail.error) > pulse_internal.highest('fail', 'error')::integer THEN
        PERFORM pulse_internal.require_size(
            octet_length(fail.error), pulse_internal.range_of('fail', 'error'),
            'Keep the end of the trace and the message.'
        );
    END IF;

    SELECT v.verdict INTO v_verdict
    FROM pulse.fail_batch(
        ARRAY[fail.lease], ARRAY[fail.error], ARRAY[fail.retry_in], ARRAY[fail.fatal]
    ) AS v;

    IF v_verdict <> 'ok' THEN
        PERFORM pulse_internal.raise_lease_lost(fail.lease);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.fail(bigint, text, interval, boolean) IS
'Report that a run failed: the job is charged one failure, its error is kept, and it is retried after the backoff of its kind (or retry_in), or dead when failures reach max_attempts or fatal is true. Repeating it with the same lease is harmless. PU101 when the lease was lost, PU003 when the error is above 1 MB. Writes lease, failure and waiting, or finished and job_key.';

CREATE FUNCTION pulse.fail_batch(
    leases bigint [],
    errors text [] DEFAULT NULL,
    retry_in interval [] DEFAULT NULL,
    fatal boolean [] DEFAULT NULL,
    quiet boolean DEFAULT false
)
RETURNS SETOF pulse.verdict
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_sound bigint [];
    v_errors text [];
    v_pauses interval [];
    v_fatal boolean [];
    v_ended bigint [];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM pulse_internal.require_read_committed('fail');
    END IF;
    PERFORM pulse_internal.require_duration(
        u.pause, pulse_internal.range_of('fail_batch', 'retry_in')
    )
    FROM unnest(fail_batch.retry_in) AS u (pause);

    -- From here on by subscripts, which in arrays of a caller may begin anywhere, and in the
    -- order of the leases. Of one that is named twice the first counts.
    SELECT array_agg(u.lease), array_agg(u.error), array_agg(u.pause), array_agg(u.fatal)
    INTO v_sound, v_errors, v_pauses, v_fatal
    FROM (
        SELECT DISTINCT ON (o.lease) o.*
        FROM unnest(
            fail_batch.leases, fail_batch.errors, fail_batch.retry_in, fail_batch.fatal
        ) WITH ORDINALITY AS o (lease, error, pause, fatal, place)
        WHERE o.lease IS NOT NULL
            AND coalesce(octet_length(o.error), 0)
            <= pulse_internal.highest('fail', 'error')::integer
        ORDER BY o.lease, o.place
    ) AS u;

    v_ended := pulse_internal.fail_runs(v_sound, v_errors, v_pauses, v_fatal, 'fail');

    RETURN QUERY
    SELECT v.*
    FROM pulse_internal.verdicts(
        fail_batch.leases, v_sound, v_ended, 'fail', fail_batch.quiet
    ) AS v;
END;
$$;

COMMENT ON FUNCTION pulse.fail_batch(bigint [], text [], interval [], boolean [], boolean) IS
'Fail the jobs of several leases; errors, retry_in and fatal are read at the same place. One row for each lease: ok, lost, or too_large (an error above 1 MB; that job goes on running); with quiet, only for those that are not ok. A repeated report is ok again. PU002 for a retry_in that is negative or above a year. Writes what fail writes.';
