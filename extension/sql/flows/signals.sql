CREATE FUNCTION pulse.wait_for(
    lease bigint,
    step text,
    timeout interval,
    signal text DEFAULT NULL,
    OUT verdict text,
    OUT payload jsonb
)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_job bigint;
    v_owner integer;
    v_step pulse_internal.job_step;
    v_locked boolean := true;
BEGIN
    PERFORM pulse_internal.require_read_committed('wait_for');
    PERFORM pulse_internal.require_name('step', wait_for.step);
    IF wait_for.timeout IS NULL THEN
        PERFORM pulse_internal.raise(
            'PU002', 'timeout must be given', 'It is NULL.', 'Pass timeout => ''3 days''.'
        );
    END IF;
    PERFORM pulse_internal.require_duration(
        wait_for.timeout, pulse_internal.range_of('wait_for', 'timeout')
    );
    IF wait_for.signal IS NOT NULL THEN
        PERFORM pulse_internal.require_name('signal', wait_for.signal);
    END IF;

    -- Asked again because the answer was lost: it has been given back.
    IF pulse_internal.reported_before(wait_for.lease, 'wait_for') THEN
        verdict := 'waiting';
        RETURN;
    END IF;
    v_job := pulse_internal.job_of(wait_for.lease);

    INSERT INTO pulse_internal.job_step (job, step, until)
    VALUES (v_job, wait_for.step, clock_timestamp() + wait_for.timeout)
    ON CONFLICT ON CONSTRAINT job_step_is_one_per_name DO NOTHING;
    v_step := pulse_internal.step_of(v_job, wait_for.step, 'wait_for');

    IF v_step.saved_at IS NOT NULL THEN
        verdict := v_step.result ->> 'verdict';
        payload := v_step.result -> 'payload';
        RETURN;
    END IF;

    IF wait_for.signal IS NOT NULL THEN
        v_owner := (SELECT b.owner FROM pulse_internal.body AS b WHERE b.job = v_job);
        v_locked := pg_try_advisory_xact_lock(
            'pulse_internal.signal'::regclass::oid::integer, pulse_internal.signal_key(wait_for.signal, 0)
        ) AND pg_try_advisory_xact_lock(
            'pulse_internal.signal'::regclass::oid::integer, pulse_internal.signal_key(wait_for.signal, v_owner)
        );

        -- A later statement than the lock.
        SELECT 'received', s.payload INTO verdict, payload
        FROM pulse_internal.signal AS s
        WHERE s.signal = wait_for.signal
            AND (s.expires_at > clock_timestamp() OR s.undelivered_at IS NOT NULL)
            AND (s.owner = 0 OR pulse_internal.owns(s.owner, v_job))
        ORDER BY s.sent_at
        LIMIT 1;
    END IF;

    IF verdict IS NULL AND v_locked AND v_step.until <= clock_timestamp() THEN
        verdict := 'timeout';
    END IF;

    IF verdict IS NULL THEN
        verdict := 'waiting';
        IF wait_for.signal IS NOT NULL AND v_locked THEN
            INSERT INTO pulse_internal.signal_wait (job, lease, signal, owner, step)
            VALUES (v_job, wait_for.lease, wait_for.signal, v_owner, wait_for.step)
            ON CONFLICT ON CONSTRAINT signal_wait_is_one_per_job DO UPDATE SET
                lease = excluded.lease,
                signal = excluded.signal,
                owner = excluded.owner,
                step = excluded.step;
        END IF;
        PERFORM pulse_internal.release_runs(
            ARRAY[wait_for.lease],
            CASE
                WHEN v_locked THEN greatest(v_step.until - clock_timestamp(), '0')
                ELSE '1 second'
            END,
            'wait_for'
        );
        RETURN;
    END IF;

    UPDATE pulse_internal.job_step AS s
    SET result = jsonb_build_object('verdict', wait_for.verdict, 'payload', wait_for.payload),
        saved_at = clock_timestamp()
    WHERE s.job = v_job
        AND s.step = wait_for.step;

    DELETE FROM pulse_internal.signal_wait AS w
    WHERE w.job = v_job;
END;
$$;

COMMENT ON FUNCTION pulse.wait_for(bigint, text, interval, text) IS
'Wait until timeout has passed, counted from the first call with this step, or until a signal of this name was sent by the role that enqueued the job, an approver or an operator. The verdict is received (with the payload) or timeout, and stays so for this step; or waiting: the job has been given back and is not charged, stop now, it comes back in time. Without a signal it is a sleep. PU101 the lease was lost, PU002 bad argument, or the name is a step of another sort. Writes job_step; when it waits also lease, waiting and signal_wait.';

