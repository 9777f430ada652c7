-- A change of a lane waits for the claims that are open and keeps new ones out until it
-- commits: a claim sees the old settings or the new ones.

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
    reason text DEFAULT NULL,
    fair boolean DEFAULT NULL,
    group_slots integer DEFAULT NULL,
    in_order boolean DEFAULT NULL,
    rate integer DEFAULT NULL,
    rate_per interval DEFAULT NULL,
    group_rate integer DEFAULT NULL,
    group_rate_per interval DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(set_lane.signature);
    v_before pulse_internal.lane;
    v_after pulse_internal.lane;
BEGIN
    PERFORM pulse_internal.require_read_committed('set_lane');
    PERFORM pulse_internal.require_name('name', set_lane.name);
    PERFORM pulse_internal.require_range('set_lane', 'max_slots', set_lane.max_slots);
    PERFORM pulse_internal.require_range(
        'set_lane', 'group_slots', set_lane.group_slots
    );
    PERFORM pulse_internal.require_range('set_lane', 'max_batch', set_lane.max_batch);
    PERFORM pulse_internal.require_range(
        'set_lane', 'poll_interval', set_lane.poll_interval
    );
    PERFORM pulse_internal.require_range('*', 'lease_for', set_lane.lease_for);
    PERFORM pulse_internal.require_range(
        'set_lane', 'max_runtime', set_lane.max_runtime
    );
    PERFORM pulse_internal.require_range(
        'set_lane', 'retain_completed', set_lane.retain_completed
    );
    PERFORM pulse_internal.require_range(
        'set_lane', 'retain_cancelled', set_lane.retain_cancelled
    );
    PERFORM pulse_internal.require_range(
        'set_lane', 'retain_dead', set_lane.retain_dead
    );
    PERFORM pulse_internal.require_range(
        'set_lane', 'cancel_grace', set_lane.cancel_grace
    );
    PERFORM pulse_internal.require_reason(set_lane.reason);

    -- Waits for open claims of this lane: settings change between claims.
    PERFORM pulse_internal.lock_out_claims('pulse_internal.lane', hashtext(set_lane.name), 'set_lane');

    SELECT l.* INTO v_before
    FROM pulse_internal.lane AS l
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
    v_after.fair := nullif(coalesce(set_lane.fair, v_before.fair), false);
    v_after.in_order := nullif(coalesce(set_lane.in_order, v_before.in_order), false);
    v_after.group_slots := nullif(
        coalesce(
            set_lane.group_slots, CASE WHEN v_after.in_order THEN 1 END,
            v_before.group_slots
        ),
        0
    );
    IF v_after.in_order AND v_after.group_slots IS DISTINCT FROM 1 THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('group_slots is %s in a lane with in_order', set_lane.group_slots),
            'What runs in order runs one at a time: group_slots 1.',
            'Leave group_slots out, or pass in_order => false with it.'
        );
    END IF;
    SELECT g.rate, g.per INTO v_after.rate, v_after.rate_per
    FROM pulse_internal.rate_given(
        'rate', v_before.rate, v_before.rate_per, set_lane.rate, set_lane.rate_per
    ) AS g;
    SELECT g.rate, g.per INTO v_after.group_rate, v_after.group_rate_per
    FROM pulse_internal.rate_given(
        'group_rate', v_before.group_rate, v_before.group_rate_per,
        set_lane.group_rate, set_lane.group_rate_per
    ) AS g;
    -- Switched off, it is false until no job stands in a group any more.
    v_after.grouped := CASE
        WHEN num_nonnulls(v_after.fair, v_after.group_slots, v_after.group_rate) > 0 THEN true
        WHEN v_before.grouped IS NOT NULL THEN false
    END;

    DELETE FROM pulse_internal.lane AS l
    WHERE l.lane = set_lane.name;

    INSERT INTO pulse_internal.lane
    SELECT (v_after).*;

    -- Claims of a lane without limit keep no roster, so it is made when one appears.
    DELETE FROM pulse_internal.roster AS r
    WHERE r.lane = set_lane.name;

    IF v_after.max_slots IS NOT NULL THEN
        PERFORM pulse_internal.rebuild_roster(set_lane.name);
    END IF;

    IF v_after.rate IS NULL THEN
        DELETE FROM pulse_internal.quota AS q
        WHERE q.lane = set_lane.name;
    END IF;

    IF num_nonnulls(v_before.grouped, v_after.grouped) > 0 THEN
        PERFORM pulse_internal.regroup(v_before, v_after);
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'set_lane', NULL, set_lane.name,
        jsonb_strip_nulls(to_jsonb(v_before) - 'grouped'),
        jsonb_strip_nulls(to_jsonb(v_after) - 'grouped'),
        set_lane.reason
    );
    PERFORM pulse_internal.ring(set_lane.name);
