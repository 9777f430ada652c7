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
    v_uncomment text;
    v_owner CONSTANT name := (
        SELECT pg_get_userbyid(n.nspowner)
        FROM pg_namespace AS n
        WHERE n.nspname = 'pulse'
    );
BEGIN
    -- Pulse has no trigger on a table, and no rule. Those of its owner would run in this
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
    ) AS f;
    IF v_found IS NOT NULL AND session_user <> v_owner THEN
        RAISE EXCEPTION 'tables of pulse have triggers or rules of their owner'
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
    SELECT coalesce(
        (regexp_match(p.prosrc, '''([^'']*)'',\s*''([^'']*)'''))[1],
        '(version unknown)'
    ) INTO v_found
    FROM (VALUES (1)) AS always (one)
    LEFT JOIN pg_proc AS p ON p.oid = to_regprocedure('pulse.version()');
    IF v_found <> '@FROM@' THEN
        RAISE EXCEPTION 'this is not the upgrade of pulse %', v_found
        USING
            ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'It leads from @FROM@ to @VERSION@. Nothing was changed.',
            HINT = 'pulse install chooses the right one.';
    END IF;

    -- Every object of the source has a comment, so an object without one at the end was
    -- not in it. The upgrade then drops what stands in pulse_internal, and other
    -- signatures of a public function. Any other object in schema pulse belongs to the
    -- user and gets its comment back (upgrade_tail.sql). A function that a table uses is
    -- not replaced: it stands in sql/schema/.
    PERFORM set_config(
        'pulse.comments',
        coalesce(jsonb_object_agg(o.name, o.comment), '{}')::text,
        true
    )
    FROM (
        SELECT 'ROUTINE ' || p.oid::regprocedure AS name, obj_description(p.oid, 'pg_proc') AS comment
        FROM pg_proc AS p
        WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND pg_get_userbyid(p.proowner) = current_user
        UNION ALL
        SELECT 'VIEW ' || c.oid::regclass, obj_description(c.oid, 'pg_class')
        FROM pg_class AS c
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND c.relkind = 'v'
            AND pg_get_userbyid(c.relowner) = current_user
    ) AS o
    WHERE o.comment IS NOT NULL;

    FOR v_uncomment IN
        SELECT format('COMMENT ON ROUTINE %s IS NULL', p.oid::regprocedure)
        FROM pg_proc AS p
        WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND pg_get_userbyid(p.proowner) = current_user
            AND NOT EXISTS (
                SELECT FROM pg_depend AS d
                WHERE d.refclassid = 'pg_proc'::regclass
                    AND d.refobjid = p.oid
                    AND d.classid IN (
                        'pg_class'::regclass, 'pg_attrdef'::regclass, 'pg_constraint'::regclass
                    )
            )
        UNION ALL
        SELECT format('COMMENT ON VIEW %s IS NULL', c.oid::regclass)
        FROM pg_class AS c
        WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND c.relkind = 'v'
            AND pg_get_userbyid(c.relowner) = current_user
    LOOP
        EXECUTE v_uncomment;
    END LOOP;
END;
$$;

