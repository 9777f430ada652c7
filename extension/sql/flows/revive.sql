-- block_again, revive: what a retry does in a flow.
--
-- A retried job that has never run checks its dependencies again (block_again): it is blocked
-- while an upstream has not ended well enough. A job that was cancelled because of the retried
-- one comes back too, and so on down the graph (revive), up to 10,000 jobs. It stays cancelled if
-- another upstream has failed, if it has lost its unique key, or if another session has locked
-- it.
--
-- They delete from finished, insert into blocked, doubt, expiry and tally, and write
-- dependency.met and what unblock_after and put_unblocked write. Locks: rows of finished, SKIP
-- LOCKED.

CREATE FUNCTION pulse_internal.block_again(job pulse_internal.finished, retried boolean)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_job pulse_internal.blocked;
    v_open bigint [];
    v_failed boolean;
    v_start_by timestamptz;
BEGIN
    v_job.job := (block_again.job).job;
    v_job.lane := (block_again.job).lane;
    v_job.kind := (block_again.job).kind;
    v_job.rank := (block_again.job).rank;
    v_job.attempts := (block_again.job).attempts;
    v_job.failures := 0;
    v_job.keyed := (block_again.job).keyed;
    -- A retry does not approve the job. A job that has run was approved before its first run.
    SELECT
        b.after_failed, b.needed_approval AND v_job.attempts = 0, b.run_at, b.delay,
        b.expires_in, b.start_by
    INTO
        v_job.after_failed, v_job.needs_approval, v_job.run_at, v_job.delay,
        v_job.expires_in, v_start_by
    FROM pulse_internal.body AS b
    WHERE b.job = (block_again.job).job;

    -- A job that has run is not blocked again: all its upstreams had ended.
    IF v_job.attempts = 0 THEN
        SELECT
            array_agg(e.after ORDER BY e.after DESC) FILTER (
                WHERE e.state IS NULL
                    OR e.state <> 'completed' AND v_job.after_failed <> 'run'
            ),
            bool_or(e.state <> 'completed'),
            count(*) = 1
        INTO v_open, v_failed, v_job.alone
        FROM (
            SELECT
                d.after,
                (SELECT f.state FROM pulse_internal.finished AS f WHERE f.job = d.after) AS state
            FROM pulse_internal.dependency AS d
            WHERE d.job = v_job.job
                AND NOT d.met
            OFFSET 0
        ) AS e;
    END IF;

    IF v_open IS NULL THEN
        -- An operator who retries a job wants it to run at once.
        IF block_again.retried THEN
            v_job.run_at := NULL;
            v_job.delay := NULL;
            v_job.expires_in := NULL;
        END IF;
        RETURN pulse_internal.put_unblocked(v_job);
    END IF;

    -- tick() has deleted the row of expiry when the job had ended.
    IF v_start_by IS NOT NULL THEN
        PERFORM pulse_internal.note_expiry(v_job.job, v_start_by);
    END IF;

    -- An operator retries the job although an upstream has failed: it waits for a retry of that
    -- one instead of being cancelled at once.
    IF v_failed AND v_job.after_failed = 'cancel' AND block_again.retried THEN
        v_job.after_failed := 'hold';
    END IF;

    INSERT INTO pulse_internal.blocked (
        job, waits_for, lane, kind, rank, run_at, delay, expires_in, attempts, failures,
        keyed, alone, after_failed, needs_approval
    )
    VALUES (
        v_job.job, v_open[1], v_job.lane, v_job.kind, v_job.rank, v_job.run_at,
        v_job.delay, v_job.expires_in, 0, 0, v_job.keyed, v_job.alone,
        v_job.after_failed, v_job.needs_approval
    );

    INSERT INTO pulse_internal.doubt (job)
    SELECT unnest(v_open [1:CASE WHEN v_job.after_failed = 'cancel' THEN 1000 ELSE 1 END]);
    RETURN 'blocked';
END;
$$;

COMMENT ON FUNCTION pulse_internal.block_again(pulse_internal.finished, boolean) IS
'Put a job that had ended where it belongs: blocked while an upstream has not ended well enough, else as an unblocked job. The caller has deleted its row of finished. retried: by an operator, who wants it to run at once. Returns its state.';

