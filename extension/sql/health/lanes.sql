-- The checks of health that are about lanes and their jobs.
--
-- health() is polled, so its cost must not grow with the number of lanes. Three checks ask how
-- long the oldest job of a lane has waited. Up to 1,000 lanes they look at every lane that has
-- ready jobs. Beyond that they look at the lanes whose jobs have waited longest, at most 1,000 that
-- are paused and 1,000 that are not, and their figures say so. A sample of 1,000 pages of the table
-- ready names these lanes. A smaller table is read as a whole, and then the choice is exact. Of a
-- larger one they also look at the first 1,000 lanes by name, because a sample can miss a lane.
--
-- This file writes nothing and takes no locks.

CREATE FUNCTION pulse_internal.lanes_to_look_at(most integer DEFAULT 1000)
RETURNS TABLE (lane text, note text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_first text [];
    v_oldest text [];
    -- NULL where the pages of the sample have no live row.
    v_read_all boolean;
BEGIN
    -- The first lanes by name, one more than are looked at. Jobs of groups are in an index of
    -- their own, so two walks find them.
    WITH RECURSIVE plain (lane, n) AS (
        (
            SELECT r.lane, 1
            FROM pulse_internal.ready AS r
            WHERE r.failures >= 0
                AND r.group_key IS NULL
            ORDER BY r.lane
            LIMIT 1
        )
        UNION ALL
        SELECT x.lane, p.n + 1
        FROM plain AS p
        CROSS JOIN LATERAL (
            SELECT r.lane
            FROM pulse_internal.ready AS r
            WHERE r.lane > p.lane
                AND r.failures >= 0
                AND r.group_key IS NULL
            ORDER BY r.lane
            LIMIT 1
        ) AS x
        WHERE p.n <= lanes_to_look_at.most
    ),

    grouped (lane, n) AS (
        (
            SELECT r.lane, 1
            FROM pulse_internal.ready AS r
            WHERE r.group_key IS NOT NULL
            ORDER BY r.lane
            LIMIT 1
        )
        UNION ALL
        SELECT x.lane, p.n + 1
        FROM grouped AS p
        CROSS JOIN LATERAL (
            SELECT r.lane
            FROM pulse_internal.ready AS r
            WHERE r.lane > p.lane
                AND r.group_key IS NOT NULL
            ORDER BY r.lane
            LIMIT 1
        ) AS x
        WHERE p.n <= lanes_to_look_at.most
    )

    SELECT array_agg(a.lane ORDER BY a.lane) INTO v_first
    FROM (
        SELECT p.lane FROM plain AS p
        UNION
        SELECT g.lane FROM grouped AS g
    ) AS a;

    IF coalesce(cardinality(v_first), 0) <= lanes_to_look_at.most THEN
        RETURN QUERY
        SELECT u.lane, NULL::text
        FROM unnest(v_first) AS u (lane);
        RETURN;
    END IF;

    SELECT array_agg(o.lane), bool_and(o.read_all)
    INTO v_oldest, v_read_all
    FROM (
        SELECT
            h.lane,
            h.read_all,
            row_number() OVER (PARTITION BY h.held ORDER BY h.since) AS place
        FROM (
            SELECT
                s.lane,
                min(s.ready_at) AS since,
                max(s.jobs) = 1 AS read_all,
                -- As lane_holds has it, for all lanes at once.
                EXISTS (SELECT FROM pulse_internal.hold AS a WHERE a.lane = '')
                OR s.lane IN (SELECT a.lane FROM pulse_internal.hold AS a)
                OR s.lane IN (SELECT l.lane FROM pulse_internal.lane AS l WHERE NOT l.enabled)
                AS held
            FROM pulse_internal.ready_sample AS s
            GROUP BY s.lane
        ) AS h
    ) AS o
    WHERE o.place <= lanes_to_look_at.most;

    RETURN QUERY
    SELECT
        u.lane,
        format(
            '; more than %s lanes have ready jobs: only those whose jobs have waited longest%s are looked at',
            lanes_to_look_at.most,
            CASE
                WHEN v_read_all THEN ''
                ELSE format(' in a sample, and the first %s by name,', lanes_to_look_at.most)
            END
        )
    FROM (
        SELECT o.lane
        FROM unnest(v_oldest) AS o (lane)
        UNION
        SELECT f.lane
        FROM unnest(v_first[1:lanes_to_look_at.most]) AS f (lane)
        WHERE v_read_all IS NOT TRUE
    ) AS u;
END;
$$;

COMMENT ON FUNCTION pulse_internal.lanes_to_look_at(integer) IS
'The lanes with ready jobs that health looks at: all, up to so many. Beyond that so many held ones and so many others, whose jobs have waited longest; where only a sample of the jobs is read, also so many lanes by name. The note says in words that there are more; it is NULL where there are not.';

CREATE FUNCTION pulse_internal.health_lanes()
RETURNS TABLE (check_name text, status text, figure text, advice text, jobs jsonb)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
BEGIN
    RETURN QUERY
    -- What waits in each lane, looked at once for three checks.
    WITH line AS MATERIALIZED (
        SELECT
            r.lane,
            r.note,
            clock_timestamp() - r.since AS age,
            EXISTS (SELECT FROM pulse_internal.lane_holds(r.lane)) AS held
        FROM (
            SELECT k.lane, k.note, pulse_internal.oldest_ready_at(k.lane, k.most_groups) AS since
            FROM (
                SELECT
                    c.lane,
                    c.note,
                    pulse_internal.groups_up_to(count(*) OVER ()) AS most_groups
                FROM pulse_internal.lanes_to_look_at() AS c
            ) AS k
            OFFSET 0
        ) AS r
        WHERE r.since IS NOT NULL
    ),

    passed_over AS (
        SELECT coalesce(max(l.note), '') AS note
        FROM line AS l
    )

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
                    format('%s in lane %s', pulse_internal.duration(o.age), o.lane) ORDER BY o.age DESC
                )
            ) [1],
            'nothing waits'
        ) || (SELECT p.note FROM passed_over AS p),
        'Jobs wait in lanes that nobody holds: start more workers, raise max_slots, or ask pulse.why(job_id).',
        jsonb_build_array(
            jsonb_build_object(
                'state', 'ready', 'lane', (array_agg(o.lane ORDER BY o.age DESC)) [1]
            )
        )
    FROM line AS o
    WHERE NOT o.held
    UNION ALL
    SELECT
        'held_lanes',
        CASE WHEN max(o.age) > interval '1 hour' THEN 'warn' ELSE 'ok' END,
        coalesce(
            pulse_internal.some_of(
                array_agg(
                    format('%s for %s', o.lane, pulse_internal.duration(o.age)) ORDER BY o.age DESC, o.lane
                )
            ),
            'nothing waits in one'
        ) || (SELECT p.note FROM passed_over AS p),
        'Jobs wait in lanes that are drained, paused or disabled: pulse.pause_status() and pulse.lanes say by whom and why; resume_lane, resume or set_lane lets them run.',
        jsonb_path_query_array(
            jsonb_agg(
                jsonb_build_object('state', 'ready', 'lane', o.lane) ORDER BY o.age DESC, o.lane
            ),
            '$[0 to 9]'
        )
    FROM line AS o
    WHERE o.held
    UNION ALL
    SELECT
        'stuck_lanes',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'fail' END,
        coalesce(pulse_internal.some_of(array_agg(o.lane::text ORDER BY o.lane)), 'none')
        || (SELECT p.note FROM passed_over AS p),
        'Jobs are ready for over 5 minutes, nobody holds the lane, and nothing was claimed: start a worker that takes these lanes.',
        jsonb_path_query_array(
            jsonb_agg(jsonb_build_object('state', 'ready', 'lane', o.lane) ORDER BY o.lane),
            '$[0 to 9]'
        )
    FROM line AS o
    WHERE o.age > interval '5 minutes'
        AND NOT o.held
        AND NOT EXISTS (SELECT FROM pulse_internal.slot_obstacle(o.lane))
        AND NOT EXISTS (SELECT FROM pulse_internal.rate_obstacle(o.lane))
        -- All that stands in line is of kinds whose rate is used up.
        AND NOT EXISTS (
            SELECT
            FROM (SELECT pulse_internal.spent_kinds(NULL) AS kinds) AS s
            WHERE s.kinds <> '{}'
                AND pulse_internal.kinds_in_line(o.lane, s.kinds) = '{}'
                AND pulse_internal.kinds_in_turn(o.lane, NULL, s.kinds) = '{}'
        )
        -- Every group is held: by its runs, by a job it waits for, by set_group.
        AND NOT EXISTS (
            SELECT
            FROM pulse_internal.lane AS s
            WHERE s.lane = o.lane
                AND s.grouped
                AND EXISTS (
                    SELECT FROM pulse_internal.group_state AS g
                    WHERE g.lane = s.lane AND g.rank IS NOT NULL
                )
                AND NOT EXISTS (
                    SELECT FROM pulse_internal.group_state AS g
                    WHERE g.lane = s.lane AND g.turn IS NOT NULL AND g.version > 0
                )
        )
        AND NOT EXISTS (
            SELECT FROM pulse_internal.lease AS l
            WHERE l.lane = o.lane
                AND l.claimed_at > clock_timestamp() - interval '5 minutes'
        )
        AND NOT EXISTS (
            SELECT
            FROM unnest(enum_range(NULL::pulse_internal.outcome)) AS s (state)
            -- A million may have been cancelled before they ran.
            CROSS JOIN LATERAL (
                SELECT n.claimed_at
                FROM pulse_internal.finished AS n
                WHERE n.lane = o.lane
                    AND n.state = s.state
                    AND n.finished_at > (SELECT clock_timestamp() - interval '5 minutes')
                ORDER BY n.finished_at DESC
                LIMIT 100
            ) AS f
            WHERE f.claimed_at IS NOT NULL
        );

    RETURN QUERY
    WITH
    -- What live workers take, once for all lines; kind '' is every kind. Workers of one
    -- deployment take the same.
    handled AS MATERIALIZED (
        SELECT DISTINCT l.lane COLLATE "C" AS lane, k.kind COLLATE "C" AS kind
        FROM (
            SELECT DISTINCT w.lanes, w.kinds
            FROM pulse.workers AS w
            WHERE w.live
        ) AS t
        CROSS JOIN LATERAL unnest(t.lanes) AS l (lane)
        CROSS JOIN LATERAL unnest(coalesce(t.kinds, '{""}')) AS k (kind)
        WHERE k.kind IS NOT NULL
    )

    SELECT
        'unhandled_kinds',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warn' END,
        coalesce(
            pulse_internal.some_of(array_agg(format('%s in lane %s', p.kind, p.lane) ORDER BY p.n)), 'none'
        ),
        'No live worker takes them: start one, correct its kinds, or move_where the jobs. Workers that never say hello are known only by what they run.',
        jsonb_agg(
            jsonb_build_object('state', 'ready', 'lane', p.lane, 'kind', p.kind) ORDER BY p.n
        ) FILTER (WHERE p.place <= 10)
    FROM (
        SELECT
            i.lane,
            i.kind,
            i.n,
            row_number() OVER (ORDER BY i.n) AS place
        FROM pulse_internal.ready_kinds AS i
        WHERE i.ready_at < clock_timestamp() - interval '2 minutes'
            -- NOT IN is hashed whatever the planner thinks of their number.
            AND (i.lane, i.kind) NOT IN (SELECT h.lane, h.kind FROM handled AS h)
            AND i.lane NOT IN (SELECT h.lane FROM handled AS h WHERE h.kind = '')
    ) AS p;

    RETURN QUERY
    SELECT
        'group_notices',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warn' END,
        coalesce(pulse_internal.some_of(array_agg(u.lane::text ORDER BY u.lane)), 'none waits'),
        'Jobs were put into groups over a minute ago, workers take these lanes, and no claim has looked at them: a claim in an open transaction holds the lane (see pg_stat_activity), or the lane is full.',
        NULL::jsonb
    FROM (
        SELECT l.lane
        FROM pulse_internal.lane AS l
        WHERE l.grouped
            AND NOT EXISTS (SELECT FROM pulse_internal.lane_holds(l.lane))
            AND NOT EXISTS (SELECT FROM pulse_internal.slot_obstacle(l.lane))
            AND EXISTS (SELECT FROM pulse_internal.live_workers(l.lane))
            AND EXISTS (
                SELECT
                FROM pulse_internal.group_notice AS n
                INNER JOIN pulse_internal.ready AS r
                    ON r.lane = n.lane
                    AND r.group_key = n.group_key
                    AND r.rank = n.rank
                    AND r.seq = n.place
                    AND r.group_key IS NOT NULL
                WHERE n.lane = l.lane
                    AND r.ready_at < clock_timestamp() - interval '1 minute'
            )
    ) AS u;

    RETURN QUERY
    SELECT
        'failing_kinds',
        CASE WHEN count(*) = 0 THEN 'ok' ELSE 'warn' END,
        coalesce(
            pulse_internal.some_of(
                array_agg(
                    format('%s: %s of %s runs', f.kind, f.failed, greatest(f.started, f.failed))
                    ORDER BY f.failed DESC, f.kind
                )
            ),
            'none'
        ),
        'Runs of these kinds failed in the last 15 minutes: pulse.jobs and pulse.dead have their errors.',
        jsonb_path_query_array(
            jsonb_agg(
                jsonb_build_object('state', '["retrying", "dead"]'::jsonb, 'kind', f.kind)
                ORDER BY f.failed DESC, f.kind
            ),
            '$[0 to 9]'
        )
    FROM pulse.failing_kinds() AS f;

    RETURN QUERY
    SELECT
        'dead_jobs',
        CASE WHEN l.died > 0 OR d.total >= 1000 THEN 'warn' ELSE 'ok' END,
        format(
            '%s%s, %s%s of them in the last hour',
            CASE WHEN d.estimated THEN 'about ' ELSE '' END, d.total,
            l.died, CASE WHEN l.died = 100000 AND d.total > l.died THEN ' or more' ELSE '' END
        ),
        'SELECT * FROM pulse.dead says why; pulse.retry_where puts them back in line.',
        '[{"state": "dead"}]'::jsonb
    FROM (
        SELECT coalesce(sum(c.jobs), 0) AS total, bool_or(c.estimated) AS estimated
        FROM pulse_internal.dead_counts() AS c
    ) AS d
    CROSS JOIN (
        SELECT count(*) AS died
        FROM (
            SELECT
            FROM pulse_internal.finished AS f
            WHERE f.state = 'dead'
                AND f.failures >= 0
                AND f.finished_at > (SELECT clock_timestamp() - interval '1 hour')
            ORDER BY f.finished_at DESC, f.job DESC
            LIMIT 100000
        ) AS c
    ) AS l;
END;
$$;

COMMENT ON FUNCTION pulse_internal.health_lanes() IS
'Checks of whether jobs get through.';
