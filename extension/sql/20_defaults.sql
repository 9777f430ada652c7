-- The defaults of lanes; those of kinds are beside it. No other file repeats one.

CREATE FUNCTION pulse.lane_defaults()
RETURNS jsonb
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT to_jsonb(d) FROM pulse._lane_default AS d
$$;

COMMENT ON FUNCTION pulse.lane_defaults() IS
'The settings of a lane for which set_lane was never called, under the names that pulse.lanes gives them; what is missing (max_slots, max_runtime) has no limit. Writes nothing.';

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
SET enable_seqscan = off
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
        coalesce(l.cancel_grace, d.cancel_grace), coalesce(l.enabled, d.enabled),
        l.fair, l.group_slots, l.in_order, l.rate, l.rate_per, l.group_rate,
        l.group_rate_per, l.grouped
    INTO v_lane
    FROM pulse._lane_default AS d
    LEFT JOIN pulse.lane AS l ON l.lane = _lane_settings.lane;

    RETURN v_lane;
END;
$$;

COMMENT ON FUNCTION pulse._lane_settings(text) IS
'The settings of a lane with the defaults filled in; max_slots, max_runtime and group_slots may be NULL: no limit.';
