-- What keeps the jobs of a lane from being claimed: for why and health.

-- What keeps any job of a lane from being claimed, whatever the job.
CREATE FUNCTION pulse_internal.lane_holds(lane text)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT
        format(
            '%s by %s%s since %s (%s), held by role %s',
            CASE
                WHEN h.lane = '' THEN 'everything is paused'
                WHEN h.holder = 'drain' THEN format('lane %s is drained', h.lane)
                ELSE format('lane %s is paused', h.lane)
            END,
            h.holder,
            coalesce(': ' || nullif(h.reason, '') || ',', ''),
            to_char(h.held_at, 'YYYY-MM-DD HH24:MI:SS TZ'),
            pulse_internal.duration(clock_timestamp() - h.held_at),
            h.held_by
        )
    FROM pulse_internal.hold AS h
    WHERE h.lane IN ('', lane_holds.lane)
    ORDER BY h.lane, h.held_at, h.holder;

    RETURN QUERY
    SELECT format('lane %s is disabled: set_lane(%L, enabled => true)', l.lane, l.lane)
    FROM pulse_internal.lane AS l
    WHERE l.lane = lane_holds.lane
        AND NOT l.enabled;
END;
$$;

COMMENT ON FUNCTION pulse_internal.lane_holds(text) IS
'In words: every pause, drain or setting that keeps a lane from being claimed.';

CREATE FUNCTION pulse_internal.lane_obstacles(lane text)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT pulse_internal.lane_holds(lane_obstacles.lane);

    RETURN QUERY
    SELECT
        format(
            'claims are kept out by %s, which is no call of pulse: %s',
            f.holder, pulse_internal.foreign_lock_remedy(f.pid)
        )
    FROM pulse_internal.foreign_locks() AS f
    WHERE f.class = 'pulse_internal.hold'::regclass AND f.key = 0 AND f.exclusive
        OR f.class = 'pulse_internal.lane'::regclass
        AND f.key = hashtext(lane_obstacles.lane)
        AND f.exclusive
        OR f.class = 'pulse_internal.roster'::regclass
        AND f.key = hashtext(lane_obstacles.lane);
END;
$$;

COMMENT ON FUNCTION pulse_internal.lane_obstacles(text) IS
'In words: what keeps a lane from being claimed: pauses, drains, settings, and locks that are no call of pulse.';

CREATE FUNCTION pulse_internal.signal_obstacle(job_id bigint)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT
        format(
            'its signal %s is kept from it by %s, which is no call of pulse: %s',
            w.signal, f.holder, pulse_internal.foreign_lock_remedy(f.pid)
        )
    FROM pulse_internal.signal_wait AS w
    CROSS JOIN LATERAL pulse_internal.foreign_locks() AS f
    WHERE w.job = signal_obstacle.job_id
        AND f.class = 'pulse_internal.signal'::regclass
        AND f.key IN (
            pulse_internal.signal_key(w.signal, 0), pulse_internal.signal_key(w.signal, w.owner)
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.signal_obstacle(bigint) IS
'In words: who has the lock of the signal that a job waits for and is no call of pulse.';

CREATE FUNCTION pulse_internal.slot_obstacle(lane text)
RETURNS SETOF text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        format(
            'lane %s has %s of %s slots in use, by %s%s',
            s.lane, u.used, s.max_slots,
            array_to_string(u.workers [1:5], ', '),
            CASE WHEN cardinality(u.workers) > 5 THEN ' and others' ELSE '' END
        )
    FROM pulse_internal.lane AS s
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS used,
            array_agg(DISTINCT l.worker) AS workers
        FROM pulse_internal.lease AS l
        WHERE l.lane = s.lane
    ) AS u
    WHERE s.lane = slot_obstacle.lane
        AND u.used >= s.max_slots
$$;

COMMENT ON FUNCTION pulse_internal.slot_obstacle(text) IS
'In words: that all slots of a lane are in use, and by whom; nothing when one is free.';

