-- What tick does for grouped lanes once a second.

-- A step of tick, its last one: the locks of the lanes are held until tick commits, and claims
-- are kept out meanwhile. So it does only what claims do not do soon enough by themselves, and
-- for no longer than a fifth of a second. Lanes take turns, five hundred a tick.
CREATE FUNCTION pulse_internal.tick_groups(until timestamptz DEFAULT 'infinity')
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_until timestamptz := least(
        tick_groups.until, clock_timestamp() + interval '200 milliseconds'
    );
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('groups_at');
    v_from jsonb := coalesce(v_old.state, '{}');
    v_to jsonb;
    v_after text;
    v_lane text;
    v_lanes bigint := 0;
BEGIN
    FOR v_lane IN
        SELECT pulse_internal.group_lanes(coalesce(v_from ->> 'after', ''), 500)
    LOOP
        IF pulse_internal.group_lane_waits(v_lane) THEN
            PERFORM pulse_internal.tick_group_lane(v_lane);
        END IF;
        v_lanes := v_lanes + 1;
        IF v_lanes = 500 OR clock_timestamp() >= v_until THEN
            v_after := v_lane;
            EXIT;
        END IF;
    END LOOP;

    v_to := jsonb_strip_nulls(
        jsonb_build_object('after', v_after)
        || pulse_internal.sweep_groups(v_from ->> 'lane', v_from ->> 'group')
    );
    IF v_to <> v_from THEN
        PERFORM pulse_internal.write_upkeep_run(v_old, 'groups_at', v_to);
    END IF;
    RETURN v_lanes;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_groups(timestamptz) IS
'Read notices, sort jobs into groups or out of them and sweep idle groups; returns how many lanes it looked at.';

-- Lanes that are or were grouped, and between them those for which a notice was left since.
CREATE FUNCTION pulse_internal.group_lanes(after text, max_lanes integer)
RETURNS SETOF text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_lane text COLLATE "C" := group_lanes.after;
    v_known text COLLATE "C";
    v_new text COLLATE "C";
BEGIN
    FOR v_n IN 1..group_lanes.max_lanes LOOP
        SELECT l.lane INTO v_known
        FROM pulse_internal.lane AS l
        WHERE l.lane > v_lane
            AND l.grouped IS NOT NULL
        ORDER BY l.lane
        LIMIT 1;

        -- Two statements: an OR would not be a bound of the index.
        IF v_known IS NULL THEN
            SELECT n.lane INTO v_new
            FROM pulse_internal.group_notice AS n
            WHERE n.lane > v_lane
            ORDER BY n.lane, n.seq
            LIMIT 1;
        ELSE
            SELECT n.lane INTO v_new
            FROM pulse_internal.group_notice AS n
            WHERE n.lane > v_lane
                AND n.lane < v_known
            ORDER BY n.lane, n.seq
            LIMIT 1;
        END IF;

        v_lane := coalesce(v_new, v_known);
        EXIT WHEN v_lane IS NULL;
        RETURN NEXT v_lane;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.group_lanes(text, integer) IS
'The lanes after this one that tick has to look at for their groups, at most so many.';

