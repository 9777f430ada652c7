-- Who calls, as PostgreSQL vouches for it: whatever the session is called, a producer's
-- code acts as the producer. Each test failed while rights were judged by session_user.
BEGIN;

SELECT plan(38);

CREATE ROLE tap_mallory;
CREATE ROLE tap_victim;
CREATE ROLE tap_operator;
CREATE ROLE tap_viewer;
SELECT pulse.grant_access('tap_mallory', 'producer') \g /dev/null
SELECT pulse.grant_access('tap_victim', 'producer') \g /dev/null
SELECT pulse.grant_access('tap_operator', 'operator') \g /dev/null
SELECT pulse.grant_access('tap_viewer', 'viewer') \g /dev/null

SET LOCAL ROLE tap_victim;
SELECT pulse.enqueue('secret', '{"card": 4711}', unique_key => 'v') AS victims \gset
SET LOCAL ROLE tap_mallory;
SELECT pulse.enqueue('own') AS own \gset
RESET ROLE;

-- A producer's code in the session of a superuser

CREATE SCHEMA tap_m AUTHORIZATION tap_mallory;
GRANT USAGE ON SCHEMA tap_m TO PUBLIC;
SET LOCAL ROLE tap_mallory;
CREATE TABLE tap_m.loot (place text, what text);
CREATE TABLE tap_m.bait (n integer);
INSERT INTO tap_m.bait VALUES (1);
-- Does everything a producer might try, and writes down what came of it.
CREATE FUNCTION tap_m.try_all() RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_place text := current_setting('tap.place', true);
    v_victims bigint := current_setting('tap.victims', true);
BEGIN
    -- Making the index and the view runs it too.
    IF coalesce(v_place, '') = '' THEN
        RETURN;
    END IF;
    EXECUTE 'INSERT INTO tap_m.loot SELECT $1, ''reads '' || j.job_id FROM pulse.jobs AS j'
        || ' WHERE j.enqueued_by <> ''tap_mallory''' USING v_place;
    EXECUTE 'INSERT INTO tap_m.loot SELECT $1, ''finds '' || f.job_id FROM pulse.find_jobs() AS f'
        || ' WHERE f.job_id NOT IN (SELECT j.job_id FROM pulse.jobs AS j)' USING v_place;
    BEGIN
        EXECUTE 'SELECT FROM pulse.why($1)' USING v_victims;
        EXECUTE 'INSERT INTO tap_m.loot VALUES ($1, ''asks why'')' USING v_place;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    BEGIN
        EXECUTE 'SELECT pulse.cancel($1, force => true)' USING v_victims;
        EXECUTE 'INSERT INTO tap_m.loot VALUES ($1, ''cancels'')' USING v_place;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    BEGIN
        EXECUTE 'SELECT pulse.enqueue(''secret'', ''{"evil": 1}'', unique_key => ''v'','
            || ' on_conflict => ''replace'')';
        EXECUTE 'INSERT INTO tap_m.loot VALUES ($1, ''replaces'')' USING v_place;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    EXECUTE 'SELECT pulse.enqueue($1)' USING v_place;
    EXECUTE 'SELECT pulse.enqueue_many($1, ARRAY[''{}''::jsonb])' USING v_place;
