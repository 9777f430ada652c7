-- Runs last: registers the server, and takes back what PostgreSQL grants to PUBLIC.

-- The server that pulse is installed on drew no number before.
DO $$
BEGIN
    PERFORM pulse_internal.meet_server();
END;
$$;

-- What PostgreSQL gives to PUBLIC by default, taken back as the last thing.
REVOKE ALL ON SCHEMA pulse, pulse_internal FROM PUBLIC;

REVOKE ALL ON ALL TABLES IN SCHEMA pulse, pulse_internal FROM PUBLIC;

REVOKE ALL ON ALL SEQUENCES IN SCHEMA pulse, pulse_internal FROM PUBLIC;

REVOKE ALL ON ALL ROUTINES IN SCHEMA pulse, pulse_internal FROM PUBLIC;

-- There is no ALL TYPES; row types of tables and arrays follow what they belong to.
DO $$
DECLARE
    v_type regtype;
BEGIN
    FOR v_type IN
        SELECT t.oid
        FROM pg_catalog.pg_type AS t
        LEFT JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) t.typrelid
        WHERE t.typnamespace OPERATOR(pg_catalog.=) ANY ('{pulse,pulse_internal}'::regnamespace [])
            AND t.typelem OPERATOR(pg_catalog.=) 0
            AND (c.oid IS NULL OR c.relkind OPERATOR(pg_catalog.=) 'c')
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON TYPE %s FROM PUBLIC', v_type);
    END LOOP;
END;
$$;
