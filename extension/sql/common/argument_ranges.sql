-- The ranges of arguments, on one page. The checks of the engine and pulse.verbs() read
-- the same rows, so neither can say something else than the other.
--
-- A check on a hot path costs nothing for that: range_of, lowest and highest are IMMUTABLE,
-- so with constant arguments the planner replaces the call by its result.

-- Two limits that every enqueue and every claim asks for. Each is a function of its own,
-- because the first call of a session would pay for the whole page below.
CREATE FUNCTION pulse_internal.longest_name()
RETURNS integer
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN 200;
END;
$$;

COMMENT ON FUNCTION pulse_internal.longest_name() IS
'How many characters the name of a lane, kind, worker, flow, step or signal may have.';

CREATE FUNCTION pulse_internal.highest_priority()
RETURNS integer
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN 2000000000;
END;
$$;

COMMENT ON FUNCTION pulse_internal.highest_priority() IS
'The highest priority; the lowest is the same below zero.';

-- verbs and arguments are lists; * stands for every verb that has the argument. unit says
-- what is measured: a number, a duration, characters, bytes (of JSON, as text), items of a
-- list, characters_each of its elements, or choices.
CREATE FUNCTION pulse_internal.argument_ranges()
RETURNS TABLE (
    verbs text, arguments text, unit text, lowest text, highest text, choices text []
)
LANGUAGE plpgsql
IMMUTABLE
ROWS 80
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    -- Names
    SELECT
        n.verbs, n.arguments, n.unit, '1', pulse_internal.longest_name()::text, NULL::text []
    FROM (
        VALUES
        ('enqueue enqueue_one enqueue_many', 'kind lane flow name', 'characters'),
        ('schedule', 'name kind lane', 'characters'),
        ('claim_batch', 'worker lane', 'characters'),
        ('exchange hello', 'worker', 'characters'),
        ('hello', 'lanes kinds', 'characters_each'),
        ('next_at move move_where groups', 'lane', 'characters'),
        ('save_step spawn', 'step', 'characters'),
        ('wait_for', 'step signal', 'characters'),
        ('signal', 'signal', 'characters'),
        ('set_lane', 'name', 'characters'),
        ('set_kind', 'kind lane', 'characters'),
        ('set_group drain_lane pause_lane', 'lane', 'characters'),
        ('pause', 'holder lane', 'characters'),
        ('resume', 'holder', 'characters'),
        ('reconcile', 'application', 'characters')
    ) AS n (verbs, arguments, unit)
    UNION ALL
    VALUES
    -- Numbers; a node has ten bits in job ids and leases
    (
        '*', 'priority', 'number', (- pulse_internal.highest_priority())::text,
        pulse_internal.highest_priority()::text, NULL::text []
    ),
    ('*', 'max_attempts', 'number', '1', '100000', NULL),
    ('set_lane set_group', 'max_slots', 'number', '0', '10000', NULL),
    ('set_lane', 'group_slots', 'number', '0', '10000', NULL),
    ('set_lane', 'max_batch', 'number', '1', '10000', NULL),
    ('set_lane set_kind set_group', 'rate', 'number', '0', '1000000', NULL),
    ('set_lane', 'group_rate', 'number', '0', '1000000', NULL),
    ('set_kind', 'backoff_jitter', 'number', '0', '1', NULL),
    ('progress', 'fraction', 'number', '0', '1', NULL),
    ('set_node', 'n', 'number', '0', '1023', NULL),
    ('claim_batch', 'max_jobs', 'number', '1', '2147483647', NULL),
    (
        'cancel_where retry_where reprioritize_where move_where', 'max_jobs',
        'number', '1', '100000', NULL
    ),
    (
        'run_now_where reschedule_where rerun_where discard_where', 'max_jobs',
        'number', '1', '100000', NULL
    ),
    ('approve_where reject_where', 'max_jobs', 'number', '1', '100000', NULL),
    ('reap prune', 'max_jobs', 'number', '1', '1000000', NULL),
    ('find_jobs find_dead', 'max_jobs', 'number', '1', '1000', NULL),
    ('groups dead_groups', 'max_groups', 'number', '1', '1000', NULL),
    -- Durations; those of the watchdog are what pg_cron takes
    ('*', 'lease_for', 'duration', '1 second', '1 day', NULL),
    ('set_lane set_kind', 'max_runtime', 'duration', '0', '1 year', NULL),
    (
        'enqueue enqueue_one enqueue_many schedule', 'max_runtime', 'duration',
        '1 ms', '1 year', NULL
    ),
    ('enqueue enqueue_one enqueue_many', 'delay', 'duration', '0', '100 years', NULL),
    ('*', 'expires_in', 'duration', '1 ms', '1 year', NULL),
    ('*', 'unique_for', 'duration', '0', '10 years', NULL),
    ('schedule', 'every', 'duration', '1 second', '10 years', NULL),
    ('schedule', 'catch_up_window', 'duration', '0', '10 years', NULL),
    ('start_watchdog', 'every', 'duration', '1 second', '59 seconds', NULL),
    ('snooze', 'delay', 'duration', '0', '1 year', NULL),
    ('fail fail_batch', 'retry_in', 'duration', '0', '1 year', NULL),
    ('wait_for', 'timeout', 'duration', '0', '10 years', NULL),
    ('signal', 'keep', 'duration', '0', '1 year', NULL),
    ('set_lane', 'poll_interval', 'duration', '10 ms', '1 hour', NULL),
    (
        'set_lane', 'retain_completed retain_cancelled retain_dead', 'duration',
        '0', '10 years', NULL
    ),
    ('set_lane', 'cancel_grace', 'duration', '0', '1 day', NULL),
    (
        'set_lane set_kind set_group', 'rate_per', 'duration',
        '100 milliseconds', '1 day', NULL
    ),
    ('set_lane', 'group_rate_per', 'duration', '100 milliseconds', '1 day', NULL),
    ('set_kind', 'backoff_base', 'duration', '0', '1 day', NULL),
    ('set_kind', 'backoff_cap max_delay', 'duration', '0', '1 year', NULL),
    ('set_kind', 'approval_expiry', 'duration', '1 second', '10 years', NULL),
    ('counters_since failing_kinds', 'since', 'duration', '1 minute', '400 days', NULL),
    ('history', 'step', 'duration', '1 minute', '1 day', NULL),
    -- Texts, JSON and lists; keys stand in indexes
    ('*', 'reason', 'bytes', '0', '1048576', NULL),
    ('fail', 'error', 'bytes', '0', '1048576', NULL),
    ('complete save_step', 'result', 'bytes', '0', '1048576', NULL),
    ('checkpoint', 'data', 'bytes', '0', '1048576', NULL),
    ('signal', 'payload', 'bytes', '0', '1048576', NULL),
    ('*', 'headers', 'bytes', '0', '16384', NULL),
    ('*', 'unique_key', 'bytes', '1', '1000', NULL),
    (
        'enqueue enqueue_one enqueue_many schedule', 'group_key', 'characters',
        '0', '1000', NULL
    ),
    ('set_group', 'group_key', 'bytes', '1', '1000', NULL),
    ('progress', 'note', 'characters', '0', '10000', NULL),
    ('*', 'tags', 'items', '0', '100', NULL),
    ('*', 'tags', 'characters', '0', '20000', NULL),
    ('enqueue_many', 'payloads', 'items', '0', '1000000', NULL),
    ('hello', 'lanes', 'items', '0', '1000', NULL),
    ('hello', 'kinds', 'items', '0', '10000', NULL),
    ('groups', 'keys', 'items', '0', '1000', NULL),
    -- Choices
    ('*', 'on_conflict', 'choices', NULL, NULL, '{skip,replace,error,follow,cancel}'),
    ('*', 'after_failed', 'choices', NULL, NULL, '{cancel,hold,run}'),
    ('*', 'backoff', 'choices', NULL, NULL, '{quadratic,exponential,fixed,none}'),
    ('*', 'catch_up', 'choices', NULL, NULL, '{skip,last,all}'),
    (
        'grant_access revoke_access', 'access', 'choices',
        NULL, NULL, '{producer,worker,viewer,approver,operator,admin}'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.argument_ranges() IS
'The ranges that the verbs check: of which arguments, in which unit, from where to where.';

-- INTO STRICT: a check that names no range, or two, is an error and not a check less.
CREATE FUNCTION pulse_internal.range_of(verb text, argument text, unit text DEFAULT NULL)
RETURNS pulse_internal.argument_range
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_range pulse_internal.argument_range;
BEGIN
    SELECT
        range_of.argument,
        r.unit,
        CASE WHEN r.unit <> 'duration' THEN r.lowest::numeric END,
        CASE WHEN r.unit <> 'duration' THEN r.highest::numeric END,
        CASE WHEN r.unit = 'duration' THEN r.lowest::interval END,
        CASE WHEN r.unit = 'duration' THEN r.highest::interval END,
        r.choices
    INTO STRICT v_range
    FROM pulse_internal.argument_ranges() AS r
    WHERE range_of.verb = ANY (string_to_array(r.verbs, ' '))
        AND range_of.argument = ANY (string_to_array(r.arguments, ' '))
        AND r.unit = coalesce(range_of.unit, r.unit);
    RETURN v_range;
END;
$$;

COMMENT ON FUNCTION pulse_internal.range_of(text, text, text) IS
'The range of an argument as argument_ranges has it; verb is * where it says so.';

CREATE FUNCTION pulse_internal.lowest(verb text, argument text)
RETURNS numeric
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (pulse_internal.range_of(lowest.verb, lowest.argument)).lowest
$$;

COMMENT ON FUNCTION pulse_internal.lowest(text, text) IS
'The lowest number that an argument may be, or the least that it may have.';

CREATE FUNCTION pulse_internal.highest(verb text, argument text)
RETURNS numeric
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (pulse_internal.range_of(highest.verb, highest.argument)).highest
$$;

COMMENT ON FUNCTION pulse_internal.highest(text, text) IS
'The highest number that an argument may be, or the most that it may have.';
