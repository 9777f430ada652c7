-- Unique keys. The row of a key is inserted, read and deleted, never locked while it
-- is only looked at: an upsert would make complete wait for producers and deadlock.

CREATE FUNCTION pulse_internal.take_key(
    lane text,
    unique_key text,
    unique_for interval,
    on_conflict text,
    kind text,
    payload jsonb,
    rank integer,
    run_at timestamptz,
    needs_approval boolean,
    owner integer,
    headers jsonb,
    start_by timestamptz
)
RETURNS pulse_internal.enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_key pulse_internal.job_key;
    v_job pulse_internal.enqueued;
    v_follower pulse_internal.job_key;
BEGIN
    FOR v_round IN 1..10 LOOP
        -- Waits for another transaction that is just inserting the same key.
        INSERT INTO pulse_internal.job_key (lane, unique_key, job, unique_for)
        VALUES (
            take_key.lane, take_key.unique_key, nextval('pulse_internal.job_id'),
            take_key.unique_for
        )
        ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING
        RETURNING job INTO v_job.job_id;

        IF FOUND THEN
            -- One that followed the job before was first: we meet it as who has the key.
            IF pg_sequence_last_value('pulse_internal.blocked_seq') IS NOT NULL THEN
                IF EXISTS (
                    SELECT
                    FROM pulse_internal.job_key AS f
                    WHERE f.lane = take_key.lane
                        AND f.unique_key = take_key.unique_key
                        AND f.follows
                ) THEN
                    CONTINUE WHEN pulse_internal.hand_key_on(v_job.job_id);
                END IF;
            END IF;
            v_job.created := true;
            v_job.written := false;
            RETURN v_job;
        END IF;

        SELECT k.* INTO v_key
        FROM pulse_internal.job_key AS k
        WHERE k.lane = take_key.lane
            AND k.unique_key = take_key.unique_key
            AND NOT k.follows;

        -- Gone between the two statements: try again.
        CONTINUE WHEN NOT FOUND;

        IF v_key.expires_at <= clock_timestamp() THEN
            DELETE FROM pulse_internal.job_key AS k
            WHERE k.lane = v_key.lane
                AND k.unique_key = v_key.unique_key
                AND k.expires_at <= clock_timestamp();
            CONTINUE;
        END IF;

        -- Written while the clock was ahead: unique_for counts from now.
        IF v_key.expires_at > pulse_internal.by_clock(
            v_key.expires_at, clock_timestamp(), v_key.unique_for
        ) THEN
            UPDATE pulse_internal.job_key AS k
            SET expires_at = pulse_internal.by_clock(
                k.expires_at, clock_timestamp(), k.unique_for
            )
            WHERE k.ctid = ANY (array(
                    SELECT o.ctid
                    FROM pulse_internal.job_key AS o
                    WHERE o.job = v_key.job
                        AND o.expires_at = v_key.expires_at
                    FOR NO KEY UPDATE SKIP LOCKED
                ));
        END IF;

        IF take_key.on_conflict = 'error' THEN
            PERFORM pulse_internal.raise_key_taken(v_key.lane, v_key.unique_key, v_key.job);
        END IF;

        v_job.job_id := v_key.job;
        v_job.created := false;
        v_job.written := true;

        IF coalesce(take_key.on_conflict, 'skip') = 'skip' THEN
            RETURN v_job;
        END IF;

        IF take_key.on_conflict = 'follow' THEN
            -- A follower is newer than the job before it. It waits on while that job is to
            -- be retried; where that job has ended, until an idle claim or tick unblocks it.
            SELECT k.* INTO v_follower
            FROM pulse_internal.job_key AS k
            WHERE k.lane = v_key.lane
                AND k.unique_key = v_key.unique_key
                AND k.follows;

            IF FOUND THEN
                v_key := v_follower;
            END IF;
        END IF;

        IF v_key.expires_at IS NOT NULL THEN
            RETURN v_job;
        END IF;

        v_job := pulse_internal.change(
            v_key, take_key.on_conflict, take_key.kind, take_key.payload,
            take_key.rank, take_key.run_at, take_key.needs_approval, take_key.owner,
            take_key.headers, take_key.start_by, take_key.unique_for
        );
        IF v_job.job_id IS NULL
            AND take_key.on_conflict <> 'replace'
            AND EXISTS (SELECT FROM pulse_internal.lease AS l WHERE l.job = v_key.job)
        THEN
            v_job := pulse_internal.follow(
                v_key, take_key.on_conflict, take_key.kind, take_key.payload,
                take_key.rank, take_key.run_at, take_key.needs_approval,
                take_key.owner, take_key.headers, take_key.start_by,
                take_key.unique_for
            );
        END IF;
        IF v_job.job_id IS NOT NULL THEN
            RETURN v_job;
        END IF;
    END LOOP;

    PERFORM pulse_internal.raise_kept_moving(v_key.job);
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_key(
    text, text, interval, text, text, jsonb, integer, timestamptz, boolean, integer,
    jsonb, timestamptz
) IS
'Take a unique key for a new job, whose rows the caller writes, or settle the conflict with the job that has it.';

