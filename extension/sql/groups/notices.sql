-- What a claim of a grouped lane, or tick, does before it serves: notices are read into states
-- of groups, under the roster lock, taken in an earlier statement (groups/claim.sql has
-- the essay).

-- The notices are gone, and so are the states that they change: those are returned as they
-- shall be, and the caller writes them. version is that of the state before, NULL when
-- there was none; turn is kept while the group stays on its level. What changes nothing is
-- left alone: an arrival behind the first job of its group, an end where nobody waits. What
-- counts against the slots of a group is looked up by key:
-- leases, and with in_order jobs that keep their place in waiting.
CREATE FUNCTION pulse_internal.read_notices(
    lane pulse_internal.lane,
    from_seq bigint,
    max_notices integer,
    roll_from text,
    OUT groups pulse_internal.group_state [],
    OUT last_seq bigint
)
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
            bool_or(s.rank IS NULL) AS ended
        FROM spot AS s
        GROUP BY s.group_key
    ),

    seen AS MATERIALIZED (
        SELECT
            n.*,
            o.tid, o.version, o.leases, o.turn, o.starts, o.lasting,
            o.rank AS o_rank, o.place AS o_place, o.kind AS o_kind
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
                WHEN n.ended AND o.turn IS NULL THEN true
                WHEN n.rank < o.rank THEN true
                WHEN n.rank = o.rank
                    THEN n.place < o.place OR n.place = o.place AND n.kind IS NULL
                ELSE false
            END
    ),

    -- The first job, or where to look for it: one that arrived before the others, or the place of
    -- one that was taken out.
    first AS MATERIALIZED (
        SELECT
            s.*,
            CASE WHEN h.here THEN s.rank ELSE s.o_rank END AS at_rank,
            CASE WHEN h.here THEN s.place ELSE s.o_place END AS at_place,
            CASE WHEN h.here THEN s.kind ELSE s.o_kind END AS at_kind
        FROM seen AS s
        CROSS JOIN LATERAL (
            SELECT
                (
                    s.o_rank IS NULL
                    OR (s.rank, s.place) < (s.o_rank, s.o_place)
                    OR (s.rank, s.place) = (s.o_rank, s.o_place) AND s.kind IS NULL
                ) IS TRUE AS here
        ) AS h
    ),

    found AS MATERIALIZED (
        SELECT
            i.*,
            CASE WHEN i.at_kind IS NULL THEN f.rank ELSE i.at_rank END AS rank_now,
            CASE WHEN i.at_kind IS NULL THEN f.seq ELSE i.at_place END AS place_now,
            coalesce(i.at_kind, f.kind) AS kind_now
        FROM first AS i
        LEFT JOIN LATERAL (
            SELECT r.rank, r.seq, r.kind
            FROM pulse_internal.ready AS r
            WHERE i.at_kind IS NULL
                AND r.lane = (read_notices.lane).lane
                AND r.group_key = i.group_key
                AND (r.rank, r.seq) >= (i.at_rank, i.at_place)
                AND r.group_key IS NOT NULL
            ORDER BY r.rank, r.seq
            LIMIT 1
        ) AS f ON true
    ),

    gone AS (
        DELETE FROM pulse_internal.group_state AS s
        WHERE s.ctid = ANY (array(SELECT m.tid FROM seen AS m WHERE m.tid IS NOT NULL))
    )

    SELECT
        array_agg(
            ROW(
                (read_notices.lane).lane, m.group_key, m.version,
                m.rank_now, m.place_now, m.kind_now,
                CASE
                    WHEN m.leases IS NOT NULL
                        THEN
                            array(
                                SELECT u.lease
                                FROM unnest(m.leases) AS u (lease)
                                WHERE (
                                    SELECT true
                                    FROM pulse_internal.lease AS e
                                    WHERE e.lease = u.lease
                                )
                                    OR (read_notices.lane).in_order
                                    AND (
                                        SELECT true
                                        FROM pulse_internal.waiting AS w
                                        WHERE w.last_lease = u.lease
                                            AND w.place IS NOT NULL
                                        LIMIT 1
                                    )
                            )
                END,
                CASE WHEN m.rank_now = m.o_rank THEN m.turn END,
                m.starts,
                NULL,
                NULL,
                m.lasting
            )::pulse_internal.group_state
        ),
        (SELECT max(n.seq) FROM notice AS n)
    INTO v_groups, last_seq
    FROM found AS m;
    groups := v_groups;
END;
$$;

COMMENT ON FUNCTION pulse_internal.read_notices(pulse_internal.lane, bigint, integer, text) IS
'Take at most so many notices of a lane, from a place on, and say what they make of the groups they name.';

-- Groups whose rate lets them run again, as notices would have made them: their states are
-- gone, and returned as they shall be. Under the lock nobody files one behind what was read.
CREATE FUNCTION pulse_internal.wake_groups(
    lane pulse_internal.lane, from_time timestamptz, to_time timestamptz, max_groups integer
)
RETURNS pulse_internal.group_state []
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
        RETURNING s.*
    )

    SELECT
        array_agg(
            ROW(
                w.lane, w.group_key, w.version, w.rank, w.place, w.kind,
                CASE
                    WHEN w.leases IS NOT NULL
                        THEN
                            array(
                                SELECT u.lease
                                FROM unnest(w.leases) AS u (lease)
                                WHERE (
                                    SELECT true
                                    FROM pulse_internal.lease AS e
                                    WHERE e.lease = u.lease
                                )
                                    OR (wake_groups.lane).in_order
                                    AND (
                                        SELECT true
                                        FROM pulse_internal.waiting AS o
                                        WHERE o.last_lease = u.lease
                                            AND o.place IS NOT NULL
                                        LIMIT 1
                                    )
                            )
                END,
                NULL, w.starts, NULL, NULL, w.lasting
            )::pulse_internal.group_state
            ORDER BY w.wake_at
        )
    INTO v_groups
    FROM woken AS w;
    RETURN v_groups;
END;
$$;

COMMENT ON FUNCTION pulse_internal.wake_groups(
    pulse_internal.lane, timestamptz, timestamptz, integer
) IS
'Take the states of groups that were to wake in this time, at most so many, and say what they are now.';

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
