-- Enqueue is part of the caller's transaction and works at every isolation level. It
-- writes body and one place (ready, waiting or approval) and touches no shared row, so
-- producers never wait for each other, except two that race for one unique key.

-- The bell: a worker that sleeps holds a shared advisory lock on its lane in the
-- session that LISTENs. If the exclusive lock is refused somebody sleeps, so notify.
-- Try and unlock stand in one expression: interrupted between two statements, the
-- session would keep the lock. SET pulse.notify = off silences it (PREPARE TRANSACTION
-- fails after a NOTIFY).
CREATE FUNCTION pulse._ring(lane text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_bell integer := 'pulse.ready'::regclass::oid::integer;
    v_lane integer := hashtext(_ring.lane);
    v_nobody_sleeps boolean;
BEGIN
    v_nobody_sleeps := pg_try_advisory_lock(v_bell, v_lane)
        AND pg_advisory_unlock(v_bell, v_lane);
    IF v_nobody_sleeps OR current_setting('pulse.notify', true) = 'off' THEN
        RETURN false;
    END IF;

    -- A full notification queue would make the caller's COMMIT fail.
    IF pg_notification_queue_usage() >= 0.5 THEN
        RETURN false;
    END IF;

    PERFORM pg_notify('pulse', _ring.lane);
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._ring(text) IS
'Notify the channel pulse with the name of the lane, if a worker of that lane sleeps; returns whether it did.';

CREATE FUNCTION pulse._require_payload(payload jsonb)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_size(
        'payload',
        pg_column_size(_require_payload.payload),
        pg_size_bytes(coalesce(nullif(current_setting('pulse.max_payload', true), ''), '8 MB')),
        'Store the data elsewhere and enqueue a reference, or raise it: ALTER DATABASE … SET pulse.max_payload = ''16 MB''.'
    );
END;
$$;

COMMENT ON FUNCTION pulse._require_payload(jsonb) IS
'Raise PU003 when a payload is larger than pulse.max_payload (default 8 MB).';

-- Everything a single enqueue does. Checks stand inline and call a helper only to
-- raise, and functions are called in assignments, which PL/pgSQL evaluates without the
-- executor: this is the hottest path of a producer.
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
    v_lane text;
    v_rank integer;
    v_run_at timestamptz := _enqueue.run_at;
    v_payload jsonb := coalesce(_enqueue.payload, '{}');
    v_keyed boolean := _enqueue.unique_key IS NOT NULL;
    v_approval boolean;
    v_bell integer := 'pulse.ready'::regclass::oid::integer;
    v_job pulse._enqueued;
    v_rung boolean;
BEGIN
    IF _enqueue.kind IS NULL OR _enqueue.kind = '' OR length(_enqueue.kind) > 200 THEN
        PERFORM pulse._require_name('kind', _enqueue.kind);
    END IF;
    IF _enqueue.lane = '' OR length(_enqueue.lane) > 200 THEN
        PERFORM pulse._require_name('lane', _enqueue.lane);
    END IF;
    IF pg_column_size(v_payload) > 8000000
        OR current_setting('pulse.max_payload', true) <> ''
    THEN
        PERFORM pulse._require_payload(v_payload);
    END IF;
    IF _enqueue.run_at IS NOT NULL OR _enqueue.delay IS NOT NULL THEN
        PERFORM pulse._require_run_at(_enqueue.run_at, _enqueue.delay);
        v_run_at := coalesce(_enqueue.run_at, clock_timestamp() + _enqueue.delay);
    END IF;
    IF _enqueue.priority NOT BETWEEN -2000000000 AND 2000000000 THEN
        PERFORM pulse._require_between(
            'priority', _enqueue.priority, -2000000000, 2000000000
        );
    END IF;
    IF _enqueue.max_attempts NOT BETWEEN 1 AND 100000 THEN
        PERFORM pulse._require_between('max_attempts', _enqueue.max_attempts, 1, 100000);
    END IF;
    IF _enqueue.max_runtime IS NOT NULL THEN
        PERFORM pulse._require_duration(
            'max_runtime', _enqueue.max_runtime, '1 ms', '1 year'
        );
    END IF;
    IF _enqueue.on_conflict NOT IN ('skip', 'replace', 'error') THEN
        PERFORM pulse._require_one_of(
            'on_conflict', _enqueue.on_conflict, '{skip,replace,error}'
        );
    END IF;
    IF length(_enqueue.group_key) > 1000 OR cardinality(_enqueue.tags) > 100 THEN
        PERFORM pulse._require_between('length of group_key', length(_enqueue.group_key), 0, 1000);
        PERFORM pulse._require_between('number of tags', cardinality(_enqueue.tags), 0, 100);
    END IF;

    v_kind := pulse._kind_settings(_enqueue.kind);
    v_lane := coalesce(_enqueue.lane, v_kind.lane);
    v_rank := -coalesce(_enqueue.priority, v_kind.priority);
    -- A call may ask for approval; it cannot waive what the kind asks for.
    v_approval := v_kind.requires_approval OR coalesce(_enqueue.requires_approval, false);
    v_job.created := true;

    IF _enqueue.taken IS NOT NULL THEN
        v_job.job_id := _enqueue.taken;
    ELSIF v_keyed THEN
        v_job := pulse._take_key(
            v_lane, _enqueue.unique_key, _enqueue.unique_for, _enqueue.on_conflict,
            v_payload, v_rank, v_run_at, v_approval
        );
        IF NOT v_job.created THEN
            RETURN v_job;
        END IF;
    ELSIF _enqueue.unique_for IS NOT NULL THEN
        PERFORM pulse._raise(
            'PU002',
            'unique_for needs a unique_key',
            'There is no key that could stay taken.',
            'Pass unique_key => ''…'' as well.'
        );
    ELSE
        v_job.job_id := nextval('pulse.job_id');
    END IF;

    INSERT INTO pulse.body (
        job, kind, payload, max_attempts, max_runtime,
        unique_key, unique_for, group_key, tags, enqueued_by
    )
    VALUES (
        v_job.job_id, _enqueue.kind, v_payload,
        coalesce(_enqueue.max_attempts, v_kind.max_attempts), _enqueue.max_runtime,
        _enqueue.unique_key, _enqueue.unique_for, _enqueue.group_key, _enqueue.tags,
        _enqueue.enqueued_by
    );

    IF v_approval THEN
        INSERT INTO pulse.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        VALUES (
            v_job.job_id, v_lane, _enqueue.kind, v_rank, v_run_at,
            clock_timestamp() + v_kind.approval_expiry, v_keyed
        );
    ELSIF v_run_at > clock_timestamp() THEN
        v_rung := pulse._put_in_line(
            v_job.job_id, v_lane, _enqueue.kind, v_rank, v_run_at, 0, 0, v_keyed, false
        );
    ELSE
        -- What _put_in_line does, without the calls.
        INSERT INTO pulse.ready (lane, rank, kind, job, attempts, failures, keyed)
        VALUES (v_lane, v_rank, _enqueue.kind, v_job.job_id, 0, 0, v_keyed);

        v_rung := NOT (
            pg_try_advisory_lock(v_bell, hashtext(v_lane))
            AND pg_advisory_unlock(v_bell, hashtext(v_lane))
        );
        IF v_rung THEN
            v_rung := pulse._ring(v_lane);
        END IF;
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse._enqueue(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval, name, bigint
) IS
'Check, resolve the settings of the kind, take the key (unless a job id was taken with it already), write the job.';

CREATE FUNCTION pulse._require_run_at(run_at timestamptz, delay interval)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _require_run_at.run_at IS NOT NULL AND _require_run_at.delay IS NOT NULL THEN
        PERFORM pulse._raise(
            'PU002',
            'run_at and delay exclude each other',
            'Both say when the job becomes due.',
            'Pass one of them.'
        );
    END IF;
    IF NOT isfinite(_require_run_at.run_at) THEN
        PERFORM pulse._raise(
            'PU002',
            'run_at must be a moment in time',
            format('It is %s.', _require_run_at.run_at),
            'Pass a finite run_at, or none for now.'
        );
    END IF;
    PERFORM pulse._require_duration('delay', _require_run_at.delay, '0', '100 years');
END;
$$;

COMMENT ON FUNCTION pulse._require_run_at(timestamptz, interval) IS
'Raise PU002 unless at most one of them is given and it can come.';

-- The one place that puts a job into ready or waiting and rings. run_at NULL or past
-- means ready. The clock is read inside the INSERT, after the table lock: time
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
    last_verb text DEFAULT NULL
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
            _put_in_line.lane, greatest(_put_in_line.run_at, clock_timestamp()),
            _put_in_line.job, _put_in_line.kind, _put_in_line.rank, _put_in_line.attempts,
            _put_in_line.failures, _put_in_line.keyed, _put_in_line.retrying,
            _put_in_line.last_lease, _put_in_line.last_verb
        );
        RETURN false;
    END IF;

    INSERT INTO pulse.ready (
        lane, rank, kind, job, attempts, failures, keyed, last_lease, last_verb
    )
    VALUES (
        _put_in_line.lane, _put_in_line.rank, _put_in_line.kind, _put_in_line.job,
        _put_in_line.attempts, _put_in_line.failures, _put_in_line.keyed,
        _put_in_line.last_lease, _put_in_line.last_verb
    );
    RETURN pulse._ring(_put_in_line.lane);
END;
$$;

COMMENT ON FUNCTION pulse._put_in_line(
    bigint, text, text, integer, timestamptz, integer, integer, boolean, boolean, bigint, text
) IS
'Put a job into ready and ring, or into waiting when it is not due yet; returns whether it rang.';

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
        enqueue.max_runtime, pulse._caller()
    );
    RETURN v_job.job_id;
END;
$$;

COMMENT ON FUNCTION pulse.enqueue(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval
) IS
'Enqueue a job in the caller''s transaction and return its id. What is not given comes from the kind''s settings, then from the defaults. run_at or delay schedules it. unique_key allows one waiting or running job per key and lane (with unique_for also that long after it finished); on_conflict is skip (return the existing id), replace (a job that does not run yet gets the new payload, priority and run_at) or error. PU002 bad argument, PU003 payload too large, PU102 key taken (or replace of somebody else''s job), PU103 replace of a running job, PU105 replace of one that was approved.';

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
        enqueue_one.max_runtime, pulse._caller()
    );
    enqueue_one.job_id := v_job.job_id;
    enqueue_one.created := v_job.created;
END;
$$;

COMMENT ON FUNCTION pulse.enqueue_one(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval
) IS
'Like enqueue, and says whether the job was created or its unique key found an existing one.';
