-- The marks of a grouped lane, written by whoever has the roster lock.

CREATE FUNCTION pulse_internal.newest_group_mark(lane text)
RETURNS pulse_internal.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark pulse_internal.group_mark;
BEGIN
    SELECT m.* INTO v_mark
    FROM pulse_internal.group_mark AS m
    WHERE m.lane = newest_group_mark.lane
    ORDER BY m.version DESC
    LIMIT 1;

    RETURN v_mark;
END;
$$;

COMMENT ON FUNCTION pulse_internal.newest_group_mark(text) IS
'The marks of a grouped lane.';

-- Whoever writes turns holds the roster lock, so the first one left is the mark, or the last
-- one drawn. Notices come from every session: their mark moves in two steps (common/marks.sql), and
-- not at each time, since the horizon is not cheap to see.
CREATE FUNCTION pulse_internal.advance_groups(
    mark pulse_internal.group_mark,
    ranks integer [],
    woken_until timestamptz DEFAULT NULL,
    notices boolean DEFAULT true
)
RETURNS pulse_internal.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_horizon pulse_internal.horizon;
    v_first bigint;
    v_new pulse_internal.group_mark := advance_groups.mark;
BEGIN
    IF advance_groups.notices THEN
        v_horizon := pulse_internal.see_horizon();
        SELECT n.seq INTO v_first
        FROM pulse_internal.group_notice AS n
        WHERE n.lane = v_new.lane
            AND n.seq >= v_new.notice_from
        ORDER BY n.seq
        LIMIT 1;
        v_new.notice_from := greatest(
            v_new.notice_from,
            least(coalesce(v_first, 9223372036854775807), v_horizon.ready_q + 1)
        );
    END IF;

    v_new.woken_until := coalesce(advance_groups.woken_until, v_new.woken_until);

    -- At most 100 levels are recorded; one that is not is found between those that are.
    SELECT
        coalesce(array_agg(l.rank ORDER BY l.rank), '{}'),
        coalesce(array_agg(coalesce(h.turn, v.last_value) ORDER BY l.rank), '{}')
    INTO v_new.ranks, v_new.turns
    FROM (
        SELECT u.rank, max(u.turn) AS turn
        FROM (
            SELECT o.rank, o.turn
            FROM unnest(v_new.ranks, v_new.turns) AS o (rank, turn)
            UNION ALL
            SELECT o.rank, 0
            FROM unnest(advance_groups.ranks) AS o (rank)
        ) AS u
        GROUP BY u.rank
        ORDER BY u.rank
        LIMIT 100
    ) AS l
    CROSS JOIN pulse_internal.version AS v
    LEFT JOIN LATERAL (
        SELECT s.turn
        FROM pulse_internal.group_state AS s
        WHERE s.lane = v_new.lane
            AND s.turn IS NOT NULL
            AND s.version > 0
            AND s.rank = l.rank
            AND s.turn >= l.turn
        ORDER BY s.turn
        LIMIT 1
    ) AS h ON true;

    IF v_new IS DISTINCT FROM advance_groups.mark THEN
        v_new := pulse_internal.write_group_mark(advance_groups.mark, v_new);
    END IF;
    RETURN v_new;
END;
$$;

COMMENT ON FUNCTION pulse_internal.advance_groups(
    pulse_internal.group_mark, integer [], timestamptz, boolean
) IS
'Move the marks of a grouped lane up to the first unread notice, where asked, and the first live turn of each level; returns what was written.';

CREATE FUNCTION pulse_internal.write_group_mark(
    old pulse_internal.group_mark, new pulse_internal.group_mark
)
RETURNS pulse_internal.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_new pulse_internal.group_mark := write_group_mark.new;
BEGIN
    v_new.version := nextval('pulse_internal.version');
    INSERT INTO pulse_internal.group_mark
    SELECT (v_new).*;

    DELETE FROM pulse_internal.group_mark AS m
    WHERE m.lane = (write_group_mark.old).lane
        AND m.version = (write_group_mark.old).version;
    RETURN v_new;
END;
$$;

COMMENT ON FUNCTION pulse_internal.write_group_mark(
    pulse_internal.group_mark, pulse_internal.group_mark
) IS
'Write the marks of a grouped lane in place of older ones; returns them.';

-- A group that never had a row and has nothing to tell gets none. One that had keeps its last
-- one when it goes idle: else the next look would meet all its dead versions.
CREATE FUNCTION pulse_internal.write_groups(
    lane pulse_internal.lane, groups pulse_internal.group_state []
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    INSERT INTO pulse_internal.group_state (
        lane, group_key, rank, place, kind, leases, turn, starts, wake_at, lasting
    )
    SELECT
        g.lane, g.group_key, g.rank, g.place, g.kind,
        CASE WHEN l.slots IS NOT NULL THEN g.leases END,
        CASE
            WHEN g.rank IS NOT NULL
                AND q.enabled IS NOT FALSE
                AND f.free_at IS NULL
                AND (l.slots IS NULL OR coalesce(cardinality(g.leases), 0) < l.slots)
                THEN coalesce(g.turn, nextval('pulse_internal.version'))
        END,
        pulse_internal.date_starts(g.starts, clock_timestamp()),
        CASE WHEN g.rank IS NOT NULL THEN f.free_at END,
        g.version IS NOT NULL OR random() < 0.0625
    FROM unnest(write_groups.groups) AS g
    LEFT JOIN LATERAL (
        SELECT r.*
        FROM pulse_internal.group_rule AS r
        WHERE r.lane = g.lane
            AND r.group_key = g.group_key
        OFFSET 0
    ) AS q ON true
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN g.group_key = '' THEN NULL
                WHEN (write_groups.lane).in_order THEN 1
                ELSE coalesce(q.max_slots, (write_groups.lane).group_slots)
            END AS slots,
            coalesce(q.rate, (write_groups.lane).group_rate) AS rate,
            coalesce(q.rate_per, (write_groups.lane).group_rate_per) AS rate_per
    ) AS l
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN l.rate IS NOT NULL AND g.group_key <> ''
                    THEN (
                        SELECT o.free_at
                        FROM pulse_internal.free_starts(
                            g.starts, l.rate, l.rate_per, clock_timestamp()
                        ) AS o
                    )
            END AS free_at
        OFFSET 0
    ) AS f
    WHERE g.rank IS NOT NULL OR g.version IS NOT NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.write_groups(
    pulse_internal.lane, pulse_internal.group_state []
) IS
'Write states of groups; those that can run get a turn at the end of the round, unless they have one.';
