-- Any job: with a unique key, a time to run at or to begin by, an approval, a group or jobs it
-- depends on too.
CREATE FUNCTION pulse._enqueue_slow_path(
    kind pulse._kind_settings,
    payload jsonb,
    lane text,
    priority integer,
    options pulse._item,
    taken bigint
)
RETURNS pulse._enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kind pulse._kind_settings := _enqueue_slow_path.kind;
    v_item pulse._item := _enqueue_slow_path.options;
    v_lane text := coalesce(_enqueue_slow_path.lane, v_kind.lane);
    v_rank integer := -coalesce(_enqueue_slow_path.priority, v_kind.priority);
    v_run_at timestamptz := coalesce(v_item.run_at, clock_timestamp() + v_item.delay);
    v_payload jsonb := coalesce(_enqueue_slow_path.payload, '{}');
    v_keyed boolean := v_item.unique_key IS NOT NULL;
    v_after boolean := coalesce(v_item.after <> '{}', false);
    -- Counted from when it is due, and so, after other jobs, from its release.
    v_start_by timestamptz := CASE
        WHEN v_after THEN v_item.start_by
        ELSE pulse._start_by(v_item.start_by, v_item.expires_in, v_item.run_at, v_item.delay)
    END;
    v_after_failed text := CASE WHEN v_after THEN coalesce(v_item.after_failed, 'cancel') END;
    -- A call may ask for approval; it cannot waive what the kind asks for.
    v_approval boolean := v_kind.requires_approval
        OR coalesce(v_item.requires_approval, false);
    v_follows boolean := false;
    v_job pulse._enqueued;
BEGIN
    IF v_item.group_key IS NOT NULL THEN
        PERFORM pulse._joins_group(v_lane, v_item.group_key);
    END IF;

    IF v_after AND v_item.on_conflict IN ('follow', 'merge', 'cancel') THEN
        PERFORM pulse._raise_follows_after(v_item.on_conflict);
    END IF;

    IF _enqueue_slow_path.taken IS NOT NULL THEN
        v_job := ROW(_enqueue_slow_path.taken, true);
    ELSIF v_keyed THEN
        v_job := pulse._take_key(
            v_lane, v_item.unique_key, v_item.unique_for, v_item.on_conflict, v_kind.kind,
            v_payload, v_rank, v_run_at, v_approval, v_kind.owner, v_item.headers, v_start_by
        );
        IF NOT v_job.created THEN
            RETURN v_job;
        END IF;
    ELSE
        v_job := ROW(nextval('pulse.job_id'), true);
    END IF;

    IF v_keyed AND v_item.on_conflict IN ('follow', 'merge', 'cancel') THEN
        -- Of a list this was asked for at last, by another element than the first.
        v_follows := pulse._replace_blocked(v_job.job_id, v_rank, v_run_at, v_approval);
        IF v_follows THEN
            v_after_failed := 'run';
        END IF;
    END IF;

    INSERT INTO pulse.body (
        job, kind, payload, max_attempts, max_runtime, unique_key, unique_for, group_key,
        tags, needed_approval, owner, headers, start_by, flow, name, after_failed
    )
    VALUES (
        v_job.job_id, v_kind.kind, v_payload,
        coalesce(v_item.max_attempts, v_kind.max_attempts), v_item.max_runtime,
        v_item.unique_key, v_item.unique_for, v_item.group_key, v_item.tags, v_approval,
        v_kind.owner, v_item.headers, v_start_by, v_item.flow, v_item.name, v_after_failed
    );
    IF v_start_by IS NOT NULL THEN
        PERFORM pulse._note_expiry(v_job.job_id, v_start_by);
    END IF;

    INSERT INTO pulse.tally (lane, kind, event)
    VALUES (v_lane, v_kind.kind, 'enqueued');

    IF v_follows THEN
        NULL;
    ELSIF v_after THEN
        PERFORM pulse._put_after(
            ARRAY[v_job.job_id], v_item.after,
            ROW(
                NULL, NULL, NULL, v_lane, v_kind.kind, v_rank, v_item.run_at, v_item.delay,
                v_item.expires_in, 0, 0, v_keyed, NULL, v_after_failed, v_approval
            )::pulse.blocked,
            v_kind.owner
        );
    ELSIF v_approval THEN
        INSERT INTO pulse.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        VALUES (
            v_job.job_id, v_lane, v_kind.kind, v_rank, v_run_at,
            clock_timestamp() + v_kind.approval_expiry, v_keyed
        );
    ELSE
        PERFORM pulse._put_in_line(
            v_job.job_id, v_lane, v_kind.kind, v_rank, v_run_at, 0, 0, v_keyed, false,
            group_key => v_item.group_key
        );
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse._enqueue_slow_path(
    pulse._kind_settings, jsonb, text, integer, pulse._item, bigint
) IS
'Take the key, write the job where it belongs: in line, into waiting, before an approver or after other jobs.';
