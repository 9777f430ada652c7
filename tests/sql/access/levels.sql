-- Who may do what, asked of the catalog and then tried. The table below is the
-- contract written a second time, function by function; docs/access.md shows it.
BEGIN;

SELECT plan(39);

CREATE TEMPORARY TABLE expected (object text, levels text);
INSERT INTO expected
VALUES
('my_access', 'producer worker viewer approver operator admin'),
('enqueue', 'producer admin'),
('enqueue_one', 'producer admin'),
('enqueue_many', 'producer admin'),
('cancel', 'producer operator admin'),
('claim_batch', 'worker admin'),
('exchange', 'worker admin'),
('hello', 'worker admin'),
('arm_bell', 'worker admin'),
('disarm_bell', 'worker admin'),
('heartbeat', 'worker admin'),
('complete', 'worker admin'),
('complete_batch', 'worker admin'),
('fail', 'worker admin'),
('fail_batch', 'worker admin'),
('snooze', 'worker admin'),
('release', 'worker admin'),
('ack_cancel', 'worker admin'),
('progress', 'worker admin'),
('checkpoint', 'worker admin'),
('upstream', 'worker admin'),
('spawn', 'worker admin'),
('save_step', 'worker admin'),
('steps', 'worker admin'),
('wait_for', 'worker admin'),
('signal', 'producer approver operator admin'),
('flow', 'producer viewer operator admin'),
('tick', 'worker operator admin'),
('version', 'producer worker viewer approver operator admin'),
('verbs', 'producer worker viewer approver operator admin'),
('why', 'producer viewer approver operator admin'),
('health', 'viewer operator admin'),
('watch_progress', 'viewer operator admin'),
('unwatch_progress', 'viewer operator admin'),
('find_jobs', 'producer viewer approver operator admin'),
('find_dead', 'viewer operator admin'),
('dead_groups', 'viewer operator admin'),
('counts', 'viewer operator admin'),
('failing_kinds', 'viewer operator admin'),
('counters_since', 'viewer operator admin'),
('groups', 'viewer operator admin'),
('kinds', 'viewer operator admin'),
('limits', 'viewer operator admin'),
('next_at', 'worker admin'),
('lane_defaults', 'viewer operator admin'),
('pause_status', 'viewer operator admin'),
('node', 'producer worker viewer approver operator admin'),
('node_state', 'producer worker viewer approver operator admin'),
('node_of', 'producer worker viewer approver operator admin'),
('lease_node', 'producer worker viewer approver operator admin'),
('approve', 'approver operator admin'),
('approve_where', 'approver operator admin'),
('reject', 'approver operator admin'),
('reject_where', 'approver operator admin'),
('cancel_where', 'producer operator admin'),
('retry', 'operator admin'),
('retry_where', 'operator admin'),
('reprioritize', 'operator admin'),
('reprioritize_where', 'operator admin'),
('move', 'operator admin'),
('move_where', 'operator admin'),
('delete_job', 'operator admin'),
('discard_where', 'operator admin'),
('run_now', 'operator admin'),
('run_now_where', 'operator admin'),
('reschedule', 'operator admin'),
('reschedule_where', 'operator admin'),
('rerun', 'operator admin'),
('rerun_where', 'operator admin'),
('run_schedule_now', 'operator admin'),
('set_lane', 'operator admin'),
('set_group', 'operator admin'),
('set_kind', 'operator admin'),
('pause', 'operator admin'),
('resume', 'operator admin'),
('drain_lane', 'operator admin'),
('pause_lane', 'operator admin'),
('resume_lane', 'operator admin'),
('schedule', 'operator admin'),
('unschedule', 'operator admin'),
('pause_schedule', 'operator admin'),
('resume_schedule', 'operator admin'),
('reconcile', 'operator admin'),
('reap', 'operator admin'),
('check', 'operator admin'),
('prune', 'admin'),
('start_watchdog', 'admin'),
('stop_watchdog', 'admin'),
('set_node', 'admin'),
('grant_access', 'admin'),
('revoke_access', 'admin'),
('jobs', 'producer viewer approver operator admin'),
('dependencies', 'producer viewer approver operator admin'),
('running', 'producer viewer operator admin'),
('dead', 'producer viewer operator admin'),
('lanes', 'viewer operator admin'),
('workers', 'viewer operator admin'),
('schedules', 'viewer operator admin'),
('schedule_runs', 'viewer operator admin'),
('declarations', 'viewer operator admin'),
('stats', 'viewer operator admin'),
('counters', 'viewer operator admin'),
('gauges', 'viewer operator admin'),
('history', 'viewer operator admin'),
('histogram_bounds', 'viewer operator admin'),
('histogram_quantile', 'viewer operator admin'),
('samples', 'viewer operator admin'),
('audit', 'viewer operator admin'),
('access', 'viewer operator admin'),
-- What these call with the rights of their caller or reader.
('pulse_internal.request_form', 'producer admin'),
('pulse_internal.batch_form', 'producer admin'),
('pulse_internal.sign', 'producer worker approver operator admin'),
('pulse_internal.raise_replica', 'producer worker approver operator admin'),
('pulse_internal.signing_form', 'producer worker approver operator admin'),
('pulse_internal.find_own', 'producer viewer approver operator admin'),
('pulse_internal.find_filter', 'producer viewer approver operator admin'),
('pulse_internal.find_floor', 'producer viewer approver operator admin'),
('pulse_internal.texts', 'producer viewer approver operator admin'),
('pulse_internal.find_all', 'viewer operator admin'),
('pulse_internal.declared_facts', 'viewer operator admin'),
('pulse_internal.plan_declaration', 'operator admin'),
('pulse_internal.note_declaration', 'operator admin'),
('pulse_internal.unset_kind', 'operator admin'),
('pulse_internal.reasons', 'producer viewer approver operator admin'),
('pulse_internal.places', 'producer viewer approver operator admin'),
('pulse_internal.upstream_reason', 'producer viewer approver operator admin'),
('pulse_internal.flow_jobs', 'producer viewer operator admin'),
('pulse_internal.flow_edges', 'producer viewer operator admin'),
('pulse_internal.counted', 'viewer operator admin'),
('pulse_internal.count_up_to', 'viewer operator admin'),
('pulse_internal.groups_up_to', 'viewer operator admin'),
('pulse_internal.ready_by_kind', 'viewer operator admin'),
('pulse_internal.limits', 'viewer operator admin'),
('pulse_internal.oldest_ready_at', 'viewer operator admin');

