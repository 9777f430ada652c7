-- How a signal reaches the jobs that wait for it (69b_signal.sql).

-- Never waits for a job that another session holds: tick comes back to it.
CREATE FUNCTION pulse._deliver_signal(signal text, owner integer, max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_roles integer [] := pulse._numbers_of(_deliver_signal.owner);
    v_sent pulse.signal;
    v_job record;
    v_woken integer := 0;
    v_left_over boolean;
BEGIN
    SELECT s.* INTO v_sent
    FROM pulse.signal AS s
    WHERE s.signal = _deliver_signal.signal
        AND s.owner = _deliver_signal.owner;

    FOR v_job IN
        SELECT o.*, w.step
        FROM (
            SELECT n.job, n.lease, n.step
            FROM pulse.signal_wait AS n
            WHERE n.signal = _deliver_signal.signal
                AND (_deliver_signal.owner = 0 OR n.owner = ANY (v_roles))
            ORDER BY n.signal, n.owner
            OFFSET 0
        ) AS w
        CROSS JOIN LATERAL (
            SELECT n.*
            FROM pulse.waiting AS n
            WHERE n.job = w.job
                -- Only the wait that it began with this lease: a backoff is not cut short.
                AND n.last_lease + 0 = w.lease
                AND n.last_verb = 'wait_for'
            FOR UPDATE SKIP LOCKED
        ) AS o
        LIMIT _deliver_signal.max_jobs
    LOOP
        DELETE FROM pulse.waiting AS w
        WHERE w.job = v_job.job;

        DELETE FROM pulse.signal_wait AS w
        WHERE w.job = v_job.job;

        UPDATE pulse.job_step AS s
        SET result = jsonb_build_object('verdict', 'received', 'payload', v_sent.payload),
            saved_at = clock_timestamp()
        WHERE s.job = v_job.job
            AND s.step = v_job.step
            AND s.saved_at IS NULL;

        PERFORM pulse._put_in_line(
            v_job.job, v_job.lane, v_job.kind, v_job.rank, NULL, v_job.attempts,
            v_job.failures, v_job.keyed, false, v_job.last_lease, v_job.last_verb,
            pulse._group_key(v_job.job), v_job.place
        );
        v_woken := v_woken + 1;
    END LOOP;

    v_left_over := EXISTS (
        SELECT
        FROM (
            SELECT n.job, n.lease
            FROM pulse.signal_wait AS n
            WHERE n.signal = _deliver_signal.signal
                AND (_deliver_signal.owner = 0 OR n.owner = ANY (v_roles))
            ORDER BY n.signal, n.owner
            OFFSET 0
        ) AS w
        CROSS JOIN LATERAL (
            SELECT
            FROM pulse.waiting AS n
            WHERE n.job = w.job
                AND n.last_lease + 0 = w.lease
                AND n.last_verb = 'wait_for'
            OFFSET 0
        ) AS o
    );
    -- The time of this look, so that tick looks at the others before it comes back.
    IF v_left_over OR v_sent.undelivered_at IS NOT NULL THEN
        UPDATE pulse.signal AS s
        SET undelivered_at = CASE WHEN v_left_over THEN clock_timestamp() END
        WHERE s.signal = _deliver_signal.signal
            AND s.owner = _deliver_signal.owner;
    END IF;
    RETURN v_woken;
END;
$$;

COMMENT ON FUNCTION pulse._deliver_signal(text, integer, integer) IS
'Put jobs in line that wait for a signal that was sent, with its payload; returns how many.';
