-- Enqueue is part of the caller's transaction and works at every isolation level. It
-- writes body and one place (ready, waiting or approval) and touches no shared row, so
-- producers never wait for each other, except two that race for one unique key.

CREATE FUNCTION pulse.enqueue(
    kind text,
    payload jsonb DEFAULT '{}',
    lane text DEFAULT NULL,
    priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    unique_key text DEFAULT NULL,
    unique_for interval DEFAULT NULL,
    on_conflict text DEFAULT 'skip',
    group_key text DEFAULT NULL,
    requires_approval boolean DEFAULT NULL,
    tags text [] DEFAULT NULL,
    max_runtime interval DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_job pulse._enqueued;
BEGIN
    v_job := pulse._enqueue(
        enqueue.kind, enqueue.payload, enqueue.lane, enqueue.priority, enqueue.run_at,
        enqueue.delay, enqueue.max_attempts, enqueue.unique_key, enqueue.unique_for,
        enqueue.on_conflict, enqueue.group_key, enqueue.requires_approval, enqueue.tags,
        enqueue.max_runtime, NULL
    );
    RETURN v_job.job_id;
END;
$$;

COMMENT ON FUNCTION pulse.enqueue(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval
) IS
'Enqueue a job in the caller''s transaction and return its id. What is not given comes from the kind''s settings, then from the defaults. run_at or delay schedules it. unique_key allows one waiting or running job per key and lane (with unique_for also that long after it finished); on_conflict is skip (return the existing id), replace (a job that does not run yet gets the new payload, priority and run_at; one that is ready keeps its place unless priority or run_at say otherwise) or error. PU002 bad argument, PU003 payload too large, PU102 key taken (or replace of another producer''s job), PU103 replace of a running job, PU105 replace of one that was approved. Writes body and ready, waiting or approval; with a unique_key also job_key.';

CREATE FUNCTION pulse.enqueue_one(
    kind text,
    payload jsonb DEFAULT '{}',
    lane text DEFAULT NULL,
    priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    unique_key text DEFAULT NULL,
    unique_for interval DEFAULT NULL,
    on_conflict text DEFAULT 'skip',
    group_key text DEFAULT NULL,
    requires_approval boolean DEFAULT NULL,
    tags text [] DEFAULT NULL,
    max_runtime interval DEFAULT NULL,
    OUT job_id bigint,
    OUT created boolean
)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_job pulse._enqueued;
BEGIN
    v_job := pulse._enqueue(
        enqueue_one.kind, enqueue_one.payload, enqueue_one.lane, enqueue_one.priority,
        enqueue_one.run_at, enqueue_one.delay, enqueue_one.max_attempts,
        enqueue_one.unique_key, enqueue_one.unique_for, enqueue_one.on_conflict,
        enqueue_one.group_key, enqueue_one.requires_approval, enqueue_one.tags,
        enqueue_one.max_runtime, NULL
    );
    enqueue_one.job_id := v_job.job_id;
    enqueue_one.created := v_job.created;
END;
$$;

COMMENT ON FUNCTION pulse.enqueue_one(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval
) IS
'Like enqueue, and says whether the job was created or its unique key found an existing one. Writes what enqueue writes.';

-- Everything a single enqueue does. This is the hottest path of a producer, and
-- PL/pgSQL sets up every expression anew in each transaction: so what is ordinary is asked
-- once, in one expression, and an ordinary job takes one statement. enqueued_by NULL means
-- the caller.
CREATE FUNCTION pulse._enqueue(
    kind text,
    payload jsonb,
    lane text,
    priority integer,
    run_at timestamptz,
    delay interval,
    max_attempts integer,
    unique_key text,
    unique_for interval,
    on_conflict text,
    group_key text,
    requires_approval boolean,
    tags text [],
    max_runtime interval,
    enqueued_by name,
    taken bigint DEFAULT NULL
)
RETURNS pulse._enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kind pulse.kind;
    v_job pulse._enqueued;
BEGIN
    -- What has its key already was checked before it took it.
    IF _enqueue.taken IS NULL AND (
        length(_enqueue.kind) BETWEEN 1 AND 200
        AND num_nonnulls(
            _enqueue.lane, _enqueue.priority, _enqueue.run_at, _enqueue.delay,
            _enqueue.max_attempts, _enqueue.unique_key, _enqueue.unique_for,
            _enqueue.group_key, _enqueue.tags, _enqueue.max_runtime,
            current_setting('pulse.max_payload', true)
        ) = 0
        -- As _text_size says, without a call; 8000 bytes are never above 64 MB as text.
        AND pg_column_compression(_enqueue.payload) IS NULL
        AND (
            pg_column_size(_enqueue.payload) <= 8000
            OR pg_column_size(_enqueue.payload) <= 100000
            AND octet_length(_enqueue.payload::text) <= 8388608
        )
        AND _enqueue.on_conflict = 'skip'
    ) IS NOT TRUE THEN
        PERFORM pulse._require_job_options(
            _enqueue.kind, _enqueue.payload, _enqueue.lane, _enqueue.priority,
            _enqueue.run_at, _enqueue.delay, _enqueue.max_attempts, _enqueue.unique_key,
            _enqueue.unique_for, _enqueue.on_conflict, _enqueue.group_key,
            _enqueue.tags, _enqueue.max_runtime
        );
    END IF;

    v_kind := pulse._kind_settings(_enqueue.kind);

    IF num_nonnulls(_enqueue.unique_key, _enqueue.run_at, _enqueue.delay) > 0
        OR v_kind.requires_approval
        OR _enqueue.requires_approval
    THEN
        RETURN pulse._enqueue_slow_path(
            v_kind, _enqueue.payload, _enqueue.lane, _enqueue.priority,
            coalesce(_enqueue.run_at, clock_timestamp() + _enqueue.delay),
            _enqueue.max_attempts, _enqueue.unique_key, _enqueue.unique_for,
            _enqueue.on_conflict, _enqueue.group_key, _enqueue.requires_approval,
            _enqueue.tags, _enqueue.max_runtime, _enqueue.enqueued_by, _enqueue.taken
        );
    END IF;

    WITH written AS (
        INSERT INTO pulse.body (
            kind, payload, max_attempts, max_runtime, group_key, tags, enqueued_by
        )
        VALUES (
            _enqueue.kind, coalesce(_enqueue.payload, '{}'),
            coalesce(_enqueue.max_attempts, v_kind.max_attempts), _enqueue.max_runtime,
            _enqueue.group_key, _enqueue.tags,
            coalesce(_enqueue.enqueued_by, pulse._caller())
        )
        RETURNING job
    )

    INSERT INTO pulse.ready AS r (lane, rank, kind, job, attempts, failures, keyed)
    SELECT
        coalesce(_enqueue.lane, v_kind.lane), -coalesce(_enqueue.priority, v_kind.priority),
        _enqueue.kind, w.job, 0, 0, false
    FROM written AS w
    RETURNING
        r.job, NOT (
            -- The bell, as in _ring: nobody sleeps if the lock can be had.
            pg_try_advisory_lock('pulse.ready'::regclass::oid::integer, hashtext(r.lane))
            AND pg_advisory_unlock('pulse.ready'::regclass::oid::integer, hashtext(r.lane))
        )
    INTO v_job.job_id, v_job.created;

    IF v_job.created THEN
        PERFORM pulse._ring(coalesce(_enqueue.lane, v_kind.lane));
    END IF;

    v_job.created := true;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse._enqueue(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval, name, bigint
) IS
'Check, resolve the settings of the kind, write the job; taken is a job id that has its unique key already.';

-- A job with a unique key, a time to run at or an approval.
CREATE FUNCTION pulse._enqueue_slow_path(
    kind pulse.kind,
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
    enqueued_by name,
    taken bigint
)
RETURNS pulse._enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kind pulse.kind := _enqueue_slow_path.kind;
    v_lane text := coalesce(_enqueue_slow_path.lane, v_kind.lane);
    v_rank integer := -coalesce(_enqueue_slow_path.priority, v_kind.priority);
    v_payload jsonb := coalesce(_enqueue_slow_path.payload, '{}');
    v_keyed boolean := _enqueue_slow_path.unique_key IS NOT NULL;
    -- A call may ask for approval; it cannot waive what the kind asks for.
    v_approval boolean := v_kind.requires_approval
        OR coalesce(_enqueue_slow_path.requires_approval, false);
    v_job pulse._enqueued;
BEGIN
    IF _enqueue_slow_path.taken IS NOT NULL THEN
        v_job := ROW(_enqueue_slow_path.taken, true);
    ELSIF v_keyed THEN
        v_job := pulse._take_key(
            v_lane, _enqueue_slow_path.unique_key, _enqueue_slow_path.unique_for,
            _enqueue_slow_path.on_conflict, v_payload, v_rank, _enqueue_slow_path.run_at,
            v_approval
        );
        IF NOT v_job.created THEN
            RETURN v_job;
        END IF;
    ELSE
        v_job := ROW(nextval('pulse.job_id'), true);
    END IF;

    INSERT INTO pulse.body (
        job, kind, payload, max_attempts, max_runtime,
        unique_key, unique_for, group_key, tags, enqueued_by
    )
    VALUES (
        v_job.job_id, v_kind.kind, v_payload,
        coalesce(_enqueue_slow_path.max_attempts, v_kind.max_attempts),
        _enqueue_slow_path.max_runtime, _enqueue_slow_path.unique_key,
        _enqueue_slow_path.unique_for, _enqueue_slow_path.group_key,
        _enqueue_slow_path.tags,
        coalesce(_enqueue_slow_path.enqueued_by, pulse._caller())
    );

    IF v_approval THEN
        INSERT INTO pulse.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        VALUES (
            v_job.job_id, v_lane, v_kind.kind, v_rank, _enqueue_slow_path.run_at,
            clock_timestamp() + v_kind.approval_expiry, v_keyed
        );
    ELSE
        PERFORM pulse._put_in_line(
            v_job.job_id, v_lane, v_kind.kind, v_rank, _enqueue_slow_path.run_at,
            0, 0, v_keyed, false
        );
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse._enqueue_slow_path(
    pulse.kind, jsonb, text, integer, timestamptz, integer, text,
    interval, text, text, boolean, text [], interval, name, bigint
) IS
'Take the key, write the job where it belongs: in line, into waiting or before an approver.';
