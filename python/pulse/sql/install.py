"""The queries of pulse.install: product, version, and transactions in the way."""

from typing import Final

INSPECT: Final = """
    SELECT
        e.extversion,
        (
            SELECT pg_catalog.pg_get_userbyid(n.nspowner)
            FROM pg_catalog.pg_namespace AS n
            WHERE n.nspname IN ('pulse', 'pulse_internal')
            ORDER BY n.nspname
            LIMIT 1
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

# Read, not called: a schema pulse may be a stranger's, and we may be a superuser.
VERSION: Final = r"""
    SELECT pg_catalog.split_part(m.line, ' ', 1), pg_catalog.split_part(m.line, ' ', 2)
    FROM pg_catalog.pg_proc AS p
    INNER JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    CROSS JOIN LATERAL pg_catalog.split_part(
        pg_catalog.split_part(p.prosrc, '$manifest$', 2), E'\n', 2
    ) AS m (line)
    WHERE n.nspname = 'pulse_internal' AND p.proname = 'manifest' AND p.pronargs = 0
"""

# Transactions that an upgrade waits for: locks on tables, views, gates of pulse.
HOLDERS: Final = """
    SELECT DISTINCT
        a.pid,
        pg_catalog.concat_ws(
            ', ',
            a.usename,
            a.state,
            pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - a.xact_start)
        )
    FROM pg_catalog.pg_locks AS l
    INNER JOIN pg_catalog.pg_class AS c
        ON c.oid = CASE l.locktype WHEN 'advisory' THEN l.classid ELSE l.relation END
    INNER JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    INNER JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
    WHERE n.nspname IN ('pulse', 'pulse_internal')
        AND l.granted
        AND a.datname = pg_catalog.current_database()
        AND a.pid <> pg_catalog.pg_backend_pid()
        AND (
            -- NULL where we may not see it.
            a.xact_start < pg_catalog.clock_timestamp() - interval '2 seconds'
        ) IS NOT FALSE
    ORDER BY 1
    LIMIT 5
"""

# Before COMMIT: this session keeps the locks that shut out claims and ticks.
KEEP_OUT: Final = """DO $$
BEGIN
    PERFORM pg_catalog.pg_advisory_lock(l.classid::integer, l.objid::integer)
    FROM pg_catalog.pg_locks AS l
    INNER JOIN pg_catalog.pg_class AS c ON l.classid = c.oid
    WHERE l.pid = pg_catalog.pg_backend_pid()
        AND l.locktype = 'advisory'
        AND l.mode = 'ExclusiveLock'
        AND c.relnamespace = 'pulse_internal'::regnamespace;
END;
$$"""

# After it: until every transaction that may have begun before is over, for a second.
LET_END: Final = """DO $$
DECLARE
    v_until timestamptz := pg_catalog.clock_timestamp() + interval '1 second';
    v_open text [] := ARRAY(
        SELECT l.virtualtransaction
        FROM pg_catalog.pg_locks AS l
        INNER JOIN pg_catalog.pg_stat_activity AS a ON l.pid = a.pid
        WHERE l.locktype = 'virtualxid'
            AND l.pid <> pg_catalog.pg_backend_pid()
            AND a.datname = pg_catalog.current_database()
    );
BEGIN
    WHILE pg_catalog.clock_timestamp() < v_until AND EXISTS (
        SELECT FROM pg_catalog.pg_locks AS l
        WHERE l.locktype = 'virtualxid' AND l.virtualtransaction = ANY (v_open)
    ) LOOP
        PERFORM pg_catalog.pg_sleep(0.005);
    END LOOP;
END;
$$"""

# Around a script that runs inside the caller's transaction: its SET LOCAL would stay.
KEEP_SETTINGS: Final = """
SELECT pg_catalog.set_config(
    'pulse.kept_' || s.name, pg_catalog.current_setting(s.name), true
)
FROM (
    VALUES ('search_path'), ('client_min_messages'), ('check_function_bodies')
) AS s (name);
"""
RESTORE_SETTINGS: Final = """
SELECT pg_catalog.set_config(
    s.name, pg_catalog.current_setting('pulse.kept_' || s.name), true
)
FROM (
    VALUES ('search_path'), ('client_min_messages'), ('check_function_bodies')
) AS s (name);
"""


def kept(script: str) -> str:
    return f"{KEEP_SETTINGS}{script}{RESTORE_SETTINGS}"
