-- What holds for every object of pulse, asked of the catalog: each test lists the
-- objects that break a rule and expects none.
BEGIN;

SELECT plan(20);

-- The schema is the API

SELECT is_empty(
    $$
    SELECT c.oid::regclass
    FROM pg_class AS c
    WHERE
        c.relnamespace = 'pulse'::regnamespace
        -- A composite type is public too.
        AND c.relkind NOT IN ('v', 'c')
    $$,
    'schema pulse has no table, sequence or index'
);

SELECT is_empty(
    $$
    SELECT o.name
    FROM (
        SELECT p.oid::regprocedure::text AS name, p.proname AS object
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pulse'::regnamespace
        UNION ALL
        SELECT c.oid::regclass::text, c.relname
        FROM pg_class AS c
        WHERE c.relnamespace = 'pulse'::regnamespace AND c.relkind = 'v'
    ) AS o
    WHERE NOT EXISTS (
        SELECT FROM pulse_internal.access_matrix() AS m
        WHERE m.namespace = 'pulse' AND m.object = o.object
    )
    $$,
    'some access level may use every function and view of schema pulse'
);

-- Rights and search paths

SELECT is_empty(
    $$
    SELECT p.oid::regprocedure
    FROM pg_proc AS p
    WHERE
        p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
        -- A procedure that COMMITs cannot have a SET clause.
        AND NOT (p.prokind = 'p' AND p.prosrc ~ '\mCOMMIT\M')
    $$,
    'every function has a pinned search_path'
);

SELECT is_empty(
    $$
    SELECT p.oid::regprocedure
    FROM pg_proc AS p
    WHERE
        p.pronamespace = 'pulse_internal'::regnamespace
        AND p.prosecdef
        AND p.prorettype <> 'trigger'::regtype
        AND 'pulse_internal.caller_signature'::regtype <> ALL (p.proargtypes)
        AND p.proname NOT IN ('counted', 'ready_by_kind', 'oldest_ready_at', 'find_all', 'find_filter', 'find_floor', 'reasons', 'declared_facts', 'note_declaration', 'plan_declaration', 'limits', 'raise_replica')
    $$,
    'no private function is SECURITY DEFINER, but for triggers, signed verbs and those that have their own grant'
);

-- Each of them is what keeps a signature from being guessed, skipped or made by the wrong role.
SELECT is_empty(
    $$
    SELECT p.oid::regprocedure
    FROM pg_proc AS p
    WHERE
        p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.proname <> 'redeem'
        AND 'pulse_internal.caller_signature'::regtype = ANY (p.proargtypes)
        AND NOT (
            p.prosecdef
            AND NOT p.proisstrict
            AND p.provolatile = 'v'
            AND p.proparallel = 'u'
            AND p.proargtypes[p.pronargs - 1] = 'pulse_internal.caller_signature'::regtype
            AND p.proargnames[p.pronargs] = 'signature'
            AND pg_get_function_arg_default(p.oid, p.pronargs) = 'pulse_internal.sign()'
            AND p.prosrc ~ format('pulse_internal.redeem\(%s.signature\)', p.proname)
        )
    $$,
    'a verb that knows its caller takes the signature last, signs by default and redeems it'
);

SELECT is_empty(
    $$
    SELECT p.oid::regprocedure, v.proname
    FROM pg_proc AS p
    INNER JOIN pg_proc AS v
        ON 'pulse_internal.caller_signature'::regtype IN (v.prorettype, v.proargtypes[v.pronargs - 1])
    WHERE
        p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND v.proname <> 'redeem'
        AND (
            p.prosecdef
            -- Without a grant of its own, only such a function calls it.
            OR NOT EXISTS (
                SELECT FROM pulse_internal.access_matrix() AS m
                WHERE m.namespace = p.pronamespace::regnamespace::text AND m.object = p.proname
            )
        )
        -- Not in comments and texts, which name verbs too.
        -- The manifest names all functions and calls none.
        AND p.proname <> 'manifest'
        AND regexp_replace(p.prosrc, '--[^\n]*|''[^'']*''', '', 'g')
        ~ format('\m%s\.%s\(', v.pronamespace::regnamespace, v.proname)
    $$,
    'no function with the rights of pulse calls such a verb: it would sign as the owner'
);

