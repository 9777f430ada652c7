-- Samples for pulse.samples, pulse.lanes and pulse.history. A job whose finish commits after
-- the sample that covers its finished_at is not counted: these are figures for people.

-- A step of tick: lane by lane, a hundred at a time, so that ten thousand lanes are no
-- long statement; the next tick goes on with the lane after the last one. Lanes and lines
-- are read from their marks on, so that an old snapshot makes it no longer either.
CREATE FUNCTION pulse_internal.tick_sample(until timestamptz DEFAULT 'infinity')
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('samples');
    v_after text COLLATE "C" := v_old.state ->> 'after';
    v_lanes text [];
    v_running jsonb;
    v_from integer := 1;
    v_all integer := 0;
BEGIN
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
            ) AS u
            GROUP BY u.lane
        ) AS g
    );
    v_lanes := array(
        SELECT l.lane COLLATE "C"
        FROM (
            SELECT j.lane FROM jsonb_object_keys(v_running) AS j (lane)
            UNION
            SELECT w.lane FROM pulse_internal.waiting_lanes() AS w (lane)
            UNION
            SELECT f.lane FROM pulse_internal.finished_lanes() AS f
        ) AS l
        WHERE l.lane COLLATE "C" > coalesce(v_after, '')
        ORDER BY l.lane COLLATE "C"
    );

    WHILE v_from <= cardinality(v_lanes) LOOP
        v_all := v_all + pulse_internal.sample_lanes(v_lanes[v_from:v_from + 99], v_running);
        v_after := v_lanes[least(v_from + 99, cardinality(v_lanes))];
        v_from := v_from + 100;
        EXIT WHEN pulse_internal.time_is_over(tick_sample.until);
    END LOOP;

    IF v_from > cardinality(v_lanes) THEN
        v_after := NULL;
        PERFORM pulse_internal.sample_kinds();
        WHILE
            pulse_internal.prune_samples(1000) = 1000
            AND NOT pulse_internal.time_is_over(tick_sample.until)
        LOOP
            NULL;
        END LOOP;
    END IF;
    IF v_after IS DISTINCT FROM v_old.state ->> 'after' THEN
        PERFORM pulse_internal.write_upkeep_run(
            v_old, 'samples', jsonb_strip_nulls(jsonb_build_object('after', v_after))
        );
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_sample(timestamptz) IS
'Write a sample for each lane where something happens, then of each kind, remove old ones, until it is done or the time is over; returns how many were written. tick calls it once a minute.';

-- running has every lane where jobs run or may be ready: the others are not asked for those.
CREATE FUNCTION pulse_internal.sample_lanes(lanes text [], running jsonb)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_written integer;
BEGIN
    -- A lane where nothing happens is written once and then left alone.
    INSERT INTO pulse_internal.sample (lane, at, took, completed, dead, cancelled, ready, running)
    SELECT
        k.lane,
        v_now,
        v_now - s.since,
        f.completed,
        f.dead,
        f.cancelled,
        r.ready,
        r.running
    FROM unnest(sample_lanes.lanes) AS k (lane)
    LEFT JOIN LATERAL (
        SELECT
            t.at,
            t.completed + t.dead + t.cancelled + t.ready + t.running = 0 AS idle
        FROM pulse_internal.sample AS t
        WHERE t.lane = k.lane
        ORDER BY t.at DESC
        LIMIT 1
    ) AS l ON true
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN l.idle IS NOT FALSE
                    THEN greatest(l.at, v_now - interval '1 minute')
                ELSE greatest(l.at, v_now - interval '1 hour')
            END AS since
    ) AS s
    CROSS JOIN LATERAL (
        SELECT
            (
                SELECT count(*)
                FROM pulse_internal.finished AS f
                WHERE f.lane = k.lane
                    AND f.state = 'completed'
                    AND f.finished_at > s.since
                    AND f.finished_at <= v_now
            ) AS completed,
            (
                SELECT count(*)
                FROM pulse_internal.finished AS f
                WHERE f.lane = k.lane
                    AND f.state = 'dead'
                    AND f.finished_at > s.since
                    AND f.finished_at <= v_now
            ) AS dead,
            (
                SELECT count(*)
                FROM pulse_internal.finished AS f
                WHERE f.lane = k.lane
                    AND f.state = 'cancelled'
                    AND f.finished_at > s.since
                    AND f.finished_at <= v_now
            ) AS cancelled
    ) AS f
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN sample_lanes.running ? k.lane
                    THEN pulse_internal.count_ready(k.lane, 100000)
                        + pulse_internal.count_in_groups(k.lane, 100000)
                ELSE 0
            END AS ready,
            coalesce((sample_lanes.running ->> k.lane)::bigint, 0) AS running
    ) AS r
    WHERE s.since < v_now
        AND (
            f.completed + f.dead + f.cancelled + r.ready + r.running > 0
            OR l.idle IS FALSE
        );

    GET DIAGNOSTICS v_written = ROW_COUNT;
    RETURN v_written;
