-- pulse @VERSION@ (build @BUILD@), the plain script: for a PostgreSQL where extension
-- files cannot be installed. One transaction, no superuser:
--
--     psql -v ON_ERROR_STOP=1 -f pulse.sql
--
-- The role that runs it owns everything and needs CREATE on the database.

BEGIN;

SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;
-- As CREATE EXTENSION does: functions may call those that come later.
SET LOCAL check_function_bodies = off;

DO $$
DECLARE
    v_schema name := (
        SELECT n.nspname
        FROM pg_namespace AS n
        WHERE n.nspname IN ('pulse', 'pulse_internal')
        ORDER BY n.nspname
        LIMIT 1
    );
BEGIN
    IF v_schema IS NOT NULL THEN
        RAISE EXCEPTION 'schema % already exists in this database', v_schema
        USING
            ERRCODE = 'duplicate_schema',
            DETAIL = 'Either pulse is installed already, or the schema belongs to something else. Nothing was changed.',
            HINT = 'Look at it with \dn+ pulse*; to start again, DROP SCHEMA pulse, pulse_internal CASCADE (this deletes every job).';
    END IF;
END;
$$;

