-- The checks of health that are about the server and this database.

CREATE FUNCTION pulse._health_server()
RETURNS TABLE (check_name text, status text, figure text, advice text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_blind boolean := NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE');
    v_grant text := format('GRANT pg_read_all_stats TO %I', current_user);
BEGIN
    RETURN QUERY
    SELECT
        'dead_tuples',
        CASE
            WHEN max(s.n_dead_tup) > 1000000 THEN 'warn'
            ELSE 'ok'
        END,
        format(
            '%s, most in %s (%s)',
            sum(s.n_dead_tup),
            (array_agg(s.relname ORDER BY s.n_dead_tup DESC)) [1],
            max(s.n_dead_tup)
        ),
        'Vacuum cannot keep up, or something holds an old snapshot (see oldest_snapshot). pulse stays fast meanwhile; the disk fills.'
    FROM pg_stat_all_tables AS s
    WHERE s.schemaname = 'pulse';

    -- What keeps vacuum from removing dead rows of this database.
    RETURN QUERY
    SELECT
        'oldest_snapshot',
        CASE
            WHEN h.held_for > interval '1 hour' OR h.age > 10000000 THEN 'fail'
            WHEN h.held_for > interval '10 minutes' OR h.age > 1000000 OR v_blind THEN 'warn'
            ELSE 'ok'
        END,
        concat_ws(
            '; ',
            coalesce(
                h.holder || coalesce(' for ' || pulse._duration(h.held_for), '')
                || ', ' || h.age || ' transactions back',
                'none'
            ),
            CASE WHEN v_blind THEN 'sessions of other roles not seen' END
        ),
        concat_ws(
            ' ',
            'End the session or prepared transaction, or drop the replication slot, if nobody needs it.',
            CASE WHEN v_blind THEN 'To see all sessions: ' || v_grant || '.' END
        )
    FROM (VALUES (true)) AS one (row)
    LEFT JOIN LATERAL (
        SELECT x.*
        FROM (
            SELECT
                format('backend %s (%s, %s)', a.pid, coalesce(a.usename, a.backend_type), a.state) AS holder,
                clock_timestamp() - a.xact_start AS held_for,
                age(a.backend_xmin) AS age
            FROM pg_stat_activity AS a
            WHERE a.backend_xmin IS NOT NULL
                AND a.pid <> pg_backend_pid()
                AND coalesce(a.datname, current_database()) = current_database()
            UNION ALL
            SELECT
                format('replication slot %s', r.slot_name),
                NULL,
                age(r.xmin)
            FROM pg_replication_slots AS r
            WHERE r.xmin IS NOT NULL
            UNION ALL
            SELECT
                format('prepared transaction %s', p.gid),
                clock_timestamp() - p.prepared,
                age(p.transaction)
            FROM pg_prepared_xacts AS p
            WHERE p.database = current_database()
        ) AS x
        ORDER BY x.age DESC, x.held_for DESC NULLS LAST
        LIMIT 1
    ) AS h ON true;

    RETURN QUERY
    SELECT
        'notification_queue',
        CASE WHEN q.used >= 0.5 THEN 'fail' WHEN q.used >= 0.1 THEN 'warn' ELSE 'ok' END,
        format('%s %% full', round((q.used * 100)::numeric, 1)),
        'A session that LISTENs stays in a transaction; from 50 % on pulse sends no notification and workers poll. End that session.'
    FROM (SELECT pg_notification_queue_usage() AS used) AS q;

    RETURN QUERY
    SELECT
        'owner',
        CASE WHEN r.rolsuper THEN 'warn' ELSE 'ok' END,
        format('%s%s', r.rolname, CASE WHEN r.rolsuper THEN ', a superuser' ELSE '' END),
        'The functions of pulse run with the rights of its owner: let a role that only has CREATE on the database install it.'
    FROM pg_namespace AS n
    INNER JOIN pg_roles AS r ON r.oid = n.nspowner
    WHERE n.nspname = 'pulse';

    RETURN QUERY
    SELECT
        'foreign_locks',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'fail' END,
        coalesce(string_agg(format('%s holds %s', f.holder, f.class), ', '), 'none'),
        format(
            'It keeps claims, upkeep, operators or signals out: %s',
            string_agg(DISTINCT pulse._foreign_lock_remedy(f.pid), ' ')
        )
    FROM pulse._foreign_locks() AS f;

    RETURN QUERY
    SELECT
        'node',
        CASE WHEN s.state = 'copy' THEN 'warn' ELSE 'ok' END,
        coalesce(
            'node ' || n.node || ', set ' || to_char(n.set_at, 'YYYY-MM-DD HH24:MI TZ'),
            'node 0, never set'
        ),
        'The node was set in another database, so this one is a copy: if the original is still in use, call pulse.set_node with another number, else (pg_upgrade, restore) with the same one.'
    FROM pulse.node_state() AS s (state)
    LEFT JOIN pulse.node AS n ON n.node = pulse.node();
END;
$$;

COMMENT ON FUNCTION pulse._health_server() IS
'Checks of the server around pulse.';
