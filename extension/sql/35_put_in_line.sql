-- The one place that puts a job into ready or waiting and rings. run_at NULL or past
-- means ready: in a grouped lane, into the line of its group, with a notice in the same
-- transaction. The clock is read inside the INSERT, after the table lock: time
-- marks rest on that (52_marks.sql).
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
    group_key text DEFAULT NULL
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _put_in_line.run_at > clock_timestamp() THEN
        INSERT INTO pulse.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying,
            last_lease, last_verb
        )
        VALUES (
            _put_in_line.lane,
            greatest(_put_in_line.run_at, clock_timestamp(), pulse._due_floor()),
            _put_in_line.job, _put_in_line.kind, _put_in_line.rank, _put_in_line.attempts,
            _put_in_line.failures, _put_in_line.keyed, _put_in_line.retrying,
            _put_in_line.last_lease, _put_in_line.last_verb
        );
        RETURN false;
    END IF;

    IF _put_in_line.group_key <> '' AND pulse._is_grouped(_put_in_line.lane) THEN
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
    text
) IS
'Put a job into ready, or the line of its group, and ring, or into waiting when it is not due yet; returns whether it rang.';

-- Any job: with a unique key, a time to run at or to begin by, an approval or a group too.
CREATE FUNCTION pulse._enqueue_slow_path(
    kind pulse._kind_settings,
    payload jsonb,
    lane text,
    priority integer,
    run_at timestamptz,
    max_attempts integer,
    unique_key text,
    unique_for interval,
    on_conflict text,
    group_key text,
    requires_approval boolean,
    tags text [],
    max_runtime interval,
    headers jsonb,
    start_by timestamptz,
    taken bigint
)
RETURNS pulse._enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kind pulse._kind_settings := _enqueue_slow_path.kind;
    v_lane text := coalesce(_enqueue_slow_path.lane, v_kind.lane);
    v_rank integer := -coalesce(_enqueue_slow_path.priority, v_kind.priority);
    v_payload jsonb := coalesce(_enqueue_slow_path.payload, '{}');
    v_keyed boolean := _enqueue_slow_path.unique_key IS NOT NULL;
    -- A call may ask for approval; it cannot waive what the kind asks for.
    v_approval boolean := v_kind.requires_approval
        OR coalesce(_enqueue_slow_path.requires_approval, false);
    v_job pulse._enqueued;
BEGIN
    IF _enqueue_slow_path.group_key IS NOT NULL THEN
        PERFORM pulse._joins_group(v_lane, _enqueue_slow_path.group_key);
    END IF;

    IF _enqueue_slow_path.taken IS NOT NULL THEN
        v_job := ROW(_enqueue_slow_path.taken, true);
    ELSIF v_keyed THEN
        v_job := pulse._take_key(
            v_lane, _enqueue_slow_path.unique_key, _enqueue_slow_path.unique_for,
            _enqueue_slow_path.on_conflict, v_kind.kind, v_payload, v_rank,
            _enqueue_slow_path.run_at, v_approval, v_kind.owner,
            _enqueue_slow_path.headers, _enqueue_slow_path.start_by
        );
        IF NOT v_job.created THEN
            RETURN v_job;
        END IF;
    ELSE
        v_job := ROW(nextval('pulse.job_id'), true);
    END IF;

    INSERT INTO pulse.body (
        job, kind, payload, max_attempts, max_runtime,
        unique_key, unique_for, group_key, tags, needed_approval, owner,
        headers, start_by
    )
    VALUES (
        v_job.job_id, v_kind.kind, v_payload,
        coalesce(_enqueue_slow_path.max_attempts, v_kind.max_attempts),
        _enqueue_slow_path.max_runtime, _enqueue_slow_path.unique_key,
        _enqueue_slow_path.unique_for, _enqueue_slow_path.group_key,
        _enqueue_slow_path.tags, v_approval, v_kind.owner, _enqueue_slow_path.headers,
        _enqueue_slow_path.start_by
    );
    IF _enqueue_slow_path.start_by IS NOT NULL THEN
        PERFORM pulse._note_expiry(v_job.job_id, _enqueue_slow_path.start_by);
    END IF;

    INSERT INTO pulse.tally (lane, kind, event)
    VALUES (v_lane, v_kind.kind, 'enqueued');

    IF v_approval THEN
        INSERT INTO pulse.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        VALUES (
            v_job.job_id, v_lane, v_kind.kind, v_rank, _enqueue_slow_path.run_at,
            clock_timestamp() + v_kind.approval_expiry, v_keyed
        );
    ELSE
        PERFORM pulse._put_in_line(
            v_job.job_id, v_lane, v_kind.kind, v_rank, _enqueue_slow_path.run_at,
            0, 0, v_keyed, false, group_key => _enqueue_slow_path.group_key
        );
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse._enqueue_slow_path(
    pulse._kind_settings, jsonb, text, integer, timestamptz, integer, text,
    interval, text, text, boolean, text [], interval, jsonb, timestamptz, bigint
) IS
'Take the key, write the job where it belongs: in line, into waiting or before an approver.';
