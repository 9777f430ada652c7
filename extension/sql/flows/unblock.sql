-- Where released jobs go (flows/release.sql): in line, into waiting or before an approver.

-- The rows are locked by us, so their addresses hold. lane is that of all of them where they
-- need nothing but a place in line, and else NULL.
CREATE FUNCTION pulse._release(tids tid [], lane text DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lanes text [] := ARRAY[_release.lane];
    v_lane text;
    v_plain tid [] := _release.tids;
    v_gone integer;
    v_free tid [];
    v_job pulse.blocked;
BEGIN
    IF _release.lane IS NULL
        OR (SELECT l.grouped FROM pulse.lane AS l WHERE l.lane = _release.lane)
    THEN
        v_lanes := array(
            SELECT DISTINCT l.lane
            FROM (
                SELECT b.lane FROM pulse.blocked AS b WHERE b.ctid = ANY (_release.tids) OFFSET 0
            ) AS l
        );
        v_plain := array(
            SELECT b.ctid
            FROM pulse.blocked AS b
            WHERE b.ctid = ANY (_release.tids)
                AND b.lane <> ALL (array(
                    SELECT l.lane FROM pulse.lane AS l WHERE l.lane = ANY (v_lanes) AND l.grouped
                ))
                AND num_nonnulls(b.run_at, b.delay, b.expires_in) = 0
                AND NOT b.needs_approval
                AND (
                    NOT b.keyed
                    OR (
                        SELECT k.follows FROM pulse.job_key AS k WHERE k.job = b.job
                    ) IS NOT TRUE
                )
        );
    END IF;

    -- Both halves read the same rows, in one snapshot: rows that DELETE returns are fetched and
    -- stored once more on their way, which is half a microsecond each. A lane that gets groups
    -- meanwhile sorts what it finds in ready, as after an enqueue (groups/sort.sql).
    WITH gone AS (
        DELETE FROM pulse.blocked AS b
        WHERE b.ctid = ANY (v_plain)
    )

    INSERT INTO pulse.ready (lane, rank, kind, job, attempts, failures, keyed)
    SELECT b.lane, b.rank, b.kind, b.job, b.attempts, b.failures, b.keyed
    FROM pulse.blocked AS b
    WHERE b.ctid = ANY (v_plain);
    GET DIAGNOSTICS v_gone = ROW_COUNT;

    -- The bell, as in _ring: nobody sleeps if the lock can be had.
    FOREACH v_lane IN ARRAY v_lanes LOOP
        IF NOT (
            pg_try_advisory_lock('pulse.ready'::regclass::oid::integer, hashtext(v_lane))
            AND pg_advisory_unlock('pulse.ready'::regclass::oid::integer, hashtext(v_lane))
        ) THEN
            PERFORM pulse._ring(v_lane);
        END IF;
    END LOOP;

    IF v_gone < cardinality(_release.tids) THEN
        -- Those that are to be approved, wait for a time, join a group or are still to get
        -- their unique key, one by one.
        v_free := pulse._inherit_keys(_release.tids);
        FOR v_job IN
            DELETE FROM pulse.blocked AS b
            WHERE b.ctid = ANY (v_free)
            RETURNING b.*
        LOOP
            PERFORM pulse._unblock(v_job);
            v_gone := v_gone + 1;
        END LOOP;
    END IF;
    RETURN v_gone;
END;
$$;

COMMENT ON FUNCTION pulse._release(tid [], text) IS
'Take blocked jobs out and put them where they belong: in line, into waiting or before an approver; returns how many could go.';

-- job is the row that was taken out, or would have been written. Approval is asked for now,
-- so that the approver sees the results of the upstreams, and its expiry starts now.
CREATE FUNCTION pulse._unblock(job pulse.blocked)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_run_at timestamptz := greatest(
        (_unblock.job).run_at, clock_timestamp() + (_unblock.job).delay
    );
    v_start_by timestamptz := greatest(v_run_at, clock_timestamp())
        + (_unblock.job).expires_in;
BEGIN
    IF v_start_by IS NOT NULL THEN
        UPDATE pulse.body AS b
        SET start_by = v_start_by
        WHERE b.job = (_unblock.job).job;

        PERFORM pulse._note_expiry((_unblock.job).job, v_start_by);
    END IF;

    IF (_unblock.job).needs_approval THEN
        INSERT INTO pulse.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        VALUES (
            (_unblock.job).job, (_unblock.job).lane, (_unblock.job).kind,
            (_unblock.job).rank, v_run_at,
            clock_timestamp() + (pulse._kind_settings((_unblock.job).kind)).approval_expiry,
            (_unblock.job).keyed
        );
        RETURN 'awaiting_approval';
    END IF;

    PERFORM pulse._put_in_line(
        (_unblock.job).job, (_unblock.job).lane, (_unblock.job).kind, (_unblock.job).rank,
        v_run_at, (_unblock.job).attempts, (_unblock.job).failures, (_unblock.job).keyed,
        false, group_key => pulse._group_key((_unblock.job).job)
    );
    RETURN CASE WHEN v_run_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END;
END;
$$;

COMMENT ON FUNCTION pulse._unblock(pulse.blocked) IS
'Put a job whose upstreams have ended where it belongs; returns its state.';
