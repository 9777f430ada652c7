-- part: leftovers

-- What the old manifest has and the new one lacks is dropped, never with CASCADE. Any other
-- object in the two schemas belongs to the user and stays: with a warning in pulse_internal,
-- and where it does not stand in the way of a function of pulse.
DO $$
DECLARE
    v_new_objects text [];
    v_leftover text;
BEGIN
    v_new_objects := array(
        SELECT
            CASE
                WHEN n.name ~ '^(FUNCTION|PROCEDURE) '
                    THEN 'routine ' || to_regprocedure(regexp_replace(n.name, '^\w+ ', ''))::oid
                WHEN n.name ~ '^(TYPE|DOMAIN) '
                    THEN 'type ' || to_regtype(regexp_replace(n.name, '^\w+ ', ''))::oid
                ELSE 'relation ' || to_regclass(regexp_replace(n.name, '^\w+ ', ''))::oid
            END
        FROM regexp_split_to_table(pulse_internal.manifest(), E'\n') AS n (name)
        WHERE n.name ~ '^[A-Z]+ '
    );

    FOR v_leftover IN
        SELECT format('DROP %s %s', g.kind, g.names)
        FROM (
            SELECT d.place, d.kind, string_agg(d.name, ', ') AS names
            FROM (
                SELECT
                    CASE c.relkind WHEN 'v' THEN 1 WHEN 'r' THEN 3 ELSE 4 END AS place,
                    CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'r' THEN 'TABLE' ELSE 'SEQUENCE' END
                    AS kind,
                    'relation ' || c.oid AS key,
                    c.oid::regclass::text AS name
                FROM pg_class AS c
                WHERE c.relkind = ANY ('{v,r,S}'::"char" [])
                    AND pg_get_userbyid(c.relowner) = current_user
                UNION ALL
                SELECT 2, 'ROUTINE', 'routine ' || p.oid, p.oid::regprocedure::text
                FROM pg_proc AS p
                WHERE pg_get_userbyid(p.proowner) = current_user
                UNION ALL
                SELECT 5, 'TYPE', 'type ' || t.oid, t.oid::regtype::text
                FROM pg_type AS t
                WHERE pg_get_userbyid(t.typowner) = current_user
            ) AS d
            WHERE current_setting('pulse.old_objects')::jsonb ? d.key
                AND d.key <> ALL (v_new_objects)
            GROUP BY d.place, d.kind
        ) AS g
        ORDER BY g.place
    LOOP
        EXECUTE v_leftover;
    END LOOP;

    FOR v_leftover IN
        SELECT p.oid::regprocedure
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pulse'::regnamespace
            AND 'routine ' || p.oid <> ALL (v_new_objects)
            AND EXISTS (
                SELECT FROM pg_proc AS o
                WHERE o.pronamespace = p.pronamespace
                    AND o.proname = p.proname
                    AND 'routine ' || o.oid = ANY (v_new_objects)
            )
    LOOP
        RAISE EXCEPTION 'function % is not part of pulse', v_leftover
        USING
            ERRCODE = 'duplicate_function',
            DETAIL = 'It has the name of a function of pulse, so calls may be ambiguous. Nothing was changed.',
            HINT = 'Rename it, or drop it, and upgrade again.';
    END LOOP;

    FOR v_leftover IN
        SELECT p.oid::regprocedure::text
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pulse_internal'::regnamespace
            AND 'routine ' || p.oid <> ALL (v_new_objects)
        UNION ALL
        SELECT c.oid::regclass::text
        FROM pg_class AS c
        WHERE c.relnamespace = 'pulse_internal'::regnamespace
            AND c.relkind = ANY ('{v,r}'::"char" [])
            AND 'relation ' || c.oid <> ALL (v_new_objects)
    LOOP
        RAISE WARNING '% is not part of pulse and stays', v_leftover
        USING HINT = 'The schema pulse_internal is for pulse alone: move it elsewhere.';
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