-- Neither is the role that acts: in maintenance, another session runs a producer's code.
SELECT is_empty(
    $$
    SELECT p.oid::regprocedure::text
    FROM pg_proc AS p
    WHERE
        p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc ~* '\m(session_user|system_user)\M|current_setting\(\s*''(role|session_auth)'
    UNION ALL
    SELECT c.oid::regclass::text
    FROM pg_class AS c
    WHERE
        c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND c.relkind = 'v'
        AND pg_get_viewdef(c.oid) ~* '\msession_user\M|current_setting\(''(role|session_auth)'
    $$,
    'nothing asks who logged in or what SET ROLE said'
);

SELECT is_empty(
    $$
    SELECT p.oid::regprocedure
    FROM pg_proc AS p
    CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace []) AND a.grantee = 0
    $$,
    'PUBLIC can execute no function'
);

SELECT is_empty(
    $$
    SELECT c.oid::regclass
    FROM pg_class AS c
    CROSS JOIN LATERAL aclexplode(
        coalesce(
            c.relacl,
            acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner)
        )
    ) AS a
    WHERE
        c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
        AND a.grantee = 0
    $$,
    'PUBLIC can touch no table, view or sequence'
);

SELECT is_empty(
    $$
    SELECT n.nspname
    FROM pg_namespace AS n
    CROSS JOIN LATERAL aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS a
    WHERE n.nspname IN ('pulse', 'pulse_internal') AND a.grantee = 0
    $$,
    'PUBLIC cannot even look into the schema'
);

-- proves: R24
SELECT is_empty(
    $$
    SELECT c.oid::regclass
    FROM pg_class AS c
    WHERE
        c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND c.relkind = 'v'
        AND NOT coalesce('security_barrier=true' = ANY (c.reloptions), false)
    $$,
    'every view is a security barrier'
);

-- Comments

SELECT is_empty(
    $$
    SELECT pg_describe_object(o.classid, o.objid, 0)
    FROM (
        SELECT 'pg_proc'::regclass AS classid, p.oid AS objid
        FROM pg_proc AS p
        WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        UNION ALL
        SELECT 'pg_class'::regclass, c.oid
        FROM pg_class AS c
        WHERE
            c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
            -- The sequence of an identity column is part of its table.
            AND NOT EXISTS (
                SELECT FROM pg_depend AS d
                WHERE
                    d.classid = 'pg_class'::regclass
                    AND d.objid = c.oid
                    AND d.deptype = 'i'
            )
        UNION ALL
        SELECT 'pg_type'::regclass, t.oid
        FROM pg_type AS t
        LEFT JOIN pg_class AS c ON t.typrelid = c.oid
        WHERE
            t.typnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND t.typelem = 0
            AND (c.oid IS NULL OR c.relkind = 'c')
    ) AS o
    WHERE obj_description(o.objid, o.classid::regclass::text) IS NULL
    $$,
    'every function, table, view, sequence and type has a comment'
);

SELECT is_empty(
    $$
    SELECT format('%s.%s', c.oid::regclass, a.attname)
    FROM pg_class AS c
    INNER JOIN pg_attribute AS a ON c.oid = a.attrelid
    WHERE
        (c.relnamespace = 'pulse'::regnamespace OR c.oid = 'pulse_internal.lane_default'::regclass)
        AND c.relkind = 'v'
        AND a.attnum > 0
        AND col_description(c.oid, a.attnum) IS NULL
    $$,
    'every column of a view has a comment'
);

-- Names

SELECT is_empty(
    $$
    SELECT k.conname
    FROM pg_constraint AS k
    WHERE
        k.connamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        -- PostgreSQL 18 keeps NOT NULL as a constraint, with a name of its own.
        AND k.contype <> 'n'
        AND k.conname ~ '_(pkey|key|check|fkey|excl)\d*$'
    UNION ALL
    SELECT c.relname
    FROM pg_class AS c
    WHERE
        c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND c.relkind = 'i'
        AND c.relname ~ '_(pkey|key|idx|excl)\d*$'
    $$,
    'no constraint and no index has a name made by the server'
);