END;
$$;

COMMENT ON FUNCTION pulse.set_lane(
    text, integer, integer, interval, interval, interval,
    interval, interval, interval, interval, boolean, text, boolean, integer, boolean,
    integer, interval, integer, interval,
    pulse_internal.caller_signature
) IS
'Change settings of a lane from the next claim on; what is not given stays as it is. max_slots 0 means no limit (the default), max_runtime 0 none. fair lets the groups of the lane (jobs with the same group_key) take turns inside a priority; group_slots is how many jobs of one group may run at once (0: no limit) and lets them take turns as well; in_order, with group_slots 1, lets a group wait for a job that is retried, snoozed or released, which keeps its place. rate is how many jobs of the lane may start in any window of rate_per, group_rate and group_rate_per the same for each group (0: no limit). Lowering a limit stops nothing that runs. PU002 outside the bounds, PU106 when open claims do not end within 10 s. Writes lane, roster, quota, audit_entry and, where jobs stand in groups, lease, group_state and group_mark.';

-- The locks of a lane.

-- For at most 50 ms: a claim inside a long transaction must not stall the others
-- of its lane for ever. Not by pg_sleep: a clock that is set back by an hour would make it
-- sleep for one, with the hold lock. It would stretch lock_timeout too, but that wait ends
-- with the claim that has the lock.
CREATE FUNCTION pulse_internal.take_turn(lane text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
DECLARE
    v_class integer := 'pulse_internal.roster'::regclass::oid::integer;
    v_key integer := hashtext(take_turn.lane);
BEGIN
    -- Mostly it is free, and a try needs no subtransaction.
    IF pg_try_advisory_xact_lock(v_class, v_key) THEN
        RETURN true;
    END IF;
    BEGIN
        PERFORM pg_advisory_xact_lock(v_class, v_key);
        RETURN true;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN false;
    END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_turn(text) IS
'Take the roster lock of a lane, if it can be had within 50 ms.';

-- Waits at most ten seconds, in the queue of the lock: while it waits, every claim's
-- try of the same lock is refused, so a stream of claims cannot starve it. Opens the table
-- that the lock is named for, as every call that holds one (health/server.sql).
CREATE FUNCTION pulse_internal.lock_out_claims(class regclass, key integer, verb text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DECLARE
    v_pids text;
BEGIN
    EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE', lock_out_claims.class);
    PERFORM pg_advisory_xact_lock(lock_out_claims.class::oid::integer, key);
EXCEPTION
    WHEN lock_not_available THEN
        SELECT string_agg(DISTINCT coalesce(l.pid::text, 'a prepared transaction'), ', ')
        INTO v_pids
        FROM pg_locks AS l
        WHERE l.locktype = 'advisory'
            AND l.database = (
                SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
            )
            AND l.classid = lock_out_claims.class::oid
            AND l.objid = (key::bigint & 4294967295)::oid
            AND l.granted;
        PERFORM pulse_internal.raise(
            'PU106',
            format('%s could not shut out open claims within 10 seconds', verb),
            format('Transactions of these backends hold them open: %s.', v_pids),
            'End those transactions (a claim belongs in a short transaction of its own) and try again.'
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.lock_out_claims(regclass, integer, text) IS
'Take the hold lock, a lane lock or that of a kind exclusively, or raise PU106.';
