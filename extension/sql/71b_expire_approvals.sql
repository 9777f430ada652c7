-- Oldest first, never waiting: what an approver is deciding right now is left to that one. Read
-- from the start of approval_for_expiry: people approve by the hundred, so the dead
-- entries that an old snapshot keeps there are few.
CREATE FUNCTION pulse._expire_approvals(max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_job pulse.approval;
    v_expired integer := 0;
BEGIN
    -- In the order of the keys, as everywhere.
    FOR v_job IN
        WITH expired AS (
            DELETE FROM pulse.approval AS a
            WHERE a.job = ANY (
                ARRAY(
                    SELECT o.job
                    FROM pulse.approval AS o
                    WHERE o.expires_at <= v_now
                    ORDER BY o.expires_at
                    LIMIT _expire_approvals.max_jobs
                    FOR UPDATE SKIP LOCKED
                )
            )
            RETURNING a.*
        )

        SELECT e.*
        FROM expired AS e
        ORDER BY e.lane, (CASE WHEN e.keyed THEN pulse._key_of(e.job) END) COLLATE "C"
    LOOP
        PERFORM pulse._finish_cancelled(
            v_job.job, v_job.lane, v_job.kind, v_job.rank, 'expire',
            0, 0, v_job.keyed, 'approval expired'
        );
        v_expired := v_expired + 1;
    END LOOP;

    RETURN v_expired;
END;
$$;

COMMENT ON FUNCTION pulse._expire_approvals(integer) IS
'Cancel jobs that nobody approved in time, at most max_jobs, oldest first; returns how many.';
