-- part: leftovers

DO $$
DECLARE
    v_drop text;
BEGIN
    FOR v_drop IN
        SELECT format('DROP VIEW %s', string_agg(c.oid::regclass::text, ', '))
        FROM pg_class AS c
        WHERE c.relnamespace = 'pulse'::regnamespace
            AND c.relkind = 'v'
            AND obj_description(c.oid, 'pg_class') IS NULL
        HAVING count(*) > 0
        UNION ALL
        SELECT format('DROP ROUTINE %s', string_agg(p.oid::regprocedure::text, ', '))
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pulse'::regnamespace
            AND obj_description(p.oid, 'pg_proc') IS NULL
        HAVING count(*) > 0
    LOOP
        EXECUTE v_drop;
    END LOOP;
END;
$$;

-- part: access

-- New functions and those that were dropped and made again have no grants yet.
DO $$
BEGIN
    PERFORM pulse._apply_grants();
    PERFORM set_config('role', current_setting('pulse.upgraded_by'), true);
END;
$$;

