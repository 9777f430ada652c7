-- An exception for one group of a lane. As with set_lane, a claim sees what was before or
-- what is after.

CREATE FUNCTION pulse.set_group(
    lane text,
    group_key text,
    max_slots integer DEFAULT NULL,
    rate integer DEFAULT NULL,
    rate_per interval DEFAULT NULL,
    enabled boolean DEFAULT NULL,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(set_group.signature);
    v_lane pulse_internal.lane;
    v_before pulse_internal.group_rule;
    v_after pulse_internal.group_rule;
BEGIN
    PERFORM pulse_internal.require_read_committed('set_group');
    PERFORM pulse_internal.require_name('lane', set_group.lane);
    PERFORM pulse_internal.require_range(
        'set_group', 'group_key', coalesce(octet_length(set_group.group_key), 0)
    );
    PERFORM pulse_internal.require_range('set_group', 'max_slots', set_group.max_slots);
    PERFORM pulse_internal.require_reason(set_group.reason);

    -- Waits for open claims of this lane.
    PERFORM pulse_internal.lock_out_claims('pulse_internal.lane', hashtext(set_group.lane), 'set_group');

    SELECT l.* INTO v_lane
    FROM pulse_internal.lane AS l
    WHERE l.lane = set_group.lane;

    IF v_lane.grouped IS NOT TRUE THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('jobs of lane %L do not stand in groups', set_group.lane),
            'A group_key is a label there, and a rule for one would do nothing.',
            format('SELECT pulse.set_lane(%L, fair => true) lets groups take turns.', set_group.lane)
        );
    END IF;
    IF v_lane.in_order AND set_group.max_slots > 1 THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('max_slots is %s in a lane with in_order', set_group.max_slots),
            'What runs in order runs one at a time.',
            'Leave max_slots out.'
        );
    END IF;

    DELETE FROM pulse_internal.group_rule AS r
    WHERE r.lane = set_group.lane
        AND r.group_key = set_group.group_key
    RETURNING r.* INTO v_before;

    v_after := v_before;
    v_after.lane := set_group.lane;
    v_after.group_key := set_group.group_key;
    v_after.max_slots := nullif(coalesce(set_group.max_slots, v_before.max_slots), 0);
    SELECT g.rate, g.per INTO v_after.rate, v_after.rate_per
    FROM pulse_internal.rate_given(
        'rate', v_before.rate, v_before.rate_per, set_group.rate, set_group.rate_per
    ) AS g;
    v_after.enabled := coalesce(set_group.enabled, v_before.enabled, true);
    IF v_after.enabled THEN
        v_after.held_by := NULL;
        v_after.held_at := NULL;
        v_after.reason := NULL;
    ELSIF set_group.enabled IS NOT NULL THEN
        v_after.held_by := pulse_internal.role_name(v_who);
        v_after.held_at := clock_timestamp();
        v_after.reason := set_group.reason;
    END IF;

    IF num_nonnulls(v_after.max_slots, v_after.rate) > 0 OR NOT v_after.enabled THEN
        INSERT INTO pulse_internal.group_rule
        SELECT (v_after).*;
    END IF;

    IF v_after.max_slots IS NOT NULL AND v_lane.group_slots IS NULL THEN
        PERFORM pulse_internal.name_groups_of_leases(
            set_group.lane, set_group.group_key, 'set_group'
        );
    END IF;
    PERFORM pulse_internal.recount_groups(v_lane, set_group.group_key);

    PERFORM pulse_internal.audit(
        v_who, 'set_group', NULL, set_group.lane,
        jsonb_strip_nulls(to_jsonb(v_before)), jsonb_strip_nulls(to_jsonb(v_after)),
        set_group.reason
    );
    PERFORM pulse_internal.ring(set_group.lane);
END;
$$;

COMMENT ON FUNCTION pulse.set_group(
    text, text, integer, integer, interval, boolean, text,
    pulse_internal.caller_signature
) IS
'Make an exception for one group of a lane with fair or group_slots, from the next claim on; what is not given stays as it is. max_slots is how many of its jobs may run at once (0: as many as group_slots of the lane says), rate how many in any window of rate_per (0: as group_rate of the lane says), enabled => false stops it: what runs goes on, nothing more of it is claimed. PU002 outside the bounds, without a key, in a lane whose jobs do not stand in groups, or more than one slot in a lane with in_order; PU106 when open claims do not end within 10 s. Writes group_rule, lease, group_state and audit_entry.';
