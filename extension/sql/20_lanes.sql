-- The defaults of lanes and kinds, and how to change them. No other file repeats one.

CREATE VIEW pulse._lane_default
WITH (security_barrier)
AS
SELECT
    100 AS max_batch,
    interval '500 milliseconds' AS poll_interval,
    interval '30 seconds' AS lease_for,
    interval '48 hours' AS retain_completed,
    interval '48 hours' AS retain_cancelled,
    interval '7 days' AS retain_dead,
    interval '30 seconds' AS cancel_grace,
    true AS enabled;

COMMENT ON VIEW pulse._lane_default IS
'What a lane does where set_lane said nothing.';
COMMENT ON COLUMN pulse._lane_default.max_batch IS
'Jobs a claim may take.';
COMMENT ON COLUMN pulse._lane_default.poll_interval IS
'How often a worker looks.';
COMMENT ON COLUMN pulse._lane_default.lease_for IS
'How long a lease holds.';
COMMENT ON COLUMN pulse._lane_default.retain_completed IS
'How long a completed job is kept.';
COMMENT ON COLUMN pulse._lane_default.retain_cancelled IS
'How long a cancelled job is kept.';
COMMENT ON COLUMN pulse._lane_default.retain_dead IS
'How long a dead job is kept.';
COMMENT ON COLUMN pulse._lane_default.cancel_grace IS
'How long a run may take to stop.';
COMMENT ON COLUMN pulse._lane_default.enabled IS
'Whether it may be claimed.';

CREATE FUNCTION pulse._lane_settings(lane text)
RETURNS pulse.lane
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lane pulse.lane;
BEGIN
    -- One statement: PL/pgSQL would set up each assignment anew in every transaction.
    SELECT
        _lane_settings.lane, l.max_slots, coalesce(l.max_batch, d.max_batch),
        coalesce(l.poll_interval, d.poll_interval), coalesce(l.lease_for, d.lease_for),
        l.max_runtime, coalesce(l.retain_completed, d.retain_completed),
        coalesce(l.retain_cancelled, d.retain_cancelled),
        coalesce(l.retain_dead, d.retain_dead),
        coalesce(l.cancel_grace, d.cancel_grace), coalesce(l.enabled, d.enabled)
    INTO v_lane
    FROM pulse._lane_default AS d
    LEFT JOIN pulse.lane AS l ON l.lane = _lane_settings.lane;

    RETURN v_lane;
END;
$$;

COMMENT ON FUNCTION pulse._lane_settings(text) IS
'The settings of a lane with the defaults filled in; max_slots and max_runtime may be NULL: no limit.';

CREATE FUNCTION pulse._kind_settings(kind text)
RETURNS pulse.kind
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kind pulse.kind;
BEGIN
    -- One statement: PL/pgSQL would set up each assignment anew in every transaction.
    SELECT
        _kind_settings.kind, coalesce(k.lane, 'default'), coalesce(k.priority, 0),
        coalesce(k.max_attempts, 3), k.backoff, k.backoff_base, k.backoff_cap,
        k.backoff_jitter, k.lease_for, k.max_runtime,
        coalesce(k.requires_approval, false), coalesce(k.approval_expiry, '24 hours')
    INTO v_kind
    FROM (VALUES (1)) AS always (one)
    LEFT JOIN pulse.kind AS k ON k.kind = _kind_settings.kind;

    RETURN v_kind;
END;
$$;

COMMENT ON FUNCTION pulse._kind_settings(text) IS
'The settings of a kind with the defaults filled in; the backoff columns, lease_for and max_runtime may be NULL.';

-- How long a failed job waits before its next run. The arguments are what the kind
-- says; NULL means the default.
CREATE FUNCTION pulse._backoff(
    policy text, base interval, cap interval, jitter double precision, failures integer
)
RETURNS interval
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_policy text := coalesce(_backoff.policy, 'quadratic');
    v_base interval := coalesce(_backoff.base, '1 second');
    v_cap interval := coalesce(
        _backoff.cap,
        CASE WHEN v_policy = 'exponential' THEN interval '60 seconds' ELSE '1 hour' END
    );
    v_spread double precision := (random() * 2 - 1) * coalesce(_backoff.jitter, 0.1);
    -- Beyond 2^40 every policy has met its cap, and intervals overflow not far above.
    v_factor double precision := CASE v_policy
        WHEN 'quadratic' THEN least(_backoff.failures::double precision ^ 2, 1e9)
        WHEN 'exponential' THEN 2.0 ^ least(_backoff.failures, 30)
        WHEN 'fixed' THEN 1
        ELSE 0
    END;
    v_seconds double precision := extract(epoch FROM v_base) * v_factor * (1 + v_spread);
BEGIN
    RETURN make_interval(secs => least(v_seconds, extract(epoch FROM v_cap)));
END;
$$;

COMMENT ON FUNCTION pulse._backoff(text, interval, interval, double precision, integer) IS
'The pause before the next run: quadratic, exponential, fixed or none, with jitter, never above the cap.';

