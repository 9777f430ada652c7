-- How deep each lane is: what stands in line and what runs, about once a minute.
--
-- tick_sample() is a step of tick. It counts the ready and running jobs of each lane, then of
-- each kind, then of everything, and writes them into the totals of stat: a row is the
-- counters and the depth of a series, as they were at its time.
--
--   1. Count the running jobs, and list the lanes that have jobs or had some at the last sample.
--   2. Write the depth of each lane, 100 lanes between two looks at the clock. A call whose
--      time is over notes the last lane, and the next call goes on behind it.
--   3. After the last lane, write the depth of kinds and of everything.
--
-- Writes stat and upkeep_run. It must not run beside tick_count(), which adds to the newest row
-- of the same series: tick runs both under the lock of the part "count". It reads lanes and
-- lines from their marks on, so that an old snapshot does not make it slower.

-- A step of tick, which runs every few seconds: a sample is due when every has passed.
CREATE FUNCTION pulse_internal.tick_sample(
    until timestamptz DEFAULT 'infinity', every interval DEFAULT '0'
)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_last pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('samples');
    v_after text COLLATE "C" := v_last.state ->> 'after';
    v_lane text COLLATE "C";
    v_running jsonb;
    v_lanes_seen integer := 0;
    v_written integer := 0;
BEGIN
    -- A sample from the future means that the clock stepped back.
    IF v_after IS NULL
        AND v_last.taken_at > v_now - tick_sample.every
        AND v_last.taken_at <= v_now
    THEN
        RETURN 0;
    END IF;

    -- 1. Running jobs by lane; a lane with 0 may have ready jobs, or had some.
    v_running := (
        SELECT coalesce(jsonb_object_agg(g.lane, g.running), '{}')
        FROM (
            SELECT u.lane, sum(u.running) AS running
            FROM (
                SELECT r.lane, r.running FROM pulse_internal.running_now() AS r
                UNION ALL
                SELECT r.lane, 0 FROM pulse_internal.ready_lines('', '', 2147483647) AS r
                UNION ALL
                SELECT l.lane, 0 FROM pulse_internal.lane AS l WHERE l.grouped IS NOT NULL
                UNION ALL
                SELECT d.lane, 0 FROM pulse_internal.sampled_lately() AS d WHERE d.kind = ''
            ) AS u
            WHERE u.lane <> ''
            GROUP BY u.lane
        ) AS g
    );

    -- 2. The lanes.
    FOR v_lane IN
        SELECT j.lane
        FROM jsonb_object_keys(v_running) AS j (lane)
        WHERE j.lane COLLATE "C" > coalesce(v_after, '')
        ORDER BY j.lane COLLATE "C"
    LOOP
        v_written := v_written + pulse_internal.write_depth(
            v_lane, '',
            pulse_internal.count_ready(v_lane, 100000)
            + pulse_internal.count_in_groups(v_lane, 100000),
            (v_running ->> v_lane)::bigint
        );
        v_lanes_seen := v_lanes_seen + 1;
        v_after := v_lane;
        EXIT WHEN v_lanes_seen % 100 = 0 AND pulse_internal.time_is_over(tick_sample.until);
        v_after := NULL;
    END LOOP;

    -- 3. Kinds and everything, when no lane is left for the next call.
    IF v_after IS NULL OR v_lanes_seen = 0 THEN
        v_after := NULL;
        PERFORM pulse_internal.sample_kinds();
    END IF;
    PERFORM pulse_internal.write_upkeep_run(
        v_last, 'samples', jsonb_strip_nulls(jsonb_build_object('after', v_after))
    );
    RETURN v_written;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_sample(timestamptz, interval) IS
'Write into stat what is ready and runs, of each lane, each kind and everything, when the last sample is at least every old, until it is done or the time is over; returns for how many lanes.';

-- The series whose last row says that jobs were ready or ran: they need a row that says 0.
-- A sample of all lanes may take several ticks, so the look goes back three minutes.
CREATE FUNCTION pulse_internal.sampled_lately()
RETURNS TABLE (lane text, kind text)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT s.lane, s.kind
    FROM pulse_internal.stat AS s
    WHERE s.at > (SELECT clock_timestamp() - interval '3 minutes')
        AND s.total
        AND s.ready + s.running > 0
