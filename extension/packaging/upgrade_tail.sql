-- part: leftovers

DO $$
DECLARE
    v_leftover text;
BEGIN
    FOR v_leftover IN
        SELECT format('DROP VIEW %s', string_agg(c.oid::regclass::text, ', '))
        FROM pg_class AS c
        WHERE c.relnamespace = 'pulse_internal'::regnamespace
            AND c.relkind = 'v'
            AND pg_get_userbyid(c.relowner) = current_user
            AND obj_description(c.oid, 'pg_class') IS NULL
        HAVING count(*) > 0
        UNION ALL
        SELECT format('DROP ROUTINE %s', string_agg(p.oid::regprocedure::text, ', '))
        FROM pg_proc AS p
        WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND pg_get_userbyid(p.proowner) = current_user
            AND obj_description(p.oid, 'pg_proc') IS NULL
            AND (
                p.pronamespace = 'pulse_internal'::regnamespace
                OR EXISTS (
                    SELECT FROM pg_proc AS o
                    WHERE o.pronamespace = p.pronamespace
                        AND o.proname = p.proname
                        AND obj_description(o.oid, 'pg_proc') IS NOT NULL
                )
            )
        HAVING count(*) > 0
    LOOP
        EXECUTE v_leftover;
    END LOOP;

    FOR v_leftover IN
        SELECT format('COMMENT ON %s IS %L', s.name, s.comment)
        FROM jsonb_each_text(current_setting('pulse.comments')::jsonb) AS s (name, comment)
        WHERE s.name IN (
                SELECT 'ROUTINE ' || p.oid::regprocedure
                FROM pg_proc AS p
                WHERE p.pronamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
                    AND obj_description(p.oid, 'pg_proc') IS NULL
                UNION ALL
                SELECT 'VIEW ' || c.oid::regclass
                FROM pg_class AS c
                WHERE c.relnamespace = ANY ('{pulse,pulse_internal}'::regnamespace [])
                    AND c.relkind = 'v'
                    AND obj_description(c.oid, 'pg_class') IS NULL
            )
    LOOP
        EXECUTE v_leftover;
    END LOOP;
END;
$$;

-- part: access

-- New functions and those that were dropped and made again have no grants yet.
DO $$
BEGIN
    PERFORM pulse_internal.apply_grants();
    PERFORM set_config('role', current_setting('pulse.upgraded_by'), true);
END;
$$;
