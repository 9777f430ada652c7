-- Notices: what happened to groups since the last claim, worked into group_state.
--
-- A session that puts a job in line, ends a run or takes a job out of line leaves a notice in the
-- same transaction, and waits for nothing. The claim of a lane with groups, or tick, reads the
-- notices under the roster lock, which it took in an earlier statement. A notice is a hint that
-- a group may have changed. What the group has is looked up by key: its first job in ready,
-- its runs in lease, the job that it waits for in waiting. So a notice that comes twice does
-- no harm, and the order of notices does not matter.

-- All that a claim does before it picks. A claim must not pick while is_sorted is false: in
-- order, a job that was not moved into its group yet may come first.
CREATE FUNCTION pulse_internal.hear_groups(
    lane pulse_internal.lane,
    need integer,
    max_notices integer,
    line pulse_internal.mark,
    OUT is_sorted boolean,
    OUT has_rules boolean,
    OUT mark pulse_internal.group_mark,
    OUT first_turn bigint,
    OUT last_seq bigint,
    OUT woken_until timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lane text COLLATE "C" := (hear_groups.lane).lane;
    -- A claim moves more jobs into their groups than it takes.
    v_max_moved integer := 500 + 4 * hear_groups.need;
    v_known record;
    v_sorted record;
BEGIN
    SELECT
        m.mark,
        (SELECT min(u.turn) FROM unnest((m.mark).turns) AS u (turn)) AS first_turn,
        (
            SELECT true
            FROM pulse_internal.group_rule AS q
            WHERE q.lane = v_lane
            ORDER BY q.group_key
            LIMIT 1
        ) AS has_rules,
        (hear_groups.lane).group_rate IS NOT NULL
        OR EXISTS (
            SELECT 1
            FROM pulse_internal.group_rule AS q
            WHERE q.lane = v_lane AND q.rate IS NOT NULL
        ) AS groups_have_rates,
        (
            SELECT true
            FROM pulse_internal.group_notice AS n
            WHERE n.lane = v_lane
                AND n.seq >= (m.mark).notice_from
            ORDER BY n.seq
            LIMIT 1
        ) AS has_notices
    INTO v_known
    FROM (
        SELECT (
            SELECT o
            FROM pulse_internal.group_mark AS o
            WHERE o.lane = v_lane
            ORDER BY o.version DESC
            LIMIT 1
        ) AS mark
        OFFSET 0
    ) AS m;
    mark := v_known.mark;
    first_turn := v_known.first_turn;
    has_rules := coalesce(v_known.has_rules, false);
    is_sorted := true;

    -- After a restore nothing is known of the groups: they are announced again.
    IF mark.lane IS NULL OR mark.roll_from IS NOT NULL THEN
        mark := pulse_internal.announce_groups(hear_groups.lane, mark, 1000);
        v_known.has_notices := true;
    END IF;

    v_sorted := pulse_internal.sort_into_groups(v_lane, v_max_moved, hear_groups.line);
    IF (hear_groups.lane).in_order AND v_sorted.moved >= v_max_moved THEN
        is_sorted := false;
        RETURN;
    END IF;

    IF v_known.has_notices OR v_sorted.moved > 0 THEN
        last_seq := pulse_internal.read_notices(
            hear_groups.lane, mark.notice_from, hear_groups.max_notices, mark.roll_from
        );
    END IF;

    -- Where the clock stepped back, all sleeping groups are looked at, and those that would now
    -- sleep for longer than the period of any rate wake.
    IF v_known.groups_have_rates THEN
        woken_until := v_now;
        IF pulse_internal.wake_groups(
            hear_groups.lane,
            CASE WHEN mark.woken_until > v_now THEN '-infinity' ELSE mark.woken_until END,
            v_now, hear_groups.max_notices
        ) >= hear_groups.max_notices THEN
            woken_until := NULL;
        END IF;
        IF mark.woken_until > v_now THEN
            PERFORM pulse_internal.wake_groups(
                hear_groups.lane, v_now + pulse_internal.longest_group_period(hear_groups.lane),
                'infinity', hear_groups.max_notices
            );
        END IF;
    END IF;

    -- A producer that saw the lane without groups may have committed before a producer whose
    -- notice was just read began. In order, its job is moved into its group first.
    IF (hear_groups.lane).in_order THEN
        v_sorted := pulse_internal.sort_into_groups(v_lane, v_max_moved, hear_groups.line);
        is_sorted := v_sorted.named = 0;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.hear_groups(
    pulse_internal.lane, integer, integer, pulse_internal.mark
) IS
'Bring the states of the groups of a lane up to date for a claim of need jobs; is_sorted is false when it must not pick yet.';

-- What changes nothing is left alone: a job that arrived behind the first one of its group, an end
-- in a group that has a turn. Where the groups of a restored lane are still being announced
-- (from the group roll_from on), the first job of a group is looked up.
CREATE FUNCTION pulse_internal.read_notices(
    lane pulse_internal.lane,
    from_seq bigint,
    max_notices integer,
    roll_from text
)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_groups pulse_internal.group_state [];
    v_last_seq bigint;
BEGIN
    WITH notice AS (
        DELETE FROM pulse_internal.group_notice AS n
        WHERE n.ctid = ANY (array(
                SELECT r.tid
                FROM (
                    SELECT
                        o.ctid AS tid,
                        sum(coalesce(cardinality(o.ended), 1)) OVER (
                            ORDER BY o.seq ROWS UNBOUNDED PRECEDING
                        ) AS groups
                    FROM pulse_internal.group_notice AS o
                    WHERE o.lane = (read_notices.lane).lane
                        AND o.seq >= read_notices.from_seq
                    ORDER BY o.seq
                    LIMIT read_notices.max_notices
                ) AS r
                WHERE r.groups <= read_notices.max_notices
            ))
        RETURNING n.seq, n.group_key, n.rank, n.place, n.kind, n.ended
    ),

    -- Where the roll was not taken yet, the first job of a group is to be looked up.
    spot AS (
        SELECT s.*
        FROM (
            SELECT
                n.group_key,
                CASE WHEN r.is_unknown THEN -2147483648 ELSE n.rank END AS rank,
                CASE WHEN r.is_unknown THEN 0 ELSE n.place END AS place,
                CASE WHEN r.is_unknown THEN NULL ELSE n.kind END AS kind
            FROM notice AS n
            CROSS JOIN LATERAL (
                SELECT n.rank IS NOT NULL AND n.group_key >= read_notices.roll_from AS is_unknown
            ) AS r
            WHERE n.ended IS NULL
            UNION ALL
            SELECT unnest(n.ended), NULL, NULL, NULL
            FROM notice AS n
            WHERE n.ended IS NOT NULL
        ) AS s
        ORDER BY s.group_key, s.rank, s.place, s.kind NULLS FIRST
    ),

    -- Of each group the first place that is named.
    news AS (
        SELECT
            s.group_key,
            (array_agg(s.rank))[1] AS rank,
            (array_agg(s.place))[1] AS place,
            (array_agg(s.kind))[1] AS kind,
            bool_or(s.rank IS NULL) AS has_ended
        FROM spot AS s
        GROUP BY s.group_key
    ),

    changed AS MATERIALIZED (
        SELECT
            n.*,
            o.tid, o.version, o.jobs, o.turn, o.starts, o.lasting,
            o.rank AS old_rank, o.place AS old_place, o.kind AS old_kind
        FROM news AS n
        LEFT JOIN LATERAL (
            SELECT s.*, s.ctid AS tid
            FROM pulse_internal.group_state AS s
            WHERE s.lane = (read_notices.lane).lane
                AND s.group_key = n.group_key
            ORDER BY s.version DESC
            LIMIT 1
        ) AS o ON true
        WHERE
            CASE
                WHEN o.rank IS NULL THEN n.rank IS NOT NULL
                WHEN n.has_ended AND o.turn IS NULL THEN true
                WHEN n.rank < o.rank THEN true
                WHEN n.rank = o.rank
                    THEN n.place < o.place OR n.place = o.place AND n.kind IS NULL
                ELSE false
            END
    ),

    -- The first job of the group. It is the one that arrived, or the old one. Where a job was
    -- taken out there, kind is NULL, and the first job from that place on is looked up.
    first_job AS MATERIALIZED (
        SELECT
            c.*,
            CASE WHEN i.is_new THEN c.rank ELSE c.old_rank END AS from_rank,
            CASE WHEN i.is_new THEN c.place ELSE c.old_place END AS from_place,
            CASE WHEN i.is_new THEN c.kind ELSE c.old_kind END AS from_kind
        FROM changed AS c
        CROSS JOIN LATERAL (
            SELECT
                (
                    c.old_rank IS NULL
                    OR (c.rank, c.place) < (c.old_rank, c.old_place)
                    OR (c.rank, c.place) = (c.old_rank, c.old_place) AND c.kind IS NULL
                ) IS TRUE AS is_new
        ) AS i
    ),

    found AS MATERIALIZED (
        SELECT
            j.*,
            CASE WHEN j.from_kind IS NULL THEN f.rank ELSE j.from_rank END AS rank_now,
            CASE WHEN j.from_kind IS NULL THEN f.seq ELSE j.from_place END AS place_now,
            coalesce(j.from_kind, f.kind) AS kind_now
        FROM first_job AS j
        LEFT JOIN LATERAL (
            SELECT r.rank, r.seq, r.kind
            FROM pulse_internal.ready AS r
            WHERE j.from_kind IS NULL
                AND r.lane = (read_notices.lane).lane
                AND r.group_key = j.group_key
                AND (r.rank, r.seq) >= (j.from_rank, j.from_place)
                AND r.group_key IS NOT NULL
            ORDER BY r.rank, r.seq
            LIMIT 1
        ) AS f ON true
    ),

    gone AS (
        DELETE FROM pulse_internal.group_state AS s
        WHERE s.ctid = ANY (array(SELECT c.tid FROM changed AS c WHERE c.tid IS NOT NULL))
    )

    -- A group keeps its turn while it stays on its level. New turns are drawn in the order in which
    -- the first jobs of the groups came.
    SELECT
        array_agg(
            ROW(
                (read_notices.lane).lane, f.group_key, f.version,
                f.rank_now, f.place_now, f.kind_now, f.jobs,
                CASE WHEN f.rank_now = f.old_rank THEN f.turn END,
                f.starts, NULL, NULL, f.lasting
            )::pulse_internal.group_state
            ORDER BY f.rank_now, f.place_now
        ),
        (SELECT max(n.seq) FROM notice AS n)
    INTO v_groups, v_last_seq
    FROM found AS f;

    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.write_groups(read_notices.lane, v_groups);
    END IF;
    RETURN v_last_seq;
END;
$$;

COMMENT ON FUNCTION pulse_internal.read_notices(pulse_internal.lane, bigint, integer, text) IS
'Take at most so many notices of a lane, from a place on, and write the states of the groups that they change; returns the last place read.';

-- Groups whose rate lets them start again. All who write wake_at hold the roster lock, so no
-- group is filed below what was read.
CREATE FUNCTION pulse_internal.wake_groups(
    lane pulse_internal.lane, from_time timestamptz, to_time timestamptz, max_groups integer
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
    v_groups pulse_internal.group_state [];
BEGIN
    WITH woken AS (
        DELETE FROM pulse_internal.group_state AS s
        WHERE s.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse_internal.group_state AS o
                WHERE o.lane = (wake_groups.lane).lane
                    AND o.wake_at >= wake_groups.from_time
                    AND o.wake_at <= wake_groups.to_time
                    AND o.rank IS NOT NULL
                ORDER BY o.wake_at
                LIMIT wake_groups.max_groups
            ))
        RETURNING s AS state, s.wake_at
    )

    SELECT array_agg(w.state ORDER BY w.wake_at) INTO v_groups
    FROM woken AS w;

    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.write_groups(wake_groups.lane, v_groups);
    END IF;
    RETURN coalesce(cardinality(v_groups), 0);
