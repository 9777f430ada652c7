-- A lane or kind has a row here only when set_lane or set_kind gave it settings; every column
-- that is NULL means "the default", and the defaults live in code (settings/defaults.sql
-- and settings/defaults.sql).

CREATE TABLE pulse_internal.lane (
    lane text COLLATE "C" NOT NULL,
    max_slots integer,
    max_batch integer,
    poll_interval interval,
    lease_for interval,
    max_runtime interval,
    retain_completed interval,
    retain_cancelled interval,
    retain_dead interval,
    cancel_grace interval,
    enabled boolean NOT NULL DEFAULT true,
    fair boolean,
    group_slots integer,
    in_order boolean,
    rate integer,
    rate_per interval,
    group_rate integer,
    group_rate_per interval,
    grouped boolean,
    CONSTRAINT lane_is_configured_once PRIMARY KEY (lane),
    CONSTRAINT lane_has_a_name CHECK (lane <> ''),
    CONSTRAINT lane_slots_are_positive CHECK (max_slots BETWEEN 1 AND 10000),
    CONSTRAINT lane_group_slots_are_positive CHECK (group_slots BETWEEN 1 AND 10000),
    CONSTRAINT lane_in_order_runs_one_of_a_group
    CHECK (in_order IS NOT TRUE OR group_slots IS NOT DISTINCT FROM 1),
    CONSTRAINT lane_is_grouped_for_a_reason
    CHECK (grouped IS NOT TRUE OR fair OR num_nonnulls(group_slots, group_rate) > 0),
    CONSTRAINT lane_rate_has_a_period
    CHECK (num_nonnulls(rate, rate_per) <> 1 AND num_nonnulls(group_rate, group_rate_per) <> 1)
);

-- grouped: true while its jobs stand in groups; false since that was switched off, until
-- none of them does.
CREATE INDEX lane_for_groups ON pulse_internal.lane (lane) WHERE grouped IS NOT NULL;

COMMENT ON TABLE pulse_internal.lane IS
'Settings of lanes that differ from the defaults.';

CREATE TABLE pulse_internal.kind (
    kind text COLLATE "C" NOT NULL,
    lane text COLLATE "C",
    priority integer,
    max_attempts integer,
    backoff text,
    backoff_base interval,
    backoff_cap interval,
    backoff_jitter double precision,
    lease_for interval,
    max_runtime interval,
    requires_approval boolean,
    approval_expiry interval,
    max_delay interval,
    rate integer,
    rate_per interval,
    CONSTRAINT kind_is_configured_once PRIMARY KEY (kind),
    CONSTRAINT kind_has_a_name CHECK (kind <> ''),
    CONSTRAINT kind_backoff_is_known
    CHECK (backoff IN ('quadratic', 'exponential', 'fixed', 'none')),
    CONSTRAINT kind_rate_has_a_period CHECK (num_nonnulls(rate, rate_per) <> 1)
);

-- Whether any kind has these is asked by every claim; one with a rate comes first.
CREATE INDEX kind_for_claim ON pulse_internal.kind (rate, kind)
WHERE lease_for IS NOT NULL OR max_runtime IS NOT NULL OR rate IS NOT NULL;

COMMENT ON TABLE pulse_internal.kind IS
'Settings of kinds that differ from the defaults.';

-- lane '' is every lane. A drained lane is a hold by the holder 'drain'.
CREATE TABLE pulse_internal.hold (
    lane text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    reason text,
    held_by name NOT NULL,
    held_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT hold_is_one_per_holder PRIMARY KEY (lane, holder)
);

COMMENT ON TABLE pulse_internal.hold IS
'Who keeps which lane (or, with an empty name, every lane) from being claimed, and why.';

-- What applications declare beside their code. declared is what was asked for; applied is
-- how that reads in the settings of the kind or in the schedule, NULL where it was never
-- written because another role had made one: what differs from it now is drift.
CREATE TABLE pulse_internal.declaration (
    item text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    application text COLLATE "C" NOT NULL,
    declared jsonb NOT NULL,
    applied jsonb,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT declaration_has_one_owner PRIMARY KEY (item, name),
    CONSTRAINT declaration_is_of_a_known_item CHECK (item IN ('kind', 'schedule'))
);

COMMENT ON TABLE pulse_internal.declaration IS
'Settings of kinds and schedules that an application declares, and how they were written.';