-- Signals and waits meet under the name lock (advisory, pulse_internal.signal): a job that begins
-- to wait tries it exclusively, senders take it shared. So a signal is either committed before
-- the job looks, or its sender finds the wait. A try that is refused means that a sender is
-- open: the job comes back in a second. Each role that sends has a lock of its own, since
-- one that keeps its transaction open must not hold up the jobs of others.
--
-- A job that waits is given what was sent when it is woken, in its step: it has it however
-- late it runs, and however short the signal is kept.

CREATE FUNCTION pulse.signal(
    signal text,
    payload jsonb DEFAULT NULL,
    keep interval DEFAULT '7 days',
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS integer
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(signal.signature);
    v_owner integer := CASE WHEN pulse_internal.approves(v_who) THEN 0 ELSE v_who END;
    v_keep interval := coalesce(signal.keep, '7 days');
BEGIN
    PERFORM pulse_internal.require_read_committed('signal');
    PERFORM pulse_internal.require_name('signal', signal.signal);
    PERFORM pulse_internal.require_size(
        pulse_internal.text_size(signal.payload), pulse_internal.range_of('signal', 'payload'),
        'Store the data elsewhere and send a reference.'
    );
    PERFORM pulse_internal.require_duration(
        v_keep, pulse_internal.range_of('signal', 'keep')
    );

    -- Waits for a job that is just beginning to wait, and for nobody else.
    PERFORM pg_advisory_xact_lock_shared(
        'pulse_internal.signal'::regclass::oid::integer,
        pulse_internal.signal_key(signal.signal, v_owner)
    );

    DELETE FROM pulse_internal.signal AS s
    WHERE s.signal = signal.signal
        AND s.owner = v_owner
        AND s.expires_at <= clock_timestamp();

    -- Waits for another who is just sending the same.
    INSERT INTO pulse_internal.signal (signal, owner, payload, expires_at)
    VALUES (signal.signal, v_owner, signal.payload, clock_timestamp() + v_keep)
    ON CONFLICT ON CONSTRAINT signal_is_sent_once DO NOTHING;

    RETURN pulse_internal.deliver_signal(signal.signal, v_owner, 10000);
END;
$$;

COMMENT ON FUNCTION pulse.signal(
    text, jsonb, interval, pulse_internal.caller_signature
) IS
'Send a signal to jobs that wait for it, or will within keep: the first of a name counts, later ones change nothing. It reaches the jobs that the caller enqueued; one of an approver or an operator reaches all. Part of the caller''s transaction. Returns how many jobs woke at once, 10,000 at most; tick wakes the rest, and those that another session held. PU001 above READ COMMITTED, PU002 bad argument, PU003 a payload above 1 MB. Writes signal, signal_wait, waiting, ready and job_step.';

-- The upper half of a key is the role, the lower half a hash of the name: a role cannot choose a
-- name whose lock is that of another role's signal, and so delay the jobs that wait for that one.
-- Two numbers may be one role, which then goes by the smaller one.
CREATE FUNCTION pulse_internal.signal_key(signal text, owner integer)
RETURNS integer
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        (
            coalesce(
                (
                    SELECT min(s.role)
                    FROM pulse_internal.role AS r
                    INNER JOIN pulse_internal.role AS s ON s.role_oid = r.role_oid
                    WHERE r.role = signal_key.owner
                ),
                signal_key.owner
            ) & 65535
        ) << 16
        | (hashtext(signal_key.signal) & 65535)
$$;

COMMENT ON FUNCTION pulse_internal.signal_key(text, integer) IS
'The name lock of signals that count for the jobs of a role, or with 0 for all.';

-- How a signal reaches the jobs that wait for it (flows/signals.sql).

-- Never waits for a job that another session holds: tick comes back to it.
CREATE FUNCTION pulse_internal.deliver_signal(signal text, owner integer, max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_roles integer [] := pulse_internal.numbers_of(deliver_signal.owner);
    v_sent pulse_internal.signal;
    v_job record;
    v_woken integer := 0;
    v_left_over boolean;
BEGIN
    SELECT s.* INTO v_sent
    FROM pulse_internal.signal AS s
    WHERE s.signal = deliver_signal.signal
        AND s.owner = deliver_signal.owner;

    FOR v_job IN
        SELECT o.*, w.step
        FROM (
            SELECT n.job, n.lease, n.step
            FROM pulse_internal.signal_wait AS n
            WHERE n.signal = deliver_signal.signal
                AND (deliver_signal.owner = 0 OR n.owner = ANY (v_roles))
            ORDER BY n.signal, n.owner
            OFFSET 0
        ) AS w
        CROSS JOIN LATERAL (
            SELECT n.*
            FROM pulse_internal.waiting AS n
            WHERE n.job = w.job
                -- Only the wait that began with this lease: a signal cuts no backoff short.
                -- coalesce keeps the planner from a scan of the whole partial index on
                -- last_lease, which looks as cheap as the primary key while it is empty.
                AND coalesce(n.last_lease, 0) = w.lease
                AND n.last_verb = 'wait_for'
            FOR UPDATE SKIP LOCKED
        ) AS o
        LIMIT deliver_signal.max_jobs
    LOOP
        DELETE FROM pulse_internal.waiting AS w
        WHERE w.job = v_job.job;

        DELETE FROM pulse_internal.signal_wait AS w
        WHERE w.job = v_job.job;

        UPDATE pulse_internal.job_step AS s
        SET result = jsonb_build_object('verdict', 'received', 'payload', v_sent.payload),
            saved_at = clock_timestamp()
        WHERE s.job = v_job.job
            AND s.step = v_job.step
            AND s.saved_at IS NULL;

        PERFORM pulse_internal.put_in_line(
            v_job.job, v_job.lane, v_job.kind, v_job.rank, NULL, v_job.attempts,
            v_job.failures, v_job.keyed, false, v_job.last_lease, v_job.last_verb,
            v_job.place
        );
        v_woken := v_woken + 1;
    END LOOP;

    v_left_over := EXISTS (
        SELECT
        FROM (
            SELECT n.job, n.lease
            FROM pulse_internal.signal_wait AS n
            WHERE n.signal = deliver_signal.signal
                AND (deliver_signal.owner = 0 OR n.owner = ANY (v_roles))
            ORDER BY n.signal, n.owner
            OFFSET 0
        ) AS w
        CROSS JOIN LATERAL (
            SELECT
            FROM pulse_internal.waiting AS n
            WHERE n.job = w.job
                AND coalesce(n.last_lease, 0) = w.lease
                AND n.last_verb = 'wait_for'
            OFFSET 0
        ) AS o
    );
    -- The time of this look, so that tick looks at the others before it comes back.
    IF v_left_over OR v_sent.undelivered_at IS NOT NULL THEN
        UPDATE pulse_internal.signal AS s
        SET undelivered_at = CASE WHEN v_left_over THEN clock_timestamp() END
        WHERE s.signal = deliver_signal.signal
            AND s.owner = deliver_signal.owner;
    END IF;
    RETURN v_woken;
END;
$$;

COMMENT ON FUNCTION pulse_internal.deliver_signal(text, integer, integer) IS
'Put jobs in line that wait for a signal that was sent, with its payload; returns how many.';

-- A step of tick: what a sender could not wake, and signals that nobody came for.
CREATE FUNCTION pulse_internal.tick_signals(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_sort = off
AS $$
DECLARE
    -- A variable: an index scan cannot stop at clock_timestamp(), which is volatile.
    v_now timestamptz := clock_timestamp();
    v_signal record;
    v_woken integer := 0;
    v_expired integer;
BEGIN
    FOR v_signal IN
        SELECT s.signal, s.owner
        FROM pulse_internal.signal AS s
        WHERE s.undelivered_at IS NOT NULL
        ORDER BY s.undelivered_at
        LIMIT tick_signals.max_rows
        FOR UPDATE SKIP LOCKED
    LOOP
        v_woken := v_woken + pulse_internal.deliver_signal(
            v_signal.signal, v_signal.owner, tick_signals.max_rows - v_woken
        );
        EXIT WHEN v_woken >= tick_signals.max_rows;
    END LOOP;

    DELETE FROM pulse_internal.signal AS s
    WHERE s.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse_internal.signal AS o
            WHERE o.expires_at <= v_now
                AND o.undelivered_at IS NULL
            ORDER BY o.expires_at
            LIMIT tick_signals.max_rows
            FOR UPDATE SKIP LOCKED
        ));
    GET DIAGNOSTICS v_expired = ROW_COUNT;
    RETURN greatest(v_woken, v_expired);
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_signals(integer) IS
'Wake jobs that a signal met while they were held, and remove expired signals; returns how many of these or those.';
