"""What pulse.install asks a database before it does anything."""

from typing import Final

INSPECT: Final = """
    SELECT
        e.extversion,
        (
            SELECT pg_catalog.pg_get_userbyid(n.nspowner)
            FROM pg_catalog.pg_namespace AS n
            WHERE n.nspname = 'pulse'
        ),
        a.default_version,
        (
            SELECT pg_catalog.array_agg(DISTINCT p.proname::text)
            FROM pg_catalog.pg_proc AS p
            INNER JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
            WHERE n.nspname = 'pulse'
        ),
        (
            SELECT
                pg_catalog.has_schema_privilege(p.pronamespace, 'USAGE')
                AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
            FROM pg_catalog.pg_proc AS p
            INNER JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
            WHERE n.nspname = 'pulse' AND p.proname = 'version' AND p.pronargs = 0
        ),
        EXISTS (
            SELECT
            FROM pg_catalog.pg_proc AS p
            INNER JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
            WHERE n.nspname = 'pgtle' AND p.proname = 'pulse.control'
        ),
        CASE WHEN a.default_version IS NOT NULL THEN ARRAY(
            SELECT u.target
            FROM pg_catalog.pg_extension_update_paths('pulse') AS u
            WHERE u.source = e.extversion AND u.path IS NOT NULL
        ) END
    FROM (VALUES ('pulse')) AS o (name)
    LEFT JOIN pg_catalog.pg_extension AS e ON e.extname = o.name
    LEFT JOIN pg_catalog.pg_available_extensions AS a ON a.name = o.name
"""
