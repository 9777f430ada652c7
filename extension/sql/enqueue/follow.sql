-- When a unique key is taken: replace, follow and cancel (enqueue/unique_keys.sql has
-- skip and error). A job that waits is changed, or cancelled for a new one. Behind one that runs, a
-- new job waits for its end: it is blocked, for any end, as with after (flows/after.sql). There
-- is one such follower for a key, since the primary key of job_key says so.
--
-- Whoever releases the follower gives it the key: mostly the end of the run, in its own
-- transaction. A follower that is not committed yet, or that another session holds, is not waited
-- for: its watch, with the doubt about it, releases it later. If another job has the key by
-- then, the follower waits for that one.

CREATE FUNCTION pulse_internal.change(
    key pulse_internal.job_key,
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
RETURNS pulse_internal.enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_job pulse_internal.enqueued;
BEGIN
    IF NOT pulse_internal.may_replace(change.owner, (change.key).job, change.kind) THEN
        PERFORM pulse_internal.raise_key_taken(
            (change.key).lane, (change.key).unique_key, (change.key).job
        );
    END IF;

    IF change.on_conflict = 'cancel' THEN
        v_job.job_id := pulse_internal.supersede(change.owner, change.key, change.unique_for);
        v_job.created := true;
        v_job.written := false;
    ELSE
        v_job.job_id := pulse_internal.replace(
            change.owner, (change.key).job, change.payload, change.rank,
            change.run_at, change.needs_approval, change.headers, change.start_by,
            change.on_conflict
        );
        -- A job that awaits approval makes way for a new one, which replace writes.
        v_job.created := v_job.job_id <> (change.key).job;
        v_job.written := true;
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.change(
    pulse_internal.job_key, text, text, jsonb, integer, timestamptz, boolean, integer, jsonb,
    timestamptz, interval
) IS
'Settle a conflict with a job that waits: change it, or cancel it for a new one. job_id is NULL when the job runs, or is just moving. PU102 where the role may not, or the kind is another.';

-- key is that of a job that runs.
CREATE FUNCTION pulse_internal.follow(
    key pulse_internal.job_key,
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
RETURNS pulse_internal.enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_job pulse_internal.enqueued;
    v_key pulse_internal.job_key;
BEGIN
    -- Waits for another transaction that is just following the same job.
    INSERT INTO pulse_internal.job_key (lane, unique_key, job, unique_for, follows)
    VALUES (
        (follow.key).lane, (follow.key).unique_key, nextval('pulse_internal.job_id'),
        follow.unique_for, true
    )
    ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING
    RETURNING job, true, false INTO v_job.job_id, v_job.created, v_job.written;

    IF NOT FOUND THEN
        SELECT k.* INTO v_key
        FROM pulse_internal.job_key AS k
        WHERE k.lane = (follow.key).lane
            AND k.unique_key = (follow.key).unique_key
            AND k.follows;

        IF NOT FOUND THEN
            RETURN NULL;
        END IF;

        v_job := pulse_internal.change(
            v_key, follow.on_conflict, follow.kind, follow.payload, follow.rank,
            follow.run_at, follow.needs_approval, follow.owner, follow.headers,
            follow.start_by, follow.unique_for
        );
    END IF;

    IF NOT v_job.written AND v_job.job_id IS NOT NULL THEN
        INSERT INTO pulse_internal.dependency (job, after)
        VALUES (v_job.job_id, (follow.key).job);

        INSERT INTO pulse_internal.blocked (
            job, waits_for, lane, kind, rank, run_at, attempts, failures, keyed, alone,
            after_failed, needs_approval
        )
        VALUES (
            v_job.job_id, (follow.key).job, (follow.key).lane, follow.kind,
            follow.rank, follow.run_at, 0, 0, true, true, 'run', follow.needs_approval
        );

        -- It may have ended since, and its end does not see us.
        INSERT INTO pulse_internal.doubt (job)
        VALUES ((follow.key).job);
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.follow(
    pulse_internal.job_key, text, text, jsonb, integer, timestamptz, boolean, integer, jsonb,
    timestamptz, interval
) IS
'Put a new job behind one that runs, or settle the conflict with the one that stands there.';

-- Newest wins. The key row goes over while the job's own row is held, as in every report.
CREATE FUNCTION pulse_internal.supersede(
    who integer, key pulse_internal.job_key, unique_for interval
)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_job bigint := (supersede.key).job;
    v_new bigint;
    v_was record;
    v_asked boolean;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse_internal.take_out(v_job) AS t;

    IF v_was.state IN ('completed', 'dead', 'cancelled') THEN
        RETURN NULL;
    END IF;

    -- It went to another lane after we read its key.
    IF v_was.lane <> (supersede.key).lane THEN
        PERFORM pulse_internal.raise_kept_moving(v_job);
    END IF;

    IF v_was.state = 'running' THEN
        SELECT c.changed INTO v_asked
        FROM pulse_internal.cancel(v_job, 'replaced by a newer job', false) AS c;
    ELSIF EXISTS (
        SELECT
        FROM pulse_internal.job_key AS f
        WHERE f.lane = (supersede.key).lane
            AND f.unique_key = (supersede.key).unique_key
            AND f.follows
            AND NOT (supersede.key).follows
    ) THEN
        -- It is to be retried: its key goes to who follows, and we meet that one next.
        PERFORM pulse_internal.finish_cancelled(
            v_job, v_was.lane, v_was.kind, v_was.rank, 'replace', v_was.attempts,
            v_was.failures, v_was.keyed, 'replaced by a newer job'
        );
        v_asked := true;
    ELSE
        v_new := nextval('pulse_internal.job_id');

        UPDATE pulse_internal.job_key AS k
        SET job = v_new,
            unique_for = supersede.unique_for
        WHERE k.job = v_job;

        DELETE FROM pulse_internal.blocked AS b
        WHERE b.job = v_job;

        PERFORM pulse_internal.finish_cancelled(
            v_job, v_was.lane, v_was.kind, v_was.rank, 'replace', v_was.attempts,
            v_was.failures, v_was.keyed, format('replaced by job %s', v_new)
        );
        v_asked := true;
    END IF;

    IF v_asked THEN
        PERFORM pulse_internal.audit(
            supersede.who, 'replace', v_job, v_was.lane,
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

COMMENT ON FUNCTION pulse_internal.supersede(integer, pulse_internal.job_key, interval) IS
'Cancel a job that waits and give its unique key to a new one, whose id is returned; ask one that runs to stop, and return NULL.';

CREATE FUNCTION pulse_internal.raise_follows_after(on_conflict text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU002',
        format('after and on_conflict %L exclude each other', raise_follows_after.on_conflict),
        'A job that follows another waits for any end of it, whatever after_failed says.',
        'Pass one of them, or on_conflict => ''skip'', ''replace'' or ''error''.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_follows_after(text) IS
'Raise PU002.';

-- How a follower comes by the unique key of the job before it (enqueue/follow.sql).

-- The key was free, and we took it.
CREATE FUNCTION pulse_internal.hand_key_on(job bigint)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_key pulse_internal.job_key;
BEGIN
    SELECT k.* INTO v_key
    FROM pulse_internal.job_key AS k
    WHERE k.job = hand_key_on.job;

    IF NOT EXISTS (
        SELECT
        FROM pulse_internal.job_key AS f
        WHERE f.lane = v_key.lane
            AND f.unique_key = v_key.unique_key
            AND f.follows
    ) THEN
        RETURN false;
    END IF;

    DELETE FROM pulse_internal.job_key AS k
    WHERE k.job = hand_key_on.job;

    -- Waits for a transaction that is just cancelling it.
    UPDATE pulse_internal.job_key AS k
    SET follows = false
    WHERE k.lane = v_key.lane
        AND k.unique_key = v_key.unique_key
        AND k.follows;
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.hand_key_on(bigint) IS
'Give the unique key of a job to the one that waits for it; false when none does.';

-- tids are blocked jobs that could go, locked by us.
CREATE FUNCTION pulse_internal.inherit_keys(tids tid [])
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_free tid [] := inherit_keys.tids;
    v_job record;
    v_holder bigint;
BEGIN
    FOR v_job IN
        SELECT b.ctid AS tid, b.job, b.waits_for
        FROM pulse_internal.blocked AS b
        WHERE b.ctid = ANY (inherit_keys.tids)
            AND b.keyed
            AND (SELECT k.follows FROM pulse_internal.job_key AS k WHERE k.job = b.job)
    LOOP
        -- After one wait in vain no other, as in try_rekey.
        IF v_holder IS DISTINCT FROM 0 THEN
            v_holder := pulse_internal.inherit_key(v_job.job);
            CONTINUE WHEN v_holder IS NULL;
        END IF;

        v_free := array_remove(v_free, v_job.tid);
        IF v_holder > 0 THEN
            INSERT INTO pulse_internal.dependency AS d (job, after)
            VALUES (v_job.job, v_holder)
            ON CONFLICT ON CONSTRAINT dependency_is_one_per_pair DO UPDATE
            SET met = false;

            UPDATE pulse_internal.blocked AS b
            SET waits_for = v_holder,
                alone = false
            WHERE b.job = v_job.job;
        END IF;

        INSERT INTO pulse_internal.doubt (job)
        VALUES (CASE WHEN v_holder > 0 THEN v_holder ELSE v_job.waits_for END);
    END LOOP;
    RETURN v_free;
END;
$$;

COMMENT ON FUNCTION pulse_internal.inherit_keys(tid []) IS
'Give followers their key; returns those of the jobs that may go. Where another job has it, the follower waits for that one.';

CREATE FUNCTION pulse_internal.inherit_key(job bigint)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '10ms'
AS $$
DECLARE
    v_key pulse_internal.job_key;
    v_holder bigint;
BEGIN
    BEGIN
        DELETE FROM pulse_internal.job_key AS k
        WHERE k.job = inherit_key.job
        RETURNING k.* INTO v_key;

        -- What the job before it left behind for its unique_for.
        DELETE FROM pulse_internal.job_key AS k
        WHERE k.lane = v_key.lane
            AND k.unique_key = v_key.unique_key
            AND num_nonnulls(k.expires_at) = 1;

        INSERT INTO pulse_internal.job_key (lane, unique_key, job, unique_for)
        VALUES (v_key.lane, v_key.unique_key, v_key.job, v_key.unique_for)
        ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING;

        IF FOUND THEN
            RETURN NULL;
        END IF;

        INSERT INTO pulse_internal.job_key (lane, unique_key, job, unique_for, follows)
        VALUES (v_key.lane, v_key.unique_key, v_key.job, v_key.unique_for, true);
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN 0;
    END;

    SELECT k.job INTO v_holder
    FROM pulse_internal.job_key AS k
    WHERE k.lane = v_key.lane
        AND k.unique_key = v_key.unique_key
        AND NOT k.follows;

    RETURN coalesce(v_holder, 0);
END;
$$;

COMMENT ON FUNCTION pulse_internal.inherit_key(bigint) IS
'Give a follower its unique key: NULL when it has it, else the job that has it, 0 when an open transaction does.';
