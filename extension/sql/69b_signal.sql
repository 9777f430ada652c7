-- Signals and waits meet under the name lock (advisory, pulse.signal): a job that begins to
-- wait tries it exclusively, senders take it shared. So a signal is either committed before
-- the job looks, or its sender finds the wait. A try that is refused means that a sender is
-- open: the job comes back in a second. Each role that sends has a lock of its own, since
-- one that keeps its transaction open must not hold up the jobs of others.
--
-- A job that waits is given what was sent when it is woken, in its step: it has it however
-- late it runs, and however short the signal is kept.

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

    RETURN pulse._deliver_signal(_do_signal.signal, v_owner, 10000);
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
