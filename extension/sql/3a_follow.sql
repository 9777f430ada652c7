-- When a unique key is taken: replace, follow, merge and cancel (32_keys.sql has skip and
-- error). A job that waits is changed, or cancelled for a new one. Behind one that runs, a
-- new job waits for its end: it is blocked, for any end, as with after (28_after.sql). There
-- is one such follower for a key, since the primary key of job_key says so.
--
-- Whoever releases the follower gives it the key: mostly the end of the run, in its own
-- transaction. A follower that is not committed yet, or that somebody else holds, is not waited
-- for: its watch, with the doubt about it, releases it later. If another job has the key by
-- then, the follower waits for that one.

-- job_id is NULL when the job that has the key runs, or is just moving.
CREATE FUNCTION pulse._change(
    key pulse.job_key,
    on_conflict text,
    kind text,
    payload jsonb,
    rank integer,
    run_at timestamptz,
    needs_approval boolean,
    owner integer,
    headers jsonb,
    start_by timestamptz,
    unique_for interval
)
RETURNS pulse._enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_job pulse._enqueued;
BEGIN
    IF NOT pulse._may_replace(_change.owner, (_change.key).job, _change.kind) THEN
        PERFORM pulse._raise_key_taken(
            (_change.key).lane, (_change.key).unique_key, (_change.key).job
        );
    END IF;

    IF _change.on_conflict = 'cancel' THEN
        v_job.job_id := pulse._supersede(_change.owner, _change.key, _change.unique_for);
        v_job.created := true;
    ELSE
        v_job.job_id := pulse._replace(
            _change.owner, (_change.key).job, _change.payload, _change.rank,
            _change.run_at, _change.needs_approval, _change.headers, _change.start_by,
            _change.on_conflict
        );
        v_job.created := false;
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse._change(
    pulse.job_key, text, text, jsonb, integer, timestamptz, boolean, integer, jsonb,
    timestamptz, interval
) IS
'Settle a conflict with a job that waits: change it, or cancel it for a new one. PU102 where the role may not, or the kind is another.';

-- key is that of a job that runs.
CREATE FUNCTION pulse._follow(
    key pulse.job_key,
    on_conflict text,
    kind text,
    payload jsonb,
    rank integer,
    run_at timestamptz,
    needs_approval boolean,
    owner integer,
    headers jsonb,
    start_by timestamptz,
    unique_for interval
)
RETURNS pulse._enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_job pulse._enqueued;
    v_key pulse.job_key;
BEGIN
    -- Waits for another transaction that is just following the same job.
    INSERT INTO pulse.job_key (lane, unique_key, job, unique_for, follows)
    VALUES (
        (_follow.key).lane, (_follow.key).unique_key, nextval('pulse.job_id'),
        _follow.unique_for, true
    )
    ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING
    RETURNING job, true INTO v_job.job_id, v_job.created;

    IF NOT FOUND THEN
        SELECT k.* INTO v_key
        FROM pulse.job_key AS k
        WHERE k.lane = (_follow.key).lane
            AND k.unique_key = (_follow.key).unique_key
            AND k.follows;

        IF NOT FOUND THEN
            RETURN NULL;
        END IF;

        v_job := pulse._change(
            v_key, _follow.on_conflict, _follow.kind, _follow.payload, _follow.rank,
            _follow.run_at, _follow.needs_approval, _follow.owner, _follow.headers,
            _follow.start_by, _follow.unique_for
        );
    END IF;

    IF v_job.created AND v_job.job_id IS NOT NULL THEN
        INSERT INTO pulse.dependency (job, after)
        VALUES (v_job.job_id, (_follow.key).job);

        INSERT INTO pulse.blocked (
            job, waits_for, lane, kind, rank, run_at, attempts, failures, keyed, alone,
            after_failed, needs_approval
        )
        VALUES (
            v_job.job_id, (_follow.key).job, (_follow.key).lane, _follow.kind,
            _follow.rank, _follow.run_at, 0, 0, true, true, 'run', _follow.needs_approval
        );

        -- It may have ended since, and its end does not see us.
        INSERT INTO pulse.doubt (job)
        VALUES ((_follow.key).job);
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse._follow(
    pulse.job_key, text, text, jsonb, integer, timestamptz, boolean, integer, jsonb,
    timestamptz, interval
) IS
'Put a new job behind one that runs, or settle the conflict with the one that stands there.';

