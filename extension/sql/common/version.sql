-- The build puts in both constants, so that a database knows what it has, whichever
-- product brought it. build is a checksum of the tables and one of the code: two
-- development builds of one version differ in it.

CREATE FUNCTION pulse.version(OUT version text, OUT build text, OUT product text)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        '@VERSION@',
        '@BUILD@',
        CASE
            WHEN NOT EXISTS (
                SELECT FROM pg_extension AS e
                WHERE e.extname = 'pulse'
            ) THEN 'plain'
            -- pg_tle keeps control files as functions of its own schema.
            WHEN EXISTS (
                SELECT
                FROM pg_proc AS p
                INNER JOIN pg_namespace AS n ON n.oid = p.pronamespace
                WHERE n.nspname = 'pgtle'
                    AND p.proname = 'pulse.control'
            ) THEN 'pg_tle'
            ELSE 'extension'
        END
$$;

COMMENT ON FUNCTION pulse.version() IS
'The version of pulse in this database, a checksum of its tables and its code (development builds of one version differ in it), and how it was installed: extension, plain or pg_tle. Writes nothing.';
