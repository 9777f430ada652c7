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

-- The one place that decides whether a group has a turn: it has a job, it is not stopped, it
-- waits for no job, and it has a free slot and a free start. A turn that is given is kept, else
-- one is drawn at the end of the round.
--
-- picks are the jobs that these groups start with this call, picked those that the claim has
-- picked before: they run, although they have no lease yet.
--
-- A row that was not there before and says nothing is not written. One that was there is kept
-- when its group goes idle (lasting): the next look by key meets it before all older versions,
-- which VACUUM may not be able to remove. A first row is the only version, so it is kept in one
-- case of 16: a group that comes and goes again and again then leaves 16 versions on average
-- until it is one of those that keep a row.
CREATE FUNCTION pulse_internal.write_groups(
    lane pulse_internal.lane,
    groups pulse_internal.group_state [],
    picks pulse_internal.group_pick [] DEFAULT '{}',
    picked bigint [] DEFAULT '{}',
    at timestamptz DEFAULT clock_timestamp()
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
SET enable_mergejoin = off
SET enable_nestloop = off
AS $$
BEGIN
    WITH started AS (
        SELECT p.group_key, array_agg(p.job) AS jobs
        FROM unnest(write_groups.picks) AS p
        GROUP BY p.group_key
    )

    INSERT INTO pulse_internal.group_state (
        lane, group_key, rank, place, kind, jobs, turn, starts, wake_at, lasting
    )
    SELECT
        g.lane, g.group_key, g.rank, g.place, g.kind, r.jobs,
        CASE
            WHEN g.rank IS NOT NULL
                AND q.enabled IS NOT FALSE
                AND (cardinality(r.jobs) >= l.slots) IS NOT TRUE
                AND f.free_at IS NULL
                AND w.is_waited_for IS NULL
                THEN coalesce(g.turn, nextval('pulse_internal.version'))
        END,
        t.starts,
        CASE WHEN g.rank IS NOT NULL THEN f.free_at END,
        g.version IS NOT NULL OR random() < 1.0 / 16
    FROM unnest(write_groups.groups) AS g
    LEFT JOIN started AS s ON s.group_key = g.group_key
    LEFT JOIN LATERAL (
        SELECT o.*
        FROM pulse_internal.group_rule AS o
        WHERE
            (
                SELECT true
                FROM pulse_internal.group_rule AS a
                WHERE a.lane = (write_groups.lane).lane
                ORDER BY a.group_key
                LIMIT 1
            )
            AND o.lane = g.lane
            AND o.group_key = g.group_key
        OFFSET 0
    ) AS q ON true
    -- The group without a name has no limits.
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN g.group_key = '' THEN NULL
                WHEN (write_groups.lane).in_order THEN 1
                ELSE coalesce(q.max_slots, (write_groups.lane).group_slots)
            END AS slots,
            CASE
                WHEN g.group_key <> '' THEN coalesce(q.rate, (write_groups.lane).group_rate)
            END AS rate,
            coalesce(q.rate_per, (write_groups.lane).group_rate_per) AS rate_per
    ) AS l
    -- A group that seems full is looked up in the statement that takes its turn away. So the
    -- notice of an end that was read before needs no memory, and a later one is still unread.
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN l.slots IS NULL THEN NULL
                WHEN coalesce(cardinality(g.jobs), 0) = 0
                    OR cardinality(g.jobs) + coalesce(cardinality(s.jobs), 0) < l.slots
                    THEN
                        -- A job that runs again is listed once.
                        CASE
                            WHEN g.jobs && s.jobs
                                THEN array(
                                    SELECT u.job
                                    FROM unnest(g.jobs) AS u (job)
                                    WHERE u.job <> ALL (s.jobs)
                                )
                            ELSE coalesce(g.jobs, '{}')
                        END || s.jobs
                ELSE
                    array(
                        SELECT DISTINCT u.job
                        FROM unnest(g.jobs) AS u (job)
                        WHERE u.job = ANY (write_groups.picked)
                            OR (
                                SELECT true
                                FROM pulse_internal.lease AS e
                                WHERE e.job = u.job
                                    AND e.lane = g.lane
                                    AND e.group_key = g.group_key
                            )
                    ) || s.jobs
            END AS jobs
        OFFSET 0
    ) AS r
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN l.rate IS NOT NULL
                    THEN pulse_internal.add_starts(
                        g.starts, coalesce(cardinality(s.jobs), 0), l.rate_per, write_groups.at
                    )
            END AS starts
        OFFSET 0
    ) AS t
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN l.rate IS NOT NULL
                    THEN (
                        SELECT o.free_at
                        FROM pulse_internal.free_starts(
                            t.starts, l.rate, l.rate_per, write_groups.at
                        ) AS o
                    )
            END AS free_at
        OFFSET 0
    ) AS f
    -- In order, the group waits for a job in waiting that has run before, unless its own first job
    -- has run too and has an earlier place.
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN (write_groups.lane).in_order AND g.group_key <> ''
                    THEN (
                        SELECT true
                        FROM pulse_internal.waiting AS o
                        WHERE o.lane = g.lane
                            AND o.group_key = g.group_key
                            AND o.place IS NOT NULL
                            AND (
                                o.place < g.place
                                OR (
                                    SELECT r.attempts = 0
                                    FROM pulse_internal.ready AS r
                                    WHERE r.lane = g.lane
                                        AND r.group_key = g.group_key
                                        AND r.group_key IS NOT NULL
                                        AND r.rank = g.rank
                                        AND r.seq = g.place
                                    LIMIT 1
                                )
                            )
                        LIMIT 1
                    )
            END AS is_waited_for
    ) AS w
    WHERE g.rank IS NOT NULL
        OR g.lasting
        OR cardinality(r.jobs) > 0
        OR t.starts IS NOT NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.write_groups(
    pulse_internal.lane, pulse_internal.group_state [], pulse_internal.group_pick [],
    bigint [], timestamptz
) IS
'Write states of groups, with the jobs that they start now; those that can start one more have a turn.';
