-- verbs() against the engine: each argument at its limits, each verb on a job in every
-- state, each level and what it may call.
BEGIN;

SELECT plan(13);

SELECT set_eq(
    $$ SELECT v.verb, jsonb_array_length(v.arguments) FROM pulse.verbs() AS v $$,
    $$
    SELECT
        p.proname::text,
        p.pronargs - ('pulse_internal.caller_signature'::regtype = ANY (p.proargtypes))::integer
    FROM pg_proc AS p
    WHERE p.pronamespace = 'pulse'::regnamespace
    $$,
    'verbs lists every function of schema pulse, without the signature of the caller'
);

SELECT is(
    (
        SELECT v.arguments -> 2
        FROM pulse.verbs() AS v
        WHERE v.verb = 'claim_batch'
    ),
    '{"name": "max_jobs", "type": "integer", "required": false, "default": "1", "limits": {"number": {"min": 1, "max": 2147483647}}}',
    'an argument has a name, a type, a default and its limits'
);

SELECT is(
    (
        SELECT v.arguments -> 0 ->> 'required'
        FROM pulse.verbs() AS v
        WHERE v.verb = 'claim_batch'
    ),
    'true',
    'an argument without a default is required'
);

-- Every row of argument_ranges reaches a verb: a name with a typo would be no check.
SELECT is_empty(
    $$
    SELECT v.verb, a.argument, r.unit
    FROM pulse_internal.argument_ranges() AS r
    CROSS JOIN LATERAL string_to_table(r.verbs, ' ') AS v (verb)
    CROSS JOIN LATERAL string_to_table(r.arguments, ' ') AS a (argument)
    WHERE NOT EXISTS (
        SELECT FROM pulse.verbs() AS l
        CROSS JOIN LATERAL jsonb_array_elements(l.arguments) AS e (argument)
        WHERE v.verb IN (l.verb, '*')
            AND e.argument ->> 'name' = a.argument
            AND e.argument -> 'limits' ? r.unit
    )
    $$,
    'every range belongs to an argument of a verb'
);

SELECT throws_ok(
    $$ SELECT pulse_internal.range_of('set_lane', 'max_slot') $$,
    'P0002', NULL, 'a check that names no range is an error'
);

-- The limits of arguments

SELECT pulse.set_lane('grouped', fair => true);
-- With a rate, so that rate and rate_per can change alone.
SELECT pulse.set_lane('x', rate => 1, rate_per => '1 minute', group_rate => 1, group_rate_per => '1 minute');
SELECT pulse.set_kind('x', rate => 1, rate_per => '1 minute');
SELECT pulse.set_group('grouped', 'x', rate => 1, rate_per => '1 minute');
SELECT pulse.enqueue('k', lane => 'busy') FROM generate_series(1, 2) \g /dev/null
SELECT count(*) FROM pulse.claim_batch('w', 'busy', 2) \g /dev/null
SELECT pulse.set_lane(repeat('x', 200), fair => true);
SELECT pulse.schedule('x', 'x', every => '1 hour') \g /dev/null
CREATE ROLE verbs_test_role;
SELECT pulse.grant_access('verbs_test_role', l.access)
FROM unnest('{producer,worker,viewer,approver,operator,admin}'::text []) AS l (access);

CREATE FUNCTION pg_temp.lease_of_job(job_id bigint)
RETURNS bigint
LANGUAGE sql
AS $$ SELECT l.lease FROM pulse_internal.lease AS l WHERE l.job = lease_of_job.job_id $$;

