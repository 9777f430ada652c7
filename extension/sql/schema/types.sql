-- What the functions hand back. Fields may be added at the end of a type, never
-- removed or reordered: clients of the previous version read them by name.

CREATE TYPE pulse_internal.outcome AS ENUM ('completed', 'dead', 'cancelled');

COMMENT ON TYPE pulse_internal.outcome IS
'How a job ended.';

CREATE TYPE pulse.claimed AS (
    lease bigint,
    job_id bigint,
    kind text,
    payload jsonb,
    attempt integer,
    failures integer,
    max_attempts integer,
    priority integer,
    lease_until timestamptz,
    deadline timestamptz,
    enqueued_at timestamptz,
    checkpoint jsonb,
    group_key text,
    headers jsonb,
    flow text,
    name text
);

COMMENT ON TYPE pulse.claimed IS
'One claimed job: the lease is the token that every worker verb takes.';

CREATE TYPE pulse.verdict AS (
    lease bigint,
    verdict text
);

COMMENT ON TYPE pulse.verdict IS
'What became of one report: ok, lost (the lease was taken away) or too_large.';

CREATE TYPE pulse.beat AS (
    lease bigint,
    verdict text,
    lease_until timestamptz
);

COMMENT ON TYPE pulse.beat IS
'The answer to one heartbeat: ok, lost, cancel or deadline.';

CREATE TYPE pulse.exchanged AS (
    item text,
    verdict text,
    lane text,
    lease bigint,
    job_id bigint,
    kind text,
    payload jsonb,
    attempt integer,
    failures integer,
    max_attempts integer,
    priority integer,
    lease_until timestamptz,
    deadline timestamptz,
    enqueued_at timestamptz,
    checkpoint jsonb,
    group_key text,
    headers jsonb,
    flow text,
    name text
);

COMMENT ON TYPE pulse.exchanged IS
'One line of an exchange: item is job (a claim), or done or failed (a report that was refused, with its verdict).';

CREATE TYPE pulse_internal.enqueued AS (
    job_id bigint,
    created boolean,
    written boolean
);

COMMENT ON TYPE pulse_internal.enqueued IS
'The job of an enqueue: created says that it is new, written that its rows are there and the caller writes none.';

CREATE TYPE pulse_internal.item AS (
    kind text,
    payload jsonb,
    lane text,
    priority integer,
    run_at timestamptz,
    delay interval,
    max_attempts integer,
    unique_key text,
    unique_for interval,
    on_conflict text,
    group_key text,
    requires_approval boolean,
    tags text [],
    max_runtime interval,
    headers jsonb,
    start_by timestamptz,
    expires_in interval,
    after bigint [],
    after_failed text,
    flow text,
    name text
);

COMMENT ON TYPE pulse_internal.item IS
'One element of the list that enqueue_many takes: the arguments of enqueue.';

CREATE TYPE pulse_internal.kind_settings AS (
    kind text,
    lane text,
    priority integer,
    max_attempts integer,
    backoff text,
    backoff_base interval,
    backoff_cap interval,
    backoff_jitter double precision,
    lease_for interval,
    max_runtime interval,
    requires_approval boolean,
    approval_expiry interval
);

COMMENT ON TYPE pulse_internal.kind_settings IS
'The settings of a kind with the defaults filled in.';

CREATE TYPE pulse_internal.job_filter AS (
    states text [],
    jobs bigint [],
    lanes text [],
    kinds text [],
    workers text [],
    rank integer,
    rank_above integer,
    rank_below integer,
    error_like text,
    error_contains text,
    asks_error boolean,
    tags text [],
    group_keys text [],
    flows text [],
    owners integer [],
    enqueued_before timestamptz,
    enqueued_after timestamptz,
    payload jsonb,
    payload_contains text,
    asks_body boolean
);

COMMENT ON TYPE pulse_internal.job_filter IS
'A filter of the bulk verbs and find_jobs, parsed: NULL where it says nothing.';

CREATE TYPE pulse_internal.argument_range AS (
    argument text,
    unit text,
    lowest numeric,
    highest numeric,
    shortest interval,
    longest interval,
    choices text []
);

COMMENT ON TYPE pulse_internal.argument_range IS
'What an argument may be: a number or a measure between lowest and highest, a duration, or one of the choices.';
