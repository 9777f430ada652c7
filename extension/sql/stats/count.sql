-- Counting: from tally to stat, once for each row, whatever happens.
--
-- What a job leaves behind cannot be counted later: a snooze leaves nothing, retry, prune and
-- delete_job remove how it ended, and a time mark over finished_at would fail when the
-- clock is set back. So who changes jobs writes down what it did, in the same transaction,
-- and a row counts by being deleted: a tick that rolls back has counted nothing, and
-- a failover or a restore takes back both or none.
--
-- Dead rows are not stepped over twice. New rows are those above high, the last one seen;
-- one that commits behind it is looked for when everything up to its number is decided
-- (common/marks.sql), from low on. An open transaction delays its own rows and no others.

-- A step of tick. At most one session is here: the lock of its part is kept to the commit.
CREATE FUNCTION pulse_internal.tick_count(until timestamptz DEFAULT 'infinity')
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('tally');
    v_low bigint := coalesce((v_old.state ->> 'low')::bigint, 0);
    v_high bigint := coalesce((v_old.state ->> 'high')::bigint, 0);
    -- Decided first, looked at in later statements.
    v_decided bigint := (pulse_internal.see_horizon()).tally_q;
    v_page record;
    v_first bigint;
    v_all bigint := 0;
    v_new jsonb;
BEGIN
    LOOP
        SELECT p.* INTO v_page
        FROM pulse_internal.count_page(v_high, 9223372036854775807, 5000) AS p;
        v_all := v_all + v_page.counted;
        v_high := coalesce(v_page.last, v_high);
        EXIT WHEN v_page.counted < 5000 OR pulse_internal.time_is_over(tick_count.until);
    END LOOP;

    v_decided := least(v_decided, v_high);
    WHILE v_low < v_decided AND NOT pulse_internal.time_is_over(tick_count.until) LOOP
        SELECT p.* INTO v_page
        FROM pulse_internal.count_page(v_low, v_decided, 5000) AS p;
        v_all := v_all + v_page.counted;
        CONTINUE WHEN v_page.counted = 5000;

        -- What could not be locked is still there.
        SELECT t.seq INTO v_first
        FROM pulse_internal.tally AS t
        WHERE t.seq > v_low
        ORDER BY t.seq
        LIMIT 1;
        v_low := least(v_first - 1, v_decided);
        EXIT;
    END LOOP;

    v_new := jsonb_build_object('low', v_low::text, 'high', v_high::text);
    IF v_new IS DISTINCT FROM v_old.state THEN
        PERFORM pulse_internal.write_upkeep_run(v_old, 'tally', v_new);
    END IF;
    RETURN v_all;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_count(timestamptz) IS
'Add up in stat what tally has, until it is done or the time is over; returns how many rows of tally.';

