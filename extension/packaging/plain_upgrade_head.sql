-- pulse, the upgrade of a plain install from @FROM@ to @VERSION@: `pulse install` runs it,
-- and so can psql. One transaction; jobs, workers and rights stay.
--
--     psql -v ON_ERROR_STOP=1 -f THIS_FILE
--
-- The role that runs it owns pulse or may become its owner.

BEGIN;

SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;
-- As CREATE EXTENSION does: functions may call those that come later.
SET LOCAL check_function_bodies = off;

DO $$
DECLARE
    v_found text;
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

    -- What has no version() is older than 1.0.
    IF to_regprocedure('pulse.version()') IS NOT NULL THEN
        EXECUTE 'SELECT v.version FROM pulse.version() AS v' INTO v_found;
    ELSIF to_regprocedure('pulse.tick()') IS NOT NULL THEN
        v_found := '0.9';
    END IF;

    IF v_found IS DISTINCT FROM '@FROM@' THEN
        RAISE EXCEPTION 'pulse @FROM@ is not what this database has'
        USING
            ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = format(
                'It has %s. Nothing was changed.', coalesce('pulse ' || v_found, 'no pulse')
            ),
            HINT = 'pulse install chooses the right script.';
    END IF;
END;
$$;