-- Code

SELECT is_empty(
    $$
    SELECT p.oid::regprocedure
    FROM pg_proc AS p
    WHERE
        p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.proname ~ '^(enqueue|claim|pick|heartbeat|complete|fail|exchange|snooze|release|hello)'
        AND p.prosrc ~ '\mEXCEPTION\s+WHEN\M'
    $$,
    'no function on the path of a job pays for a subtransaction'
);

SELECT is_empty(
    $$
    SELECT p.oid::regprocedure
    FROM pg_proc AS p
    WHERE
        p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc ~ '\mWHEN\s+OTHERS\s+THEN\s+RAISE\s*;'
    $$,
    'no function catches everything only to raise it again'
);

SELECT is_empty(
    $$
    SELECT p.oid::regprocedure
    FROM pg_proc AS p
    WHERE
        p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND p.prosrc ~* '\m(now\(\)|current_timestamp|localtimestamp|transaction_timestamp)'
        AND p.proname <> 'upkeep_budget'
    $$,
    'no function asks for the time of the transaction'
);

-- Neither CREATE EXTENSION nor the plain script looks into bodies while it loads them.
SELECT lives_ok(
    $test$
    DO $$
    DECLARE
        v_function record;
    BEGIN
        SET LOCAL check_function_bodies = on;
        FOR v_function IN
            SELECT p.oid FROM pg_proc AS p
            WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        LOOP
            EXECUTE pg_get_functiondef(v_function.oid);
        END LOOP;
    END;
    $$
    $test$,
    'PostgreSQL accepts every body'
);

-- plpgsql_check exists for the distribution's server only.
SELECT EXISTS (
    SELECT FROM pg_available_extensions AS e WHERE e.name = 'plpgsql_check'
) AS checkable \gset

\if :checkable
SET LOCAL client_min_messages = warning;
CREATE EXTENSION plpgsql_check SCHEMA public;
-- pg_cron can be created in one database of a cluster only: its shape will do here.
CREATE SCHEMA cron;
CREATE TABLE cron.job (
    jobid bigint,
    schedule text,
    command text,
    nodename text,
    nodeport integer,
    database text,
    username text,
    active boolean,
    jobname text
);
CREATE TABLE cron.job_run_details (
    jobid bigint,
    runid bigint,
    job_pid integer,
    database text,
    username text,
    command text,
    status text,
    return_message text,
    start_time timestamptz,
    end_time timestamptz
);
CREATE FUNCTION cron.schedule(text, text, text) RETURNS bigint
LANGUAGE sql AS 'SELECT 1::bigint';
CREATE FUNCTION cron.unschedule(bigint) RETURNS boolean
LANGUAGE sql AS 'SELECT true';
SELECT is_empty(
    $$
    SELECT
        p.oid::regprocedure,
        c.lineno,
        c.level,
        c.message,
        c.detail
    FROM pg_proc AS p
    INNER JOIN pg_language AS l ON p.prolang = l.oid
    LEFT JOIN pg_trigger AS t ON p.oid = t.tgfoid
    CROSS JOIN LATERAL plpgsql_check_function_tb(
        p.oid, coalesce(t.tgrelid, 0), extra_warnings => false, performance_warnings => false
    ) AS c
    WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace []) AND l.lanname = 'plpgsql'
    $$,
    'plpgsql_check finds nothing'
);
\else
SELECT skip('plpgsql_check is not available for this server', 1);
\endif

-- pg_dump

SELECT is_empty(
    $$
    SELECT c.oid::regclass
    FROM pg_class AS c
    CROSS JOIN pg_extension AS e
    WHERE
        e.extname = 'pulse'
        AND c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
        AND c.relkind IN ('r', 'p', 'S')
        AND c.oid <> ALL (e.extconfig)
    $$,
    'every table and sequence of the extension is marked for pg_dump'
);

SELECT * FROM finish();

ROLLBACK;