-- Waits at most ten seconds, in the queue of the lock: while it waits, every claim's
-- try of the same lock is refused, so a stream of claims cannot starve it.
CREATE FUNCTION pulse._lock_out_claims(class regclass, key integer, verb text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    v_pids text;
BEGIN
    PERFORM pg_advisory_xact_lock(_lock_out_claims.class::oid::integer, key);
EXCEPTION
    WHEN lock_not_available THEN
        SELECT string_agg(DISTINCT coalesce(l.pid::text, 'a prepared transaction'), ', ')
        INTO v_pids
        FROM pg_locks AS l
        WHERE l.locktype = 'advisory'
            AND l.database = (
                SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
            )
            AND l.classid = _lock_out_claims.class::oid
            AND l.objid = (key::bigint & 4294967295)::oid
            AND l.granted;
        PERFORM pulse._raise(
            'PU106',
            format('%s could not shut out open claims within 10 seconds', verb),
            format('Transactions of these backends hold them open: %s.', v_pids),
            'End those transactions (a claim belongs in a short transaction of its own) and try again.'
        );
END;
$$;

COMMENT ON FUNCTION pulse._lock_out_claims(regclass, integer, text) IS
'Take the hold lock or a lane lock exclusively, or raise PU106.';

CREATE FUNCTION pulse.set_lane(
    name text,
    max_slots integer DEFAULT NULL,
    max_batch integer DEFAULT NULL,
    poll_interval interval DEFAULT NULL,
    lease_for interval DEFAULT NULL,
    max_runtime interval DEFAULT NULL,
    retain_completed interval DEFAULT NULL,
    retain_cancelled interval DEFAULT NULL,
    retain_dead interval DEFAULT NULL,
    cancel_grace interval DEFAULT NULL,
    enabled boolean DEFAULT NULL,
    reason text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before pulse.lane;
    v_after pulse.lane;
BEGIN
    PERFORM pulse._require_read_committed('set_lane');
    PERFORM pulse._require_name('name', set_lane.name);
    PERFORM pulse._require_between('max_slots', set_lane.max_slots, 0, 10000);
    PERFORM pulse._require_between('max_batch', set_lane.max_batch, 1, 10000);
    PERFORM pulse._require_duration('poll_interval', set_lane.poll_interval, '10 ms', '1 hour');
    PERFORM pulse._require_duration('lease_for', set_lane.lease_for, '1 second', '1 day');
    PERFORM pulse._require_duration('max_runtime', set_lane.max_runtime, '0', '1 year');
    PERFORM pulse._require_duration('retain_completed', set_lane.retain_completed, '0', '10 years');
    PERFORM pulse._require_duration('retain_cancelled', set_lane.retain_cancelled, '0', '10 years');
    PERFORM pulse._require_duration('retain_dead', set_lane.retain_dead, '0', '10 years');
    PERFORM pulse._require_duration('cancel_grace', set_lane.cancel_grace, '0', '1 day');
    PERFORM pulse._require_reason(set_lane.reason);

    -- Waits for open claims of this lane: settings change between claims.
    PERFORM pulse._lock_out_claims('pulse.lane', hashtext(set_lane.name), 'set_lane');

    SELECT l.* INTO v_before
    FROM pulse.lane AS l
    WHERE l.lane = set_lane.name;

    v_after := v_before;
    v_after.lane := set_lane.name;
    v_after.max_slots := nullif(coalesce(set_lane.max_slots, v_before.max_slots), 0);
    v_after.max_batch := coalesce(set_lane.max_batch, v_before.max_batch);
    v_after.poll_interval := coalesce(set_lane.poll_interval, v_before.poll_interval);
    v_after.lease_for := coalesce(set_lane.lease_for, v_before.lease_for);
    v_after.max_runtime := nullif(coalesce(set_lane.max_runtime, v_before.max_runtime), '0');
    v_after.retain_completed := coalesce(set_lane.retain_completed, v_before.retain_completed);
    v_after.retain_cancelled := coalesce(set_lane.retain_cancelled, v_before.retain_cancelled);
    v_after.retain_dead := coalesce(set_lane.retain_dead, v_before.retain_dead);
    v_after.cancel_grace := coalesce(set_lane.cancel_grace, v_before.cancel_grace);
    v_after.enabled := coalesce(set_lane.enabled, v_before.enabled, true);

    DELETE FROM pulse.lane AS l
    WHERE l.lane = set_lane.name;

    INSERT INTO pulse.lane
    SELECT (v_after).*;

    -- Claims of a lane without limit keep no roster, so it is made when one appears.
    DELETE FROM pulse.roster AS r
    WHERE r.lane = set_lane.name;

    IF v_after.max_slots IS NOT NULL THEN
        PERFORM pulse._call_the_roll(set_lane.name);
    END IF;

    PERFORM pulse._audit(
        'set_lane', NULL, set_lane.name,
        jsonb_strip_nulls(to_jsonb(v_before)), jsonb_strip_nulls(to_jsonb(v_after)),
        set_lane.reason
    );
    PERFORM pulse._ring(set_lane.name);
END;
$$;

COMMENT ON FUNCTION pulse.set_lane(
    text, integer, integer, interval, interval, interval,
    interval, interval, interval, interval, boolean, text
) IS
'Change settings of a lane from the next claim on; what is not given stays as it is. max_slots 0 means no limit (the default), max_runtime 0 none. Lowering max_slots stops nothing that runs. PU002 outside the bounds, PU106 when open claims do not end within 10 s.';

-- Only under the exclusive lane lock, or the roster lock of a limited lane, taken in an
-- earlier statement.
CREATE FUNCTION pulse._call_the_roll(lane text)
RETURNS bigint []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_leases bigint [];
BEGIN
    v_leases := array(
        SELECT l.lease
        FROM pulse.lease AS l
        WHERE l.lane = _call_the_roll.lane
        ORDER BY l.lease
    );

    INSERT INTO pulse.roster (lane, leases)
    VALUES (_call_the_roll.lane, v_leases);

    RETURN v_leases;
END;
$$;

COMMENT ON FUNCTION pulse._call_the_roll(text) IS
'Write the roster of a lane from its leases.';

CREATE FUNCTION pulse.set_kind(
    kind text,
    lane text DEFAULT NULL,
    priority integer DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    backoff text DEFAULT NULL,
    backoff_base interval DEFAULT NULL,
    backoff_cap interval DEFAULT NULL,
    backoff_jitter double precision DEFAULT NULL,
    lease_for interval DEFAULT NULL,
    max_runtime interval DEFAULT NULL,
    requires_approval boolean DEFAULT NULL,
    approval_expiry interval DEFAULT NULL,
    reason text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before pulse.kind;
    v_after pulse.kind;
BEGIN
    PERFORM pulse._require_read_committed('set_kind');
    PERFORM pulse._require_name('kind', set_kind.kind);
    IF set_kind.lane IS NOT NULL THEN
        PERFORM pulse._require_name('lane', set_kind.lane);
    END IF;
    PERFORM pulse._require_between('priority', set_kind.priority, -2000000000, 2000000000);
    PERFORM pulse._require_between('max_attempts', set_kind.max_attempts, 1, 100000);
    PERFORM pulse._require_one_of(
        'backoff', set_kind.backoff, '{quadratic,exponential,fixed,none}'
    );
    PERFORM pulse._require_duration('backoff_base', set_kind.backoff_base, '0', '1 day');
    PERFORM pulse._require_duration('backoff_cap', set_kind.backoff_cap, '0', '1 year');
    PERFORM pulse._require_between('backoff_jitter', set_kind.backoff_jitter::numeric, 0, 1);
    PERFORM pulse._require_duration('lease_for', set_kind.lease_for, '1 second', '1 day');
    PERFORM pulse._require_duration('max_runtime', set_kind.max_runtime, '0', '1 year');
    PERFORM pulse._require_duration('approval_expiry', set_kind.approval_expiry, '1 second', '10 years');
    PERFORM pulse._require_reason(set_kind.reason);

    -- Waits for another change of this kind: what is not given must stay as it is.
    PERFORM pg_advisory_xact_lock(
        'pulse.kind'::regclass::oid::integer, hashtext(set_kind.kind)
    );

    SELECT k.* INTO v_before
    FROM pulse.kind AS k
    WHERE k.kind = set_kind.kind;

    v_after := v_before;
    v_after.kind := set_kind.kind;
    v_after.lane := coalesce(set_kind.lane, v_before.lane);
    v_after.priority := coalesce(set_kind.priority, v_before.priority);
    v_after.max_attempts := coalesce(set_kind.max_attempts, v_before.max_attempts);
    v_after.backoff := coalesce(set_kind.backoff, v_before.backoff);
    v_after.backoff_base := coalesce(set_kind.backoff_base, v_before.backoff_base);
    v_after.backoff_cap := coalesce(set_kind.backoff_cap, v_before.backoff_cap);
    v_after.backoff_jitter := coalesce(set_kind.backoff_jitter, v_before.backoff_jitter);
    v_after.lease_for := coalesce(set_kind.lease_for, v_before.lease_for);
    v_after.max_runtime := nullif(coalesce(set_kind.max_runtime, v_before.max_runtime), '0');
    v_after.requires_approval := coalesce(
        set_kind.requires_approval, v_before.requires_approval
    );
    v_after.approval_expiry := coalesce(set_kind.approval_expiry, v_before.approval_expiry);

    DELETE FROM pulse.kind AS k
    WHERE k.kind = set_kind.kind;

    INSERT INTO pulse.kind
    SELECT (v_after).*;

    PERFORM pulse._audit(
        'set_kind', NULL, v_after.lane,
        jsonb_strip_nulls(to_jsonb(v_before)), jsonb_strip_nulls(to_jsonb(v_after)),
        set_kind.reason
    );
END;
$$;

COMMENT ON FUNCTION pulse.set_kind(
    text, text, integer, integer, text, interval, interval,
    double precision, interval, interval, boolean, interval, text
) IS
'Change settings of a kind; what is not given stays as it is. lane, priority, max_attempts and approval apply to jobs enqueued afterwards, the rest from the next claim or failure on. backoff is quadratic (default), exponential, fixed or none. PU002 outside the bounds.';