CREATE TEMPORARY VIEW routine AS
SELECT
    p.oid,
    CASE n.nspname WHEN 'pulse' THEN '' ELSE n.nspname || '.' END || p.proname AS object,
    format(
        '%s %I.%I(%s)',
        CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END,
        n.nspname,
        p.proname,
        (
            SELECT string_agg(format('NULL::%s', format_type(t.type, NULL)), ', ' ORDER BY t.n)
            FROM unnest(p.proargtypes) WITH ORDINALITY AS t (type, n)
        )
    ) AS call
FROM pg_proc AS p
INNER JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname IN ('pulse', 'pulse_internal');

CREATE TEMPORARY VIEW relation AS
SELECT
    c.oid,
    CASE n.nspname WHEN 'pulse' THEN '' ELSE n.nspname || '.' END || c.relname AS object,
    c.relkind,
    format(
        CASE c.relkind
            WHEN 'S' THEN 'SELECT last_value FROM %I.%I'
            ELSE 'SELECT FROM %I.%I LIMIT 1'
        END,
        n.nspname, c.relname
    ) AS call
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname IN ('pulse', 'pulse_internal')
    AND c.relkind IN ('r', 'p', 'v', 'm', 'S');

-- True when the role is denied. Whatever the call does is rolled back.
CREATE FUNCTION pg_temp.denied(role text, call text)
RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', role);
    EXECUTE call;
    RAISE EXCEPTION USING ERRCODE = 'ZZ000';
EXCEPTION
    WHEN insufficient_privilege THEN
        RETURN SQLERRM LIKE 'permission denied for %';
    WHEN OTHERS THEN
        RETURN false;
END;
$$;

CREATE ROLE tap_nothing;
CREATE ROLE tap_looker;
GRANT USAGE ON SCHEMA pulse, pulse_internal TO tap_looker;

