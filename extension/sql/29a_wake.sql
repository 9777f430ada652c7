-- What an end calls: the look of 29_release.sql, and notes of what it left.

-- The rest, and what another session holds, in portions for whoever comes next.
CREATE FUNCTION pulse._wake(jobs bigint [], completed boolean)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_looked record;
    v_job bigint;
    v_last bigint;
BEGIN
    -- As many as a report of so many jobs has time for.
    v_looked := pulse._look(
        _wake.jobs, _wake.completed, 0, 9223372036854775807,
        greatest(1000, 4 * cardinality(_wake.jobs))
    );

    IF v_looked.left_over THEN
        FOR v_job IN
            SELECT j.job
            FROM unnest(_wake.jobs) AS j (job)
            WHERE (
                    SELECT true
                    FROM pulse.blocked AS o
                    WHERE o.waits_for = j.job
                    ORDER BY o.waits_for, o.seq
                    LIMIT 1
                )
        LOOP
            v_last := 0;
            LOOP
                -- Numbers that were drawn at once need not be read: the one at the end shows
                -- that they are there, and between there are no more than 200.
                INSERT INTO pulse.wake AS w (job, from_seq, to_seq)
                SELECT
                    v_job,
                    a.seq,
                    coalesce(
                        (
                            SELECT o.seq
                            FROM pulse.blocked AS o
                            WHERE o.waits_for = v_job
                                AND o.seq = a.seq + 199
                        ),
                        (
                            SELECT max(b.seq)
                            FROM (
                                SELECT o.seq
                                FROM pulse.blocked AS o
                                WHERE o.waits_for = v_job
                                    AND o.seq >= a.seq
                                    AND (_wake.completed OR o.after_failed = 'run')
                                ORDER BY o.waits_for, o.seq
                                LIMIT 200
                            ) AS b
                        )
                    )
                FROM (
                    SELECT o.seq
                    FROM pulse.blocked AS o
                    WHERE o.waits_for = v_job
                        AND o.seq > v_last
                        AND (_wake.completed OR o.after_failed = 'run')
                    ORDER BY o.waits_for, o.seq
                    LIMIT 1
                ) AS a
                RETURNING w.to_seq INTO v_last;
                EXIT WHEN NOT FOUND;
            END LOOP;
        END LOOP;
    END IF;
    RETURN v_looked.released;
END;
$$;

COMMENT ON FUNCTION pulse._wake(bigint [], boolean) IS
'Look at the blocked jobs that watch jobs which have ended: a thousand now, or four for each job that has ended, the rest is noted in portions; returns how many were released.';
