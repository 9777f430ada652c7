-- pulse, the upgrade of a plain install from @FROM@ to @VERSION@: `pulse install` runs it,
-- and so can psql. One transaction; jobs, workers and rights stay.
--
--     psql -v ON_ERROR_STOP=1 -f THIS_FILE
--
-- The role that runs it owns pulse or may become its owner.

BEGIN ISOLATION LEVEL READ COMMITTED;

SET LOCAL statement_timeout = 0;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;
-- As CREATE EXTENSION does: functions may call those that come later.
SET LOCAL check_function_bodies = off;

DO $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_extension AS e
        WHERE e.extname = 'pulse'
    ) THEN
        RAISE EXCEPTION 'pulse is an extension in this database'
        USING
            ERRCODE = 'wrong_object_type',
            DETAIL = 'This script upgrades a plain install. Nothing was changed.',
            HINT = 'ALTER EXTENSION pulse UPDATE.';
    END IF;
END;
$$;