-- Newest wins. The key row goes over while the job's own row is held, as in every report.
CREATE FUNCTION pulse._supersede(who integer, key pulse.job_key, unique_for interval)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_job bigint := (_supersede.key).job;
    v_new bigint;
    v_was record;
    v_asked boolean;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse._take_out(v_job) AS t;

    IF v_was.state IN ('completed', 'dead', 'cancelled') THEN
        RETURN NULL;
    END IF;

    -- It went to another lane after we read its key.
    IF v_was.lane <> (_supersede.key).lane THEN
        PERFORM pulse._raise_kept_moving(v_job);
    END IF;

    IF v_was.state = 'running' THEN
        SELECT c.changed INTO v_asked
        FROM pulse._cancel(v_job, 'replaced by a newer job', false) AS c;
    ELSIF EXISTS (
        SELECT
        FROM pulse.job_key AS f
        WHERE f.lane = (_supersede.key).lane
            AND f.unique_key = (_supersede.key).unique_key
            AND f.follows
            AND NOT (_supersede.key).follows
    ) THEN
        -- It is to be retried: its key goes to who follows, and we meet that one next.
        PERFORM pulse._finish_cancelled(
            v_job, v_was.lane, v_was.kind, v_was.rank, 'replace', v_was.attempts,
            v_was.failures, v_was.keyed, 'replaced by a newer job'
        );
        v_asked := true;
    ELSE
        v_new := nextval('pulse.job_id');

        UPDATE pulse.job_key AS k
        SET job = v_new,
            unique_for = _supersede.unique_for
        WHERE k.job = v_job;

        DELETE FROM pulse.blocked AS b
        WHERE b.job = v_job;

        PERFORM pulse._finish_cancelled(
            v_job, v_was.lane, v_was.kind, v_was.rank, 'replace', v_was.attempts,
            v_was.failures, v_was.keyed, format('replaced by job %s', v_new)
        );
        v_asked := true;
    END IF;

    IF v_asked THEN
        PERFORM pulse._audit(
            _supersede.who, 'replace', v_job, v_was.lane,
            jsonb_build_object('state', v_was.state),
            jsonb_strip_nulls(
                jsonb_build_object(
                    'state',
                    CASE v_was.state WHEN 'running' THEN 'running' ELSE 'cancelled' END,
                    'requested', v_was.state = 'running',
                    'replaced_by', v_new::text
                )
            ),
            NULL
        );
    END IF;
    RETURN v_new;
END;
$$;

COMMENT ON FUNCTION pulse._supersede(integer, pulse.job_key, interval) IS
'Cancel a job that waits and give its unique key to a new one, whose id is returned; ask one that runs to stop, and return NULL.';

