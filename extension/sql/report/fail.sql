-- fail, fail_batch: a worker reports that runs have failed.
--
-- Both check the report and leave the rest to fail_runs (report/endings.sql), which also ends the
-- runs of lost workers. It deletes rows of lease, inserts into failure and tally, and then into
-- waiting (the job is retried) or finished (it is dead, or a cancel was requested). A report of a
-- lost lease writes nothing. A repeated report is recognized by its lease and answers ok again.
--
-- Locks: leases in the order of their numbers.

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
    v_status text;
BEGIN
    -- The condition is that of require_size, and spares ordinary errors the call.
    IF octet_length(fail.error) > pulse_internal.highest('fail', 'error')::integer THEN
        PERFORM pulse_internal.require_size(
            octet_length(fail.error), pulse_internal.range_of('fail', 'error'),
            'Keep the end of the trace and the message.'
        );
    END IF;

    SELECT s.verdict INTO v_status
    FROM pulse.fail_batch(
        ARRAY[fail.lease], ARRAY[fail.error], ARRAY[fail.retry_in], ARRAY[fail.fatal]
    ) AS s;

    IF v_status <> 'ok' THEN
        PERFORM pulse_internal.raise_lease_lost(fail.lease);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.fail(bigint, text, interval, boolean) IS
'Report that a run has failed: the error is stored, and the job is retried or dead. A call with the same lease may be repeated.

- error: text of at most 1 MB, shown with the job.
- retry_in: the delay before the next attempt. The default is the backoff of the kind.
- fatal: the job is dead at once. Otherwise it is dead when its failures reach max_attempts.
- A job whose cancel was requested is cancelled, whatever the report says.

Errors: PU001 above READ COMMITTED, PU002 bad retry_in, PU003 the error is too large, PU101 the lease was lost.';

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
    -- The reports to act on: four arrays in the same order.
    v_leases bigint [];
    v_errors text [];
    v_retry_in interval [];
    v_fatal boolean [];
    -- The leases whose runs this call has ended.
    v_ended bigint [];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM pulse_internal.require_read_committed('fail');
    END IF;
    PERFORM pulse_internal.require_duration(
        u.retry_in, pulse_internal.range_of('fail_batch', 'retry_in')
    )
    FROM unnest(fail_batch.retry_in) AS u (retry_in);

    -- Sort by lease: fail_runs finds the error of a lease by binary search. It reads the arrays
    -- by subscript, and those of a caller may start at any subscript. If a lease is named twice,
    -- the first report counts.
    SELECT array_agg(u.lease), array_agg(u.error), array_agg(u.retry_in), array_agg(u.fatal)
    INTO v_leases, v_errors, v_retry_in, v_fatal
    FROM (
        SELECT DISTINCT ON (o.lease) o.*
        FROM unnest(
            fail_batch.leases, fail_batch.errors, fail_batch.retry_in, fail_batch.fatal
        ) WITH ORDINALITY AS o (lease, error, retry_in, fatal, nth)
        WHERE o.lease IS NOT NULL
            AND coalesce(octet_length(o.error), 0)
            <= pulse_internal.highest('fail', 'error')::integer
        ORDER BY o.lease, o.nth
    ) AS u;

    v_ended := pulse_internal.fail_runs(v_leases, v_errors, v_retry_in, v_fatal, 'fail');

    RETURN QUERY
    SELECT s.*
    FROM pulse_internal.report_statuses(
        fail_batch.leases, v_leases, v_ended, 'fail', fail_batch.quiet
    ) AS s;
END;
$$;

COMMENT ON FUNCTION pulse.fail_batch(bigint [], text [], interval [], boolean [], boolean) IS
'Report that the runs of several leases have failed. Returns a status for each lease, in the order given.

- errors, retry_in, fatal: as in fail, one for each lease, in the same order.
- quiet: return only the leases whose status is not ok.
- ok: the run has failed, by this call or by an earlier one with the same lease.
- lost: the lease has expired and was taken away. Nothing was written.
- too_large: the error is above 1 MB. Nothing was written, and the job is still running.

Errors: PU001 above READ COMMITTED, PU002 a retry_in is negative or above a year.';