-- Waiting for a key is bounded. A caller whose own lock_timeout is shorter gets its own error.
--
-- Saying which transactions hold keys takes a subtransaction, which the path of a job is spared:
-- keys are in 64 parts by their hash, and a transaction tries the lock of a part before it
-- takes a key of it. A transaction that frees or moves a key takes no such lock, but then the
-- row of the key is there. So a subtransaction begins only where the row exists or the lock is
-- refused. Where three transactions take keys of one part, the third may get 55P03 instead.
CREATE FUNCTION pulse_internal.take_key_in_time(
    lane text,
    unique_key text,
    unique_for interval,
    on_conflict text,
    kind text,
    payload jsonb,
    rank integer,
    run_at timestamptz,
    needs_approval boolean,
    owner integer,
    headers jsonb,
    start_by timestamptz
)
RETURNS pulse_internal.enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_own text := current_setting('lock_timeout');
    v_impatient boolean := v_own <> '0' AND v_own::interval <= pulse_internal.key_patience();
    v_job pulse_internal.enqueued;
BEGIN
    IF NOT EXISTS (
        SELECT
        FROM pulse_internal.job_key AS k
        WHERE k.lane = take_key_in_time.lane
            AND k.unique_key = take_key_in_time.unique_key
    )
        AND pg_try_advisory_xact_lock(
            'pulse_internal.job_key'::regclass::oid::integer,
            hashtext(take_key_in_time.lane || take_key_in_time.unique_key) & 63
        )
    THEN
        IF NOT v_impatient THEN
            PERFORM set_config('lock_timeout', '3s', true);
        END IF;
        v_job := pulse_internal.take_key(
            take_key_in_time.lane, take_key_in_time.unique_key, take_key_in_time.unique_for,
            take_key_in_time.on_conflict, take_key_in_time.kind, take_key_in_time.payload,
            take_key_in_time.rank, take_key_in_time.run_at, take_key_in_time.needs_approval,
            take_key_in_time.owner, take_key_in_time.headers, take_key_in_time.start_by
        );
        IF NOT v_impatient THEN
            PERFORM set_config('lock_timeout', v_own, true);
        END IF;
        RETURN v_job;
    END IF;

    BEGIN
        IF NOT v_impatient THEN
            PERFORM set_config('lock_timeout', '3s', true);
        END IF;
        v_job := pulse_internal.take_key(
            take_key_in_time.lane, take_key_in_time.unique_key, take_key_in_time.unique_for,
            take_key_in_time.on_conflict, take_key_in_time.kind, take_key_in_time.payload,
            take_key_in_time.rank, take_key_in_time.run_at, take_key_in_time.needs_approval,
            take_key_in_time.owner, take_key_in_time.headers, take_key_in_time.start_by
        );
        IF NOT v_impatient THEN
            PERFORM set_config('lock_timeout', v_own, true);
        END IF;
    EXCEPTION
        WHEN lock_not_available THEN
            IF v_impatient THEN
                RAISE;
            END IF;
            PERFORM pulse_internal.raise_key_busy(
                take_key_in_time.lane, take_key_in_time.unique_key
            );
    END;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_key_in_time(
    text, text, interval, text, text, jsonb, integer, timestamptz, boolean, integer,
    jsonb, timestamptz
) IS
'Like take_key; PU111 when an open transaction takes or frees the key and does not end soon.';

-- As lock_timeout says it: 3s above.
CREATE FUNCTION pulse_internal.key_patience()
RETURNS interval
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT interval '3 seconds'
$$;

COMMENT ON FUNCTION pulse_internal.key_patience() IS
'How long a call waits for a unique key that an open transaction takes or frees.';