-- A claim puts due jobs in line, each behind the jobs of its own priority, and then takes the
-- first job: so a due job of higher priority goes before one that is in line. Priority by
-- priority through the index: most jobs of a lane may be due much later.
CREATE FUNCTION pulse_internal.due_obstacle(lane text, rank integer)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_ahead bigint;
BEGIN
    WITH RECURSIVE higher AS (
        SELECT min(w.rank) AS rank
        FROM pulse_internal.waiting AS w
        WHERE w.lane = due_obstacle.lane
            AND w.failures >= 0
            AND w.rank < due_obstacle.rank
        UNION ALL
        SELECT (
            SELECT min(w.rank)
            FROM pulse_internal.waiting AS w
            WHERE w.lane = due_obstacle.lane
                AND w.failures >= 0
                AND w.rank > h.rank
                AND w.rank < due_obstacle.rank
        )
        FROM higher AS h
        WHERE num_nonnulls(h.rank) = 1
    )

    SELECT count(*) INTO v_ahead
    FROM (
        SELECT
        FROM higher AS h
        CROSS JOIN LATERAL (
            SELECT
            FROM pulse_internal.waiting AS w
            WHERE w.lane = due_obstacle.lane
                AND w.failures >= 0
                AND w.rank = h.rank
                AND w.run_at <= clock_timestamp()
            LIMIT 1001
        ) AS due
        LIMIT 1001
    ) AS ahead;

    IF v_ahead > 0 THEN
        RETURN NEXT format(
            '%s due in lane %s with a higher priority: the next claim or tick puts %s in line',
            CASE
                WHEN v_ahead > 1000 THEN 'more than 1000 jobs are'
                WHEN v_ahead = 1 THEN '1 job is'
                ELSE format('%s jobs are', v_ahead)
            END,
            due_obstacle.lane,
            CASE WHEN v_ahead = 1 THEN 'it' ELSE 'them' END
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.due_obstacle(text, integer) IS
'In words: how many jobs of higher priority are due in a lane and not in line yet; nothing when none is.';

CREATE FUNCTION pulse_internal.worker_obstacle(lane text, kind text)
RETURNS SETOF text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE
            WHEN count(*) = 0
                THEN format(
                    'no live worker takes lane %s (none said hello or runs a job of it in 2 min)',
                    worker_obstacle.lane
                )
            ELSE format(
                'no live worker takes kind %s: the %s of lane %s take other kinds',
                worker_obstacle.kind, count(*), worker_obstacle.lane
            )
        END
    FROM pulse_internal.live_workers(worker_obstacle.lane) AS w
    HAVING count(*) FILTER (
        WHERE w.kinds IS NULL OR worker_obstacle.kind = ANY (w.kinds)
    ) = 0
$$;

COMMENT ON FUNCTION pulse_internal.worker_obstacle(text, text) IS
'In words: that no live worker takes a lane or a kind of it; nothing when one does.';

CREATE FUNCTION pulse_internal.live_workers(lane text)
RETURNS TABLE (worker text, kinds text [])
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        w.worker,
        w.kinds
    FROM pulse.workers AS w
    WHERE w.live
        AND live_workers.lane = ANY (w.lanes)
$$;

COMMENT ON FUNCTION pulse_internal.live_workers(text) IS
'The live workers of a lane, and their kinds (NULL is every kind).';

CREATE FUNCTION pulse_internal.duration(duration interval)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE
            WHEN e.seconds < 10 THEN format('%s s', round(e.seconds, 1))
            WHEN e.seconds < 120 THEN format('%s s', floor(e.seconds))
            WHEN e.seconds < 7200 THEN format('%s min', floor(e.seconds / 60))
            WHEN e.seconds < 172800 THEN format('%s h', floor(e.seconds / 3600))
            ELSE format('%s days', floor(e.seconds / 86400))
        END
    FROM (
        SELECT greatest(extract(EPOCH FROM duration.duration)::numeric, 0) AS seconds
    ) AS e
    WHERE duration.duration IS NOT NULL
$$;

COMMENT ON FUNCTION pulse_internal.duration(interval) IS
'An interval in few words, as people say it.';

-- What why says of a job that stands in a group.

CREATE FUNCTION pulse_internal.group_obstacles(lane text, group_key text, rank integer, seq bigint)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_lane pulse_internal.lane;
    v_group text COLLATE "C" := pulse_internal.group_of(group_obstacles.group_key);
    v_named text := CASE v_group
        WHEN '' THEN 'the jobs without a group_key' ELSE format('group %s', v_group)
    END;
    v_state pulse_internal.group_state;
    v_rule pulse_internal.group_rule;
    v_slots integer;
    v_running bigint [];
    v_waits_for record;
    v_ahead bigint;
BEGIN
    SELECT l.* INTO v_lane
    FROM pulse_internal.lane AS l
    WHERE l.lane = group_obstacles.lane;

    IF v_lane.grouped IS NOT TRUE THEN
        RETURN;
    END IF;

    SELECT s.* INTO v_state
    FROM pulse_internal.group_state AS s
    WHERE s.lane = group_obstacles.lane
        AND s.group_key = v_group
    ORDER BY s.version DESC
    LIMIT 1;

    SELECT r.* INTO v_rule
    FROM pulse_internal.group_rule AS r
    WHERE r.lane = group_obstacles.lane
        AND r.group_key = v_group;

    IF NOT v_rule.enabled THEN
        RETURN NEXT format(
            'group %s of lane %s is disabled by %s since %s%s',
            v_group, group_obstacles.lane, v_rule.held_by,
            to_char(v_rule.held_at, 'YYYY-MM-DD HH24:MI:SS TZ'), ': ' || v_rule.reason
        );
    END IF;

    v_slots := CASE
        WHEN v_lane.in_order THEN 1
        ELSE coalesce(v_rule.max_slots, v_lane.group_slots)
    END;
    v_running := array(
        SELECT l.job
        FROM pulse_internal.lease AS l
        WHERE l.job = ANY (v_state.jobs)
            AND l.lane = group_obstacles.lane
        ORDER BY l.lease
    );
    IF cardinality(v_running) >= v_slots THEN
        RETURN NEXT format(
            'group %s of lane %s runs %s of %s jobs at once: %s%s',
            v_group, group_obstacles.lane, cardinality(v_running), v_slots,
            array_to_string(v_running[1:5], ', '),
            CASE WHEN cardinality(v_running) > 5 THEN ' and others' ELSE '' END
        );
    END IF;

    IF v_state.wake_at > clock_timestamp() THEN
        RETURN NEXT format(
            'the rate of group %s of lane %s is used up until %s',
            v_group, group_obstacles.lane,
            to_char(
                pulse_internal.by_clock(
                    v_state.wake_at, clock_timestamp(), pulse_internal.longest_group_period(v_lane)
                ),
                'YYYY-MM-DD HH24:MI:SS.MS TZ'
            )
        );
    END IF;

    IF v_lane.in_order THEN
        SELECT w.job, w.run_at INTO v_waits_for
        FROM pulse_internal.waiting AS w
        WHERE w.lane = group_obstacles.lane
            AND w.group_key = v_group
        ORDER BY w.place
        LIMIT 1;

        IF FOUND THEN
            RETURN NEXT format(
                'group %s of lane %s runs in order and waits for job %s, due at %s',
                v_group, group_obstacles.lane, v_waits_for.job,
                to_char(v_waits_for.run_at, 'YYYY-MM-DD HH24:MI:SS TZ')
            );
        END IF;
    END IF;

    SELECT count(*) INTO v_ahead
    FROM (
        SELECT
        FROM pulse_internal.ready AS r
        WHERE r.lane = group_obstacles.lane
            AND r.group_key = v_group
            AND r.group_key IS NOT NULL
            AND (r.rank, r.seq) < (group_obstacles.rank, group_obstacles.seq)
        ORDER BY r.rank, r.seq
        LIMIT 1001
    ) AS ahead;

    IF v_ahead > 0 THEN
        RETURN NEXT format(
            '%s ahead of it in the line of %s',
            CASE
                WHEN v_ahead > 1000 THEN 'more than 1000 jobs are'
                WHEN v_ahead = 1 THEN '1 job is'
                ELSE format('%s jobs are', v_ahead)
            END,
            v_named
        );
    END IF;

    IF v_state.turn IS NULL THEN
        RETURN;
    END IF;

    SELECT count(*) INTO v_ahead
    FROM (
        SELECT
        FROM pulse_internal.group_state AS s
        WHERE s.lane = group_obstacles.lane
            AND s.turn IS NOT NULL
            AND s.version > 0
            AND (s.rank, s.turn) < (v_state.rank, v_state.turn)
        ORDER BY s.rank, s.turn
        LIMIT 1001
    ) AS ahead;

    IF v_ahead > 0 THEN
        RETURN NEXT format(
            '%s a turn before %s',
            CASE
                WHEN v_ahead > 1000 THEN 'more than 1000 groups have'
                WHEN v_ahead = 1 THEN '1 group has'
                ELSE format('%s groups have', v_ahead)
            END,
            v_named
        );
    END IF;

    -- Claims that name kinds pass over a group whose first job is of another one.
    IF EXISTS (SELECT FROM pulse_internal.live_workers(group_obstacles.lane))
        AND NOT EXISTS (
            SELECT
            FROM pulse_internal.live_workers(group_obstacles.lane) AS w
            WHERE w.kinds IS NULL OR v_state.kind = ANY (w.kinds)
        )
    THEN
        RETURN NEXT format(
            'the first job of %s is of kind %s, which no live worker of lane %s takes',
            v_named, v_state.kind, group_obstacles.lane
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.group_obstacles(text, text, integer, bigint) IS
'In words: what its group keeps a job of a lane waiting for.';

-- Who holds back the marks of a lane: a session that has put a job into it and stays open. A lock
-- names one of 256 parts (common/horizon.sql): the lanes are those of that part that have jobs.
-- Of other roles the owner of pulse may see no time; then it is the first look that met them.
CREATE FUNCTION pulse_internal.open_producers()
RETURNS TABLE (holder text, held_for interval, part integer, lanes text [])
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH held AS MATERIALIZED (
        SELECT
            l.pid,
            l.virtualtransaction,
            l.objid::bigint::integer AS part
        FROM pg_locks AS l
        WHERE l.locktype = 'advisory'
            AND l.classid = 'pulse_internal.ready_seq'::regclass
            AND l.objsubid = 2
            AND l.granted
            AND l.pid IS DISTINCT FROM pg_backend_pid()
            AND l.database = (
                SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()
            )
    ),

    known AS MATERIALIZED (
        SELECT hashtext(k.lane) & 255 AS part, array_agg(k.lane ORDER BY k.lane) AS lanes
        FROM (
            SELECT n.lane FROM pulse_internal.known_lanes AS n
            UNION
            SELECT m.lane FROM pulse_internal.mark AS m
            UNION
            SELECT s.lane FROM pulse_internal.lane AS s
        ) AS k
        WHERE EXISTS (SELECT FROM held AS h)
        GROUP BY hashtext(k.lane) & 255
    ),

    looked AS MATERIALIZED (
        SELECT w.*
        FROM (
            SELECT h.writers
            FROM pulse_internal.horizon AS h
            ORDER BY h.version DESC
            LIMIT 1
        ) AS h
        CROSS JOIN LATERAL unnest(h.writers) AS w
        WHERE w.counter = 'lane'
    )

    SELECT
        CASE
            WHEN h.pid IS NULL THEN format('prepared transaction %s', coalesce(p.gid, 'unknown'))
            ELSE format('backend %s of role %s', h.pid, coalesce(a.usename, 'unknown'))
        END
        || coalesce(', application ' || nullif(a.application_name, ''), '')
        || coalesce(', ' || a.state, '')
        || coalesce(' for ' || pulse_internal.duration(t.held_for), ''),
        t.held_for,
        h.part,
        coalesce(k.lanes, '{}')
    FROM held AS h
    LEFT JOIN known AS k ON k.part = h.part
    LEFT JOIN looked AS o
        ON o.part = h.part
        AND o.virtual_transaction = h.virtualtransaction
    LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
    LEFT JOIN pg_locks AS x
        ON h.pid IS NULL
        AND x.pid IS NULL
        AND x.locktype = 'transactionid'
        AND x.virtualtransaction = h.virtualtransaction
    LEFT JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
    CROSS JOIN LATERAL (
        SELECT
            clock_timestamp()
            - coalesce(p.prepared, a.xact_start, nullif(o.floor_t, '-infinity')) AS held_for
    ) AS t
    ORDER BY t.held_for DESC NULLS LAST
$$;

COMMENT ON FUNCTION pulse_internal.open_producers() IS
'Open transactions that have put jobs into lanes, the oldest first, a row for each and part of the lanes.';

CREATE FUNCTION pulse_internal.producer_notes(lane text)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT
        format(
            'claims of lane %s read the entries of jobs that have left it, while an open transaction has put jobs into it: %s',
            producer_notes.lane, o.holder
        )
    FROM pulse_internal.open_producers() AS o
    WHERE o.part = hashtext(producer_notes.lane) & 255
        AND o.held_for > interval '1 minute'
    LIMIT 1;
END;
$$;

COMMENT ON FUNCTION pulse_internal.producer_notes(text) IS
'In words: which transaction has been open for a minute and makes the claims of a lane slower.';
