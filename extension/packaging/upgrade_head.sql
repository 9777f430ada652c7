SET LOCAL search_path = pg_catalog, pg_temp;
-- Workers go on while this runs; rather give up than queue them behind a lock.
SET LOCAL lock_timeout = '3s';

DO $$
DECLARE
    v_uncomment text;
BEGIN
    -- What is created here must belong to the owner of pulse, whoever runs this: the
    -- functions run with the rights of their owner.
    PERFORM set_config('pulse.upgraded_by', current_setting('role'), true);
    PERFORM set_config('role', pg_get_userbyid(n.nspowner), true)
    FROM pg_namespace AS n
    WHERE n.nspname = 'pulse';

    -- Waits for claims and ticks that run, and keeps others from beginning: a claim
    -- finds nothing and a tick no turn until this ends, so that none meets both old and
    -- new code.
    PERFORM pg_advisory_xact_lock('pulse.hold'::regclass::oid::integer, 0);
    PERFORM pg_advisory_xact_lock(
        to_regclass('pulse.upkeep_run')::oid::integer, hashtext(s.step)
    )
    FROM unnest('{due, backstop, sample, sweep}'::text []) AS s (step);

    -- Everything in the source has a comment: what has none at the end is code that the
    -- new version does not have.
    FOR v_uncomment IN
        SELECT format('COMMENT ON ROUTINE %s IS NULL', p.oid::regprocedure)
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pulse'::regnamespace
        UNION ALL
        SELECT format('COMMENT ON VIEW %s IS NULL', c.oid::regclass)
        FROM pg_class AS c
        WHERE c.relnamespace = 'pulse'::regnamespace
            AND c.relkind = 'v'
    LOOP
        EXECUTE v_uncomment;
    END LOOP;
END;
$$;