END;
$$;

COMMENT ON FUNCTION pulse_internal.sample_lanes(text [], jsonb) IS
'Write a sample for each of these lanes where something happens; returns how many were written.';

-- Lines are counted lane by lane, above; how a long one is made up is read from a sample
-- of the table, whose pages are few however many dead rows it has.
CREATE FUNCTION pulse_internal.sample_kinds()
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_written integer;
BEGIN
    INSERT INTO pulse_internal.depth (kind, at, ready, running)
    WITH RECURSIVE sampled (lane) AS (
        (
            SELECT s.lane
            FROM pulse_internal.sample AS s
            ORDER BY s.lane
            LIMIT 1
        )
        UNION ALL
        SELECT
            (
                SELECT s.lane
                FROM pulse_internal.sample AS s
                WHERE s.lane > n.lane
                ORDER BY s.lane
                LIMIT 1
            )
        FROM sampled AS n
        WHERE n.lane IS NOT NULL
    ),

    every AS MATERIALIZED (
        SELECT coalesce(sum(l.ready), 0) AS ready, coalesce(sum(l.running), 0) AS running
        FROM sampled AS n
        CROSS JOIN LATERAL (
            SELECT t.ready, t.running
            FROM pulse_internal.sample AS t
            WHERE t.lane = n.lane
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

    -- Where not all pages were read, the kinds come to what the lanes come to; a lane is
    -- counted up to 100000.
    known AS (
        SELECT
            k.kind,
            CASE
                WHEN NOT k.estimated THEN k.jobs
                WHEN e.ready < 100000 THEN k.jobs * p.part
                ELSE k.jobs * greatest(p.part, 1)
            END::bigint AS ready
        FROM line AS k
        CROSS JOIN every AS e
        CROSS JOIN LATERAL (SELECT e.ready / (SELECT sum(a.jobs) FROM line AS a) AS part) AS p
    ),

    at_work AS (
        SELECT r.kind, sum(r.running)::bigint AS running
        FROM pulse_internal.running_now() AS r
        GROUP BY r.kind
    )

    SELECT '', v_now, greatest(e.ready, (SELECT sum(k.ready) FROM known AS k)), e.running
    FROM every AS e
    UNION ALL
    (
        SELECT coalesce(k.kind, w.kind), v_now, coalesce(k.ready, 0), coalesce(w.running, 0)
        FROM known AS k
        FULL JOIN at_work AS w ON w.kind = k.kind
        ORDER BY 3 DESC, 4 DESC, 1
        LIMIT 1000
    );

    GET DIAGNOSTICS v_written = ROW_COUNT;
    RETURN v_written;
END;
$$;

COMMENT ON FUNCTION pulse_internal.sample_kinds() IS
'Write how many jobs of each kind, at most 1,000 of them, and of all together are ready and run; returns how many rows were written.';

-- What a sample counts, lane by lane and within bounds.

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

CREATE VIEW pulse.samples
WITH (security_barrier)
AS
SELECT
    t.lane,
    t.at,
    t.took,
    t.completed,
    t.dead,
    t.cancelled,
    t.ready,
    t.running
FROM pulse_internal.sample AS t;

COMMENT ON VIEW pulse.samples IS
'A sample of each lane about once a minute, kept 48 hours, then one or two of each hour until 8 days are over: what finished since the sample before and in which time, what was ready (counted up to 100000) and running then.';

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
