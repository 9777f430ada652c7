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
BEGIN
    IF EXISTS (
        SELECT FROM pg_namespace AS n
        WHERE n.nspname = 'pulse'
    ) THEN
        RAISE EXCEPTION 'schema pulse already exists in this database'
        USING
            ERRCODE = 'duplicate_schema',
            DETAIL = 'Either pulse is installed already, or the schema belongs to something else. Nothing was changed.',
            HINT = 'Look at it with \dn+ pulse; to start afresh, DROP SCHEMA pulse CASCADE (this deletes every job).';
    END IF;
END;
$$;

