-- What a job remembers from one attempt to the next, and what it waits for while it holds
-- no slot: a time, or a signal from the world.
--
-- Signals and waits meet under the name lock (advisory, pulse.signal): a job that begins to
-- wait tries it exclusively, senders take it shared. So a signal is either committed before
-- the job looks, or its sender finds the wait. A try that is refused means that a sender is
-- open: the job comes back in a second. Each role that sends has a lock of its own, since
-- one that keeps its transaction open must not hold up the jobs of others.
--
-- A job that waits is given what was sent when it is woken, in its step: it has it however
-- late it runs, and however short the signal is kept.

CREATE FUNCTION pulse.save_step(lease bigint, step text, result jsonb DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_job bigint;
BEGIN
    PERFORM pulse._require_read_committed('save_step');
    PERFORM pulse._require_name('step', save_step.step);
    PERFORM pulse._require_size(
        'result', pulse._text_size(save_step.result), 1048576,
        'Store the data elsewhere and keep a reference.'
    );
    v_job := pulse._job_of(save_step.lease);

    INSERT INTO pulse.job_step (job, step, result, saved_at)
    VALUES (v_job, save_step.step, coalesce(save_step.result, 'null'), clock_timestamp())
    ON CONFLICT ON CONSTRAINT job_step_is_one_per_name DO NOTHING;

    RETURN (pulse._step_of(v_job, save_step.step, 'save_step')).result;
END;
$$;

COMMENT ON FUNCTION pulse.save_step(bigint, text, jsonb) IS
'Remember that a step of a running job is done, with its result (at most 1 MB), for all later attempts. The first write wins; returns what is remembered. In the transaction of the step''s own writes it commits with them. PU101 the lease was lost, PU002 the name is a step of another sort, PU003 the result is too large. Writes job_step.';

CREATE FUNCTION pulse.steps(lease bigint)
RETURNS TABLE (step text, result jsonb, saved_at timestamptz)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_job bigint := (SELECT l.job FROM pulse.lease AS l WHERE l.lease = steps.lease);
BEGIN
    IF v_job IS NULL THEN
        PERFORM pulse._raise_lease_lost(steps.lease);
    END IF;

    RETURN QUERY
    SELECT s.step, coalesce(s.result, to_jsonb(s.jobs::text [])), s.saved_at
    FROM pulse.job_step AS s
    WHERE s.job = v_job
        AND s.saved_at IS NOT NULL
    ORDER BY s.saved_at, s.step;
END;
$$;

COMMENT ON FUNCTION pulse.steps(bigint) IS
'The steps that the job of a lease has done, in this attempt or earlier ones, oldest first: what save_step kept, the ids that spawn returned, what wait_for received. PU101 when the lease was lost. Writes nothing.';

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
    v_step pulse.job_step;
    v_locked boolean := true;
BEGIN
    PERFORM pulse._require_read_committed('wait_for');
    PERFORM pulse._require_name('step', wait_for.step);
    IF wait_for.timeout IS NULL THEN
        PERFORM pulse._raise(
            'PU002', 'timeout must be given', 'It is NULL.', 'Pass timeout => ''3 days''.'
        );
    END IF;
    PERFORM pulse._require_duration('timeout', wait_for.timeout, '0', '10 years');
    IF wait_for.signal IS NOT NULL THEN
        PERFORM pulse._require_name('signal', wait_for.signal);
    END IF;

    -- Asked again because the answer was lost: it has been given back.
    IF pulse._reported_before(wait_for.lease, 'wait_for') THEN
        verdict := 'waiting';
        RETURN;
    END IF;
    v_job := pulse._job_of(wait_for.lease);

    INSERT INTO pulse.job_step (job, step, until)
    VALUES (v_job, wait_for.step, clock_timestamp() + wait_for.timeout)
    ON CONFLICT ON CONSTRAINT job_step_is_one_per_name DO NOTHING;
    v_step := pulse._step_of(v_job, wait_for.step, 'wait_for');

    IF v_step.saved_at IS NOT NULL THEN
        verdict := v_step.result ->> 'verdict';
        payload := v_step.result -> 'payload';
        RETURN;
    END IF;

    IF wait_for.signal IS NOT NULL THEN
        v_owner := (SELECT b.owner FROM pulse.body AS b WHERE b.job = v_job);
        v_locked := pg_try_advisory_xact_lock(
            'pulse.signal'::regclass::oid::integer, pulse._signal_key(wait_for.signal, 0)
        ) AND pg_try_advisory_xact_lock(
            'pulse.signal'::regclass::oid::integer, pulse._signal_key(wait_for.signal, v_owner)
        );

        -- A later statement than the lock.
        SELECT 'received', s.payload INTO verdict, payload
        FROM pulse.signal AS s
        WHERE s.signal = wait_for.signal
            AND (s.expires_at > clock_timestamp() OR s.unheard_at IS NOT NULL)
            AND (s.owner = 0 OR pulse._owns(s.owner, v_job))
        ORDER BY s.sent_at
        LIMIT 1;
    END IF;

    IF verdict IS NULL AND v_locked AND v_step.until <= clock_timestamp() THEN
        verdict := 'timeout';
    END IF;

    IF verdict IS NULL THEN
        verdict := 'waiting';
        IF wait_for.signal IS NOT NULL AND v_locked THEN
            INSERT INTO pulse.signal_wait (job, lease, signal, owner, step)
            VALUES (v_job, wait_for.lease, wait_for.signal, v_owner, wait_for.step)
            ON CONFLICT ON CONSTRAINT signal_wait_is_one_per_job DO UPDATE SET
                lease = excluded.lease,
                signal = excluded.signal,
                owner = excluded.owner,
                step = excluded.step;
        END IF;
        PERFORM pulse._give_back(
            ARRAY[wait_for.lease],
            CASE
                WHEN v_locked THEN greatest(v_step.until - clock_timestamp(), '0')
                ELSE '1 second'
            END,
            'wait_for'
        );
        RETURN;
    END IF;

    UPDATE pulse.job_step AS s
    SET result = jsonb_build_object('verdict', wait_for.verdict, 'payload', wait_for.payload),
        saved_at = clock_timestamp()
    WHERE s.job = v_job
        AND s.step = wait_for.step;

    DELETE FROM pulse.signal_wait AS w
    WHERE w.job = v_job;
END;
$$;

COMMENT ON FUNCTION pulse.wait_for(bigint, text, interval, text) IS
'Wait until timeout has passed, counted from the first call with this step, or until a signal of this name was sent by the role that enqueued the job, an approver or an operator. The verdict is received (with the payload) or timeout, and stays so for this step; or waiting: the job has been given back and is not charged, stop now, it comes back in time. Without a signal it is a sleep. PU101 the lease was lost, PU002 bad argument, or the name is a step of another sort. Writes job_step; when it waits also lease, waiting and signal_wait.';

CREATE FUNCTION pulse.signal(
    signal text, payload jsonb DEFAULT NULL, keep interval DEFAULT '7 days'
)
RETURNS integer
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._do_signal(pulse._sign(), signal.signal, signal.payload, signal.keep)
$$;

COMMENT ON FUNCTION pulse.signal(text, jsonb, interval) IS
'Send a signal to jobs that wait for it, or will within keep: the first of a name counts, later ones change nothing. It reaches the jobs that the caller enqueued; one of an approver or an operator reaches all. Part of the caller''s transaction. Returns how many jobs woke at once, 10,000 at most; tick wakes the rest, and those that another session held. PU001 above READ COMMITTED, PU002 bad argument, PU003 a payload above 1 MB. Writes signal, signal_wait, waiting, ready and job_step.';

CREATE FUNCTION pulse._do_signal(
    signature pulse._signature, signal text, payload jsonb, keep interval
)
RETURNS integer
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_who integer := pulse._redeem(_do_signal.signature);
    v_owner integer := CASE WHEN pulse._approves(v_who) THEN 0 ELSE v_who END;
    v_keep interval := coalesce(_do_signal.keep, '7 days');
BEGIN
    PERFORM pulse._require_read_committed('signal');
    PERFORM pulse._require_name('signal', _do_signal.signal);
    PERFORM pulse._require_size(
        'payload', pulse._text_size(_do_signal.payload), 1048576,
        'Store the data elsewhere and send a reference.'
    );
    PERFORM pulse._require_duration('keep', v_keep, '0', '1 year');

    -- Waits for a job that is just beginning to wait, and for nobody else.
    PERFORM pg_advisory_xact_lock_shared(
        'pulse.signal'::regclass::oid::integer,
        pulse._signal_key(_do_signal.signal, v_owner)
    );

    DELETE FROM pulse.signal AS s
    WHERE s.signal = _do_signal.signal
        AND s.owner = v_owner
        AND s.expires_at <= clock_timestamp();

    -- Waits for another who is just sending the same.
    INSERT INTO pulse.signal (signal, owner, payload, expires_at)
    VALUES (_do_signal.signal, v_owner, _do_signal.payload, clock_timestamp() + v_keep)
    ON CONFLICT ON CONSTRAINT signal_is_sent_once DO NOTHING;

    RETURN pulse._tell(_do_signal.signal, v_owner, 10000);
END;
$$;

COMMENT ON FUNCTION pulse._do_signal(pulse._signature, text, jsonb, interval) IS
'signal for the role that signed. Writes the same.';

-- Two numbers may be one role.
CREATE FUNCTION pulse._signal_key(signal text, owner integer)
RETURNS integer
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT hashtext(
        format(
            '%s %s',
            coalesce(
                (SELECT r.role_oid FROM pulse.role AS r WHERE r.role = _signal_key.owner)::bigint,
                - _signal_key.owner
            ),
            _signal_key.signal
        )
    )
$$;

COMMENT ON FUNCTION pulse._signal_key(text, integer) IS
'The name lock of signals that count for the jobs of a role, or with 0 for all.';

-- Never waits for a job that another session holds: tick comes back to it.
CREATE FUNCTION pulse._tell(signal text, owner integer, max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_roles integer [] := array(
        SELECT o.role
        FROM pulse.role AS r
        INNER JOIN pulse.role AS o ON o.role = r.role OR o.role_oid = r.role_oid
        WHERE r.role = _tell.owner
    );
    v_sent pulse.signal;
    v_job record;
    v_woken integer := 0;
    v_left_over boolean;
BEGIN
    SELECT s.* INTO v_sent
    FROM pulse.signal AS s
    WHERE s.signal = _tell.signal
        AND s.owner = _tell.owner;

    FOR v_job IN
        SELECT o.*, w.step
        FROM pulse.signal_wait AS w
        -- Only the wait that it began with this lease: a backoff is not cut short.
        INNER JOIN pulse.waiting AS o
            ON o.job = w.job AND o.last_lease = w.lease AND o.last_verb = 'wait_for'
        WHERE w.signal = _tell.signal
            AND (_tell.owner = 0 OR w.owner = ANY (v_roles))
        LIMIT _tell.max_jobs
        FOR UPDATE OF o SKIP LOCKED
    LOOP
        DELETE FROM pulse.waiting AS w
        WHERE w.job = v_job.job;

        DELETE FROM pulse.signal_wait AS w
        WHERE w.job = v_job.job;

        UPDATE pulse.job_step AS s
        SET result = jsonb_build_object('verdict', 'received', 'payload', v_sent.payload),
            saved_at = clock_timestamp()
        WHERE s.job = v_job.job
            AND s.step = v_job.step
            AND s.saved_at IS NULL;

        PERFORM pulse._put_in_line(
            v_job.job, v_job.lane, v_job.kind, v_job.rank, NULL, v_job.attempts,
            v_job.failures, v_job.keyed, false, v_job.last_lease, v_job.last_verb,
            pulse._group_key(v_job.job), v_job.place
        );
        v_woken := v_woken + 1;
    END LOOP;

    v_left_over := EXISTS (
        SELECT
        FROM pulse.signal_wait AS w
        INNER JOIN pulse.waiting AS o
            ON o.job = w.job AND o.last_lease = w.lease AND o.last_verb = 'wait_for'
        WHERE w.signal = _tell.signal
            AND (_tell.owner = 0 OR w.owner = ANY (v_roles))
    );
    -- The time of this look, so that tick looks at the others before it comes back.
    IF v_left_over OR v_sent.unheard_at IS NOT NULL THEN
        UPDATE pulse.signal AS s
        SET unheard_at = CASE WHEN v_left_over THEN clock_timestamp() END
        WHERE s.signal = _tell.signal
            AND s.owner = _tell.owner;
    END IF;
    RETURN v_woken;
END;
$$;

COMMENT ON FUNCTION pulse._tell(text, integer, integer) IS
'Put jobs in line that wait for a signal that was sent, with its payload; returns how many.';

-- A step of tick: what a sender could not wake, and signals that nobody came for.
CREATE FUNCTION pulse._tick_signals(max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_sort = off
AS $$
DECLARE
    -- A variable: the index cannot stop at clock_timestamp(), which is volatile.
    v_now timestamptz := clock_timestamp();
    v_signal record;
    v_woken integer := 0;
    v_gone integer;
BEGIN
    FOR v_signal IN
        SELECT s.signal, s.owner
        FROM pulse.signal AS s
        WHERE s.unheard_at IS NOT NULL
        ORDER BY s.unheard_at
        LIMIT _tick_signals.max_rows
        FOR UPDATE SKIP LOCKED
    LOOP
        v_woken := v_woken + pulse._tell(
            v_signal.signal, v_signal.owner, _tick_signals.max_rows - v_woken
        );
        EXIT WHEN v_woken >= _tick_signals.max_rows;
    END LOOP;

    DELETE FROM pulse.signal AS s
    WHERE s.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse.signal AS o
            WHERE o.expires_at <= v_now
                AND o.unheard_at IS NULL
            ORDER BY o.expires_at
            LIMIT _tick_signals.max_rows
            FOR UPDATE SKIP LOCKED
        ));
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN greatest(v_woken, v_gone);
END;
$$;

COMMENT ON FUNCTION pulse._tick_signals(integer) IS
'Wake jobs that a signal met while they were held, and remove expired signals; returns how many of these or those.';

-- The grant itself is the truth: who may approve, or operate.
CREATE FUNCTION pulse._approves(who integer)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT
        FROM pulse.role AS r
        WHERE r.role = _approves.who
            AND has_function_privilege(r.role_oid, 'pulse.approve(bigint,text)', 'EXECUTE')
    )
$$;

COMMENT ON FUNCTION pulse._approves(integer) IS
'Whether a role may approve the jobs of others.';
