-- The checks of health that are about the server and this database.

CREATE FUNCTION pulse_internal.health_server()
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
    WHERE s.schemaname = 'pulse_internal';

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
                h.holder || coalesce(' for ' || pulse_internal.duration(h.held_for), '')
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
        'open_keys',
        CASE WHEN max(h.held_for) > interval '1 minute' THEN 'warn' ELSE 'ok' END,
        coalesce(string_agg(h.holder, ', ' ORDER BY h.held_for DESC NULLS LAST), 'none'),
        'Open transactions have taken or freed unique keys: a call that wants one of these keys waits 3 seconds and fails with PU111. End the session, or commit or roll back the prepared transaction.'
    FROM pulse_internal.key_holders() AS h;

    RETURN QUERY
    SELECT
        'open_producers',
        CASE
            WHEN max(o.held_for) > interval '1 hour' THEN 'fail'
            WHEN max(o.held_for) > interval '1 minute' THEN 'warn'
            ELSE 'ok'
        END,
        coalesce(
            string_agg(
                o.holder || ' (' || coalesce(
                    nullif(array_to_string(o.lanes [1:3], ', '), ''), 'a lane without jobs'
                ) || CASE WHEN cardinality(o.lanes) > 3 THEN ' and others)' ELSE ')' END,
                '; ' ORDER BY o.held_for DESC
            ),
            'none'
        ),
        'An open transaction has put jobs into these lanes: claims there read the entries of all jobs that have left since. End the session, or commit or roll back the prepared transaction, and set idle_in_transaction_session_timeout for producers.'
    FROM (
        SELECT p.*
        FROM pulse_internal.open_producers() AS p
        WHERE p.held_for > interval '10 seconds'
        LIMIT 10
    ) AS o;

    RETURN QUERY
    SELECT
        'foreign_locks',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'fail' END,
        coalesce(string_agg(format('%s holds %s', f.holder, f.class), ', '), 'none'),
        format(
            'It keeps claims, upkeep, operators or signals out: %s',
            string_agg(DISTINCT pulse_internal.foreign_lock_remedy(f.pid), ' ')
        )
    FROM pulse_internal.foreign_locks() AS f;

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
    LEFT JOIN pulse_internal.node AS n ON n.node = pulse.node();
END;
$$;

COMMENT ON FUNCTION pulse_internal.health_server() IS
'Checks of the server around pulse.';

-- Locks that keep claims out and that no verb of pulse holds.