CREATE FUNCTION pulse_internal.revive(job bigint)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_jobs bigint [] := ARRAY[revive.job];
    v_next bigint [];
    v_dependent pulse_internal.finished;
    v_revived integer := 0;
BEGIN
    WHILE v_jobs <> '{}' AND v_revived < 10000 LOOP
        v_next := '{}';
        FOR v_dependent IN
            SELECT f.*
            FROM pulse_internal.finished AS f
            WHERE f.job = ANY (array(
                    SELECT d.job
                    FROM pulse_internal.dependency AS d
                    WHERE d.after = ANY (v_jobs)
                ))
                -- As text: the condition must not lead to an index of states, but to the one by
                -- job.
                AND f.state::text = 'cancelled'
                AND f.ended_by = 'upstream'
            ORDER BY f.job
            LIMIT 10000 - v_revived
            FOR UPDATE SKIP LOCKED
        LOOP
            -- Not if another upstream has failed. The two upstreams with the nearest ids are
            -- checked first: if jobs are retried one after the other, the next one is still
            -- failed.
            CONTINUE WHEN EXISTS (
                SELECT
                FROM (
                    (
                        SELECT o.after
                        FROM pulse_internal.dependency AS o
                        WHERE o.job = v_dependent.job
                            AND o.after < v_jobs[1]
                        ORDER BY o.job DESC, o.after DESC
                        LIMIT 1
                    )
                    UNION ALL
                    (
                        SELECT o.after
                        FROM pulse_internal.dependency AS o
                        WHERE o.job = v_dependent.job
                            AND o.after > v_jobs[1]
                        ORDER BY o.job, o.after
                    )
                    UNION ALL
                    (
                        SELECT o.after
                        FROM pulse_internal.dependency AS o
                        WHERE o.job = v_dependent.job
                            AND o.after < v_jobs[1]
                        ORDER BY o.job DESC, o.after DESC
                    )
                ) AS d
                WHERE (
                    SELECT u.state <> 'completed'
                    FROM pulse_internal.finished AS u
                    WHERE u.job = d.after
                )
            );
            CONTINUE WHEN v_dependent.keyed
                AND pulse_internal.try_rekey(v_dependent.job, v_dependent.lane) IS NOT TRUE;

            DELETE FROM pulse_internal.finished AS f
            WHERE f.job = v_dependent.job;

            PERFORM pulse_internal.block_again(v_dependent, false);
            INSERT INTO pulse_internal.tally (lane, kind, event)
            VALUES (v_dependent.lane, v_dependent.kind, 'retried');
            v_next := v_next || v_dependent.job;
            v_revived := v_revived + 1;
        END LOOP;
        IF v_next <> '{}' THEN
            -- As in retry: for dependents with after_failed = run these jobs have ended.
            PERFORM pulse_internal.note_met(v_next);
            PERFORM pulse_internal.unblock_after(v_next, false);
        END IF;
        v_jobs := v_next;
    END LOOP;
    RETURN v_revived;
END;
$$;

COMMENT ON FUNCTION pulse_internal.revive(bigint) IS
'Bring back jobs that were cancelled because a job had ended badly, which now is retried, at most 10,000. Returns how many.';

CREATE FUNCTION pulse_internal.needed_by(job bigint, unless pulse_internal.outcome [] DEFAULT '{}')
RETURNS bigint
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    -- A dead or cancelled job counts too: it may be retried, and then reads the results of its
    -- upstreams.
    SELECT d.job
    FROM pulse_internal.dependency AS d
    WHERE d.after = needed_by.job
        AND (
            SELECT f.state = 'completed' OR f.state = ANY (needed_by.unless)
            FROM pulse_internal.finished AS f
            WHERE f.job = d.job
        ) IS NOT TRUE
    ORDER BY d.after DESC, d.job DESC
    LIMIT 1
$$;

COMMENT ON FUNCTION pulse_internal.needed_by(bigint, pulse_internal.outcome []) IS
'A job that depends on this one and may still run; NULL if there is none. A dependent in one of the states unless does not count.';