-- Every function and view has its row

SELECT is_empty(
    $$
    SELECT o.object
    FROM (
        SELECT r.object FROM routine AS r
        UNION
        SELECT r.object FROM relation AS r WHERE r.relkind = 'v'
    ) AS o
    WHERE o.object NOT LIKE 'pulse\_internal.%'
        AND o.object NOT IN (SELECT e.object FROM expected AS e)
    $$,
    'every public function and view has its row in the table above'
);
SELECT is_empty(
    $$
    SELECT e.object
    FROM expected AS e
    WHERE e.object NOT IN (SELECT r.object FROM routine AS r)
        AND e.object NOT IN (SELECT r.object FROM relation AS r)
    $$,
    'and every row its function or view'
);
SELECT set_eq(
    $$
    SELECT m.access, CASE m.namespace WHEN 'pulse' THEN '' ELSE m.namespace || '.' END || m.object
    FROM pulse_internal.access_matrix() AS m
    $$,
    $$
    SELECT l.level, e.object
    FROM expected AS e
    CROSS JOIN LATERAL regexp_split_to_table(e.levels, ' ') AS l (level)
    $$,
    'the matrix in the code says the same'
);

-- A role with nothing

SELECT is_empty(
    $$SELECT r.call FROM routine AS r WHERE NOT pg_temp.denied('tap_nothing', r.call)$$,
    'a role with nothing is denied every function'
);
SELECT is_empty(
    $$SELECT r.call FROM relation AS r WHERE NOT pg_temp.denied('tap_nothing', r.call)$$,
    'a role with nothing is denied every table, view and sequence'
);
SELECT is_empty(
    $$SELECT r.call FROM routine AS r WHERE NOT pg_temp.denied('tap_looker', r.call)$$,
    'a role that may use the schema alone is denied every function'
);
SELECT is_empty(
    $$SELECT r.call FROM relation AS r WHERE NOT pg_temp.denied('tap_looker', r.call)$$,
    'a role that may use the schema alone is denied every table, view and sequence'
);
SELECT is_empty(
    $$
    SELECT t.typname
    FROM pg_type AS t
    LEFT JOIN pg_class AS c ON c.oid = t.typrelid
    WHERE t.typnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND t.typelem = 0
        AND coalesce(c.relkind, 'c') = 'c'
        AND has_type_privilege('tap_looker', t.oid, 'USAGE')
    $$,
    'nor can it build on a type'
);

-- Each level can do exactly its row

CREATE FUNCTION pg_temp.level_does_its_row(level text)
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
DECLARE
    v_role text := 'tap_' || level;
BEGIN
    EXECUTE format('CREATE ROLE %I', v_role);
    PERFORM pulse.grant_access(v_role::name, level);

    RETURN NEXT set_eq(
        format('SELECT r.object FROM routine AS r WHERE NOT pg_temp.denied(%L, r.call)', v_role),
        format(
            $q$
            SELECT e.object
            FROM expected AS e
            INNER JOIN routine AS r ON r.object = e.object
            WHERE %L = ANY (string_to_array(e.levels, ' '))
            $q$,
            level
        ),
        level || ' can call exactly its functions'
    );
    RETURN NEXT set_eq(
        format('SELECT r.object FROM relation AS r WHERE NOT pg_temp.denied(%L, r.call)', v_role),
        format(
            $q$
            SELECT e.object
            FROM expected AS e
            INNER JOIN relation AS r ON r.object = e.object AND r.relkind = 'v'
            WHERE %L = ANY (string_to_array(e.levels, ' '))
            $q$,
            level
        ),
        level || ' can read exactly its views, and no table'
    );
    RETURN NEXT is_empty(
        format(
            $q$
            SELECT r.object
            FROM relation AS r
            WHERE r.relkind <> 'S'
                -- Whose triggers are what the verbs do.
                AND r.object NOT IN (
                    'pulse_internal.request_form', 'pulse_internal.batch_form',
                    'pulse_internal.signing_form'
                )
                AND has_table_privilege(
                    %L, r.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'
                )
            $q$,
            v_role
        ),
        level || ' can write nothing by hand'
    );
