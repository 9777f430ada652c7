-- set_kind changes the settings of a kind; NULL means that a setting stays as it is. It
-- writes kind, quota and audit_entry. It locks kind against other changes, and where a
-- rate changes it shuts out the claims that the rate concerns (change_rate), so that a
-- claim sees the old rate or the new one. Settings that an application declared and no
-- longer declares go by unset_kind.

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
    reason text DEFAULT NULL,
    max_delay interval DEFAULT NULL,
    rate integer DEFAULT NULL,
    rate_per interval DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(set_kind.signature);
    v_before pulse_internal.kind;
    v_after pulse_internal.kind;
BEGIN
    PERFORM pulse_internal.require_read_committed('set_kind');
    PERFORM pulse_internal.require_name('kind', set_kind.kind);
    IF set_kind.lane IS NOT NULL THEN
        PERFORM pulse_internal.require_name('lane', set_kind.lane);
    END IF;
    IF set_kind.priority IS NOT NULL THEN
        PERFORM pulse_internal.require_priority(set_kind.priority);
    END IF;
    PERFORM pulse_internal.require_range('*', 'max_attempts', set_kind.max_attempts);
    PERFORM pulse_internal.require_range('*', 'backoff', set_kind.backoff);
    PERFORM pulse_internal.require_range(
        'set_kind', 'backoff_base', set_kind.backoff_base
    );
    PERFORM pulse_internal.require_range(
        'set_kind', 'backoff_cap', set_kind.backoff_cap
    );
    PERFORM pulse_internal.require_range(
        'set_kind', 'backoff_jitter', set_kind.backoff_jitter::numeric
    );
    PERFORM pulse_internal.require_range('*', 'lease_for', set_kind.lease_for);
    PERFORM pulse_internal.require_range(
        'set_kind', 'max_runtime', set_kind.max_runtime
    );
    PERFORM pulse_internal.require_range(
        'set_kind', 'approval_expiry', set_kind.approval_expiry
    );
    PERFORM pulse_internal.require_range('set_kind', 'max_delay', set_kind.max_delay);
    PERFORM pulse_internal.require_reason(set_kind.reason);

    -- Waits for another change of this kind: what is not given must stay as it is.
    -- A table lock, since nobody else may take one; enqueues and claims read on.
    LOCK TABLE pulse_internal.kind IN SHARE ROW EXCLUSIVE MODE;

    SELECT k.* INTO v_before
    FROM pulse_internal.kind AS k
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
    v_after.max_delay := nullif(coalesce(set_kind.max_delay, v_before.max_delay), '0');
    SELECT g.rate, g.per INTO v_after.rate, v_after.rate_per
    FROM pulse_internal.rate_given(
        'rate', v_before.rate, v_before.rate_per, set_kind.rate, set_kind.rate_per
    ) AS g;
    PERFORM pulse_internal.change_rate(v_before, v_after);

    DELETE FROM pulse_internal.kind AS k
    WHERE k.kind = set_kind.kind;

    INSERT INTO pulse_internal.kind
    SELECT (v_after).*;

    PERFORM pulse_internal.audit(
        v_who, 'set_kind', NULL, v_after.lane,
        jsonb_strip_nulls(to_jsonb(v_before)), jsonb_strip_nulls(to_jsonb(v_after)),
        set_kind.reason
    );
    -- A worker may sleep until the rate that was has a start.
    IF v_before.rate IS NOT NULL THEN
        PERFORM pulse_internal.ring(coalesce(v_after.lane, 'default'));
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.set_kind(
    text, text, integer, integer, text, interval, interval,
    double precision, interval, interval, boolean, interval, text, interval, integer, interval,
    pulse_internal.caller_signature
) IS
'Change settings of a kind; what is not given stays as it is. lane, priority, max_attempts and approval apply to jobs enqueued afterwards, the rest from the next claim, failure or enqueue on. max_delay: enqueues with on_conflict replace or follow put a waiting job off to that long after it was first enqueued and no further; 0 for no bound. rate is how many jobs of the kind may start in any window of rate_per, whatever lanes they are in (0: no limit). backoff is quadratic (default), exponential, fixed or none. PU002 outside the bounds, PU106 when open claims, of a kind whose rate changes or before its first rate of all kinds, do not end within 10 s. Writes kind, quota and audit_entry.';

-- Waits for open claims that count starts of the kind, so that a rate changes between claims;
-- new ones leave the kind out meanwhile. Before its first rate none counts, so it waits for all.
CREATE FUNCTION pulse_internal.change_rate(before pulse_internal.kind, after pulse_internal.kind)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kind text := (change_rate.before).kind;
BEGIN
    IF ((change_rate.before).rate, (change_rate.before).rate_per)
        IS NOT DISTINCT FROM ((change_rate.after).rate, (change_rate.after).rate_per)
    THEN
        RETURN;
    END IF;

    IF (change_rate.before).rate IS NULL THEN
        PERFORM pulse_internal.lock_out_claims('pulse_internal.hold', 0, 'set_kind');
        RETURN;
    END IF;

    PERFORM pulse_internal.lock_out_claims('pulse_internal.quota', hashtext(v_kind), 'set_kind');

    IF (change_rate.after).rate IS NULL THEN
        DELETE FROM pulse_internal.quota AS q
        WHERE q.lane = ''
            AND q.kind = v_kind;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.change_rate(pulse_internal.kind, pulse_internal.kind) IS
'What a change of the rate of a kind needs: PU106 when open claims do not end within 10 s.';

-- For reconcile (settings/reconcile.sql): what was declared and no longer is.
CREATE FUNCTION pulse_internal.unset_kind(
    kind text,
    settings text [],
    reason text,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(unset_kind.signature);
    v_before pulse_internal.kind;
    v_after jsonb;
BEGIN
    -- As in set_kind.
    LOCK TABLE pulse_internal.kind IN SHARE ROW EXCLUSIVE MODE;

    DELETE FROM pulse_internal.kind AS k
    WHERE k.kind = unset_kind.kind
    RETURNING k.* INTO v_before;

    v_after := jsonb_strip_nulls(to_jsonb(v_before)) - unset_kind.settings;
    -- Half a rate is none.
    IF NOT v_after ?& '{rate,rate_per}' THEN
        v_after := v_after - '{rate,rate_per}'::text [];
    END IF;
    PERFORM pulse_internal.change_rate(
        v_before, jsonb_populate_record(NULL::pulse_internal.kind, v_after)
    );
    IF v_after - 'kind' <> '{}' THEN
        INSERT INTO pulse_internal.kind
        SELECT (jsonb_populate_record(NULL::pulse_internal.kind, v_after)).*;
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'set_kind', NULL, v_before.lane, jsonb_strip_nulls(to_jsonb(v_before)),
        v_after, unset_kind.reason
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.unset_kind(
    text, text [], text, pulse_internal.caller_signature
) IS
'Give settings of a kind back to the defaults. Writes kind and audit_entry.';
