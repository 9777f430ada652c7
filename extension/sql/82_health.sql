-- One row for each thing that can be wrong, with a figure and what to do about it. Each
-- group of checks is a function of its own; all of them answer, whatever they find.

CREATE FUNCTION pulse._health_upkeep()
RETURNS TABLE (check_name text, status text, figure text, advice text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT
        'last_tick',
        CASE
            WHEN t.taken_at > clock_timestamp() - interval '30 seconds' THEN 'ok'
            WHEN t.taken_at > clock_timestamp() - interval '5 minutes' THEN 'warn'
            ELSE 'fail'
        END,
        coalesce(pulse._duration(clock_timestamp() - t.taken_at) || ' ago', 'never'),
        'Delayed jobs, schedules and lost workers wait for tick: SELECT pulse.start_watchdog(), or run a worker, or call pulse.tick() every 10 seconds.'
    FROM (
        SELECT max(n.taken_at) AS taken_at
        FROM (VALUES ('due'), ('sweep')) AS s (step)
        CROSS JOIN LATERAL (
            SELECT u.taken_at
            FROM pulse.turn AS u
            WHERE u.step = s.step
            ORDER BY u.version DESC
            LIMIT 1
        ) AS n
    ) AS t;

    RETURN QUERY
    SELECT
        'tick_errors',
        CASE
            WHEN max(e.taken_at) > clock_timestamp() - interval '10 minutes' THEN 'fail'
            WHEN count(*) > 0 THEN 'warn'
            ELSE 'ok'
        END,
        coalesce(
            string_agg(
                format(
                    '%s, %s ago: %s', substr(e.step, 7),
                    pulse._duration(clock_timestamp() - e.taken_at), e.state ->> 'error'
                ),
                '; '
                ORDER BY e.version DESC
            ),
            'none in 24 h'
        ),
        'A step of tick failed; the others went on. The message says why.'
    FROM (
        SELECT DISTINCT ON (u.step) u.*
        FROM pulse.turn AS u
        WHERE u.step LIKE 'error:%'
        ORDER BY u.step, u.version DESC
    ) AS e
    WHERE e.taken_at > clock_timestamp() - interval '24 hours';

    RETURN QUERY
    SELECT
        'tick_turn',
        CASE
            WHEN max(clock_timestamp() - a.xact_start) > interval '1 minute' THEN 'warn'
            ELSE 'ok'
        END,
        coalesce(
            string_agg(
                format(
                    'held by backend %s%s', l.pid,
                    coalesce(' for ' || pulse._duration(clock_timestamp() - a.xact_start), '')
                ),
                ', '
            ),
            'free'
        ),
        'A transaction that called tick and stays open keeps everybody else from it: end it (pg_terminate_backend).'
    FROM pg_locks AS l
    LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'advisory'
        AND l.granted
        AND l.classid = 'pulse.turn'::regclass
        AND l.database = (
            SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
        );

    RETURN QUERY
    SELECT
        'watchdog',
        CASE WHEN w.present AND w.active THEN 'ok' ELSE 'warn' END,
        coalesce(w.detail, 'none'),
        'Without it only workers call tick, and nothing happens while none runs: SELECT pulse.start_watchdog().'
    FROM pulse._watchdog() AS w;

    RETURN QUERY
    SELECT
        'lapsed_leases',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warn' END,
        format('%s lapsed over a minute ago', count(*)),
        'Their workers are lost and nobody has reaped them: see last_tick and tick_errors.'
    FROM pulse.lease AS l
    WHERE l.lease_until < clock_timestamp() - interval '1 minute';

    RETURN QUERY
    SELECT
        'rows_below_marks',
        CASE WHEN coalesce(n.found, 0) = 0 THEN 'ok' ELSE 'fail' END,
        coalesce(
            n.found || ' found by the sweep '
            || pulse._duration(clock_timestamp() - n.taken_at) || ' ago',
            'not swept yet'
        ),
        'A job stood where no claim looks; its mark was lowered and it runs. This is a bug in pulse: please report it with SELECT * FROM pulse.check().'
    FROM (VALUES (true)) AS one (row)
    LEFT JOIN LATERAL (
        SELECT
            u.taken_at,
            coalesce((u.state ->> 'found')::bigint, 0) AS found
        FROM pulse.turn AS u
        WHERE u.step = 'backstop'
        ORDER BY u.version DESC
        LIMIT 1
    ) AS n ON true;

    RETURN QUERY
    SELECT
        'schedules',
        CASE
            WHEN count(*) FILTER (WHERE s.last_error IS NOT NULL) > 0 THEN 'fail'
            WHEN count(*) FILTER (WHERE s.late) > 0 THEN 'warn'
            ELSE 'ok'
        END,
        format(
            '%s with an error%s, %s late',
            count(*) FILTER (WHERE s.last_error IS NOT NULL),
            coalesce(
                ' (' || string_agg(s.name, ', ') FILTER (WHERE s.last_error IS NOT NULL) || ')', ''
            ),
            count(*) FILTER (WHERE s.late)
        ),
        'SELECT name, next_at, last_error FROM pulse.schedules says which and why.'
    FROM (
        SELECT
            t.name,
            t.last_error,
            t.next_at < clock_timestamp() - interval '1 minute' AND t.paused_at IS NULL AS late
        FROM pulse.schedule AS t
    ) AS s;
END;
$$;

COMMENT ON FUNCTION pulse._health_upkeep() IS
'Checks of what tick has to do.';

CREATE FUNCTION pulse._health_lanes()
RETURNS TABLE (check_name text, status text, figure text, advice text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT
        'oldest_ready_job',
        CASE
            WHEN max(o.age) > interval '1 hour' THEN 'fail'
            WHEN max(o.age) > interval '5 minutes' THEN 'warn'
            ELSE 'ok'
        END,
        coalesce(
            (
                array_agg(
                    format('%s in lane %s', pulse._duration(o.age), o.lane) ORDER BY o.age DESC
                )
            ) [1],
            'nothing waits'
        ),
        'Jobs wait in lanes that nobody holds: start more workers, raise max_slots, or ask pulse.why(job_id).'
    FROM (
        SELECT
            r.lane,
            clock_timestamp() - pulse._oldest_ready_at(r.lane) AS age
        FROM pulse._known_lanes AS r
        WHERE pulse._oldest_ready_at(r.lane) IS NOT NULL
            AND NOT EXISTS (SELECT FROM pulse._lane_obstacles(r.lane))
    ) AS o;

    RETURN QUERY
    SELECT
        'stuck_lanes',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'fail' END,
        coalesce(string_agg(o.lane, ', ' ORDER BY o.lane), 'none'),
        'Jobs are ready for over 5 minutes, nobody holds the lane, and nothing was claimed: start a worker that takes these lanes.'
    FROM pulse._known_lanes AS o
    WHERE pulse._oldest_ready_at(o.lane) < clock_timestamp() - interval '5 minutes'
        AND NOT EXISTS (SELECT FROM pulse._lane_obstacles(o.lane))
        AND NOT EXISTS (SELECT FROM pulse._slot_obstacle(o.lane))
        AND NOT EXISTS (
            SELECT FROM pulse.lease AS l
            WHERE l.lane = o.lane
                AND l.claimed_at > clock_timestamp() - interval '5 minutes'
        )
        AND NOT EXISTS (
            SELECT
            FROM unnest(enum_range(NULL::pulse.outcome)) AS s (state)
            INNER JOIN pulse.finished AS f
                ON f.lane = o.lane
                AND f.state = s.state
                AND f.finished_at > (SELECT clock_timestamp() - interval '5 minutes')
            WHERE f.claimed_at IS NOT NULL
        );

    -- Lane by lane and kind by kind off the index, the oldest of each.
    RETURN QUERY
    WITH RECURSIVE line (lane, kind, ready_at, n) AS (
        (
            SELECT r.lane, r.kind, r.ready_at, 1
            FROM pulse.ready AS r
            ORDER BY r.lane, r.kind, r.rank, r.seq
            LIMIT 1
        )
        UNION ALL
        SELECT x.lane, x.kind, x.ready_at, p.n + 1
        FROM line AS p
        CROSS JOIN LATERAL (
            SELECT r.lane, r.kind, r.ready_at
            FROM pulse.ready AS r
            WHERE (r.lane, r.kind) > (p.lane, p.kind)
            ORDER BY r.lane, r.kind, r.rank, r.seq
            LIMIT 1
        ) AS x
        WHERE p.n < 10000
    )

    SELECT
        'unhandled_kinds',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warn' END,
        coalesce(
            (
                string_agg(format('%s in lane %s', p.kind, p.lane), ', ' ORDER BY p.n)
                FILTER (WHERE p.place <= 10)
            ) || CASE WHEN count(*) > 10 THEN format(' and %s more', count(*) - 10) ELSE '' END,
            'none'
        ),
        'No worker that was heard of in the last 2 minutes takes them: start one, correct its kinds, or move_where the jobs. Workers that never say hello are known only by what they run.'
    FROM (
        SELECT
            i.lane,
            i.kind,
            i.n,
            row_number() OVER (ORDER BY i.n) AS place
        FROM line AS i
        WHERE i.ready_at < clock_timestamp() - interval '2 minutes'
            AND EXISTS (SELECT FROM pulse._worker_obstacle(i.lane, i.kind))
    ) AS p;

    RETURN QUERY
    SELECT
        'dead_jobs',
        CASE WHEN d.lately > 0 OR d.total >= 1000 THEN 'warn' ELSE 'ok' END,
        format(
            '%s%s, %s of them in the last hour',
            d.total, CASE WHEN d.total >= 100000 THEN ' or more' ELSE '' END, d.lately
        ),
        'SELECT * FROM pulse.dead says why; pulse.retry_where puts them back in line.'
    FROM (
        SELECT
            count(*) AS total,
            count(*) FILTER (
                WHERE c.finished_at > clock_timestamp() - interval '1 hour'
            ) AS lately
        FROM (
            SELECT f.finished_at
            FROM pulse._known_lanes AS k
            INNER JOIN pulse.finished AS f ON f.lane = k.lane AND f.state = 'dead'
            LIMIT 100000
        ) AS c
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse._health_lanes() IS
'Checks of whether jobs get through.';

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
        'A session that LISTENs stays in a transaction; from 50 % on pulse rings nobody and workers poll. End that session.'
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
        'node',
        CASE
            WHEN n.node IS NULL
                OR (n.system_identifier IN (0, c.system_identifier) AND n.database = c.database)
                THEN 'ok'
            ELSE 'warn'
        END,
        coalesce(
            'node ' || n.node || ', set ' || to_char(n.set_at, 'YYYY-MM-DD HH24:MI TZ'),
            'node 0, never set'
        ),
        'The node was set in another database, so this one is a copy: if the original lives on, call pulse.set_node with another number, else (pg_upgrade, restore) with the same one.'
    FROM (
        SELECT
            pulse._system_identifier() AS system_identifier,
            d.oid AS database
        FROM pg_database AS d
        WHERE d.datname = current_database()
    ) AS c
    LEFT JOIN pulse.node AS n ON true;
END;
$$;

COMMENT ON FUNCTION pulse._health_server() IS
'Checks of the server around pulse.';

CREATE FUNCTION pulse.health()
RETURNS TABLE (check_name text, status text, figure text, advice text)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    SELECT
        h.check_name,
        h.status,
        h.figure,
        CASE WHEN h.status <> 'ok' THEN h.advice END AS advice
    FROM (
        SELECT * FROM pulse._health_upkeep()
        UNION ALL
        SELECT * FROM pulse._health_lanes()
        UNION ALL
        SELECT * FROM pulse._health_server()
    ) AS h
$$;

COMMENT ON FUNCTION pulse.health() IS
'One row for each check: its name, ok, warn or fail, a figure, and what to do where it is not ok. Where the owner of pulse may not see other sessions it says so: grant it pg_read_all_stats.';