END;
$$;

-- unwatch_progress warns a session that does not watch.
SET LOCAL client_min_messages = error;
SELECT pg_temp.level_does_its_row(l)
FROM unnest('{producer,worker,viewer,approver,operator,admin}'::text []) AS l;
RESET client_min_messages;

-- Granting and revoking

SELECT set_eq(
    'SELECT a.role::text, a.access FROM pulse.access AS a',
    $$
    SELECT 'tap_' || l, l
    FROM unnest('{producer,worker,viewer,approver,operator,admin}'::text []) AS l
    $$,
    'access lists who was given what'
);

SELECT pulse.grant_access('tap_viewer', 'producer') \g /dev/null
SELECT pulse.revoke_access('tap_viewer', 'viewer') \g /dev/null
SELECT ok(
    has_table_privilege('tap_viewer', 'pulse.jobs', 'SELECT')
    AND NOT has_table_privilege('tap_viewer', 'pulse.lanes', 'SELECT')
    AND has_schema_privilege('tap_viewer', 'pulse', 'USAGE'),
    'revoke_access leaves what another level still needs'
);
SELECT pulse.revoke_access('tap_viewer', 'producer') \g /dev/null
SELECT is_empty(
    $$
    SELECT r.call FROM routine AS r WHERE NOT pg_temp.denied('tap_viewer', r.call)
    UNION ALL
    SELECT r.call FROM relation AS r WHERE NOT pg_temp.denied('tap_viewer', r.call)
    $$,
    'with its last level a role loses everything'
);

SET LOCAL ROLE tap_admin;
SELECT pulse.grant_access('tap_viewer', 'worker') \g /dev/null
RESET ROLE;
SELECT is(
    (SELECT a.granted_by FROM pulse.access AS a WHERE a.role = 'tap_viewer'),
    'tap_admin',
    'an admin that does not own pulse can grant'
);
SELECT is(
    (SELECT a.who FROM pulse.audit AS a ORDER BY a.entry DESC LIMIT 1),
    'tap_admin',
    'and the audit names it'
);

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pulse FROM tap_worker;
CREATE ROLE tap_gone;
SELECT pulse.grant_access('tap_gone', 'worker') \g /dev/null
DROP OWNED BY tap_gone;
SELECT results_eq(
    $$SELECT a.role, a.role_exists, a.has_rights FROM pulse.access AS a WHERE a.role IN ('tap_gone', 'tap_viewer') ORDER BY 1, a.access$$,
    $$VALUES ('tap_gone'::name, true, false), ('tap_viewer', true, true)$$,
    'DROP OWNED BY takes the rights, and the list says so'
);
DROP ROLE tap_gone;
SELECT pulse_internal.apply_grants() \g /dev/null
SELECT ok(
    has_function_privilege('tap_worker', 'pulse.tick()', 'EXECUTE'),
    'an upgrade grants again what the levels say, past roles that were dropped'
);
SELECT lives_ok(
    $$SELECT pulse.revoke_access('tap_gone', 'worker')$$,
    'a role that was dropped can be taken off the list'
);

CREATE ROLE "tap; DROP TABLE pulse_internal.body; --";
SELECT lives_ok(
    $$SELECT pulse.grant_access('tap; DROP TABLE pulse_internal.body; --', 'producer')$$,
    'a role with an odd name is given access and nothing else happens'
);

SELECT throws_ok($$SELECT pulse.grant_access('public', 'viewer')$$, 'PU009', NULL, 'PUBLIC is refused');
SELECT throws_ok($$SELECT pulse.grant_access('tap_missing', 'viewer')$$, 'PU009', NULL, 'an unknown role is refused');
SELECT throws_ok($$SELECT pulse.grant_access('tap_viewer', 'root')$$, 'PU009', NULL, 'an unknown level is refused');
SELECT throws_ok(
    format(
        'SELECT pulse.grant_access(%L, ''viewer'')',
        (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace AS n WHERE n.nspname = 'pulse')
    ),
    'PU009', NULL, 'the owner of pulse is refused'
);

SELECT * FROM finish();

ROLLBACK;
