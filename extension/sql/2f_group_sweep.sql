-- What tick does seldom for grouped lanes: groups that nothing happens to are forgotten, and
-- a notice that was missed is made good.

-- A group that has been idle for a minute is forgotten; the next notice of it finds none. A
-- page of all groups of all lanes at a time; answers where the next page begins.
CREATE FUNCTION pulse._sweep_groups(after_lane text, after_group text)
RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_before timestamptz := clock_timestamp() - interval '1 minute';
    v_page record;
    v_last record;
    v_n integer := 0;
BEGIN
    FOR v_page IN
        SELECT
            p.lane, count(*) AS n, max(p.group_key) AS last,
            array_agg(p.tid) FILTER (WHERE p.idle) AS idle
        FROM (
            SELECT
                s.lane, s.group_key, s.ctid AS tid,
                s.rank IS NULL AND s.written_at < v_before AS idle
            FROM pulse.group_state AS s
            WHERE (s.lane, s.group_key)
                > (coalesce(_sweep_groups.after_lane, ''), coalesce(_sweep_groups.after_group, ''))
            ORDER BY s.lane, s.group_key, s.version DESC
            LIMIT 5000
        ) AS p
        GROUP BY p.lane
        ORDER BY p.lane
    LOOP
        v_n := v_n + v_page.n;
        v_last := v_page;
        CONTINUE WHEN v_page.idle IS NULL
            OR NOT pg_try_advisory_xact_lock_shared(
                'pulse.lane'::regclass::oid::integer, hashtext(v_page.lane)
            )
            OR NOT pg_try_advisory_xact_lock(
                'pulse.roster'::regclass::oid::integer, hashtext(v_page.lane)
            );

        -- What was seen before the lock is asked again after it.
        DELETE FROM pulse.group_state AS s
        WHERE s.ctid = ANY (v_page.idle)
            AND s.rank IS NULL
            AND s.written_at < v_before
            -- Its starts count until the period of its rate is over.
            AND NOT EXISTS (
                SELECT
                FROM pulse.lane AS l
                LEFT JOIN pulse.group_rule AS q
                    ON q.lane = s.lane
                    AND q.group_key = s.group_key
                WHERE l.lane = s.lane
                    AND s.written_at + coalesce(q.rate_per, l.group_rate_per) > clock_timestamp()
                    AND (s.starts).times IS NOT NULL
            )
            AND NOT EXISTS (
                SELECT
                FROM unnest(s.leases) AS u (lease)
                WHERE (SELECT true FROM pulse.lease AS e WHERE e.lease = u.lease)
                    -- Waits for a job that keeps its place.
                    OR (
                        SELECT true
                        FROM pulse.waiting AS w
                        WHERE w.last_lease = u.lease
                            AND w.place IS NOT NULL
                        LIMIT 1
                    )
            );
    END LOOP;

    IF v_n < 5000 THEN
        RETURN '{}'::jsonb;
    END IF;
    RETURN jsonb_build_object('lane', v_last.lane, 'group', v_last.last);
END;
$$;

COMMENT ON FUNCTION pulse._sweep_groups(text, text) IS
'Forget groups that have been idle for a minute, of a page after this group; returns the end of the page.';

-- Nothing stands in groups any more. A producer that saw the lane grouped may still come:
-- its notice brings tick here again.
CREATE FUNCTION pulse._forget_groups(lane text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_states integer;
BEGIN
    DELETE FROM pulse.group_state AS s
    WHERE s.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse.group_state AS o
            WHERE o.lane = _forget_groups.lane
            ORDER BY o.group_key, o.version DESC
            LIMIT 10000
        ));
    GET DIAGNOSTICS v_states = ROW_COUNT;

    IF v_states < 10000 AND NOT EXISTS (
        SELECT FROM pulse.group_ready AS r
        WHERE r.lane = _forget_groups.lane
            AND r.failures >= 0
    ) THEN
        DELETE FROM pulse.group_mark AS m
        WHERE m.lane = _forget_groups.lane;

        UPDATE pulse.lane AS l
        SET grouped = NULL
        WHERE l.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse.lane AS o
                WHERE o.lane = _forget_groups.lane
                    AND o.grouped = false
                FOR UPDATE SKIP LOCKED
            ));
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._forget_groups(text) IS
'Remove what was known of the groups of a lane that has none any more.';

-- As _tick_backstop does for lines: what no claim would find is counted, and the marks of its
-- lane are forgotten, so that the roll is taken anew. It reads every job that stands in a
-- group: where these are very many it is left to pulse.check().
CREATE FUNCTION pulse._tick_group_backstop()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    v_lane record;
    v_found bigint := 0;
BEGIN
    IF pg_stat_get_live_tuples('pulse.group_ready'::regclass)
        + pg_stat_get_live_tuples('pulse.group_state'::regclass) > 200000
    THEN
        RETURN 0;
    END IF;

    FOR v_lane IN
        SELECT p.lane, count(*) AS n
        FROM pulse._group_problems() AS p
        WHERE p.problem <> 'group runs more than its slots'
        GROUP BY p.lane
        ORDER BY p.lane
    LOOP
        v_found := v_found + v_lane.n;
        IF pg_try_advisory_xact_lock_shared(
            'pulse.lane'::regclass::oid::integer, hashtext(v_lane.lane)
        )
            AND pg_try_advisory_xact_lock(
                'pulse.roster'::regclass::oid::integer, hashtext(v_lane.lane)
            )
        THEN
            DELETE FROM pulse.group_mark AS m
            WHERE m.lane = v_lane.lane;
        END IF;
    END LOOP;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse._tick_group_backstop() IS
'Look for jobs that no claim of a grouped lane would find, and bring them back; returns how many.';