CREATE FUNCTION pulse_internal.raise_key_busy(lane text, unique_key text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU111',
        format(
            'unique key %L of lane %L is not decided within %s', raise_key_busy.unique_key,
            raise_key_busy.lane, pulse_internal.duration(pulse_internal.key_patience())
        ),
        format(
            'A transaction that takes or frees it is open. Open ones that have changed unique keys: %s.',
            coalesce(
                (
                    SELECT string_agg(h.holder, ', ' ORDER BY h.held_for DESC NULLS LAST)
                    FROM pulse_internal.key_holders() AS h
                ),
                'none any more'
            )
        ),
        'Try again when it has ended; enqueue with a unique key in short transactions.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_key_busy(text, text) IS
'Raise PU111.';

-- Which key a transaction has written is not to be seen before it commits.
CREATE FUNCTION pulse_internal.key_holders()
RETURNS TABLE (holder text, held_for interval, pid integer)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE
            WHEN l.pid IS NULL THEN format('prepared transaction %s', coalesce(p.gid, 'unknown'))
            ELSE format('backend %s of role %s', l.pid, coalesce(a.usename, 'unknown'))
        END
        || coalesce(
            ' for ' || pulse_internal.duration(
                clock_timestamp() - coalesce(p.prepared, a.xact_start)
            ),
            ''
        ),
        clock_timestamp() - coalesce(p.prepared, a.xact_start),
        l.pid
    FROM pg_locks AS l
    LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    LEFT JOIN pg_locks AS t
        ON l.pid IS NULL
        AND t.pid IS NULL
        AND t.locktype = 'transactionid'
        AND t.virtualtransaction = l.virtualtransaction
    LEFT JOIN pg_prepared_xacts AS p ON p.transaction = t.transactionid
    WHERE l.locktype = 'relation'
        AND l.relation = 'pulse_internal.job_key'::regclass
        AND l.mode = 'RowExclusiveLock'
        AND l.granted
        AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    ORDER BY 2 DESC NULLS LAST
    LIMIT 10
$$;

COMMENT ON FUNCTION pulse_internal.key_holders() IS
'Open transactions that have changed unique keys, the oldest ten.';

-- Rows are locked in the order of the key, so two batches cannot deadlock: as a row, since
-- the index of keys would be read from its beginning to have them in order. Who follows takes
-- the key when it is released, in a later statement (enqueue/follow.sql).
CREATE FUNCTION pulse_internal.release_keys(jobs bigint [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    PERFORM 1
    FROM pulse_internal.job_key AS k
    WHERE k.job = ANY (jobs)
    ORDER BY ROW(k.lane, k.unique_key)
    FOR UPDATE;

    DELETE FROM pulse_internal.job_key AS k
    WHERE k.job = ANY (jobs)
        AND (k.unique_for IS NULL OR k.follows);

    UPDATE pulse_internal.job_key AS k
    SET expires_at = clock_timestamp() + k.unique_for
    WHERE k.job = ANY (jobs);
END;
$$;

COMMENT ON FUNCTION pulse_internal.release_keys(bigint []) IS
'Give back the unique keys of jobs that have finished, or start their unique_for.';

CREATE FUNCTION pulse_internal.raise_key_taken(lane text, unique_key text, job bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU102',
        format('unique key %L of lane %L is taken', unique_key, lane),
        format('Job %s has it.', job),
        'Wait until that job has finished (and its unique_for has passed), or use another key.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_key_taken(text, text, bigint) IS
'Raise PU102.';

CREATE FUNCTION pulse_internal.raise_kept_moving(job bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU107',
        format('job %s kept moving', job),
        'Ten times it was claimed, given back or finished between two looks.',
        'Try again.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_kept_moving(bigint) IS
'Raise PU107.';

-- The unique key of a job that goes to another lane or back in line.

-- The key row is locked after the job's own row, here as in every report. The INSERT
-- waits for an open transaction that takes or frees the same key.
CREATE FUNCTION pulse_internal.rekey(job_id bigint, lane text)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_key text := pulse_internal.key_of(rekey.job_id);
    v_own pulse_internal.job_key;
    v_holder bigint;
BEGIN
    FOR v_round IN 1 .. 10 LOOP
        DELETE FROM pulse_internal.job_key AS k
        WHERE k.job = rekey.job_id
        RETURNING k.* INTO v_own;

        -- What another job left behind for its unique_for, and that is over.
        DELETE FROM pulse_internal.job_key AS k
        WHERE k.lane = rekey.lane
            AND k.unique_key = v_key
            AND k.expires_at <= clock_timestamp();

        -- Not before one that waits for it.
        INSERT INTO pulse_internal.job_key (lane, unique_key, job, unique_for)
        SELECT rekey.lane, v_key, b.job, b.unique_for
        FROM pulse_internal.body AS b
        WHERE b.job = rekey.job_id
            AND NOT EXISTS (
                SELECT
                FROM pulse_internal.job_key AS f
                WHERE f.lane = rekey.lane
                    AND f.unique_key = v_key
                    AND f.follows
            )
        ON CONFLICT ON CONSTRAINT job_key_is_held_once DO NOTHING;

        IF FOUND THEN
            RETURN NULL;
        END IF;

        -- Taken: leave our own key as it was. Nobody can have it, we freed it just now.
        INSERT INTO pulse_internal.job_key (lane, unique_key, job, unique_for, expires_at, follows)
        SELECT (v_own).*
        WHERE v_own.job IS NOT NULL;

        SELECT k.job INTO v_holder
        FROM pulse_internal.job_key AS k
        WHERE k.lane = rekey.lane
            AND k.unique_key = v_key
            AND k.job <> rekey.job_id
        ORDER BY k.follows
        LIMIT 1;

        IF FOUND THEN
            RETURN v_holder;
        END IF;
    END LOOP;

    PERFORM pulse_internal.raise_kept_moving(rekey.job_id);
    RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.rekey(bigint, text) IS
'Give a job its unique key in a lane; returns the job that has it already, else NULL.';

CREATE FUNCTION pulse_internal.rekey_in_time(job_id bigint, lane text)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_own text := current_setting('lock_timeout');
    v_impatient boolean := v_own <> '0' AND v_own::interval <= pulse_internal.key_patience();
    v_holder bigint;
BEGIN
    IF NOT v_impatient THEN
        PERFORM set_config('lock_timeout', '3s', true);
    END IF;
    v_holder := pulse_internal.rekey(rekey_in_time.job_id, rekey_in_time.lane);
    IF NOT v_impatient THEN
        PERFORM set_config('lock_timeout', v_own, true);
    END IF;
    RETURN v_holder;
EXCEPTION
    WHEN lock_not_available THEN
        IF v_impatient THEN
            RAISE;
        END IF;
        PERFORM pulse_internal.raise_key_busy(
            rekey_in_time.lane, pulse_internal.key_of(rekey_in_time.job_id)
        );
        RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.rekey_in_time(bigint, text) IS
'Like rekey; PU111 when an open transaction takes or frees the key and does not end soon.';

-- Keys are met in the order of the jobs, not of the keys, so this waits for an open
-- transaction that takes or frees the same key for a moment only. NULL says that it
-- waited in vain; then the caller leaves every job with a key alone, since waiting again
-- and again would amount to a wait that can be part of a deadlock.
CREATE FUNCTION pulse_internal.try_rekey(job_id bigint, lane text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
BEGIN
    IF pulse_internal.key_of(try_rekey.job_id) IS NULL THEN
        RETURN true;
    END IF;

    BEGIN
        RETURN pulse_internal.rekey(try_rekey.job_id, try_rekey.lane) IS NULL;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN NULL;
    END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.try_rekey(bigint, text) IS
'Give a job its unique key in a lane, if it has one and it can be had at once; NULL when an open transaction has it.';

CREATE FUNCTION pulse_internal.key_is_free(job_id bigint, lane text)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT NOT EXISTS (
        SELECT
        FROM pulse_internal.job_key AS k
        WHERE k.lane = key_is_free.lane
            AND k.unique_key = pulse_internal.key_of(key_is_free.job_id)
            AND k.job <> key_is_free.job_id
            AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
    )
$$;

COMMENT ON FUNCTION pulse_internal.key_is_free(bigint, text) IS
'Whether a job could have its unique key in a lane; only a look, rekey decides.';

CREATE FUNCTION pulse_internal.key_of(job_id bigint)
RETURNS text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT b.unique_key
    FROM pulse_internal.body AS b
    WHERE b.job = key_of.job_id
$$;

COMMENT ON FUNCTION pulse_internal.key_of(bigint) IS
'The unique key of a job, if it has one.';
