-- A step of tick. Each row is looked at when it comes of an age, once: it goes when there is a
-- newer one of its lane and kind in the same slot. The newest of a lane and kind goes
-- when nothing happened for 30 days, and with it those before it.
CREATE FUNCTION pulse._thin_stats(until timestamptz DEFAULT 'infinity')
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
    v_old pulse.upkeep_run := pulse._newest_upkeep_run('stats');
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
        WHILE v_from < v_to AND NOT pulse._time_is_over(_thin_stats.until) LOOP
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
                        FROM pulse.stat AS n
                        WHERE n.total = t.total
                            AND n.lane = t.lane
                            AND n.kind = t.kind
                            AND n.at > t.at
                        ORDER BY n.at
                        LIMIT 1
                    ) AS next_at
                FROM pulse.stat AS t
                WHERE t.at >= v_from
                    AND t.at < v_to
                ORDER BY t.at
                LIMIT 1000
            ) AS p;

            WITH gone AS (
                DELETE FROM pulse.stat AS t
                WHERE t.ctid = ANY (array(
                        SELECT o.ctid
                        FROM pulse.stat AS o
                        WHERE o.ctid = ANY (v_rows)
                        FOR UPDATE SKIP LOCKED
                    ))
                RETURNING t.total, t.lane, t.kind
            ),

            before AS (
                DELETE FROM pulse.stat AS t
                WHERE v_grain.name = 'idle'
                    AND t.ctid = ANY (array(
                            SELECT o.ctid
                            FROM gone AS g
                            INNER JOIN pulse.stat AS o
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
        PERFORM pulse._write_upkeep_run(v_old, 'stats', v_state);
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse._thin_stats(timestamptz) IS
'Thin out older counters to one for each 10 minutes, hour or day, and remove those of a lane and kind that was not used for 30 days, until it is done or the time is over; returns how many rows were removed.';
