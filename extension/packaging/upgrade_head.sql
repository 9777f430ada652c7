SET LOCAL search_path = pg_catalog, pg_temp;

-- Everything that the upgrade locks, before it changes anything. Workers, producers and
-- readers hold one thing and ask for the next, so nobody may wait here with something in
-- hand for longer than deadlocks take to be noticed: what was not free in time is waited
-- for empty-handed, then the rest is tried again.
DO $$
DECLARE
    v_tables CONSTANT text [] := string_to_array('@LOCKS@', ' ');
    v_upkeep CONSTANT regclass := 'pulse_internal.upkeep_run';
    v_steps text [];
    v_lock text;
    v_missed text;
    v_until timestamptz;
    v_found text;
    v_manifest text;
    v_object text;
    v_key text;
    v_owner CONSTANT name := (
        SELECT pg_get_userbyid(n.nspowner)
        FROM pg_namespace AS n
        WHERE n.nspname = 'pulse'
    );
BEGIN
    -- Pulse has no trigger on a table, no rule and no policy. Those of its owner would run in this
    -- session, which could become whoever runs the upgrade again.
    SELECT string_agg(f.name, ', ' ORDER BY f.name) INTO v_found
    FROM (
        SELECT format('%I on %s', t.tgname, c.oid::regclass) AS name
        FROM pg_trigger AS t
        INNER JOIN pg_class AS c ON c.oid = t.tgrelid
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND c.relkind <> 'v'
            AND NOT t.tgisinternal
        UNION ALL
        SELECT format('%I on %s', r.rulename, c.oid::regclass)
        FROM pg_rewrite AS r
        INNER JOIN pg_class AS c ON c.oid = r.ev_class
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND r.rulename <> '_RETURN'
        UNION ALL
        SELECT format('%I on %s', w.polname, c.oid::regclass)
        FROM pg_policy AS w
        INNER JOIN pg_class AS c ON c.oid = w.polrelid
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
    ) AS f;
    IF v_found IS NOT NULL AND session_user <> v_owner THEN
        RAISE EXCEPTION 'tables of pulse have triggers, rules or policies of their owner'
        USING
            ERRCODE = 'insufficient_privilege',
            DETAIL = format(
                'The upgrade would run them in a session of %s: %s. Nothing was changed.',
                session_user, v_found
            ),
            HINT = format('Connect as %s and upgrade, or drop them first.', v_owner);
    END IF;

    -- What is created here must belong to the owner of pulse, whoever runs this: the
    -- functions run with the rights of their owner.
    PERFORM set_config('pulse.upgraded_by', current_setting('role'), true);
    PERFORM set_config('role', v_owner, true);

    EXECUTE format('SELECT array_agg(DISTINCT u.step) FROM %s AS u', v_upkeep) INTO v_steps;

    FOR v_try IN 1..4 LOOP
        BEGIN
            v_until := NULL;
            FOR v_lock IN
                SELECT n.lock
                FROM (
                    -- Claims find nothing and ticks no upkeep run until this ends, so that
                    -- none meets both old and new code.
                    SELECT 1 AS place, 0 AS nth, format(
                        'SELECT pg_advisory_xact_lock(%s, 0)', 'pulse_internal.hold'::regclass::oid::integer
                    ) AS lock
                    UNION ALL
                    SELECT 2, 0, format(
                        'SELECT pg_advisory_xact_lock(%s, %s)', v_upkeep::oid::integer, hashtext(s.step)
                    )
                    FROM unnest(v_steps) AS s (step)
                    UNION ALL
                    -- LOCK TABLE would lock what the view reads as well. A view was made
                    -- after those that it reads.
                    SELECT 3, -row_number() OVER (ORDER BY c.oid), format(
                        'ALTER VIEW %s SET (security_barrier = true)', c.oid::regclass
                    )
                    FROM pg_class AS c
                    WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
                        AND c.relkind = 'v'
                        AND pg_get_userbyid(c.relowner) = current_user
                    UNION ALL
                    SELECT 4, t.nth, format(
                        'LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', to_regclass('pulse_internal.' || t.name)
                    )
                    FROM unnest(v_tables) WITH ORDINALITY AS t (name, nth)
                    WHERE to_regclass('pulse_internal.' || t.name) IS NOT NULL
                    UNION ALL
                    SELECT 5, 0, 'LOCK TABLE pulse_internal.access_grant IN SHARE ROW EXCLUSIVE MODE'
                ) AS n
                ORDER BY n.lock = v_missed DESC NULLS LAST, n.place, n.nth
            LOOP
                PERFORM set_config(
                    'lock_timeout',
                    coalesce(
                        greatest(1, extract(epoch FROM v_until - clock_timestamp()) * 1000)::integer,
                        3000
                    )::text,
                    true
                );
                EXECUTE v_lock;
                v_until := coalesce(
                    v_until,
                    clock_timestamp() + 0.8 * current_setting('deadlock_timeout')::interval
                );
            END LOOP;
            EXIT;
        EXCEPTION
            WHEN lock_not_available THEN
                IF v_try = 4 THEN
                    RAISE;
                END IF;
                v_missed := v_lock;
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', '3s', true);

    -- After the locks, so that of two upgrades at once the later one finds out.
    -- Read, not called: the schema may be a stranger's.
    v_manifest := (
        SELECT split_part(p.prosrc, '$manifest$', 2)
        FROM pg_proc AS p
        WHERE p.oid = to_regprocedure('pulse_internal.manifest()')
    );
    v_found := coalesce(
        nullif(split_part(split_part(v_manifest, E'\n', 2), ' ', 1), ''), '(version unknown)'
    );
    IF v_found <> '@FROM@' THEN
        RAISE EXCEPTION 'this is not the upgrade of pulse %', v_found
        USING
            ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'It leads from @FROM@ to @VERSION@. Nothing was changed.',
            HINT = 'pulse install chooses the right one.';
    END IF;

    -- The objects of the old version, which upgrade_tail.sql compares with those of the new
    -- one. By kind and oid, since an argument may be of a type that the upgrade drops.
    PERFORM set_config(
        'pulse.old_objects',
        coalesce(jsonb_object_agg(o.key, o.name) FILTER (WHERE o.key IS NOT NULL), '{}')::text,
        true
    )
    FROM (
        SELECT
            n.name,
            CASE
                WHEN n.name ~ '^(FUNCTION|PROCEDURE) '
                    THEN 'routine ' || to_regprocedure(regexp_replace(n.name, '^\w+ ', ''))::oid
                WHEN n.name ~ '^(TYPE|DOMAIN) '
                    THEN 'type ' || to_regtype(regexp_replace(n.name, '^\w+ ', ''))::oid
                ELSE 'relation ' || to_regclass(regexp_replace(n.name, '^\w+ ', ''))::oid
            END AS key
        FROM regexp_split_to_table(v_manifest, E'\n') AS n (name)
        WHERE n.name ~ '^[A-Z]+ '
    ) AS o;

    -- CREATE OR REPLACE would replace an object of the user that has the name of a new one.
    FOR v_object IN
        SELECT n.name
        FROM regexp_split_to_table($objects$
@OBJECTS@
$objects$, E'\n') AS n (name)
        WHERE n.name ~ '^[A-Z]+ '
        EXCEPT
        SELECT n.name
        FROM regexp_split_to_table(v_manifest, E'\n') AS n (name)
    LOOP
        BEGIN
            v_key := CASE
                WHEN v_object ~ '^(FUNCTION|PROCEDURE) '
                    THEN 'routine ' || to_regprocedure(regexp_replace(v_object, '^\w+ ', ''))::oid
                WHEN v_object ~ '^(TYPE|DOMAIN) '
                    THEN 'type ' || to_regtype(regexp_replace(v_object, '^\w+ ', ''))::oid
                ELSE 'relation ' || to_regclass(regexp_replace(v_object, '^\w+ ', ''))::oid
            END;
        EXCEPTION
            -- An argument is of a type that the upgrade brings.
            WHEN undefined_object OR invalid_schema_name THEN
                v_key := NULL;
        END;
        IF v_key IS NOT NULL
            AND NOT current_setting('pulse.old_objects')::jsonb ? v_key
        THEN
            RAISE EXCEPTION 'an object that is not part of pulse has the name of a new one'
            USING
                ERRCODE = 'duplicate_object',
                DETAIL = format('pulse @VERSION@ brings %s. Nothing was changed.', v_object),
                HINT = 'Rename yours, or drop it, and upgrade again.';
        END IF;
    END LOOP;
END;
$$;
