-- What was counted, by time.

-- What happened between two rows of a series; totals as well.
CREATE VIEW pulse_internal.stats
WITH (security_barrier)
AS
SELECT
    t.total,
    t.lane,
    t.kind,
    t.at,
    p.at AS since,
    t.enqueued - coalesce(p.enqueued, 0) AS enqueued,
    t.started - coalesce(p.started, 0) AS started,
    t.completed - coalesce(p.completed, 0) AS completed,
    t.failed - coalesce(p.failed, 0) AS failed,
    t.dead - coalesce(p.dead, 0) AS dead,
    t.retried - coalesce(p.retried, 0) AS retried,
    t.cancelled - coalesce(p.cancelled, 0) AS cancelled,
    t.reaped - coalesce(p.reaped, 0) AS reaped,
    t.wait_seconds - coalesce(p.wait_seconds, 0) AS wait_seconds,
    array(
        SELECT u.jobs - coalesce(u.before, 0)
        FROM unnest(t.wait_counts, p.wait_counts) WITH ORDINALITY AS u (jobs, before, place)
        ORDER BY u.place
    ) AS wait_counts,
    t.run_seconds - coalesce(p.run_seconds, 0) AS run_seconds,
    array(
        SELECT u.jobs - coalesce(u.before, 0)
        FROM unnest(t.run_counts, p.run_counts) WITH ORDINALITY AS u (jobs, before, place)
        ORDER BY u.place
    ) AS run_counts,
    t.ready,
    t.running
FROM pulse_internal.stat AS t
LEFT JOIN LATERAL (
    SELECT o.*
    FROM pulse_internal.stat AS o
    WHERE o.total = t.total
        AND o.lane = t.lane
        AND o.kind = t.kind
        AND o.at < t.at
    ORDER BY o.at DESC
    LIMIT 1
) AS p ON true;

COMMENT ON VIEW pulse_internal.stats IS
'What happened between two moments that were kept, of each lane and kind and in total (total true), and what was ready and ran at the later one.';

CREATE VIEW pulse.stats
WITH (security_barrier)
AS
SELECT
    s.lane,
    s.kind,
    s.at,
    s.since,
    s.enqueued,
    s.started,
    s.completed,
    s.failed,
    s.dead,
    s.retried,
    s.cancelled,
    s.reaped,
    s.wait_seconds,
    s.wait_counts,
    s.run_seconds,
    s.run_counts
FROM pulse_internal.stats AS s
WHERE NOT s.total;

COMMENT ON VIEW pulse.stats IS
'What happened to jobs, for each lane and kind and each minute in which something did; for each 10 minutes after 3 hours, each hour after 2 days, each day after 14 days, until 400 days are over. The columns are those of counters, as differences.';

COMMENT ON COLUMN pulse.stats.lane IS
'The lane; empty for lanes beyond the limit.';

COMMENT ON COLUMN pulse.stats.kind IS
'The kind; empty for kinds beyond the limit.';

COMMENT ON COLUMN pulse.stats.at IS
'When it was counted: the end of the time that this row is about.';

COMMENT ON COLUMN pulse.stats.since IS
'When something of this lane and kind was counted before; NULL for the first time.';

COMMENT ON COLUMN pulse.stats.enqueued IS
'Jobs that were enqueued.';

COMMENT ON COLUMN pulse.stats.started IS
'Runs that began.';

COMMENT ON COLUMN pulse.stats.completed IS
'Jobs that completed.';

COMMENT ON COLUMN pulse.stats.failed IS
'Runs that failed.';

COMMENT ON COLUMN pulse.stats.dead IS
'Jobs that died.';

COMMENT ON COLUMN pulse.stats.retried IS
'Jobs that were put back to run again.';

COMMENT ON COLUMN pulse.stats.cancelled IS
'Jobs that were cancelled.';

COMMENT ON COLUMN pulse.stats.reaped IS
'Runs whose worker was lost or whose time was over.';

COMMENT ON COLUMN pulse.stats.wait_seconds IS
'The sum of waits of the runs that began.';

COMMENT ON COLUMN pulse.stats.wait_counts IS
'How many of them waited how long, at the places of histogram_bounds().';

