-- The one place that puts a job into ready or waiting and rings. run_at NULL or past
-- means ready: in a grouped lane, into the line of its group, with a notice in the same
-- transaction; place is the one it keeps there, and then its group waited for it. The
-- clock is read inside the INSERT, after the table lock: time marks rest on that
-- (52_marks.sql).
CREATE FUNCTION pulse._put_in_line(
    job bigint,
    lane text,
    kind text,
    rank integer,
    run_at timestamptz,
    attempts integer,
    failures integer,
    keyed boolean,
    retrying boolean,
    last_lease bigint DEFAULT NULL,
    last_verb text DEFAULT NULL,
    group_key text DEFAULT NULL,
    place bigint DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _put_in_line.run_at > clock_timestamp() THEN
        INSERT INTO pulse.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying,
            last_lease, last_verb, place
        )
        VALUES (
            _put_in_line.lane,
            greatest(_put_in_line.run_at, clock_timestamp(), pulse._due_floor()),
            _put_in_line.job, _put_in_line.kind, _put_in_line.rank, _put_in_line.attempts,
            _put_in_line.failures, _put_in_line.keyed, _put_in_line.retrying,
            _put_in_line.last_lease, _put_in_line.last_verb, _put_in_line.place
        );
        RETURN false;
    END IF;

    IF _put_in_line.group_key <> '' AND pulse._is_grouped(_put_in_line.lane) THEN
        IF _put_in_line.place IS NOT NULL THEN
            PERFORM pulse._put_back_in_group(ROW(
                _put_in_line.lane, pulse._group_of(_put_in_line.group_key),
                _put_in_line.rank, _put_in_line.place, _put_in_line.kind, _put_in_line.job,
                _put_in_line.attempts, _put_in_line.failures, _put_in_line.keyed,
                clock_timestamp(), _put_in_line.last_lease, _put_in_line.last_verb
            )::pulse.group_ready);
            RETURN pulse._ring(_put_in_line.lane);
        END IF;

        WITH placed AS (
            INSERT INTO pulse.group_ready AS r (
                lane, group_key, rank, kind, job, attempts, failures, keyed,
                last_lease, last_verb
            )
            VALUES (
                _put_in_line.lane, pulse._group_of(_put_in_line.group_key),
                _put_in_line.rank, _put_in_line.kind, _put_in_line.job,
                _put_in_line.attempts, _put_in_line.failures, _put_in_line.keyed,
                _put_in_line.last_lease, _put_in_line.last_verb
            )
            RETURNING r.lane, r.group_key, r.rank, r.seq, r.kind
        )

        INSERT INTO pulse.group_notice (lane, group_key, rank, place, kind)
        SELECT p.lane, p.group_key, p.rank, p.seq, p.kind
        FROM placed AS p;
    ELSE
        INSERT INTO pulse.ready (
            lane, rank, kind, job, attempts, failures, keyed, last_lease, last_verb
        )
        VALUES (
            _put_in_line.lane, _put_in_line.rank, _put_in_line.kind, _put_in_line.job,
            _put_in_line.attempts, _put_in_line.failures, _put_in_line.keyed,
            _put_in_line.last_lease, _put_in_line.last_verb
        );
    END IF;
    RETURN pulse._ring(_put_in_line.lane);
END;
$$;

COMMENT ON FUNCTION pulse._put_in_line(
    bigint, text, text, integer, timestamptz, integer, integer, boolean, boolean, bigint, text,
    text, bigint
) IS
'Put a job into ready, or the line of its group, and ring, or into waiting when it is not due yet; returns whether it rang.';

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
