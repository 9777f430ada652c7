-- Where released jobs go (flows/release.sql): in line, into waiting or before an approver.

-- The rows are locked by us, so their addresses hold. lane is that of all of them where they
-- need nothing but a place in line, and else NULL.
CREATE FUNCTION pulse_internal.release(tids tid [], lane text DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lanes text [] := ARRAY[release.lane];
    v_lane text;
    v_plain tid [] := release.tids;
    v_gone integer;
    v_free tid [];
    v_job pulse_internal.blocked;
BEGIN
    IF release.lane IS NULL
        OR (SELECT l.grouped FROM pulse_internal.lane AS l WHERE l.lane = release.lane)
    THEN
        v_lanes := array(
            SELECT DISTINCT l.lane
            FROM (
                SELECT b.lane
                FROM pulse_internal.blocked AS b
                WHERE b.ctid = ANY (release.tids) OFFSET 0
            ) AS l
        );
        v_plain := array(
            SELECT b.ctid
            FROM pulse_internal.blocked AS b
            WHERE b.ctid = ANY (release.tids)
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

    -- Both halves read the same rows, in one snapshot: rows that DELETE returns are fetched and
    -- stored once more on their way, which is half a microsecond each. A lane that gets groups
    -- meanwhile sorts what it finds in ready, as after an enqueue (groups/sort.sql).
    WITH gone AS (
        DELETE FROM pulse_internal.blocked AS b
        WHERE b.ctid = ANY (v_plain)
    )

    INSERT INTO pulse_internal.ready (lane, rank, kind, job, attempts, failures, keyed)
    SELECT b.lane, b.rank, b.kind, b.job, b.attempts, b.failures, b.keyed
    FROM pulse_internal.blocked AS b
    WHERE b.ctid = ANY (v_plain);
    GET DIAGNOSTICS v_gone = ROW_COUNT;

    -- The bell, as in ring: nobody sleeps if the lock can be had.
    FOREACH v_lane IN ARRAY v_lanes LOOP
        IF NOT (
            pg_try_advisory_lock('pulse_internal.ready'::regclass::oid::integer, hashtext(v_lane))
            AND pg_advisory_unlock('pulse_internal.ready'::regclass::oid::integer, hashtext(v_lane))
        ) THEN
            PERFORM pulse_internal.ring(v_lane);
        END IF;
    END LOOP;

    IF v_gone < cardinality(release.tids) THEN
        -- Those that are to be approved, wait for a time, join a group or are still to get
        -- their unique key, one by one.
        v_free := pulse_internal.inherit_keys(release.tids);
        FOR v_job IN
            DELETE FROM pulse_internal.blocked AS b
            WHERE b.ctid = ANY (v_free)
            RETURNING b.*
        LOOP
            PERFORM pulse_internal.unblock(v_job);
            v_gone := v_gone + 1;
        END LOOP;
    END IF;
    RETURN v_gone;
END;
$$;

COMMENT ON FUNCTION pulse_internal.release(tid [], text) IS
'Take blocked jobs out and put them where they belong: in line, into waiting or before an approver; returns how many could go.';

-- job is the row that was taken out, or would have been written. Approval is asked for now,
-- so that the approver sees the results of the upstreams, and its expiry starts now.
CREATE FUNCTION pulse_internal.unblock(job pulse_internal.blocked)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_run_at timestamptz := greatest(
        (unblock.job).run_at, clock_timestamp() + (unblock.job).delay
    );
    v_start_by timestamptz := greatest(v_run_at, clock_timestamp())
        + (unblock.job).expires_in;
BEGIN
    IF v_start_by IS NOT NULL THEN
        UPDATE pulse_internal.body AS b
        SET start_by = v_start_by
        WHERE b.job = (unblock.job).job;

        PERFORM pulse_internal.note_expiry((unblock.job).job, v_start_by);
    END IF;

    IF (unblock.job).needs_approval THEN
        INSERT INTO pulse_internal.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        VALUES (
            (unblock.job).job, (unblock.job).lane, (unblock.job).kind,
            (unblock.job).rank, v_run_at,
            clock_timestamp() + (pulse_internal.kind_settings((unblock.job).kind)).approval_expiry,
            (unblock.job).keyed
        );
        RETURN 'awaiting_approval';
    END IF;

    PERFORM pulse_internal.put_in_line(
        (unblock.job).job, (unblock.job).lane, (unblock.job).kind, (unblock.job).rank,
        v_run_at, (unblock.job).attempts, (unblock.job).failures, (unblock.job).keyed,
        false, group_key => pulse_internal.group_key((unblock.job).job)
    );
    RETURN CASE WHEN v_run_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.unblock(pulse_internal.blocked) IS
'Put a job whose upstreams have ended where it belongs; returns its state.';