END;
$$;
-- An index takes IMMUTABLE for the asking.
CREATE FUNCTION tap_m.steal(n integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM tap_m.try_all();
    RETURN n;
END;
$$;
CREATE INDEX bait_index ON tap_m.bait (tap_m.steal(n));
CREATE MATERIALIZED VIEW tap_m.bait_view AS SELECT tap_m.steal(b.n) FROM tap_m.bait AS b;
CREATE FUNCTION tap_m.definer() RETURNS void
LANGUAGE sql SECURITY DEFINER
AS 'SELECT tap_m.steal(1)';
RESET ROLE;

SELECT set_config('tap.victims', :'victims', true) \g /dev/null

CREATE FUNCTION pg_temp.loot(place text, statement text)
RETURNS SETOF text
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM set_config('tap.place', place, true);
    EXECUTE statement;
    PERFORM set_config('tap.place', '', true);
    RETURN NEXT is_empty(
        format('SELECT l.what FROM tap_m.loot AS l WHERE l.place = %L', place),
        place || ': a producer''s code reads, finds, explains, cancels and replaces nothing of others'
    );
    RETURN NEXT results_eq(
        format('SELECT DISTINCT j.enqueued_by FROM pulse.jobs AS j WHERE j.kind = %L', place),
        ARRAY['tap_mallory'::name],
        place || ': what it enqueues is its own'
    );
END;
$$;

SELECT pg_temp.loot('ANALYZE', 'ANALYZE tap_m.bait');
SELECT pg_temp.loot('REINDEX', 'REINDEX INDEX tap_m.bait_index');
SELECT pg_temp.loot('CREATE INDEX', 'CREATE INDEX bait_again ON tap_m.bait (tap_m.steal(n))');
SELECT pg_temp.loot('REFRESH', 'REFRESH MATERIALIZED VIEW tap_m.bait_view');
SELECT pg_temp.loot('SECURITY DEFINER', 'SELECT tap_m.definer()');

SELECT is(
    (SELECT j.payload FROM pulse.jobs AS j WHERE j.job_id = :victims), '{"card": 4711}',
    'the job of the other producer is as it was'
);

-- The audit

CREATE SCHEMA tap_o AUTHORIZATION tap_operator;
SET LOCAL ROLE tap_operator;
CREATE TABLE tap_o.bait (n integer);
INSERT INTO tap_o.bait VALUES (1);
CREATE FUNCTION tap_o.act(n integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM pulse.set_lane('acted', max_batch => 7);
    PERFORM pulse.pause('acted');
    RETURN n;
END;
$$;
CREATE INDEX bait_index ON tap_o.bait (tap_o.act(n));
RESET ROLE;
SELECT pulse.resume('acted') \g /dev/null
ANALYZE tap_o.bait;
SELECT is_empty(
    $$SELECT a.who FROM pulse.audit AS a WHERE a.verb IN ('set_lane', 'pause') AND a.who <> 'tap_operator'$$,
    'the audit names the operator whose index it was, not who ran ANALYZE'
);
SELECT is(
    (SELECT s.held_by FROM pulse.pause_status() AS s), 'tap_operator', 'and so does the hold'
);

-- SET ROLE and SET SESSION AUTHORIZATION

SET LOCAL ROLE tap_viewer;
SELECT isnt_empty(
    format('SELECT FROM pulse.jobs WHERE job_id = %s', :victims), 'SET ROLE to a viewer sees all'
);
RESET ROLE;
SET LOCAL SESSION AUTHORIZATION tap_viewer;
SET LOCAL ROLE tap_viewer;
SELECT isnt_empty(
    format('SELECT FROM pulse.jobs WHERE job_id = %s', :victims),
    'and so does SET SESSION AUTHORIZATION'
);
RESET SESSION AUTHORIZATION;
SET LOCAL SESSION AUTHORIZATION tap_mallory;
SELECT results_eq(
    $$SELECT DISTINCT j.enqueued_by FROM pulse.jobs AS j$$, ARRAY['tap_mallory'::name],
    'a producer that logged in sees its own jobs'
);
SELECT throws_ok(
    format('SELECT pulse.cancel(%s)', :victims), 'PU004', NULL,
    'and cannot cancel those of others'
);
RESET SESSION AUTHORIZATION;

-- A trigger acts as whoever fires it

CREATE TABLE public.tap_orders (n integer);
GRANT INSERT ON public.tap_orders TO tap_mallory;
CREATE FUNCTION public.tap_ordered() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pulse.enqueue('ordered');
    RETURN new;
END;
$$;
CREATE TRIGGER ordered AFTER INSERT ON public.tap_orders
FOR EACH ROW EXECUTE FUNCTION public.tap_ordered();
SET LOCAL ROLE tap_mallory;
INSERT INTO public.tap_orders VALUES (1);
RESET ROLE;
SELECT is(
    (SELECT j.enqueued_by FROM pulse.jobs AS j WHERE j.kind = 'ordered'), 'tap_mallory',
    'a job that a trigger enqueues belongs to whoever fired it'
);

-- No form says who

SET LOCAL ROLE tap_mallory;
SELECT throws_ok(
    $$INSERT INTO pulse_internal.request (kind, who) VALUES ('k', 'tap_victim')$$, '42501', NULL,
    'nobody can enqueue in the name of another'
);
SELECT throws_ok(
    $$INSERT INTO pulse_internal.signature (signer) VALUES ('tap_victim'::regrole)$$, '42501', NULL,
    'nobody can sign in the name of another'
);
SELECT throws_ok(
    $$INSERT INTO pulse_internal.request_form (kind, who) VALUES ('k', 'tap_victim')$$, '42703', NULL,
    'the form of a request has no place for a name'
);
SELECT lives_ok(
    $$INSERT INTO pulse_internal.request_form (kind) VALUES ('by hand')$$, 'filled in by hand it is an enqueue'
);
SELECT throws_ok(
    $$INSERT INTO pulse_internal.request_form (kind, priority) VALUES ('', 0)$$, 'PU002', NULL,
    'which is checked as any other'
);
RESET ROLE;
SELECT is(
    (SELECT j.enqueued_by FROM pulse.jobs AS j WHERE j.kind = 'by hand'), 'tap_mallory',
    'and belongs to the role that wrote it'
);

-- my_access

SELECT results_eq(
    'SELECT pulse.my_access()', '{producer,worker,viewer,approver,operator,admin}'::text [],
    'the owner has every level'
);
SET LOCAL ROLE tap_operator;
SELECT results_eq(
    'SELECT pulse.my_access()', '{viewer,approver,operator}'::text [],
    'an operator those that its verbs make up'
);
SET LOCAL ROLE tap_mallory;
SELECT results_eq('SELECT pulse.my_access()', '{producer}'::text [], 'a producer its own');
RESET ROLE;


-- What a dump will carry is right at the next tick

CREATE ROLE tap_first;
SELECT pulse_internal.role_number('tap_first') AS number \gset
ALTER ROLE tap_first RENAME TO tap_renamed;
CREATE ROLE tap_first;
SELECT pulse_internal.refresh_roles() \g /dev/null
SELECT is(
    (SELECT r.name FROM pulse_internal.role AS r WHERE r.role = :number), 'tap_renamed',
    'a renamed role is dumped by its new name, not by that of its namesake'
);
DROP ROLE tap_renamed;
SELECT pulse_internal.refresh_roles() \g /dev/null
SELECT ok((SELECT r.gone FROM pulse_internal.role AS r WHERE r.role = :number), 'a dropped one is gone');
INSERT INTO pulse_internal.signature (signer, transaction) VALUES ('tap_first'::regrole, '3');
SELECT pulse_internal.refresh_roles() \g /dev/null
SELECT is_empty(
    $$SELECT FROM pulse_internal.signature AS s WHERE s.transaction = '3'$$,
    'signatures that were never used are forgotten'
);

-- Where triggers do not fire, as in what a subscription applies, nothing is lost in silence.
SELECT pulse.enqueue('k') AS job \gset
SET LOCAL session_replication_role = replica;
SELECT throws_ok('SELECT pulse.pause(''me'')', 'PU014', NULL, 'nor of operators');
SET LOCAL ROLE tap_mallory;
SELECT throws_ok(
    c.call, 'PU014', NULL, 'with session_replication_role = replica nothing is asked for in vain: ' || c.call
)
FROM (
    VALUES
    ('SELECT pulse.enqueue(''k'')'),
    ('SELECT * FROM pulse.enqueue_one(''k'')'),
    ('SELECT * FROM pulse.enqueue_one(''k'', unique_key => ''u'')'),
    ('SELECT * FROM pulse.enqueue_many(''k'', ARRAY[''{}'']::jsonb [])'),
    ('SELECT * FROM pulse.enqueue_many(''[{"kind": "k"}]'')'),
    (format('SELECT pulse.cancel(%s)', :job))
) AS c (call);
RESET ROLE;
SET LOCAL session_replication_role = origin;
SELECT is((SELECT count(*) FROM pulse.jobs WHERE job_id > :job), 0::bigint, 'and nothing was changed');

SELECT * FROM finish();

ROLLBACK;