CREATE FUNCTION pulse_internal.count_page(
    after bigint, up_to bigint, max_rows integer, OUT counted integer, OUT last bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_rows tid [];
    v_sums pulse_internal.tally [];
BEGIN
    SELECT array_agg(p.ctid), coalesce(max(p.seq), NULL), count(*)
    INTO v_rows, last, counted
    FROM (
        SELECT t.ctid, t.seq
        FROM pulse_internal.tally AS t
        WHERE t.seq > count_page.after
            AND t.seq <= count_page.up_to
        ORDER BY t.seq
        LIMIT count_page.max_rows
        FOR UPDATE SKIP LOCKED
    ) AS p;

    IF counted = 0 THEN
        RETURN;
    END IF;

    WITH gone AS (
        DELETE FROM pulse_internal.tally AS t
        WHERE t.ctid = ANY (v_rows)
        RETURNING t.*
    )

    SELECT array_agg(s.*::pulse_internal.tally) INTO v_sums
    FROM (
        SELECT
            max(g.seq) AS seq, g.lane, g.kind, g.event, sum(g.jobs)::bigint AS jobs,
            coalesce(g.wait_bucket, width_bucket(g.waited, pulse_internal.histogram_intervals()))
            AS wait_bucket,
            sum(g.waited) AS waited,
            coalesce(g.run_bucket, width_bucket(g.ran, pulse_internal.histogram_intervals()))
            AS run_bucket,
            sum(g.ran) AS ran
        FROM gone AS g
        GROUP BY g.lane, g.kind, g.event, 6, 8
    ) AS s;

    PERFORM pulse_internal.add_stats(v_sums);
END;
$$;

COMMENT ON FUNCTION pulse_internal.count_page(bigint, bigint, integer) IS
'Count at most max_rows of tally, from a number on; says how many and the last one.';

CREATE FUNCTION pulse_internal.is_ours(lane text, kind text)
RETURNS boolean
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        EXISTS (SELECT FROM pulse_internal.kind AS k WHERE k.kind = is_ours.kind)
        OR EXISTS (SELECT FROM pulse_internal.worker AS w WHERE is_ours.kind = ANY (w.kinds))
    )
    AND (
        is_ours.lane = 'default'
        OR EXISTS (SELECT FROM pulse_internal.lane AS l WHERE l.lane = is_ours.lane)
        OR EXISTS (
            SELECT
            FROM pulse_internal.kind AS k
            WHERE k.kind = is_ours.kind AND k.lane = is_ours.lane
        )
        OR EXISTS (SELECT FROM pulse_internal.worker AS w WHERE is_ours.lane = ANY (w.lanes))
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.is_ours(text, text) IS
'Whether settings or workers name this kind and this lane: no producer can invent them.';

-- A lane and kind that was never seen gets counters of its own while there are fewer than
-- 2,000; after that it is counted with the rest of its lane (kind ''), and a lane that has
-- none with the rest of all lanes: a producer that invents names costs a row each, not
-- a row each for ever. Invented names must not hide those that count: a kind and lane that
-- settings or workers name have room for 2,000 more.
CREATE FUNCTION pulse_internal.add_stats(sums pulse_internal.tally [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_free bigint;
BEGIN
    IF EXISTS (
        SELECT
        FROM unnest(add_stats.sums) AS s
        WHERE NOT EXISTS (
            SELECT
            FROM pulse_internal.stat AS k
            WHERE NOT k.total AND k.lane = s.lane AND k.kind = s.kind
        )
    ) THEN
        SELECT 2000 - count(*) INTO v_free
        FROM pulse_internal.series AS n
        WHERE n.kind <> '';
    END IF;

    WITH pair AS (
        SELECT
            p.lane,
            p.kind,
            p.is_known
            OR row_number() OVER (
                PARTITION BY p.is_known, p.is_ours ORDER BY p.lane, p.kind
            ) <= CASE WHEN p.is_ours THEN v_free + 2000 ELSE v_free END
            AS is_named,
            EXISTS (
                SELECT FROM pulse_internal.stat AS k WHERE NOT k.total AND k.lane = p.lane
            ) AS has_lane,
            EXISTS (
                SELECT
                FROM pulse_internal.stat AS k
                WHERE k.total AND k.lane = p.lane AND k.kind = ''
            ) AS has_total
        FROM (
            SELECT
                d.lane,
                d.kind,
                EXISTS (
                    SELECT
                    FROM pulse_internal.stat AS k
                    WHERE NOT k.total AND k.lane = d.lane AND k.kind = d.kind
                ) AS is_known,
                v_free IS NOT NULL AND pulse_internal.is_ours(d.lane, d.kind) AS is_ours
            FROM (SELECT DISTINCT s.lane, s.kind FROM unnest(add_stats.sums) AS s) AS d
        ) AS p
    ),

    named AS (
        SELECT
            s.*,
            CASE WHEN p.is_named OR p.has_lane THEN p.lane ELSE '' END COLLATE "C" AS in_lane,
            CASE WHEN p.is_named THEN p.kind ELSE '' END COLLATE "C" AS of_kind,
            -- A lane that was sampled has a total, also beyond the first 2,000.
            CASE WHEN p.is_named OR p.has_lane OR p.has_total THEN p.lane ELSE '' END
            COLLATE "C" AS of_lane
        FROM unnest(add_stats.sums) AS s
        INNER JOIN pair AS p ON p.lane = s.lane AND p.kind = s.kind
    ),

    more AS (
        SELECT
            grouping(s.in_lane) > 0 AS total,
            coalesce(s.in_lane, s.of_lane, '') AS lane,
            coalesce(s.of_kind, '') AS kind,
            sum(s.jobs) FILTER (WHERE s.event = 'enqueued') AS enqueued,
            sum(s.jobs) FILTER (WHERE s.waited IS NOT NULL) AS started,
            sum(s.jobs) FILTER (WHERE s.event = 'completed') AS completed,
            sum(s.jobs) FILTER (WHERE s.event = 'failed') AS failed,
            sum(s.jobs) FILTER (WHERE s.event = 'dead') AS dead,
            sum(s.jobs) FILTER (WHERE s.event = 'retried') AS retried,
            sum(s.jobs) FILTER (WHERE s.event = 'cancelled') AS cancelled,
            sum(s.jobs) FILTER (WHERE s.event = 'reaped') AS reaped,
            -- Never less than before, whatever the clock did.
            sum(greatest(date_part('epoch', s.waited), 0)) AS wait_seconds,
            array_agg(s.wait_bucket) AS wait_buckets,
            sum(greatest(date_part('epoch', s.ran), 0)) AS run_seconds,
            array_agg(s.run_bucket) AS run_buckets,
            array_agg(s.jobs) AS jobs
        FROM named AS s
        GROUP BY GROUPING SETS ((s.in_lane, s.of_kind), (s.of_lane), (s.of_kind), ())
        -- What has no name of its own is in the total of everything.
        HAVING grouping(s.in_lane) = 0
            OR grouping(s.of_lane, s.of_kind) = 3
            OR coalesce(s.of_lane, s.of_kind) <> ''
    ),

    added AS (
        INSERT INTO pulse_internal.stat AS t
        SELECT
            m.lane,
            m.kind,
            -- A clock that was set back.
            greatest(v_now, o.at + interval '1 microsecond'),
            coalesce(o.enqueued, 0) + coalesce(m.enqueued, 0),
            coalesce(o.started, 0) + coalesce(m.started, 0),
            coalesce(o.completed, 0) + coalesce(m.completed, 0),
            coalesce(o.failed, 0) + coalesce(m.failed, 0),
            coalesce(o.dead, 0) + coalesce(m.dead, 0),
            coalesce(o.retried, 0) + coalesce(m.retried, 0),
            coalesce(o.cancelled, 0) + coalesce(m.cancelled, 0),
            coalesce(o.reaped, 0) + coalesce(m.reaped, 0),
            coalesce(o.wait_seconds, 0) + coalesce(m.wait_seconds, 0),
            pulse_internal.add_to_histogram(o.wait_counts, m.wait_buckets, m.jobs),
            coalesce(o.run_seconds, 0) + coalesce(m.run_seconds, 0),
            pulse_internal.add_to_histogram(o.run_counts, m.run_buckets, m.jobs),
            m.total,
            -- The depth stays as the last sample saw it.
            coalesce(o.ready, 0),
            coalesce(o.running, 0)
        FROM more AS m
        LEFT JOIN LATERAL (
            SELECT n.*
            FROM pulse_internal.stat AS n
            WHERE n.total = m.total
                AND n.lane = m.lane
                AND n.kind = m.kind
            ORDER BY n.at DESC
            LIMIT 1
        ) AS o ON true
        RETURNING t.total, t.lane, t.kind, t.at
    )

    -- One row for a minute: the newest.
    DELETE FROM pulse_internal.stat AS t
    WHERE t.ctid = ANY (array(
            SELECT o.ctid
            FROM added AS a
            INNER JOIN pulse_internal.stat AS o
                ON o.total = a.total AND o.lane = a.lane AND o.kind = a.kind
            WHERE o.at >= date_trunc('minute', a.at)
            FOR UPDATE OF o SKIP LOCKED
        ));
END;
$$;

COMMENT ON FUNCTION pulse_internal.add_stats(pulse_internal.tally []) IS
'Write the counters of each lane and kind anew, with these added.';

-- Without the rows of today's tables: the index is jumped through.
CREATE VIEW pulse_internal.series
WITH (security_barrier)
AS
WITH RECURSIVE series (lane, kind) AS (
    (
        SELECT s.lane, s.kind
        FROM pulse_internal.stat AS s
        WHERE NOT s.total
        ORDER BY s.lane, s.kind
        LIMIT 1
    )
    UNION ALL
    SELECT n.lane, n.kind
    FROM series AS p
    CROSS JOIN LATERAL (
        SELECT s.lane, s.kind
        FROM pulse_internal.stat AS s
        WHERE NOT s.total
            AND (s.lane, s.kind) > (p.lane, p.kind)
        ORDER BY s.lane, s.kind
        LIMIT 1
    ) AS n
)

SELECT s.lane, s.kind
FROM series AS s;

COMMENT ON VIEW pulse_internal.series IS
'Each lane and kind that has counters; the lane or the kind is empty for those beyond the first 2,000.';

-- A start counts once: by the sweep that first sees the run, which then sets
-- ready_at to NULL, or by the end of the run. Both have the row of the lease locked. Reports
-- of completed and failed runs do the same in their one statement.
CREATE FUNCTION pulse_internal.count_start(lease pulse_internal.lease)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF lease.ready_at IS NOT NULL THEN
        INSERT INTO pulse_internal.tally (lane, kind, event, waited)
        VALUES (lease.lane, lease.kind, 'started', lease.claimed_at - lease.ready_at);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.count_start(pulse_internal.lease) IS
'Count the start of a run, unless it was counted.';