$$;

COMMENT ON FUNCTION pulse_internal.sampled_lately() IS
'The lanes (kind empty) and kinds (lane empty) where jobs were ready or ran at a sample of the last three minutes.';

-- A series that is empty and was empty gets no row. Everything always gets one: it tells
-- history() that a sample was taken, so that a series without a row was empty.
CREATE FUNCTION pulse_internal.write_depth(
    lane text, kind text, ready bigint, running bigint
)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_last pulse_internal.stat;
    v_at timestamptz;
    v_empty_histogram constant bigint [] := pulse_internal.add_to_histogram(NULL, NULL, NULL);
BEGIN
    SELECT s.* INTO v_last
    FROM pulse_internal.stat AS s
    WHERE s.total
        AND s.lane = write_depth.lane
        AND s.kind = write_depth.kind
    ORDER BY s.at DESC
    LIMIT 1;

    IF write_depth.ready + write_depth.running = 0
        AND coalesce(v_last.ready + v_last.running, 0) = 0
        AND write_depth.lane || write_depth.kind <> ''
    THEN
        RETURN 0;
    END IF;

    -- Later than the last row also when the clock was set back.
    v_at := greatest(clock_timestamp(), v_last.at + interval '1 microsecond');
    INSERT INTO pulse_internal.stat (
        total, lane, kind, at, enqueued, started, completed, failed, dead, retried, cancelled,
        reaped, wait_seconds, wait_counts, run_seconds, run_counts, ready, running
    )
    VALUES (
        true, write_depth.lane, write_depth.kind, v_at,
        coalesce(v_last.enqueued, 0), coalesce(v_last.started, 0),
        coalesce(v_last.completed, 0), coalesce(v_last.failed, 0),
        coalesce(v_last.dead, 0), coalesce(v_last.retried, 0),
        coalesce(v_last.cancelled, 0), coalesce(v_last.reaped, 0),
        coalesce(v_last.wait_seconds, 0), coalesce(v_last.wait_counts, v_empty_histogram),
        coalesce(v_last.run_seconds, 0), coalesce(v_last.run_counts, v_empty_histogram),
        write_depth.ready, write_depth.running
    );

    -- One row for a minute: the newest.
    IF v_last.at >= date_trunc('minute', v_at) THEN
        DELETE FROM pulse_internal.stat AS s
        WHERE s.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse_internal.stat AS o
                WHERE o.total
                    AND o.lane = write_depth.lane
                    AND o.kind = write_depth.kind
                    AND o.at >= date_trunc('minute', v_at)
                    AND o.at < v_at
                FOR UPDATE SKIP LOCKED
            ));
    END IF;
    RETURN 1;
END;
$$;

COMMENT ON FUNCTION pulse_internal.write_depth(text, text, bigint, bigint) IS
'Write a row of stat with the counters of a total as they are and this depth; returns 1, or 0 for a series that is and was empty.';