END;
$$;

COMMENT ON FUNCTION pulse_internal.wake_groups(
    pulse_internal.lane, timestamptz, timestamptz, integer
) IS
'Write the states of groups that were to wake in this time anew, at most so many; returns how many.';

CREATE FUNCTION pulse_internal.longest_group_period(lane pulse_internal.lane)
RETURNS interval
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RETURN greatest(
        (longest_group_period.lane).group_rate_per,
        (
            SELECT max(q.rate_per)
            FROM pulse_internal.group_rule AS q
            WHERE q.lane = (longest_group_period.lane).lane
                AND q.rate IS NOT NULL
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.longest_group_period(pulse_internal.lane) IS
'The longest period of a rate that groups of a lane have.';

-- For a claim that has picked these jobs and makes no leases of them. The second notice of each,
-- which names no place, lets the group be counted anew.
CREATE FUNCTION pulse_internal.notice_back(rows_of_ready tid [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place, kind)
    SELECT r.lane, r.group_key, n.rank, n.place, n.kind
    FROM pulse_internal.ready AS r
    CROSS JOIN LATERAL (
        VALUES (r.rank, r.seq, r.kind), (NULL::integer, NULL::bigint, NULL)
    ) AS n (rank, place, kind)
    WHERE r.ctid = ANY (notice_back.rows_of_ready)
        AND r.group_key IS NOT NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.notice_back(tid []) IS
'Announce that jobs which a claim has picked stand in the lines of their groups as before.';