-- What a waiting job shall be, given what it is. Its row is held, so its body stands still.
-- rank and run_at are those that are asked for, and become those that it gets.
CREATE FUNCTION pulse._wish(
    job bigint,
    on_conflict text,
    INOUT payload jsonb,
    INOUT headers jsonb,
    INOUT start_by timestamptz,
    INOUT rank integer,
    INOUT run_at timestamptz,
    old_rank integer,
    old_run_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_body pulse.body;
    v_latest timestamptz;
BEGIN
    SELECT b.* INTO v_body
    FROM pulse.body AS b
    WHERE b.job = _wish.job;

    IF _wish.on_conflict <> 'merge' THEN
        v_latest := v_body.enqueued_at + (
            SELECT k.max_delay FROM pulse.kind AS k WHERE k.kind = v_body.kind
        );
        IF run_at > v_latest THEN
            run_at := least(run_at, greatest(v_latest, _wish.old_run_at));
        END IF;
        RETURN;
    END IF;

    SELECT m.payload, m.headers, m.start_by, m.rank, m.run_at
    INTO payload, headers, start_by, rank, run_at
    FROM pulse._merge(
        payload, headers, start_by, rank, run_at, v_body.payload, v_body.headers,
        v_body.start_by, _wish.old_rank, _wish.old_run_at
    ) AS m;
END;
$$;

COMMENT ON FUNCTION pulse._wish(
    bigint, text, jsonb, jsonb, timestamptz, integer, timestamptz, integer, timestamptz
) IS
'What replace, follow and merge make of a job that waits: the new payload, headers, start_by, rank and run_at, within max_delay of its kind, or those of both merged.';

-- The sooner start, which is at once where one of them says nothing, and no sooner end.
CREATE FUNCTION pulse._merge(
    INOUT payload jsonb,
    INOUT headers jsonb,
    INOUT start_by timestamptz,
    INOUT rank integer,
    INOUT run_at timestamptz,
    old_payload jsonb,
    old_headers jsonb,
    old_start_by timestamptz,
    old_rank integer,
    old_run_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- jsonb || jsonb makes an array of whatever else it is given.
    IF jsonb_typeof(payload) NOT IN ('object', 'array')
        OR jsonb_typeof(payload) <> jsonb_typeof(_merge.old_payload)
    THEN
        PERFORM pulse._raise(
            'PU002',
            'merge needs two objects or two arrays',
            format(
                'The payload of the waiting job is of type %s, the new one of type %s.',
                jsonb_typeof(_merge.old_payload), jsonb_typeof(payload)
            ),
            'Pass a payload of the same type, or use on_conflict => ''replace'' or ''follow''.'
        );
    END IF;
    payload := _merge.old_payload || payload;
    PERFORM pulse._require_payload(payload);
    headers := coalesce(_merge.old_headers || headers, headers, _merge.old_headers);
    IF headers IS NOT NULL THEN
        PERFORM pulse._require_headers(headers);
    END IF;
    rank := least(rank, _merge.old_rank);
    run_at := CASE
        WHEN run_at IS NOT NULL AND _merge.old_run_at IS NOT NULL
            THEN least(run_at, _merge.old_run_at)
    END;
    start_by := CASE
        WHEN start_by IS NOT NULL AND _merge.old_start_by IS NOT NULL
            THEN greatest(start_by, _merge.old_start_by)
    END;
END;
$$;

COMMENT ON FUNCTION pulse._merge(
    jsonb, jsonb, timestamptz, integer, timestamptz, jsonb, jsonb, timestamptz, integer,
    timestamptz
) IS
'What two enqueues of one job ask for together. PU002 unless both payloads are objects or both are arrays, PU003 when they are too large together.';

-- Two elements of one list with the same key: the first, as it shall be.
CREATE FUNCTION pulse._change_element(
    old jsonb, new jsonb, on_conflict text, kind_priority integer
)
RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old pulse._item := jsonb_populate_record(NULL::pulse._item, _change_element.old - 'after');
    v_new pulse._item := jsonb_populate_record(NULL::pulse._item, _change_element.new - 'after');
    v_wish record;
    v_changes jsonb;
BEGIN
    IF _change_element.on_conflict = 'merge' THEN
        v_wish := pulse._merge(
            coalesce(v_new.payload, '{}'), v_new.headers,
            pulse._start_by(v_new.start_by, v_new.expires_in, v_new.run_at, v_new.delay),
            -coalesce(v_new.priority, _change_element.kind_priority),
            coalesce(v_new.run_at, clock_timestamp() + v_new.delay),
            coalesce(v_old.payload, '{}'), v_old.headers,
            pulse._start_by(v_old.start_by, v_old.expires_in, v_old.run_at, v_old.delay),
            -coalesce(v_old.priority, _change_element.kind_priority),
            coalesce(v_old.run_at, clock_timestamp() + v_old.delay)
        );
        v_changes := jsonb_build_object(
            'payload', v_wish.payload, 'headers', v_wish.headers, 'priority', -v_wish.rank,
            'run_at', v_wish.run_at, 'start_by', v_wish.start_by
        );
    ELSE
        SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO v_changes
        FROM jsonb_each(_change_element.new) AS o
        WHERE o.key IN (
                'payload', 'priority', 'run_at', 'delay', 'headers', 'start_by',
                'expires_in'
            );
    END IF;

    IF v_new.requires_approval THEN
        v_changes := v_changes || '{"requires_approval": true}';
    END IF;
    RETURN _change_element.old - '{payload,priority,run_at,delay}'::text []
        - '{headers,start_by,expires_in}'::text [] || v_changes;
END;
$$;

COMMENT ON FUNCTION pulse._change_element(jsonb, jsonb, text, integer) IS
'What an element of a list becomes by a later one that has its unique key.';

-- The key was free, and we took it.
CREATE FUNCTION pulse._hand_key_on(job bigint)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_key pulse.job_key;
BEGIN
    SELECT k.* INTO v_key
    FROM pulse.job_key AS k
    WHERE k.job = _hand_key_on.job;

    IF NOT EXISTS (
        SELECT
        FROM pulse.job_key AS f
        WHERE f.lane = v_key.lane
            AND f.unique_key = v_key.unique_key
            AND f.follows
    ) THEN
        RETURN false;
    END IF;

    DELETE FROM pulse.job_key AS k
    WHERE k.job = _hand_key_on.job;

    -- Waits for a transaction that is just cancelling it.
    UPDATE pulse.job_key AS k
    SET follows = false
    WHERE k.lane = v_key.lane
        AND k.unique_key = v_key.unique_key
        AND k.follows;
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._hand_key_on(bigint) IS
'Give the unique key of a job to the one that waits for it; false when none does.';

-- tids are blocked jobs that could go, locked by us.
CREATE FUNCTION pulse._inherit_keys(tids tid [])
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_free tid [] := _inherit_keys.tids;
    v_job record;
    v_holder bigint;
BEGIN
    FOR v_job IN
        SELECT b.ctid AS tid, b.job, b.waits_for
        FROM pulse.blocked AS b
        WHERE b.ctid = ANY (_inherit_keys.tids)
            AND b.keyed
            AND (SELECT k.follows FROM pulse.job_key AS k WHERE k.job = b.job)
    LOOP
        -- After one wait in vain no other, as in _try_rekey.
        IF v_holder IS DISTINCT FROM 0 THEN
            v_holder := pulse._inherit_key(v_job.job);
            CONTINUE WHEN v_holder IS NULL;
        END IF;

        v_free := array_remove(v_free, v_job.tid);
        IF v_holder > 0 THEN
            INSERT INTO pulse.dependency AS d (job, after)
            VALUES (v_job.job, v_holder)
            ON CONFLICT ON CONSTRAINT dependency_is_one_per_pair DO UPDATE
            SET met = false;

            UPDATE pulse.blocked AS b
            SET waits_for = v_holder,
                alone = false
            WHERE b.job = v_job.job;
        END IF;

        INSERT INTO pulse.doubt (job)
        VALUES (CASE WHEN v_holder > 0 THEN v_holder ELSE v_job.waits_for END);
    END LOOP;
    RETURN v_free;
END;
$$;

COMMENT ON FUNCTION pulse._inherit_keys(tid []) IS
'Give followers their key; returns those of the jobs that may go. Where another job has it, the follower waits for that one.';

CREATE FUNCTION pulse._inherit_key(job bigint)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '10ms'
AS $$
DECLARE
    v_key pulse.job_key;
    v_holder bigint;
BEGIN
    BEGIN
        DELETE FROM pulse.job_key AS k
        WHERE k.job = _inherit_key.job
        RETURNING k.* INTO v_key;

        -- What the job before it left behind for its unique_for.
        DELETE FROM pulse.job_key AS k
        WHERE k.lane = v_key.lane
            AND k.unique_key = v_key.unique_key
            AND num_nonnulls(k.expires_at) = 1;

        INSERT INTO pulse.job_key (lane, unique_key, job, unique_for)
        VALUES (v_key.lane, v_key.unique_key, v_key.job, v_key.unique_for)
        ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING;

        IF FOUND THEN
            RETURN NULL;
        END IF;

        INSERT INTO pulse.job_key (lane, unique_key, job, unique_for, follows)
        VALUES (v_key.lane, v_key.unique_key, v_key.job, v_key.unique_for, true);
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN 0;
    END;

    SELECT k.job INTO v_holder
    FROM pulse.job_key AS k
    WHERE k.lane = v_key.lane
        AND k.unique_key = v_key.unique_key
        AND NOT k.follows;

    RETURN coalesce(v_holder, 0);
END;
$$;

COMMENT ON FUNCTION pulse._inherit_key(bigint) IS
'Give a follower its unique key: NULL when it has it, else the job that has it, 0 when an open transaction does.';

CREATE FUNCTION pulse._raise_follows_after(on_conflict text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._raise(
        'PU002',
        format('after and on_conflict %L exclude each other', _raise_follows_after.on_conflict),
        'A job that follows another waits for any end of it, whatever after_failed says.',
        'Pass one of them, or on_conflict => ''skip'', ''replace'' or ''error''.'
    );
END;
$$;

COMMENT ON FUNCTION pulse._raise_follows_after(text) IS
'Raise PU002.';
