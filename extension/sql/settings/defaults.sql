-- The defaults of lanes and kinds. enqueue/enqueue.sql repeats three of a kind (lane, priority,
-- max_attempts): a call of this file costs a single enqueue more than it may.

CREATE FUNCTION pulse.lane_defaults()
RETURNS jsonb
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT to_jsonb(d) FROM pulse_internal.lane_default AS d
$$;

COMMENT ON FUNCTION pulse.lane_defaults() IS
'The settings of a lane for which set_lane was never called, under the names that pulse.lanes gives them; what is missing (max_slots, max_runtime) has no limit. Writes nothing.';

CREATE VIEW pulse_internal.lane_default
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

COMMENT ON VIEW pulse_internal.lane_default IS
'What a lane does where set_lane said nothing.';

COMMENT ON COLUMN pulse_internal.lane_default.max_batch IS
'Jobs a claim may take.';

COMMENT ON COLUMN pulse_internal.lane_default.poll_interval IS
'How often a worker looks.';

COMMENT ON COLUMN pulse_internal.lane_default.lease_for IS
'How long a lease holds.';

COMMENT ON COLUMN pulse_internal.lane_default.retain_completed IS
'How long a completed job is kept.';

COMMENT ON COLUMN pulse_internal.lane_default.retain_cancelled IS
'How long a cancelled job is kept.';

COMMENT ON COLUMN pulse_internal.lane_default.retain_dead IS
'How long a dead job is kept.';

COMMENT ON COLUMN pulse_internal.lane_default.cancel_grace IS
'How long a run may take to stop.';

COMMENT ON COLUMN pulse_internal.lane_default.enabled IS
'Whether it may be claimed.';

CREATE FUNCTION pulse_internal.lane_settings(lane text)
RETURNS pulse_internal.lane
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_lane pulse_internal.lane;
BEGIN
    -- One statement: PL/pgSQL would set up each assignment anew in every transaction.
    SELECT
        lane_settings.lane, l.max_slots, coalesce(l.max_batch, d.max_batch),
        coalesce(l.poll_interval, d.poll_interval), coalesce(l.lease_for, d.lease_for),
        l.max_runtime, coalesce(l.retain_completed, d.retain_completed),
        coalesce(l.retain_cancelled, d.retain_cancelled),
        coalesce(l.retain_dead, d.retain_dead),
        coalesce(l.cancel_grace, d.cancel_grace), coalesce(l.enabled, d.enabled),
        l.fair, l.group_slots, l.in_order, l.rate, l.rate_per, l.group_rate,
        l.group_rate_per, l.grouped
    INTO v_lane
    FROM pulse_internal.lane_default AS d
    LEFT JOIN pulse_internal.lane AS l ON l.lane = lane_settings.lane;

    RETURN v_lane;
END;
$$;

COMMENT ON FUNCTION pulse_internal.lane_settings(text) IS
'The settings of a lane with the defaults filled in; max_slots, max_runtime and group_slots may be NULL: no limit.';

-- What a kind does where set_kind said nothing, and how long its failed jobs wait.

CREATE FUNCTION pulse_internal.kind_settings(kind text)
RETURNS pulse_internal.kind_settings
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_kind pulse_internal.kind_settings;
BEGIN
    -- One statement: PL/pgSQL would set up each assignment anew in every transaction. That
    -- is why who is about to draw ids meets a new server here.
    SELECT
        CASE
            WHEN pg_sequence_last_value('pulse_internal.server_start')
                = (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint
                OR pulse_internal.meet_server()
                THEN kind_settings.kind
        END,
        coalesce(k.lane, 'default'), coalesce(k.priority, 0),
        coalesce(k.max_attempts, 3), k.backoff, k.backoff_base, k.backoff_cap,
        k.backoff_jitter, k.lease_for, k.max_runtime,
        coalesce(k.requires_approval, false), coalesce(k.approval_expiry, '24 hours')
    INTO v_kind
    FROM (VALUES (1)) AS always (one)
    LEFT JOIN pulse_internal.kind AS k ON k.kind = kind_settings.kind;

    RETURN v_kind;
END;
$$;

COMMENT ON FUNCTION pulse_internal.kind_settings(text) IS
'The settings of a kind with the defaults filled in; the backoff columns, lease_for and max_runtime may be NULL.';

-- How long a failed job waits before its next run. The arguments are what the kind
-- says; NULL means the default.
CREATE FUNCTION pulse_internal.backoff(
    policy text, base interval, cap interval, jitter double precision, failures integer
)
RETURNS interval
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_policy text := coalesce(backoff.policy, 'quadratic');
    v_base interval := coalesce(backoff.base, '1 second');
    v_cap interval := coalesce(
        backoff.cap,
        CASE WHEN v_policy = 'exponential' THEN interval '60 seconds' ELSE '1 hour' END
    );
    v_spread double precision := (random() * 2 - 1) * coalesce(backoff.jitter, 0.1);
    -- Beyond 2^40 every policy has met its cap, and intervals overflow not far above.
    v_factor double precision := CASE v_policy
        WHEN 'quadratic' THEN least(backoff.failures::double precision ^ 2, 1e9)
        WHEN 'exponential' THEN 2.0 ^ least(backoff.failures, 30)
        WHEN 'fixed' THEN 1
        ELSE 0
    END;
    v_seconds double precision := extract(epoch FROM v_base) * v_factor * (1 + v_spread);
BEGIN
    RETURN make_interval(secs => least(v_seconds, extract(epoch FROM v_cap)));
END;
$$;

COMMENT ON FUNCTION pulse_internal.backoff(text, interval, interval, double precision, integer) IS
'The pause before the next run: quadratic, exponential, fixed or none, with jitter, never above the cap.';
