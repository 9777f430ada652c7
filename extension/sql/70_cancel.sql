-- Verbs by job id. A job may move while it is looked for, so every verb goes through
-- _take_out: table by table, and again from the start when it was found nowhere.
-- What RETURNING (or FOR UPDATE) gave is the only evidence of state.

CREATE FUNCTION pulse.cancel(
    job_id bigint, reason text DEFAULT NULL, force boolean DEFAULT false
)
RETURNS text
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse.cancel(pulse._sign(), cancel.job_id, cancel.reason, cancel.force)
$$;

COMMENT ON FUNCTION pulse.cancel(bigint, text, boolean) IS
'Cancel a job and return the state it is in then. A job that does not run is cancelled at once. A running one is asked to stop and stays running: its worker hears of it with the next heartbeat, and is cancelled when it acknowledges, when it is lost, or after the lane''s cancel_grace, which a second request does not extend. force => true (operators only) takes the lease away at once. A job already cancelled stays so. Producers may cancel their own jobs, operators all. PU004 no such job, or not yours; PU011 force without operator access; PU105 the job is completed or dead; PU107 it kept moving.';

CREATE FUNCTION pulse.cancel(
    signature pulse._signature, job_id bigint, reason text, force boolean
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_who integer := pulse._redeem(cancel.signature);
    v_force boolean := coalesce(cancel.force, false);
    v_done record;
BEGIN
    PERFORM pulse._require_read_committed('cancel');
    PERFORM pulse._require_reason(cancel.reason);

    IF NOT pulse._operates(v_who) THEN
        -- Somebody else's job does not exist for a producer.
        IF NOT pulse._owns(v_who, cancel.job_id) THEN
            PERFORM pulse._raise_no_such_job(cancel.job_id);
        END IF;

        IF v_force THEN
            PERFORM pulse._raise(
                'PU011',
                'force => true needs operator access',
                'Only an operator may take a lease away from a running job.',
                'Call pulse.cancel without force: the worker is asked to stop and has the grace to do so.'
            );
        END IF;
    END IF;

    SELECT c.* INTO v_done
    FROM pulse._cancel(cancel.job_id, cancel.reason, v_force) AS c;

    IF v_done.state IN ('completed', 'dead') THEN
        PERFORM pulse._raise_wrong_state(
            cancel.job_id, v_done.state, 'cancel', 'It has ended; there is nothing to stop.'
        );
    END IF;

    IF v_done.changed THEN
        PERFORM pulse._audit(
            v_who, 'cancel', cancel.job_id, v_done.lane,
            jsonb_build_object('state', v_done.was),
            jsonb_build_object(
                'state', v_done.state, 'requested', v_done.state = 'running', 'force', v_force
            ),
            cancel.reason
        );
    END IF;

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse.cancel(pulse._signature, bigint, text, boolean) IS
'cancel for the role that signed.';

CREATE FUNCTION pulse.ack_cancel(lease bigint)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_lease pulse.lease;
BEGIN
    PERFORM pulse._require_read_committed('ack_cancel');

    -- Taking the row out is the fence: a stale lease finds nothing. Waits for a cancel
    -- or reap that holds it.
    DELETE FROM pulse.lease AS l
    WHERE l.lease = ack_cancel.lease
    RETURNING l.* INTO v_lease;

    IF NOT FOUND THEN
        IF EXISTS (
            SELECT
            FROM pulse.finished AS f
            WHERE f.lease = ack_cancel.lease
                AND f.ended_by = 'ack_cancel'
        ) THEN
            RETURN;
        END IF;

        PERFORM pulse._raise_lease_lost(ack_cancel.lease);
    END IF;

    IF v_lease.cancel_by IS NULL THEN
        PERFORM pulse._raise_wrong_state(
            v_lease.job, 'running and nobody asked to cancel it', 'acknowledge a cancel of',
            'Call complete, fail, snooze or release; ack_cancel only answers the heartbeat verdict cancel.'
        );
    END IF;

    INSERT INTO pulse.finished (
        job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
        claimed_at, lease, worker, error
    )
    VALUES (
        v_lease.job, v_lease.lane, v_lease.kind, v_lease.rank, 'cancelled', 'ack_cancel',
        v_lease.attempt, v_lease.failures, v_lease.keyed,
        v_lease.claimed_at, v_lease.lease, v_lease.worker,
        v_lease.cancel_reason
    );

    IF v_lease.keyed THEN
        PERFORM pulse._release_keys(ARRAY[v_lease.job]);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.ack_cancel(bigint) IS
'Tell that the run was stopped as a cancel asked: the job is cancelled. The same lease may say so again. PU101 the lease was lost; PU105 nobody asked to cancel this run.';

-- was: the state before; state: the state after (the same where nothing can be done).
CREATE FUNCTION pulse._cancel(
    job_id bigint,
    reason text,
    force boolean,
    OUT was text,
    OUT lane text,
    OUT state text,
    OUT changed boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_was record;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse._take_out(_cancel.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;
    state := v_was.state;
    changed := false;

    IF was IN ('completed', 'dead', 'cancelled') THEN
        RETURN;
    END IF;

    IF was = 'running' AND NOT _cancel.force THEN
        IF v_was.cancel_by IS NOT NULL THEN
            RETURN;
        END IF;

        -- The worker hears of it with its next heartbeat and has the grace to stop.
        -- reap_at makes the sweep look in time.
        WITH grace AS MATERIALIZED (
            SELECT clock_timestamp() + s.cancel_grace AS cancel_by
            FROM pulse._lane_settings(v_was.lane) AS s
        )

        UPDATE pulse.lease AS l
        SET
            cancel_by = g.cancel_by,
            cancel_reason = coalesce(_cancel.reason, 'cancelled'),
            lease_until = least(l.lease_until, g.cancel_by),
            reap_at = least(l.reap_at, l.lease_until, g.cancel_by)
        FROM grace AS g
        WHERE l.job = _cancel.job_id;

        changed := true;
        RETURN;
    END IF;

    IF was = 'running' THEN
        -- Forced: the lease is gone, and the worker's reports find nothing.
        DELETE FROM pulse.lease AS l
        WHERE l.job = _cancel.job_id;
    END IF;

    INSERT INTO pulse.finished (
        job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
        claimed_at, worker, error
    )
    VALUES (
        _cancel.job_id, v_was.lane, v_was.kind, v_was.rank, 'cancelled', 'cancel',
        v_was.attempts, v_was.failures, v_was.keyed,
        v_was.claimed_at, v_was.worker, coalesce(_cancel.reason, 'cancelled')
    );

    IF v_was.keyed THEN
        PERFORM pulse._release_keys(ARRAY[_cancel.job_id]);
    END IF;

    state := 'cancelled';
    changed := true;
END;
$$;

COMMENT ON FUNCTION pulse._cancel(bigint, text, boolean) IS
'Cancel one job, or ask its worker to stop; finished jobs are left as they are.';

-- A job that stands in line (approval, waiting, ready) is taken out: the caller puts it
-- in somewhere, or raises. A running or finished one is locked and stays where it is,
-- since most verbs refuse it and a cancel request changes the lease in place.
-- Each of the five statements waits for whoever holds the row: an open claim, report
-- or verb. When that one commits, the row is gone and the next table has the job.
CREATE FUNCTION pulse._take_out(
    job_id bigint,
    OUT state text,
    OUT lane text,
    OUT kind text,
    OUT rank integer,
    OUT attempts integer,
    OUT failures integer,
    OUT keyed boolean,
    OUT run_at timestamptz,
    OUT expires_at timestamptz,
    OUT asked_at timestamptz,
    OUT ready_at timestamptz,
    OUT claimed_at timestamptz,
    OUT last_lease bigint,
    OUT last_verb text,
    OUT worker text,
    OUT cancel_by timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    FOR v_round IN 1 .. 10 LOOP
        DELETE FROM pulse.approval AS a
        WHERE a.job = _take_out.job_id
        RETURNING
            'awaiting_approval', a.lane, a.kind, a.rank, 0, 0, a.keyed,
            a.run_at, a.expires_at, a.asked_at
        INTO state, lane, kind, rank, attempts, failures, keyed,
            run_at, expires_at, asked_at;

        IF FOUND THEN
            RETURN;
        END IF;

        DELETE FROM pulse.waiting AS w
        WHERE w.job = _take_out.job_id
        RETURNING
            CASE WHEN w.retrying THEN 'retrying' ELSE 'scheduled' END,
            w.lane, w.kind, w.rank, w.attempts, w.failures, w.keyed,
            w.run_at, w.last_lease, w.last_verb
        INTO state, lane, kind, rank, attempts, failures, keyed,
            run_at, last_lease, last_verb;

        IF FOUND THEN
            RETURN;
        END IF;

        DELETE FROM pulse.ready AS r
        WHERE r.job = _take_out.job_id
        RETURNING
            'ready', r.lane, r.kind, r.rank, r.attempts, r.failures, r.keyed,
            r.ready_at, r.last_lease, r.last_verb
        INTO state, lane, kind, rank, attempts, failures, keyed,
            ready_at, last_lease, last_verb;

        IF FOUND THEN
            RETURN;
        END IF;

        SELECT
            'running', l.lane, l.kind, l.rank, l.attempt, l.failures, l.keyed,
            l.claimed_at, l.worker, l.cancel_by
        INTO state, lane, kind, rank, attempts, failures, keyed,
            claimed_at, worker, cancel_by
        FROM pulse.lease AS l
        WHERE l.job = _take_out.job_id
        FOR UPDATE;

        IF FOUND THEN
            RETURN;
        END IF;

        SELECT
            f.state::text, f.lane, f.kind, f.rank, f.attempts, f.failures, f.keyed,
            f.claimed_at, f.worker
        INTO state, lane, kind, rank, attempts, failures, keyed,
            claimed_at, worker
        FROM pulse.finished AS f
        WHERE f.job = _take_out.job_id
        FOR UPDATE;

        IF FOUND THEN
            RETURN;
        END IF;

        IF NOT EXISTS (SELECT FROM pulse.body AS b WHERE b.job = _take_out.job_id) THEN
            PERFORM pulse._raise_no_such_job(_take_out.job_id);
        END IF;
    END LOOP;

    PERFORM pulse._raise_kept_moving(_take_out.job_id);
END;
$$;

COMMENT ON FUNCTION pulse._take_out(bigint) IS
'Take a job out of the line, or lock it where it runs or ended, and say what it was.';