-- Only a look, without a lock.
CREATE FUNCTION pulse_internal.group_lane_waits(lane text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse_internal.group_mark;
BEGIN
    IF NOT pulse_internal.is_grouped(group_lane_waits.lane) THEN
        RETURN true;
    END IF;

    v_mark := pulse_internal.newest_group_mark(group_lane_waits.lane);
    RETURN v_mark.lane IS NULL
        OR v_mark.roll_from IS NOT NULL
        OR pulse_internal.count_ready(group_lane_waits.lane, 501) > 500
        OR EXISTS (
            SELECT
            FROM pulse_internal.group_notice AS n
            WHERE n.lane = group_lane_waits.lane
                AND n.seq >= v_mark.notice_from
            ORDER BY n.seq
            OFFSET 1000
            LIMIT 1
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.group_lane_waits(text) IS
'Whether there is more to do in a grouped lane than its next claim will.';

-- Waits for nobody: where a claim or set_lane is at work, it comes again in a second.
CREATE FUNCTION pulse_internal.tick_group_lane(lane text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_lane pulse_internal.lane;
    v_mark pulse_internal.group_mark;
    v_moved integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(
        'pulse_internal.lane'::regclass::oid::integer, hashtext(tick_group_lane.lane)
    )
        OR NOT pg_try_advisory_xact_lock(
            'pulse_internal.roster'::regclass::oid::integer, hashtext(tick_group_lane.lane)
        )
    THEN
        RETURN;
    END IF;

    SELECT l.* INTO v_lane
    FROM pulse_internal.lane AS l
    WHERE l.lane = tick_group_lane.lane;

    IF v_lane.grouped IS NOT TRUE THEN
        v_moved := pulse_internal.leave_groups(tick_group_lane.lane, 10000);
        IF v_moved > 0 THEN
            PERFORM pulse_internal.ring(tick_group_lane.lane);
        ELSE
            PERFORM pulse_internal.forget_groups(tick_group_lane.lane);
        END IF;
        RETURN;
    END IF;

    v_mark := pulse_internal.newest_group_mark(tick_group_lane.lane);
    IF v_mark.lane IS NULL OR v_mark.roll_from IS NOT NULL THEN
        v_mark := pulse_internal.announce_groups(v_lane, v_mark, 10000);
    END IF;

    PERFORM pulse_internal.sort_into_groups(
        tick_group_lane.lane, 10000, pulse_internal.newest_mark(tick_group_lane.lane, '')
    );
    PERFORM pulse_internal.read_notices(v_lane, v_mark.notice_from, 10000, v_mark.roll_from);
    PERFORM pulse_internal.advance_groups(v_mark, '{}');
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_group_lane(text) IS
'The upkeep of one grouped lane, if nobody is at work there.';

-- What tick does seldom for grouped lanes: groups that nothing happens to are forgotten, and
-- a notice that was missed is made good.

-- A group that has been idle for a minute is forgotten; the next notice of it finds none. A
-- page of all groups of all lanes at a time; answers where the next page begins.
CREATE FUNCTION pulse_internal.sweep_groups(after_lane text, after_group text)
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
            FROM pulse_internal.group_state AS s
            WHERE (s.lane, s.group_key)
                > (coalesce(sweep_groups.after_lane, ''), coalesce(sweep_groups.after_group, ''))
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
                'pulse_internal.lane'::regclass::oid::integer, hashtext(v_page.lane)
            )
            OR NOT pg_try_advisory_xact_lock(
                'pulse_internal.roster'::regclass::oid::integer, hashtext(v_page.lane)
            );

        -- What was seen before the lock is asked again after it.
        DELETE FROM pulse_internal.group_state AS s
        WHERE s.ctid = ANY (v_page.idle)
            AND s.rank IS NULL
            AND s.written_at < v_before
            -- Its starts count until the period of its rate is over.
            AND NOT EXISTS (
                SELECT
                FROM pulse_internal.lane AS l
                LEFT JOIN pulse_internal.group_rule AS q
                    ON q.lane = s.lane
                    AND q.group_key = s.group_key
                WHERE l.lane = s.lane
                    AND s.written_at + coalesce(q.rate_per, l.group_rate_per) > clock_timestamp()
                    AND (s.starts).times IS NOT NULL
            )
            AND NOT EXISTS (
                SELECT
                FROM unnest(s.jobs) AS u (job)
                WHERE (
                    SELECT true
                    FROM pulse_internal.lease AS e
                    WHERE e.job = u.job AND e.lane = s.lane AND e.group_key = s.group_key
                )
            );
    END LOOP;

    IF v_n < 5000 THEN
        RETURN '{}'::jsonb;
    END IF;
    RETURN jsonb_build_object('lane', v_last.lane, 'group', v_last.last);
END;
$$;

COMMENT ON FUNCTION pulse_internal.sweep_groups(text, text) IS
'Forget groups that have been idle for a minute, of a page after this group; returns the end of the page.';

-- Nothing stands in groups any more. A producer that saw the lane grouped may still come:
-- its notice brings tick here again.
CREATE FUNCTION pulse_internal.forget_groups(lane text)
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
    DELETE FROM pulse_internal.group_state AS s
    WHERE s.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse_internal.group_state AS o
            WHERE o.lane = forget_groups.lane
            ORDER BY o.group_key, o.version DESC
            LIMIT 10000
        ));
    GET DIAGNOSTICS v_states = ROW_COUNT;

    IF v_states < 10000 AND NOT EXISTS (
        SELECT FROM pulse_internal.ready AS r
        WHERE r.lane = forget_groups.lane
            AND r.group_key IS NOT NULL
    ) THEN
        DELETE FROM pulse_internal.group_mark AS m
        WHERE m.lane = forget_groups.lane;

        UPDATE pulse_internal.lane AS l
        SET grouped = NULL
        WHERE l.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse_internal.lane AS o
                WHERE o.lane = forget_groups.lane
                    AND o.grouped = false
                FOR UPDATE SKIP LOCKED
            ));
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.forget_groups(text) IS
'Remove what was known of the groups of a lane that has none any more.';

-- As tick_backstop does for lines: what no claim would find is counted, and the marks of its
-- lane are forgotten, so that the roll is taken anew. It reads every job that stands in a
-- group: where these are very many it is left to pulse.check().
CREATE FUNCTION pulse_internal.tick_group_backstop()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    v_lane record;
    v_found bigint := 0;
BEGIN
    IF pg_stat_get_live_tuples('pulse_internal.ready'::regclass)
        + pg_stat_get_live_tuples('pulse_internal.group_state'::regclass) > 200000
    THEN
        RETURN 0;
    END IF;

    FOR v_lane IN
        SELECT p.lane, count(*) AS n
        FROM pulse_internal.group_problems() AS p
        WHERE p.problem <> 'group runs more than its slots'
        GROUP BY p.lane
        ORDER BY p.lane
    LOOP
        v_found := v_found + v_lane.n;
        IF pg_try_advisory_xact_lock_shared(
            'pulse_internal.lane'::regclass::oid::integer, hashtext(v_lane.lane)
        )
            AND pg_try_advisory_xact_lock(
                'pulse_internal.roster'::regclass::oid::integer, hashtext(v_lane.lane)
            )
        THEN
            DELETE FROM pulse_internal.group_mark AS m
            WHERE m.lane = v_lane.lane;
        END IF;
    END LOOP;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_group_backstop() IS
'Look for jobs that no claim of a grouped lane would find, and bring them back; returns how many.';
