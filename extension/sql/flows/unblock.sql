-- unblock_rows: where jobs go that no longer wait for others (flows/release.sql).
--
-- An ordinary job goes to ready, many by one statement. One by one go jobs that have to be
-- approved (to approval), run at a later time (to waiting), have an expires_in, or belong to a
-- grouped lane. A job that follows another one with the same unique key also takes that key;
-- while another session holds the key, the job stays blocked (enqueue/follow.sql).
--
-- It deletes from blocked, whose rows the caller has locked, writes the tables above, body and
-- expiry for expires_in, and wakes idle workers of the lanes. It waits for no lock.

CREATE FUNCTION pulse_internal.unblock_rows(tids tid [], one_plain_lane text DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lanes text [] := ARRAY[unblock_rows.one_plain_lane];
    v_lane text;
    v_plain tid [] := unblock_rows.tids;
    v_unblocked integer;
    v_with_own_key tid [];
    v_job pulse_internal.blocked;
BEGIN
    -- one_plain_lane: all jobs are of this lane and ordinary. Else find out which ones are.
    IF unblock_rows.one_plain_lane IS NULL
        OR (
            SELECT l.grouped
            FROM pulse_internal.lane AS l
            WHERE l.lane = unblock_rows.one_plain_lane
        )
    THEN
        v_lanes := array(
            SELECT DISTINCT l.lane
            FROM (
                SELECT b.lane
                FROM pulse_internal.blocked AS b
                WHERE b.ctid = ANY (unblock_rows.tids) OFFSET 0
            ) AS l
        );
        v_plain := array(
            SELECT b.ctid
            FROM pulse_internal.blocked AS b
            WHERE b.ctid = ANY (unblock_rows.tids)
                AND b.lane <> ALL (array(
                    SELECT l.lane
                    FROM pulse_internal.lane AS l
                    WHERE l.lane = ANY (v_lanes) AND l.grouped
                ))
                AND num_nonnulls(b.run_at, b.delay, b.expires_in) = 0
                AND NOT b.needs_approval
                AND (
                    NOT b.keyed
                    OR (
                        SELECT k.follows FROM pulse_internal.job_key AS k WHERE k.job = b.job
                    ) IS NOT TRUE
                )
        );
    END IF;

    -- As enter_lane, before anything is drawn.
    FOREACH v_lane IN ARRAY v_lanes LOOP
        IF NOT pg_try_advisory_xact_lock_shared(
            'pulse_internal.ready_seq'::regclass::oid::integer, hashtext(v_lane) & 255
        ) THEN
            PERFORM pulse_internal.enter_lane(v_lane);
        END IF;
    END LOOP;

    -- The ordinary jobs. Both halves read the same rows, in one snapshot: RETURNING would fetch
    -- and store each row once more, half a microsecond each. If the lane becomes grouped
    -- meanwhile, the jobs are sorted into their groups later, as after an enqueue
    -- (groups/sort.sql).
    WITH deleted AS (
        DELETE FROM pulse_internal.blocked AS b
        WHERE b.ctid = ANY (v_plain)
    )

    INSERT INTO pulse_internal.ready (lane, rank, kind, job, attempts, failures, keyed)
    SELECT b.lane, b.rank, b.kind, b.job, b.attempts, b.failures, b.keyed
    FROM pulse_internal.blocked AS b
    WHERE b.ctid = ANY (v_plain);
    GET DIAGNOSTICS v_unblocked = ROW_COUNT;

    -- Wake idle workers, as ring does (common/bell.sql): one that sleeps holds the lock.
    FOREACH v_lane IN ARRAY v_lanes LOOP
        IF NOT (
            pg_try_advisory_lock('pulse_internal.ready'::regclass::oid::integer, hashtext(v_lane))
            AND pg_advisory_unlock('pulse_internal.ready'::regclass::oid::integer, hashtext(v_lane))
        ) THEN
            PERFORM pulse_internal.ring(v_lane);
        END IF;
    END LOOP;

    IF v_unblocked < cardinality(unblock_rows.tids) THEN
        -- The others, one by one.
        v_with_own_key := pulse_internal.inherit_keys(unblock_rows.tids);
        FOR v_job IN
            DELETE FROM pulse_internal.blocked AS b
            WHERE b.ctid = ANY (v_with_own_key)
            RETURNING b.*
        LOOP
            PERFORM pulse_internal.put_unblocked(v_job);
            v_unblocked := v_unblocked + 1;
        END LOOP;
    END IF;
    RETURN v_unblocked;
END;
$$;

COMMENT ON FUNCTION pulse_internal.unblock_rows(tid [], text) IS
'Unblock jobs by the addresses of their rows, which the caller has locked. one_plain_lane is their lane, if all are of one lane and can go straight to ready; else NULL. Returns how many were unblocked.';

CREATE FUNCTION pulse_internal.put_unblocked(job pulse_internal.blocked)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_run_at timestamptz := greatest(
        (put_unblocked.job).run_at, clock_timestamp() + (put_unblocked.job).delay
    );
    v_start_by timestamptz := greatest(v_run_at, clock_timestamp())
        + (put_unblocked.job).expires_in;
BEGIN
    IF v_start_by IS NOT NULL THEN
        UPDATE pulse_internal.body AS b
        SET start_by = v_start_by
        WHERE b.job = (put_unblocked.job).job;

        PERFORM pulse_internal.note_expiry((put_unblocked.job).job, v_start_by);
    END IF;

    -- Approval is asked for now, so that the approver sees the results of the upstreams. Its
    -- expiry counts from now.
    IF (put_unblocked.job).needs_approval THEN
        INSERT INTO pulse_internal.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        VALUES (
            (put_unblocked.job).job, (put_unblocked.job).lane, (put_unblocked.job).kind,
            (put_unblocked.job).rank, v_run_at,
            clock_timestamp()
            + (pulse_internal.kind_settings((put_unblocked.job).kind)).approval_expiry,
            (put_unblocked.job).keyed
        );
        RETURN 'awaiting_approval';
    END IF;

    PERFORM pulse_internal.put_in_line(
        (put_unblocked.job).job, (put_unblocked.job).lane, (put_unblocked.job).kind,
        (put_unblocked.job).rank, v_run_at, (put_unblocked.job).attempts,
        (put_unblocked.job).failures, (put_unblocked.job).keyed,
        false, NULL, NULL, NULL
    );
    RETURN CASE WHEN v_run_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.put_unblocked(pulse_internal.blocked) IS
'Put a job whose upstreams have ended into approval, waiting or ready. job is its row of blocked, which the caller has deleted or never written. Returns its state.';