COMMENT ON COLUMN pulse.stats.run_seconds IS
'The sum of the time that completed and failed runs took.';

COMMENT ON COLUMN pulse.stats.run_counts IS
'How many of them took how long, at the places of histogram_bounds().';

-- A step of tick. Each row is looked at when it comes of an age, once: it goes when there is a
-- newer one of its lane and kind in the same slot. The newest of a lane and kind goes
-- when nothing happened for 30 days, and with it those before it.
CREATE FUNCTION pulse_internal.thin_stats(until timestamptz DEFAULT 'infinity')
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_origin constant timestamptz := timestamptz '2000-01-01 00:00:00+00';
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('stats');
    v_state jsonb := coalesce(v_old.state, '{}');
    v_grain record;
    v_from timestamptz;
    v_to timestamptz;
    v_last timestamptz;
    v_seen integer;
    v_rows tid [];
    v_some bigint;
    v_all bigint := 0;
BEGIN
    FOR v_grain IN
        SELECT g.*
        FROM (
            VALUES
            ('minute', interval '3 hours', interval '10 minutes'),
            ('tenth', '2 days', '1 hour'),
            ('hour', '14 days', '1 day'),
            ('idle', '30 days', '1 day'),
            ('day', '400 days', '1 day')
        ) AS g (name, age, slot)
    LOOP
        v_from := coalesce((v_state ->> v_grain.name)::timestamptz, '-infinity');
        v_to := date_bin(v_grain.slot, clock_timestamp() - v_grain.age, v_origin);
        WHILE v_from < v_to AND NOT pulse_internal.time_is_over(thin_stats.until) LOOP
            SELECT
                count(*),
                max(p.at),
                array_agg(p.tid) FILTER (
                    WHERE
                    CASE v_grain.name
                        WHEN 'idle' THEN p.next_at IS NULL
                        WHEN 'day' THEN true
                        ELSE p.next_at < date_bin(v_grain.slot, p.at, v_origin) + v_grain.slot
                    END
                )
            INTO v_seen, v_last, v_rows
            FROM (
                SELECT
                    t.ctid AS tid,
                    t.at,
                    (
                        SELECT n.at
                        FROM pulse_internal.stat AS n
                        WHERE n.total = t.total
                            AND n.lane = t.lane
                            AND n.kind = t.kind
                            AND n.at > t.at
                        ORDER BY n.at
                        LIMIT 1
                    ) AS next_at
                FROM pulse_internal.stat AS t
                WHERE t.at >= v_from
                    AND t.at < v_to
                ORDER BY t.at
                LIMIT 1000
            ) AS p;

            WITH gone AS (
                DELETE FROM pulse_internal.stat AS t
                WHERE t.ctid = ANY (array(
                        SELECT o.ctid
                        FROM pulse_internal.stat AS o
                        WHERE o.ctid = ANY (v_rows)
                        FOR UPDATE SKIP LOCKED
                    ))
                RETURNING t.total, t.lane, t.kind
            ),

            before AS (
                DELETE FROM pulse_internal.stat AS t
                WHERE v_grain.name = 'idle'
                    AND t.ctid = ANY (array(
                            SELECT o.ctid
                            FROM gone AS g
                            INNER JOIN pulse_internal.stat AS o
                                ON o.total = g.total AND o.lane = g.lane AND o.kind = g.kind
                            WHERE o.ctid <> ALL (v_rows)
                            FOR UPDATE OF o SKIP LOCKED
                        ))
                RETURNING 1
            )

            SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM before) INTO v_some;
            v_all := v_all + v_some;
            v_from := CASE
                WHEN v_seen < 1000 THEN v_to
                WHEN v_last > v_from THEN v_last
                ELSE v_last + interval '1 microsecond'
            END;
        END LOOP;
        v_state := v_state || jsonb_build_object(v_grain.name, least(v_from, v_to));
    END LOOP;

    IF v_state IS DISTINCT FROM v_old.state THEN
        PERFORM pulse_internal.write_upkeep_run(v_old, 'stats', v_state);
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.thin_stats(timestamptz) IS
'Thin out older counters to one for each 10 minutes, hour or day, and remove those of a lane and kind that was not used for 30 days, until it is done or the time is over; returns how many rows were removed.';