-- Lanes are counted. How a long line is made up of kinds is read from a sample of the
-- table, whose pages are few however many dead rows it has.
CREATE FUNCTION pulse_internal.sample_kinds()
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM pulse_internal.write_depth('', d.kind, d.ready, d.running)
    FROM (
        WITH RECURSIVE sampled (lane) AS (
            (
                SELECT s.lane
                FROM pulse_internal.stat AS s
                WHERE s.total
                    AND s.lane > ''
                ORDER BY s.lane
                LIMIT 1
            )
            UNION ALL
            SELECT
                (
                    SELECT s.lane
                    FROM pulse_internal.stat AS s
                    WHERE s.total
                        AND s.lane > n.lane
                    ORDER BY s.lane
                    LIMIT 1
                )
            FROM sampled AS n
            WHERE n.lane IS NOT NULL
        ),

        everything AS MATERIALIZED (
            SELECT coalesce(sum(l.ready), 0) AS ready, coalesce(sum(l.running), 0) AS running
            FROM sampled AS n
            CROSS JOIN LATERAL (
                SELECT t.ready, t.running
                FROM pulse_internal.stat AS t
                WHERE t.total
                    AND t.lane = n.lane
                    AND t.kind = ''
                    AND t.at > v_now - interval '10 minutes'
                ORDER BY t.at DESC
                LIMIT 1
            ) AS l
        ),

        line AS MATERIALIZED (
            SELECT s.kind, sum(s.jobs) AS jobs, bool_or(s.jobs > 1) AS estimated
            FROM pulse_internal.ready_sample AS s
            GROUP BY s.kind
        ),

        -- Where not all pages were read, the kinds come to what the lanes come to; a lane
        -- is counted up to 100000.
        in_line AS (
            SELECT
                k.kind,
                CASE
                    WHEN NOT k.estimated THEN k.jobs
                    WHEN e.ready < 100000 THEN k.jobs * p.part
                    ELSE k.jobs * greatest(p.part, 1)
                END::bigint AS ready
            FROM line AS k
            CROSS JOIN everything AS e
            CROSS JOIN LATERAL (
                SELECT e.ready / (SELECT sum(a.jobs) FROM line AS a) AS part
            ) AS p
        ),

        at_work AS (
            SELECT r.kind, sum(r.running)::bigint AS running
            FROM pulse_internal.running_now() AS r
            GROUP BY r.kind
        ),

        -- The deepest first: of more than 1,000 kinds the others are not kept.
        deepest AS (
            SELECT
                coalesce(k.kind, w.kind) AS kind,
                coalesce(k.ready, 0) AS ready,
                coalesce(w.running, 0) AS running
            FROM in_line AS k
            FULL JOIN at_work AS w ON w.kind = k.kind
            ORDER BY 2 DESC, 3 DESC, 1
            LIMIT 1000
        )

        SELECT a.kind, a.ready, a.running
        FROM deepest AS a
        UNION ALL
        SELECT l.kind, 0, 0
        FROM pulse_internal.sampled_lately() AS l
        WHERE l.lane = ''
            AND l.kind <> ''
            AND l.kind NOT IN (SELECT a.kind FROM deepest AS a)
        UNION ALL
        SELECT
            '',
            greatest(e.ready, (SELECT sum(k.ready) FROM in_line AS k))::bigint,
            e.running::bigint
        FROM everything AS e
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse_internal.sample_kinds() IS
'Write how many jobs of each kind, of at most 1,000 kinds, and of everything are ready and run.';

-- Every lease is either known to reap or at the numbers that the sweep has yet to see;
-- between the two stand those of short jobs that have ended (maintenance/reap.sql).
CREATE FUNCTION pulse_internal.running_now()
RETURNS TABLE (lane text, kind text, running bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_from bigint := coalesce(((pulse_internal.newest_upkeep_run('watch')).state ->> 'from')::bigint, 0);
BEGIN
    RETURN QUERY
    SELECT u.lane, u.kind, count(*)
    FROM (
        (
            SELECT n.lane, n.kind
            FROM pulse_internal.lease AS n
            WHERE n.lease >= v_from
            ORDER BY n.lease
        )
        UNION ALL
        (
            SELECT k.lane, k.kind
            FROM pulse_internal.lease AS k
            WHERE k.reap_at > '-infinity'
                AND k.lease < v_from
            ORDER BY k.reap_at
        )
    ) AS u
    GROUP BY u.lane, u.kind;
END;
$$;

COMMENT ON FUNCTION pulse_internal.running_now() IS
'How many jobs run of each lane and kind.';

-- Level by level, each from its mark, as a claim reads them (claim/claim.sql).
CREATE FUNCTION pulse_internal.count_ready(lane text, max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse_internal.mark := pulse_internal.newest_mark(count_ready.lane, '');
    v_some integer;
    v_all integer := 0;
BEGIN
    FOR v_level IN 0..coalesce(cardinality(v_mark.ranks), 0) LOOP
        SELECT count(*) INTO v_some
        FROM (
            SELECT
            FROM pulse_internal.ready AS r
            WHERE r.lane = count_ready.lane
                AND r.failures >= 0
                AND r.group_key IS NULL
                AND (r.rank, r.seq) >= (
                    coalesce(v_mark.ranks[nullif(v_level, 0)], -2147483648),
                    coalesce(v_mark.seqs[nullif(v_level, 0)], 0)
                )
                AND r.rank < coalesce(v_mark.ranks[v_level + 1], 2147483647)
            ORDER BY r.rank, r.seq
            LIMIT count_ready.max_rows - v_all
        ) AS capped;
        v_all := v_all + v_some;
        EXIT WHEN v_all >= count_ready.max_rows;
    END LOOP;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.count_ready(text, integer) IS
'How many jobs of a lane stand in ready, counted up to max_rows.';

CREATE FUNCTION pulse_internal.count_in_groups(lane text, max_rows integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN (
        SELECT count(*)
        FROM (
            SELECT
            FROM pulse_internal.ready AS r
            WHERE r.lane = count_in_groups.lane
                AND r.group_key IS NOT NULL
            ORDER BY r.group_key, r.rank, r.seq
            LIMIT count_in_groups.max_rows
        ) AS capped
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.count_in_groups(text, integer) IS
'How many jobs of a lane stand in its groups, counted up to max_rows.';

-- The rows of a lane's total. took is the time since the row before; where the lane was empty
-- then, rows are missing because nothing happened, and took is at most the distance that rows
-- of that age have (thin_stats()).
CREATE VIEW pulse.samples
WITH (security_barrier)
AS
SELECT
    s.lane,
    s.at,
    CASE
        WHEN s.was_empty
            THEN
                least(
                    s.at - s.since,
                    CASE
                        WHEN s.at > clock_timestamp() - interval '3 hours' THEN interval '1 minute'
                        WHEN s.at > clock_timestamp() - interval '2 days' THEN '10 minutes'
                        WHEN s.at > clock_timestamp() - interval '14 days' THEN '1 hour'
                        ELSE '1 day'
                    END
                )
        ELSE s.at - s.since
    END AS took,
    s.completed,
    s.dead,
    s.cancelled,
    s.ready,
    s.running
FROM (
    SELECT
        t.lane,
        t.at,
        coalesce(p.at, t.at - interval '1 minute') AS since,
        coalesce(p.ready + p.running, 0) = 0 AS was_empty,
        t.completed - coalesce(p.completed, 0) AS completed,
        t.dead - coalesce(p.dead, 0) AS dead,
        t.cancelled - coalesce(p.cancelled, 0) AS cancelled,
        t.ready,
        t.running
    FROM pulse_internal.stat AS t
    LEFT JOIN LATERAL (
        SELECT o.*
        FROM pulse_internal.stat AS o
        WHERE o.total
            AND o.lane = t.lane
            AND o.kind = ''
            AND o.at < t.at
        ORDER BY o.at DESC
        LIMIT 1
    ) AS p ON true
    WHERE t.total
        AND t.lane > ''
        AND t.kind = ''
) AS s;

COMMENT ON VIEW pulse.samples IS
'A sample of each lane for each minute in which something happened or stood there: what finished since the sample before and in which time, what was ready (counted up to 100000) and running. Of each 10 minutes after 3 hours, each hour after 2 days, each day after 14 days the last one is kept, until 400 days are over.';

COMMENT ON COLUMN pulse.samples.lane IS
'The lane.';

COMMENT ON COLUMN pulse.samples.at IS
'When the sample was taken.';

COMMENT ON COLUMN pulse.samples.took IS
'The time since the sample before.';

COMMENT ON COLUMN pulse.samples.completed IS
'How many jobs completed in that time.';

COMMENT ON COLUMN pulse.samples.dead IS
'How many died.';

COMMENT ON COLUMN pulse.samples.cancelled IS
'How many were cancelled.';

COMMENT ON COLUMN pulse.samples.ready IS
'How many stood in line, counted up to 100000.';

COMMENT ON COLUMN pulse.samples.running IS
'How many ran.';
