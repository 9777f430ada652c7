-- part: pg_dump

-- A table that is not marked restores empty, silently, and a sequence that is not
-- marked hands out numbers again. Caches are marked with a condition that no row
-- meets: a mark of another cluster would hide jobs.
DO $$
DECLARE
    v_caches CONSTANT name [] := '{roster, mark, due_mark, horizon, upkeep_run, signature,
        group_notice, group_state, group_mark, note_mark, quota}';
    v_relation record;
BEGIN
    FOR v_relation IN
        SELECT
            c.oid,
            c.relname
        FROM pg_class AS c
        WHERE
            c.relnamespace = 'pulse_internal'::regnamespace
            AND c.relkind = ANY ('{r,p,S}'::"char" [])
        ORDER BY c.oid
    LOOP
        PERFORM pg_extension_config_dump(
            v_relation.oid::regclass,
            CASE
                WHEN v_relation.relname = ANY (v_caches)
                THEN 'WHERE false'
                ELSE ''
            END
        );
    END LOOP;
END;
$$;