-- A job in the state asked for, in a lane of its own, whose name is its kind too.
CREATE FUNCTION pg_temp.job(state text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_lane text := 'lane-' || nextval('pulse_internal.version');
    v_job bigint;
BEGIN
    v_job := pulse.enqueue(
        'k', lane => v_lane,
        delay => CASE WHEN job.state = 'scheduled' THEN interval '1 h' END,
        after => CASE WHEN job.state = 'blocked' THEN ARRAY[pulse.enqueue('k', lane => 'upstream')] END,
        requires_approval => job.state = 'awaiting_approval'
    );
    IF job.state IN ('running', 'retrying', 'completed', 'dead', 'cancelling') THEN
        PERFORM pulse.claim_batch('w', v_lane);
    END IF;
    CASE job.state
        WHEN 'retrying' THEN PERFORM pulse.fail(pg_temp.lease_of_job(v_job), retry_in => '1 h');
        WHEN 'completed' THEN PERFORM pulse.complete(pg_temp.lease_of_job(v_job));
        WHEN 'dead' THEN PERFORM pulse.fail(pg_temp.lease_of_job(v_job), fatal => true);
        WHEN 'cancelled', 'cancelling' THEN PERFORM pulse.cancel(v_job);
        ELSE NULL;
    END CASE;
    RETURN v_job;
END;
$$;

-- What a call passes beside the argument that is tested; NULL for nothing.
CREATE FUNCTION pg_temp.beside(
    verb text, argument text, required boolean, tested text, value text
)
RETURNS text
LANGUAGE sql
AS $$
    SELECT CASE
        WHEN beside.verb = 'schedule' AND beside.argument = 'every' AND beside.tested <> 'every'
            THEN quote_literal('1 hour')
        WHEN beside.verb = 'exchange' AND beside.argument = 'wants' THEN quote_literal('{"grouped": 1}')
        -- At least one step, and at most a thousand.
        WHEN beside.verb = 'history' AND beside.argument = 'since' THEN beside.value || ' * 2'
        WHEN beside.argument = 'unique_key' AND beside.tested = 'unique_for' THEN quote_literal('u')
        WHEN beside.argument = 'new' THEN 'true'
        WHEN NOT beside.required THEN NULL
        WHEN beside.argument = 'lease' THEN (SELECT min(l.lease)::text FROM pulse_internal.lease AS l)
        WHEN beside.argument = 'leases'
            THEN (SELECT format('%L', array_agg(l.lease)) FROM pulse_internal.lease AS l)
        WHEN beside.argument = 'job_id'
            THEN CASE beside.verb
                WHEN 'approve' THEN pg_temp.job('awaiting_approval')
                WHEN 'reject' THEN pg_temp.job('awaiting_approval')
                WHEN 'retry' THEN pg_temp.job('dead')
                WHEN 'rerun' THEN pg_temp.job('dead')
                WHEN 'delete_job' THEN pg_temp.job('dead')
                ELSE pg_temp.job('scheduled')
            END::text
        WHEN beside.argument = 'filter' THEN quote_literal('{"kind": "none"}')
        WHEN beside.argument = 'jobs' THEN quote_literal('[]')
        WHEN beside.argument = 'payloads' THEN quote_literal('{1}')
        WHEN beside.argument = 'role' THEN quote_literal('verbs_test_role')
        WHEN beside.argument = 'lane' THEN quote_literal('grouped')
        WHEN beside.argument IN ('timeout', 'delay') THEN quote_literal('1 minute')
        WHEN beside.argument = 'run_at' THEN quote_literal('2100-01-01')
        WHEN beside.argument = 'data' THEN quote_literal('{}')
        WHEN beside.argument IN ('priority', 'fraction') THEN '0'
        ELSE quote_literal('x')
    END
$$;

-- A value of this size, or at this place of the range, as SQL; NULL where there is none.
CREATE FUNCTION pg_temp.value(argument text, type text, unit text, at text, off integer)
RETURNS text
LANGUAGE sql
AS $$
    SELECT CASE
        WHEN value.unit = 'number' AND value.type = 'double precision'
            THEN (value.at::numeric + value.off * 0.000000001)::text
        WHEN value.unit = 'number' AND abs(value.at::numeric + value.off) < 2147483648
            THEN (value.at::numeric + value.off)::text
        WHEN value.unit = 'duration' AND value.type = 'interval'
            THEN format('%L::interval', value.at::interval + value.off * interval '1 us')
        WHEN value.unit = 'duration'
            THEN format('ARRAY[%L::interval]', value.at::interval + value.off * interval '1 us')
        WHEN value.unit = 'number' OR value.at::integer + value.off < 0 THEN NULL
        WHEN value.unit = 'items'
            THEN format('array_fill(%s, ARRAY[%s])', CASE value.type WHEN 'jsonb[]' THEN '''{}''::jsonb' ELSE '''x''::text' END, value.at::integer + value.off)
        WHEN value.type = 'text[]' THEN format('ARRAY[repeat(''x'', %s)]', value.at::integer + value.off)
        -- {"h": ""} has nine bytes, "" two.
        WHEN value.type = 'jsonb' AND value.argument = 'headers'
            THEN format('jsonb_build_object(''h'', repeat(''x'', %s))', value.at::integer + value.off - 9)
        WHEN value.type = 'jsonb' THEN format('to_jsonb(repeat(''x'', %s))', value.at::integer + value.off - 2)
        ELSE format('repeat(''x'', %s)', value.at::integer + value.off)
    END
$$;

-- The error that a call ends with, or ok; what it did is undone.
CREATE FUNCTION pg_temp.outcome(call text)
RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE outcome.call;
    RAISE SQLSTATE 'ZZZZZ';
EXCEPTION
    WHEN SQLSTATE 'ZZZZZ' THEN
        RETURN 'ok';
    WHEN OTHERS THEN
        RETURN SQLSTATE;
END;
$$;

CREATE TEMPORARY TABLE limits AS
SELECT v.verb, v.arguments, a.argument ->> 'name' AS argument, a.argument ->> 'type' AS type, l.unit, l.allowed
FROM pulse.verbs() AS v
CROSS JOIN LATERAL jsonb_array_elements(v.arguments) AS a (argument)
CROSS JOIN LATERAL jsonb_each(a.argument -> 'limits') AS l (unit, allowed);

CREATE TEMPORARY TABLE calls AS
SELECT
    l.verb, l.argument, l.unit, t.inside, t.value,
    format(
        'SELECT * FROM pulse.%I(%s)', l.verb,
        (
            SELECT string_agg(format('%I => %s', g.name, g.value), ', ')
            FROM (
                SELECT
                    o.argument ->> 'name' AS name,
                    CASE
                        WHEN o.argument ->> 'name' = l.argument THEN t.value
                        ELSE pg_temp.beside(
                            l.verb, o.argument ->> 'name', (o.argument ->> 'required')::boolean,
                            l.argument, t.value
                        )
                    END AS value
                FROM jsonb_array_elements(l.arguments) AS o (argument)
            ) AS g
            WHERE g.value IS NOT NULL
        )
    ) AS call
FROM limits AS l
CROSS JOIN LATERAL (
    SELECT p.inside, pg_temp.value(l.argument, l.type, l.unit, p.at, p.off) AS value
    FROM (
        VALUES
        (true, l.allowed ->> 'min', 0), (true, l.allowed ->> 'max', 0),
        (false, l.allowed ->> 'min', -1), (false, l.allowed ->> 'max', 1)
    ) AS p (inside, at, off)
    WHERE l.unit <> 'choices'
    UNION ALL
    SELECT true, quote_literal(c.choice)
    FROM jsonb_array_elements_text(CASE l.unit WHEN 'choices' THEN l.allowed ELSE '[]' END) AS c (choice)
    UNION ALL
    SELECT false, quote_literal('no-such-choice')
    WHERE l.unit = 'choices'
) AS t
WHERE t.value IS NOT NULL
    -- A million jobs take a minute to enqueue; that one more is refused is tested.
    AND NOT (l.argument = 'payloads' AND t.inside AND t.value ~ '1000000');

ALTER TABLE calls ADD COLUMN outcome text;
UPDATE calls SET outcome = pg_temp.outcome(call);

SELECT cmp_ok(count(*), '>', 500::bigint, 'more than 500 calls at the limits are tested') FROM calls;

SELECT is_empty(
    $$
    SELECT c.verb, c.argument, c.unit, left(c.value, 60), c.outcome
    FROM calls AS c
    WHERE c.inside
        AND c.outcome <> 'ok'
        -- Without pg_cron in this database there is no watchdog.
        AND NOT (c.verb = 'start_watchdog' AND c.outcome = 'PU010')
    $$,
    'every verb accepts the limits of its arguments'
);

SELECT is_empty(
    $$
    SELECT c.verb, c.argument, c.unit, left(c.value, 60), c.outcome
    FROM calls AS c
    WHERE NOT c.inside
        AND c.outcome NOT IN ('PU002', 'PU003')
        AND NOT (c.argument = 'access' AND c.outcome = 'PU009')
    $$,
    'every verb refuses what lies just outside its limits'
);

-- The states of jobs

-- All that is stored about a job, and how many jobs there are.
CREATE FUNCTION pg_temp.stored(job_id bigint)
RETURNS text
LANGUAGE sql
AS $$
    SELECT concat_ws(
        ';',
        (SELECT x::text FROM pulse_internal.blocked AS x WHERE x.job = stored.job_id),
        (SELECT x::text FROM pulse_internal.approval AS x WHERE x.job = stored.job_id),
        (SELECT x::text FROM pulse_internal.waiting AS x WHERE x.job = stored.job_id),
        (SELECT x::text FROM pulse_internal.ready AS x WHERE x.job = stored.job_id),
        (SELECT x::text FROM pulse_internal.lease AS x WHERE x.job = stored.job_id),
        (SELECT x::text FROM pulse_internal.finished AS x WHERE x.job = stored.job_id),
        (SELECT x::text FROM pulse_internal.job_progress AS x WHERE x.job = stored.job_id),
        (SELECT x::text FROM pulse_internal.job_checkpoint AS x WHERE x.job = stored.job_id),
        (SELECT count(*) FROM pulse_internal.job_step AS x WHERE x.job = stored.job_id),
        (SELECT count(*) FROM pulse_internal.body)
    )
$$;

-- Whether a verb changes a job in this state; refused or left as it is means no.
CREATE FUNCTION pg_temp.acts(verb text, state text, arguments text)
RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    v_job bigint := pg_temp.job(acts.state);
    -- The lease of the last run, or one that no job ever had.
    v_lease bigint := (
        SELECT coalesce(
            (SELECT l.lease FROM pulse_internal.lease AS l WHERE l.job = v_job),
            (SELECT f.lease FROM pulse_internal.finished AS f WHERE f.job = v_job),
            (SELECT w.last_lease FROM pulse_internal.waiting AS w WHERE w.job = v_job),
            1
        )
    );
    v_lane text := (SELECT j.lane FROM pulse.jobs AS j WHERE j.job_id = v_job);
    v_before text := pg_temp.stored(v_job);
BEGIN
    BEGIN
        EXECUTE format(
            'SELECT * FROM pulse.%I(%s)', acts.verb,
            format(acts.arguments, v_job, v_lease, v_lane)
        );
    EXCEPTION
        -- The lease is lost, or the state is wrong.
        WHEN SQLSTATE 'PU101' OR SQLSTATE 'PU105' THEN
            RETURN false;
    END;
    -- Two verbs only read, and only for a run.
    RETURN acts.verb IN ('steps', 'upstream') OR pg_temp.stored(v_job) <> v_before;
END;
$$;

-- How to call a verb on one job: %1$s is its id, %2$s its lease, %3$s its lane.
CREATE TEMPORARY TABLE acting AS
SELECT
    v.verb,
    v.states,
    CASE
        WHEN v.verb = 'claim_batch' THEN '''w'', ''%3$s'''
        WHEN v.verb = 'exchange' THEN '''w'', ''{"%3$s": 1}'', completed => ARRAY[%2$s]'
        WHEN v.verb LIKE '%\_where' THEN '''{"job_ids": [%1$s]}'''
        WHEN v.arguments -> 0 ->> 'name' = 'leases' THEN 'ARRAY[%2$s]'
        WHEN v.arguments -> 0 ->> 'name' = 'lease' THEN '%2$s'
        WHEN v.arguments -> 0 ->> 'name' = 'job_id' THEN '%1$s'
    END
    || CASE
        WHEN v.verb IN ('move', 'move_where') THEN ', ''elsewhere'''
        WHEN v.verb IN ('reprioritize', 'reprioritize_where') THEN ', 7'
        WHEN v.verb IN ('reschedule', 'reschedule_where') THEN ', ''2100-01-01'''
        WHEN v.verb = 'progress' THEN ', 0.5'
        WHEN v.verb = 'checkpoint' THEN ', ''1'''
        WHEN v.verb = 'snooze' THEN ', ''1 minute'''
        WHEN v.verb = 'spawn' THEN ', ''step'', ''[{"kind": "k"}]'''
        WHEN v.verb = 'save_step' THEN ', ''step'', ''1'''
        WHEN v.verb = 'wait_for' THEN ', ''step'', ''1 minute'''
        ELSE ''
    END AS arguments
FROM pulse.verbs() AS v
WHERE v.states IS NOT NULL
    AND v.verb <> 'find_jobs';

SELECT is_empty(
    $$ SELECT a.verb FROM acting AS a WHERE a.arguments IS NULL $$,
    'every verb with states takes a job, a lease, a filter or a lane'
);

SELECT is_empty(
    $$
    SELECT a.verb, s.state, s.state = ANY (a.states) AS said
    FROM acting AS a
    CROSS JOIN unnest(pulse_internal.acts_on('find')) AS s (state)
    WHERE pg_temp.acts(
            a.verb,
            -- Only a run that was asked to stop can be acknowledged.
            CASE WHEN a.verb = 'ack_cancel' AND s.state = 'running' THEN 'cancelling' ELSE s.state END,
            a.arguments
        ) <> (s.state = ANY (a.states))
    $$,
    'every verb acts on the states that verbs names, and on no other'
);

SELECT is_empty(
    $$
    SELECT p.proname
    FROM pg_proc AS p
    INNER JOIN pulse.verbs() AS v ON v.verb = p.proname
    WHERE p.pronamespace = 'pulse'::regnamespace
        AND p.provolatile = 'v'
        AND v.states IS NULL
        AND p.proargnames && '{job_id,lease,leases}'
        -- It makes the job that it names.
        AND v.verb <> 'enqueue_one'
    $$,
    'every verb that changes a job names its states'
);

CREATE TEMPORARY TABLE found AS
SELECT s.state, pg_temp.job(s.state) AS job_id
FROM unnest((SELECT v.states FROM pulse.verbs() AS v WHERE v.verb = 'find_jobs')) AS s (state);

SELECT is_empty(
    $$
    SELECT f.state
    FROM found AS f
    WHERE f.job_id NOT IN (
        SELECT j.job_id
        FROM pulse.find_jobs(
            jsonb_build_object('state', f.state, 'job_ids', jsonb_build_array(f.job_id))
        ) AS j
        WHERE j.job_id IS NOT NULL
    )
    $$,
    'find_jobs finds a job in every state that verbs names'
);

-- The levels

CREATE FUNCTION pg_temp.role_for(access text)
RETURNS name
LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE format('CREATE ROLE %I', 'verbs_test_' || role_for.access);
    PERFORM pulse.grant_access(('verbs_test_' || role_for.access)::name, role_for.access);
    RETURN 'verbs_test_' || role_for.access;
END;
$$;

CREATE TEMPORARY TABLE levels AS
SELECT l.access, pg_temp.role_for(l.access) AS role
FROM unnest('{producer,worker,viewer,approver,operator,admin}'::text []) AS l (access);

SELECT is_empty(
    $$
    SELECT v.verb, l.access
    FROM pulse.verbs() AS v
    INNER JOIN pg_proc AS p ON p.proname = v.verb AND p.pronamespace = 'pulse'::regnamespace
    CROSS JOIN levels AS l
    WHERE has_function_privilege(l.role, p.oid, 'EXECUTE') <> (
            l.access = 'admin'
            OR l.access = ANY (v.access)
            OR (l.access = 'operator' AND 'viewer' = ANY (v.access))
        )
    $$,
    'each level may call the verbs that name it, and no other'
);

SELECT * FROM finish();
ROLLBACK;
