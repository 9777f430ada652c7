-- Retry in flows: a job that never ran is checked against its dependencies again, and jobs that
-- were cancelled because of it come back.

-- The caller has taken the job out of finished. retried: by an operator's own retry, which
-- waits for what failed to be retried as well instead of being cancelled at once.
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
    v_place pulse_internal.blocked;
    v_open bigint [];
    v_failed boolean;
    v_start_by timestamptz;
BEGIN
    v_place.job := (block_again.job).job;
    v_place.lane := (block_again.job).lane;
    v_place.kind := (block_again.job).kind;
    v_place.rank := (block_again.job).rank;
    v_place.attempts := (block_again.job).attempts;
    v_place.failures := 0;
    v_place.keyed := (block_again.job).keyed;
    -- A retry approves nothing. A job that has run was approved before its first run.
    SELECT
        b.after_failed, b.needed_approval AND v_place.attempts = 0, b.run_at, b.delay,
        b.expires_in, b.start_by
    INTO
        v_place.after_failed, v_place.needs_approval, v_place.run_at, v_place.delay,
        v_place.expires_in, v_start_by
    FROM pulse_internal.body AS b
    WHERE b.job = (block_again.job).job;

    -- A job that has run once is not blocked again: all its upstreams had ended.
    IF v_place.attempts = 0 THEN
        SELECT
            array_agg(e.after ORDER BY e.after DESC) FILTER (
                WHERE e.state IS NULL
                    OR e.state <> 'completed' AND v_place.after_failed <> 'run'
            ),
            bool_or(e.state <> 'completed'),
            count(*) = 1
        INTO v_open, v_failed, v_place.alone
        FROM (
            SELECT
                d.after,
                (SELECT f.state FROM pulse_internal.finished AS f WHERE f.job = d.after) AS state
            FROM pulse_internal.dependency AS d
            WHERE d.job = v_place.job
                AND NOT d.met
            OFFSET 0
        ) AS e;
    END IF;

    IF v_open IS NULL THEN
        -- An operator who retries a job wants it to run at once.
        IF block_again.retried THEN
            v_place.run_at := NULL;
            v_place.delay := NULL;
            v_place.expires_in := NULL;
        END IF;
        RETURN pulse_internal.put_unblocked(v_place);
    END IF;

    -- tick() forgets the time of a job that has ended.
    IF v_start_by IS NOT NULL THEN
        PERFORM pulse_internal.note_expiry(v_place.job, v_start_by);
    END IF;

    IF v_failed AND v_place.after_failed = 'cancel' AND block_again.retried THEN
        v_place.after_failed := 'hold';
    END IF;

    INSERT INTO pulse_internal.blocked (
        job, waits_for, lane, kind, rank, run_at, delay, expires_in, attempts, failures,
        keyed, alone, after_failed, needs_approval
    )
    VALUES (
        v_place.job, v_open[1], v_place.lane, v_place.kind, v_place.rank, v_place.run_at,
        v_place.delay, v_place.expires_in, 0, 0, v_place.keyed, v_place.alone,
        v_place.after_failed, v_place.needs_approval
    );

    INSERT INTO pulse_internal.doubt (job)
    SELECT unnest(v_open [1:CASE WHEN v_place.after_failed = 'cancel' THEN 1000 ELSE 1 END]);
    RETURN 'blocked';
END;
$$;

COMMENT ON FUNCTION pulse_internal.block_again(pulse_internal.finished, boolean) IS
'Put a job that had ended where it belongs: blocked as long as an upstream has not ended well enough; returns its state.';

-- job is dead or cancelled no more. Nothing waits: what another session holds stays
-- cancelled, and so does who has lost its unique key, or waits for another that has failed.
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
    v_child pulse_internal.finished;
    v_all integer := 0;
BEGIN
    WHILE v_jobs <> '{}' AND v_all < 10000 LOOP
        v_next := '{}';
        FOR v_child IN
            SELECT f.*
            FROM pulse_internal.finished AS f
            WHERE f.job = ANY (array(
                    SELECT d.job
                    FROM pulse_internal.dependency AS d
                    WHERE d.after = ANY (v_jobs)
                ))
                -- As text: by its job alone.
                AND f.state::text = 'cancelled'
                AND f.ended_by = 'upstream'
            ORDER BY f.job
            LIMIT 10000 - v_all
            FOR UPDATE SKIP LOCKED
        LOOP
            -- Another that it depends on has failed. Neighbours are asked first: where all are
            -- retried one after the other, one beside the last has still to be.
            CONTINUE WHEN EXISTS (
                SELECT
                FROM (
                    (
                        SELECT o.after
                        FROM pulse_internal.dependency AS o
                        WHERE o.job = v_child.job
                            AND o.after < v_jobs[1]
                        ORDER BY o.job DESC, o.after DESC
                        LIMIT 1
                    )
                    UNION ALL
                    (
                        SELECT o.after
                        FROM pulse_internal.dependency AS o
                        WHERE o.job = v_child.job
                            AND o.after > v_jobs[1]
                        ORDER BY o.job, o.after
                    )
                    UNION ALL
                    (
                        SELECT o.after
                        FROM pulse_internal.dependency AS o
                        WHERE o.job = v_child.job
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
            CONTINUE WHEN v_child.keyed
                AND pulse_internal.try_rekey(v_child.job, v_child.lane) IS NOT TRUE;

            DELETE FROM pulse_internal.finished AS f
            WHERE f.job = v_child.job;

            PERFORM pulse_internal.block_again(v_child, false);
            INSERT INTO pulse_internal.tally (lane, kind, event)
            VALUES (v_child.lane, v_child.kind, 'retried');
            v_next := v_next || v_child.job;
            v_all := v_all + 1;
        END LOOP;
        IF v_next <> '{}' THEN
            -- As in retry: for those who take any end they have ended.
            PERFORM pulse_internal.note_met(v_next);
            PERFORM pulse_internal.unblock_after(v_next, false);
        END IF;
        v_jobs := v_next;
    END LOOP;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.revive(bigint) IS
'Bring back what the end of a job, which is retried now, had cancelled, at most 10,000; returns how many.';

-- A dead or cancelled job may be retried, and then reads the results of its upstreams.
CREATE FUNCTION pulse_internal.needed_by(job bigint, unless pulse_internal.outcome [] DEFAULT '{}')
RETURNS bigint
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
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
'A job that depends on this one and may still run, unless it is in such a state; NULL when none does.';
