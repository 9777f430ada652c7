-- What a claim of a grouped lane, or tick, does before it serves: jobs are sorted into their
-- groups, notices are read into states of groups. All of it under the roster lock, taken in
-- an earlier statement (38_claim_grouped.sql has the essay).

CREATE FUNCTION pulse._promote_to_groups(due tid [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    WITH due AS (
        DELETE FROM pulse.waiting AS w
        WHERE w.ctid = ANY (_promote_to_groups.due)
        RETURNING w.*
    ),

    named AS MATERIALIZED (
        SELECT d.*, pulse._group_of(b.group_key) AS group_key
        FROM due AS d
        CROSS JOIN LATERAL (
            SELECT o.group_key FROM pulse.body AS o WHERE o.job = d.job OFFSET 0
        ) AS b
        ORDER BY d.run_at, d.job
    ),

    fresh AS (
        INSERT INTO pulse.group_ready AS r (
            lane, group_key, rank, kind, job, attempts, failures, keyed, last_lease,
            last_verb
        )
        SELECT
            n.lane, n.group_key, n.rank, n.kind, n.job, n.attempts, n.failures, n.keyed,
            n.last_lease, n.last_verb
        FROM named AS n
        WHERE n.place IS NULL
        RETURNING r.lane, r.group_key, r.rank, r.seq, r.kind
    ),

    -- Those for which their groups waited.
    again AS (
        INSERT INTO pulse.group_ready AS r (
            lane, group_key, rank, seq, kind, job, attempts, failures, keyed, last_lease,
            last_verb
        )
        SELECT
            n.lane, n.group_key, n.rank, n.place, n.kind, n.job, n.attempts, n.failures,
            n.keyed, n.last_lease, n.last_verb
        FROM named AS n
        WHERE n.place IS NOT NULL
        RETURNING r.lane, r.group_key, r.rank, r.seq, r.kind
    ),

    placed AS (
        SELECT f.* FROM fresh AS f
        UNION ALL
        SELECT a.* FROM again AS a
    )

    INSERT INTO pulse.group_notice (lane, group_key, rank, place, kind)
    SELECT n.lane, n.group_key, n.rank, n.place, n.kind
    FROM (
        SELECT
            p.lane, p.group_key, p.rank, min(p.seq) AS place,
            (array_agg(p.kind ORDER BY p.seq))[1] AS kind
        FROM placed AS p
        GROUP BY p.lane, p.group_key, p.rank
        UNION ALL
        SELECT DISTINCT a.lane, a.group_key, NULL::integer, NULL::bigint, NULL
        FROM again AS a
    ) AS n
    ORDER BY n.place;
END;
$$;

COMMENT ON FUNCTION pulse._promote_to_groups(tid []) IS
'Move these rows of waiting into the lines of their groups.';

-- Jobs without a key, and those enqueued before the lane was grouped. They keep their
-- places, which may be below all that their groups have: the notices say so.
CREATE FUNCTION pulse._sort_into_groups(
    lane text,
    max_jobs integer,
    mark pulse.mark,
    OUT moved integer,
    OUT named integer
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_sort = off
SET enable_nestloop = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_tids tid [];
BEGIN
    v_tids := pulse._pick(_sort_into_groups.lane, _sort_into_groups.max_jobs, mark, 0);
    moved := cardinality(v_tids);
    named := 0;
    IF moved = 0 THEN
        RETURN;
    END IF;

    WITH taken AS (
        DELETE FROM pulse.ready AS r
        WHERE r.ctid = ANY (v_tids)
        RETURNING r.*
    ),

    placed AS (
        INSERT INTO pulse.group_ready AS r (
            lane, group_key, rank, seq, kind, job, attempts, failures, keyed, ready_at,
            last_lease, last_verb
        )
        SELECT
            t.lane, pulse._group_of(b.group_key), t.rank, t.seq, t.kind, t.job,
            t.attempts, t.failures, t.keyed, t.ready_at, t.last_lease, t.last_verb
        FROM taken AS t
        CROSS JOIN LATERAL (
            SELECT o.group_key FROM pulse.body AS o WHERE o.job = t.job OFFSET 0
        ) AS b
        RETURNING r.group_key, r.rank, r.seq, r.kind
    ),

    announced AS (
        INSERT INTO pulse.group_notice (lane, group_key, rank, place, kind)
        SELECT
            _sort_into_groups.lane, p.group_key, p.rank, min(p.seq),
            (array_agg(p.kind ORDER BY p.seq))[1]
        FROM placed AS p
        GROUP BY p.group_key, p.rank
        ORDER BY min(p.seq)
    )

    SELECT count(*) INTO _sort_into_groups.named
    FROM placed AS p
    WHERE p.group_key <> '';
END;
$$;

COMMENT ON FUNCTION pulse._sort_into_groups(text, integer, pulse.mark) IS
'Move jobs of a grouped lane from ready into the lines of their groups, at most so many; returns how many, and how many of these have a group_key.';

-- The notices are gone, and so are the states that they change: those are returned as they
-- shall be, and the caller writes them. version is that of the state before, NULL when
-- there was none; turn is kept while the group stays on its level. What changes nothing is
-- left alone: an arrival behind others of its level, or on one that is looked up later, an
-- end where nobody waits. What counts against the slots of a group is looked up by key:
-- leases, and with in_order jobs that keep their place in waiting.
CREATE FUNCTION pulse._read_notices(
    lane pulse.lane,
    from_seq bigint,
    max_notices integer,
    roll_from text,
    OUT groups pulse.group_state [],
    OUT heard integer,
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
    v_groups pulse.group_state [];
BEGIN
    WITH notice AS (
        DELETE FROM pulse.group_notice AS n
        WHERE n.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse.group_notice AS o
                WHERE o.lane = (_read_notices.lane).lane
                    AND o.seq >= _read_notices.from_seq
                ORDER BY o.seq
                LIMIT _read_notices.max_notices
            ))
        RETURNING n.seq, n.group_key, n.rank, n.place, n.kind
    ),

    -- Where the roll was not taken yet, the first place of a level is to be looked up.
    spot AS (
        SELECT
            n.group_key,
            n.rank,
            CASE WHEN n.group_key >= _read_notices.roll_from THEN 0 ELSE n.place END AS place,
            CASE WHEN n.group_key >= _read_notices.roll_from THEN NULL ELSE n.kind END AS kind
        FROM notice AS n
        ORDER BY 1, 2, 3, n.kind NULLS FIRST
    ),

    news AS (
        SELECT
            s.group_key,
            (array_agg(s.rank))[1] AS rank,
            (array_agg(s.place))[1] AS place,
            (array_agg(s.kind))[1] AS kind,
            bool_or(s.rank IS NULL) AS ended,
            bool_or(s.rank IS NOT NULL AND s.kind IS NULL) AS unknown,
            max(s.rank) > min(s.rank) AS several,
            CASE
                WHEN max(s.rank) > min(s.rank)
                    THEN
                        array_agg(ROW(s.rank, s.place, s.kind)::pulse._level)
                        FILTER (WHERE s.rank IS NOT NULL)
                ELSE ARRAY[
                    ROW((array_agg(s.rank))[1], (array_agg(s.place))[1], (array_agg(s.kind))[1])
                    ::pulse._level
                ]
            END AS levels
        FROM spot AS s
        GROUP BY s.group_key
    ),

    seen AS MATERIALIZED (
        SELECT
            n.*,
            o.tid, o.version, o.leases, o.turn, o.credit, o.more, o.rest, o.starts,
            o.rank AS o_rank, o.place AS o_place, o.kind AS o_kind,
            n.unknown OR n.several OR num_nonnulls(o.more, o.rest) > 0 OR n.rank <> o.rank
            AS mixed
        FROM news AS n
        LEFT JOIN LATERAL (
            SELECT s.*, s.ctid AS tid
            FROM pulse.group_state AS s
            WHERE s.lane = (_read_notices.lane).lane
                AND s.group_key = n.group_key
            ORDER BY s.version DESC
            LIMIT 1
        ) AS o ON true
        WHERE
            CASE
                WHEN n.unknown THEN true
                WHEN o.rank IS NULL THEN n.rank IS NOT NULL
                WHEN n.ended AND o.turn IS NULL THEN true
                WHEN n.rank IS NULL THEN false
                WHEN n.several THEN true
                WHEN n.rank = o.rank THEN n.place < o.place
                WHEN n.rank >= o.rest THEN false
                ELSE NOT EXISTS (
                    SELECT
                    FROM unnest(o.more) AS u
                    WHERE u.rank = n.rank
                        AND u.place <= n.place
                )
            END
    ),

    merged AS MATERIALIZED (
        SELECT
            s.*,
            -- The ordinary case is one level, the same as before.
            CASE
                WHEN s.mixed
                    THEN
                        array(
                            SELECT
                                ROW(
                                    x.rank,
                                    CASE WHEN x.kind IS NULL THEN f.seq ELSE x.place END,
                                    coalesce(x.kind, f.kind)
                                )::pulse._level
                            FROM (
                                SELECT DISTINCT ON (u.rank) u.rank, u.place, u.kind
                                FROM (
                                    SELECT v.* FROM unnest(s.levels) AS v
                                    UNION ALL
                                    SELECT v.* FROM unnest(s.more) AS v
                                    UNION ALL
                                    SELECT s.o_rank, s.o_place, s.o_kind
                                ) AS u
                                WHERE u.rank < coalesce(s.rest, 2147483647)
                                ORDER BY u.rank, u.place, u.kind NULLS FIRST
                            ) AS x
                            LEFT JOIN LATERAL (
                                SELECT r.seq, r.kind
                                FROM pulse.group_ready AS r
                                WHERE x.kind IS NULL
                                    AND r.lane = (_read_notices.lane).lane
                                    AND r.group_key = s.group_key
                                    AND r.rank = x.rank
                                    AND r.seq >= x.place
                                    AND r.failures >= 0
                                ORDER BY r.seq
                                LIMIT 1
                            ) AS f ON true
                            WHERE x.kind IS NOT NULL OR f.seq IS NOT NULL
                            ORDER BY x.rank
                        )
                WHEN s.o_rank IS NULL OR s.place < s.o_place THEN s.levels
                ELSE ARRAY[ROW(s.o_rank, s.o_place, s.o_kind)::pulse._level]
            END AS now
        FROM seen AS s
    ),

    -- All levels that were known have gone: those that are not are looked up.
    found AS MATERIALIZED (
        SELECT
            m.*,
            CASE
                WHEN f.rank IS NOT NULL THEN ARRAY[ROW(f.rank, f.seq, f.kind)::pulse._level]
                ELSE m.now
            END AS levels_now,
            CASE WHEN m.now = '{}' THEN f.rank + 1 ELSE m.rest END AS rest_now
        FROM merged AS m
        LEFT JOIN LATERAL (
            SELECT r.rank, r.seq, r.kind
            FROM pulse.group_ready AS r
            WHERE m.now = '{}'
                AND r.lane = (_read_notices.lane).lane
                AND r.group_key = m.group_key
                AND r.rank >= m.rest
                AND r.failures >= 0
            ORDER BY r.rank, r.seq
            LIMIT 1
        ) AS f ON true
    ),

    gone AS (
        DELETE FROM pulse.group_state AS s
        WHERE s.ctid = ANY (array(SELECT m.tid FROM merged AS m WHERE m.tid IS NOT NULL))
    )

    SELECT
        array_agg(
            ROW(
                (_read_notices.lane).lane, m.group_key, m.version,
                (m.levels_now[1]).rank, (m.levels_now[1]).place, (m.levels_now[1]).kind,
                CASE WHEN cardinality(m.levels_now) > 1 THEN m.levels_now[2:21] END,
                coalesce((m.levels_now[22]).rank, m.rest_now),
                CASE
                    WHEN m.leases IS NOT NULL
                        THEN
                            array(
                                SELECT u.lease
                                FROM unnest(m.leases) AS u (lease)
                                WHERE (
                                    SELECT true FROM pulse.lease AS e WHERE e.lease = u.lease
                                )
                                    OR (_read_notices.lane).in_order
                                    AND (
                                        SELECT true
                                        FROM pulse.waiting AS w
                                        WHERE w.last_lease = u.lease
                                            AND w.place IS NOT NULL
                                        LIMIT 1
                                    )
                            )
                END,
                CASE WHEN (m.levels_now[1]).rank = m.o_rank THEN m.turn END,
                CASE WHEN (m.levels_now[1]).rank = m.o_rank THEN m.credit END,
                m.starts,
                NULL,
                NULL
            )::pulse.group_state
        ),
        (SELECT count(*) FROM notice),
        (SELECT max(n.seq) FROM notice AS n)
    INTO v_groups, heard, last_seq
    FROM found AS m;
    groups := v_groups;
END;
$$;

COMMENT ON FUNCTION pulse._read_notices(pulse.lane, bigint, integer, text) IS
'Take at most so many notices of a lane, from a place on, and say what they make of the groups they name.';

-- Groups whose rate lets them run again, as notices would have made them: their states are
-- gone, and returned as they shall be. Under the lock nobody files one behind what was read.
CREATE FUNCTION pulse._wake_groups(
    lane pulse.lane, from_time timestamptz, to_time timestamptz, max_groups integer
)
RETURNS pulse.group_state []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_groups pulse.group_state [];
BEGIN
    WITH woken AS (
        DELETE FROM pulse.group_state AS s
        WHERE s.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse.group_state AS o
                WHERE o.lane = (_wake_groups.lane).lane
                    AND o.wake_at >= _wake_groups.from_time
                    AND o.wake_at <= _wake_groups.to_time
                    AND o.rank IS NOT NULL
                ORDER BY o.wake_at
                LIMIT _wake_groups.max_groups
            ))
        RETURNING s.*
    )

    SELECT
        array_agg(
            ROW(
                w.lane, w.group_key, w.version, w.rank, w.place, w.kind, w.more, w.rest,
                CASE
                    WHEN w.leases IS NOT NULL
                        THEN
                            array(
                                SELECT u.lease
                                FROM unnest(w.leases) AS u (lease)
                                WHERE (
                                    SELECT true FROM pulse.lease AS e WHERE e.lease = u.lease
                                )
                                    OR (_wake_groups.lane).in_order
                                    AND (
                                        SELECT true
                                        FROM pulse.waiting AS o
                                        WHERE o.last_lease = u.lease
                                            AND o.place IS NOT NULL
                                        LIMIT 1
                                    )
                            )
                END,
                NULL, NULL, w.starts, NULL, NULL
            )::pulse.group_state
            ORDER BY w.wake_at
        )
    INTO v_groups
    FROM woken AS w;
    RETURN v_groups;