-- Any role may take advisory locks, also those of pulse. A call of pulse that holds one
-- has also opened the table the lock is named for, and its role may make that call: who
-- lacks either is a stranger. Only the locks of holds and lanes are shared by calls (by claims,
-- and one that was refused has opened nothing) and those of signals. No call holds a lock
-- outside of a transaction. A prepared transaction is named in any case: no session will end
-- it. So is one that shares the lock of holds or lanes for ten seconds and has opened no table
-- of pulse. One look at pg_locks is no snapshot, so two must agree.
CREATE FUNCTION pulse_internal.foreign_locks()
RETURNS TABLE (class regclass, key integer, exclusive boolean, pid integer, holder text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_seen text [] := ARRAY(SELECT s.lock FROM pulse_internal.suspect_locks() AS s);
BEGIN
    IF v_seen = '{}' THEN
        RETURN;
    END IF;

    RETURN QUERY
    SELECT
        s.class,
        s.key,
        s.exclusive,
        s.pid,
        CASE
            WHEN s.pid IS NULL THEN format('prepared transaction %s', coalesce(s.gid, 'unknown'))
            ELSE format('backend %s of role %s', s.pid, coalesce(a.usename, 'unknown'))
        END
    FROM pulse_internal.suspect_locks() AS s
    LEFT JOIN pg_stat_activity AS a ON a.pid = s.pid
    WHERE s.lock = ANY (v_seen)
    ORDER BY s.class::text, s.pid;
END;
$$;

COMMENT ON FUNCTION pulse_internal.foreign_locks() IS
'Advisory locks on the keys of pulse that no call of pulse holds, and who does.';

CREATE FUNCTION pulse_internal.suspect_locks()
RETURNS TABLE (
    lock text, class regclass, key integer, exclusive boolean, pid integer, gid text
)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH held AS MATERIALIZED (
        SELECT l.*
        FROM pg_locks AS l
        WHERE l.granted
            AND l.database = (
                SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
            )
    ),

    session AS MATERIALIZED (
        SELECT a.pid, a.usesysid, a.xact_start
        FROM pg_stat_activity AS a
        WHERE a.usesysid IS NOT NULL
    ),

    caller AS MATERIALIZED (
        SELECT
            u.usesysid,
            bool_or(has_function_privilege(m.oid, 'pulse.tick()', 'EXECUTE')) AS ticks,
            bool_or(
                has_function_privilege(
                    m.oid, 'pulse.signal(text,jsonb,interval,pulse_internal.caller_signature)',
                    'EXECUTE'
                )
            ) AS signals
        FROM (SELECT DISTINCT s.usesysid FROM session AS s) AS u
        INNER JOIN pg_roles AS m ON pg_has_role(u.usesysid, m.oid, 'MEMBER')
        GROUP BY u.usesysid
    )

    SELECT
        format('%s %s %s', l.classid, l.objid, coalesce(l.pid::text, l.virtualtransaction)),
        l.classid::regclass,
        l.objid::bigint::bit(32)::integer,
        l.mode = 'ExclusiveLock',
        l.pid,
        (
            SELECT p.gid
            FROM pg_locks AS t
            INNER JOIN pg_prepared_xacts AS p ON p.transaction = t.transactionid
            WHERE l.pid IS NULL
                AND t.pid IS NULL
                AND t.locktype = 'transactionid'
                AND t.virtualtransaction = l.virtualtransaction
            LIMIT 1
        )
    FROM held AS l
    WHERE l.locktype = 'advisory'
        AND l.objsubid = 2
        AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.classid IN (
            'pulse_internal.hold'::regclass, 'pulse_internal.lane'::regclass, 'pulse_internal.roster'::regclass,
            'pulse_internal.mark'::regclass, 'pulse_internal.upkeep_run'::regclass, 'pulse_internal.signal'::regclass,
            'pulse_internal.quota'::regclass, 'pulse_internal.ready_seq'::regclass
        )
        -- Every call of pulse shares this one, and none takes it alone.
        AND (l.classid <> 'pulse_internal.ready_seq'::regclass OR l.mode = 'ExclusiveLock')
        AND NOT (
            CASE
                WHEN l.mode = 'ExclusiveLock' OR l.classid = 'pulse_internal.signal'::regclass
                    THEN EXISTS (
                        SELECT
                        FROM held AS t
                        WHERE t.locktype = 'relation'
                            AND t.relation = l.classid
                            AND t.virtualtransaction = l.virtualtransaction
                    )
                ELSE l.classid IN ('pulse_internal.hold'::regclass, 'pulse_internal.lane'::regclass)
                    AND l.virtualtransaction NOT LIKE '%/0'
            END
            AND EXISTS (
                SELECT
                FROM session AS s
                INNER JOIN caller AS c ON c.usesysid = s.usesysid
                WHERE s.pid = l.pid
                    AND (c.ticks OR c.signals AND l.classid = 'pulse_internal.signal'::regclass)
                    AND (
                        l.mode = 'ExclusiveLock'
                        OR (s.xact_start < clock_timestamp() - interval '10 seconds') IS NOT TRUE
                        OR EXISTS (
                            SELECT
                            FROM held AS t
                            INNER JOIN pg_class AS o ON o.oid = t.relation
                            WHERE t.locktype = 'relation'
                                AND t.virtualtransaction = l.virtualtransaction
                                AND o.relnamespace = 'pulse_internal'::regnamespace
                        )
                    )
            )
        )
$$;

COMMENT ON FUNCTION pulse_internal.suspect_locks() IS
'What one look at pg_locks shows of locks on the keys of pulse that no call of it seems to hold.';

CREATE FUNCTION pulse_internal.foreign_lock_remedy(pid integer)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format(
        '%s, and take the right to do so from PUBLIC (docs/security.md).',
        CASE
            WHEN foreign_lock_remedy.pid IS NULL THEN 'ROLLBACK PREPARED it'
            ELSE format('SELECT pg_terminate_backend(%s)', foreign_lock_remedy.pid)
        END
    )
$$;

COMMENT ON FUNCTION pulse_internal.foreign_lock_remedy(integer) IS
'In words: what to do about a lock that another role holds.';