END;
$$;

COMMENT ON FUNCTION pulse._wake_groups(pulse.lane, timestamptz, timestamptz, integer) IS
'Take the states of groups that were to wake in this time, at most so many, and say what they are now.';

-- A group that never had a row and has nothing to tell gets none. One that had keeps its last
-- one when it goes idle: else the next look would meet all its dead versions.
CREATE FUNCTION pulse._write_groups(lane pulse.lane, groups pulse.group_state [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    INSERT INTO pulse.group_state (
        lane, group_key, rank, place, kind, more, rest, leases, turn, credit, starts, wake_at
    )
    SELECT
        g.lane, g.group_key, g.rank, g.place, g.kind, g.more, g.rest,
        CASE WHEN l.slots IS NOT NULL THEN g.leases END,
        CASE
            WHEN g.rank IS NOT NULL
                AND q.enabled IS NOT FALSE
                AND f.free_at IS NULL
                AND (l.slots IS NULL OR coalesce(cardinality(g.leases), 0) < l.slots)
                THEN coalesce(g.turn, nextval('pulse.version'))
        END,
        g.credit,
        g.starts,
        CASE WHEN g.rank IS NOT NULL THEN f.free_at END
    FROM unnest(_write_groups.groups) AS g
    LEFT JOIN LATERAL (
        SELECT r.*
        FROM pulse.group_rule AS r
        WHERE r.lane = g.lane
            AND r.group_key = g.group_key
        OFFSET 0
    ) AS q ON true
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN g.group_key = '' THEN NULL
                WHEN (_write_groups.lane).in_order THEN 1
                ELSE coalesce(q.max_slots, (_write_groups.lane).group_slots)
            END AS slots,
            coalesce(q.rate, (_write_groups.lane).group_rate) AS rate,
            coalesce(q.rate_per, (_write_groups.lane).group_rate_per) AS rate_per
    ) AS l
    LEFT JOIN LATERAL (
        SELECT o.free_at
        FROM pulse._free_starts(g.starts, l.rate, l.rate_per, clock_timestamp()) AS o
        WHERE l.rate IS NOT NULL AND g.group_key <> ''
    ) AS f ON true
    WHERE g.rank IS NOT NULL OR g.version IS NOT NULL;
END;
$$;

COMMENT ON FUNCTION pulse._write_groups(pulse.lane, pulse.group_state []) IS
'Write states of groups; those that can run get a turn at the end of the round, unless they have one.';

CREATE FUNCTION pulse._newest_group_mark(lane text)
RETURNS pulse.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark pulse.group_mark;
BEGIN
    SELECT m.* INTO v_mark
    FROM pulse.group_mark AS m
    WHERE m.lane = _newest_group_mark.lane
    ORDER BY m.version DESC
    LIMIT 1;

    RETURN v_mark;
END;
$$;

COMMENT ON FUNCTION pulse._newest_group_mark(text) IS
'The marks of a grouped lane.';

-- Whoever writes turns holds the roster lock, so the first one left is the mark, or the last
-- one drawn. Notices come from everybody: their mark moves in two steps (52_marks.sql).
CREATE FUNCTION pulse._advance_groups(
    mark pulse.group_mark, ranks integer [], woken_until timestamptz DEFAULT NULL
)
RETURNS pulse.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_horizon pulse.horizon := pulse._see_horizon();
    v_first bigint;
    v_new pulse.group_mark := _advance_groups.mark;
BEGIN
    SELECT n.seq INTO v_first
    FROM pulse.group_notice AS n
    WHERE n.lane = v_new.lane
        AND n.seq >= v_new.notice_from
    ORDER BY n.seq
    LIMIT 1;
    v_new.notice_from := greatest(
        v_new.notice_from,
        least(coalesce(v_first, 9223372036854775807), v_horizon.ready_q + 1)
    );

    v_new.woken_until := coalesce(_advance_groups.woken_until, v_new.woken_until);

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
            FROM unnest(_advance_groups.ranks) AS o (rank)
        ) AS u
        GROUP BY u.rank
        ORDER BY u.rank
        LIMIT 100
    ) AS l
    CROSS JOIN pulse.version AS v
    LEFT JOIN LATERAL (
        SELECT s.turn
        FROM pulse.group_state AS s
        WHERE s.lane = v_new.lane
            AND s.turn IS NOT NULL
            AND s.version > 0
            AND s.rank = l.rank
            AND s.turn >= l.turn
        ORDER BY s.turn
        LIMIT 1
    ) AS h ON true;

    IF v_new IS DISTINCT FROM _advance_groups.mark THEN
        v_new := pulse._write_group_mark(_advance_groups.mark, v_new);
    END IF;
    RETURN v_new;
END;
$$;

COMMENT ON FUNCTION pulse._advance_groups(pulse.group_mark, integer [], timestamptz) IS
'Move the marks of a grouped lane up to the first unread notice and the first live turn of each level; returns what was written.';

CREATE FUNCTION pulse._write_group_mark(old pulse.group_mark, new pulse.group_mark)
RETURNS pulse.group_mark
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_new pulse.group_mark := _write_group_mark.new;
BEGIN
    v_new.version := nextval('pulse.version');
    INSERT INTO pulse.group_mark
    SELECT (v_new).*;

    DELETE FROM pulse.group_mark AS m
    WHERE m.lane = (_write_group_mark.old).lane
        AND m.version = (_write_group_mark.old).version;
    RETURN v_new;
END;
$$;

COMMENT ON FUNCTION pulse._write_group_mark(pulse.group_mark, pulse.group_mark) IS
'Write the marks of a grouped lane in place of older ones; returns them.';
