-- pick_groups: whose turn it is in a lane with groups, and which jobs start.
--
-- The jobs of a group stand in a line of their own: rows of ready with its group_key, which only
-- the index ready_in_group has. group_state has one row for each group: where its first
-- job stands (rank, place, kind), which jobs count against its slots (jobs) and its turn. A
-- group that cannot start a job has no turn, so a claim reads only groups that can.
--
-- The steps, numbered as in pick_groups:
--
--   1. Bring group_state up to date. Jobs that arrive, runs that end and jobs that are taken out
--      leave notices; rates let groups sleep until a time. Both are worked in first.
--   2. Choose: the first groups in the order of their turns, and how many jobs each may start.
--   3. Lock: their first jobs, in claim order.
--   4. Take turns: write these groups anew, each with its next job and a turn at the end of the
--      round. Repeat steps 2 to 4 until the claim has what it wants.
--   5. Move the marks of turns and notices forward, if many used ones lie before the first live
--      one.
--
-- Claim order is strict by priority, then by turns, then by place. In a turn a group starts one
-- job. A round deals: the first jobs of all chosen groups, then their second ones, and so on. No
-- job is taken below a level (all jobs of one priority) that the round has not read to its end.
--
-- The roster lock of the lane lets one claim at a time decide, and each step reads in a later
-- statement than the one that took it. Producers and reports take no lock that this waits for:
-- they append notices. A notice is a hint. What runs is looked up in lease, what waits in ready.
--
-- A picked job counts as started. Where the claim then makes no lease of it, a notice says that
-- the job is back, or has ended (notice_back, notice_ends).

CREATE FUNCTION pulse_internal.pick_groups(
    lane pulse_internal.lane,
    need integer,
    kinds text [],
    mark pulse_internal.mark,
    kinds_have_rates boolean,
    OUT tids tid [],
    OUT open text [],
    OUT after_lease bigint,
    OUT picked_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_sort = on
AS $$
DECLARE
    v_lane text COLLATE "C" := (pick_groups.lane).lane;
    -- A claim looks at no more groups and notices than this, however many there are.
    v_most integer := 1000 + 4 * pick_groups.need;
    -- Step 1.
    v_mark pulse_internal.group_mark;
    v_news record;
    v_notice_entries bigint
    := pulse_internal.entries_read('pulse_internal.group_notice_is_in_order');
    v_turn_entries bigint := pulse_internal.entries_read('pulse_internal.group_state_in_turn');
    v_first_own_turn bigint;
    -- Steps 2 to 4.
    v_kinds_to_choose text [] := pick_groups.kinds;
    v_spent text [] := ARRAY[]::text [];
    v_starts_left jsonb := jsonb '{}';
    v_turns pulse_internal.group_turn [];
    v_locked record;
    v_kept record;
    v_fitting record;
    v_picked bigint [] := ARRAY[]::bigint [];
    v_behind integer := 0;
    v_looked pulse_internal.group_turn [] := ARRAY[]::pulse_internal.group_turn [];
    -- Step 5.
    v_notices_are_far boolean;
BEGIN
    tids := '{}';
    open := '{}';

    -- 1. Bring group_state up to date.
    v_news := pulse_internal.hear_groups(
        pick_groups.lane, pick_groups.need, v_most, pick_groups.mark
    );
    v_mark := v_news.mark;
    IF NOT v_news.is_sorted THEN
        RETURN;
    END IF;

    IF pick_groups.kinds_have_rates THEN
        v_spent := pulse_internal.spent_kinds(pick_groups.kinds);
        after_lease := pulse_internal.last_lease();
    END IF;

    -- The one moment by which this claim counts starts: rates are checked at it, starts are dated
    -- by it, and so are the leases. Were a lease dated later than its start, the next window would
    -- open before the start has left it.
    picked_at := clock_timestamp();

    -- Turns from here on are drawn by this claim, for groups that it has looked at.
    v_first_own_turn := pg_sequence_last_value('pulse_internal.version') + 1;

    WHILE cardinality(tids) < pick_groups.need AND cardinality(v_looked) < v_most LOOP
        -- 2. Choose.
        IF v_spent <> '{}' THEN
            v_kinds_to_choose := pulse_internal.kinds_in_turn(
                v_lane, pick_groups.kinds, v_spent
            );
        END IF;
        v_turns := pulse_internal.choose_groups(
            pick_groups.lane, v_mark, v_kinds_to_choose,
            pick_groups.need - cardinality(tids), v_picked, v_news.has_rules, picked_at
        );
        EXIT WHEN v_turns IS NULL;

        v_looked := v_looked || v_turns;

        -- 3. Lock.
        v_locked := pulse_internal.lock_in_groups(
            pick_groups.lane, v_turns, pick_groups.need - cardinality(tids),
            pick_groups.kinds, v_picked, v_behind
        );

        -- A job that had to start by now ends here. It takes no turn and no start, so the round
        -- is dealt again without it.
        IF v_locked.late <> '{}' THEN
            PERFORM pulse_internal.expire_picked(v_locked.late, clock_timestamp());
            CONTINUE WHEN pulse_internal.expire_all(clock_timestamp() + interval '50 milliseconds');
            EXIT;
        END IF;

        IF pick_groups.kinds_have_rates THEN
            v_kept := pulse_internal.keep_within_rates(
                v_locked.picks, v_starts_left, picked_at
            );
            v_locked.picks := v_kept.picks;
            v_locked.passed := v_locked.passed || v_kept.passed;
            v_starts_left := v_kept.starts_left;
            v_spent := v_spent || v_kept.spent;
            open := open || v_kept.open;
        END IF;

        -- Jobs that do not fit into the answer take no turn and no start either.
        v_fitting := pulse_internal.keep_within_answer(v_locked.picks, v_picked);
        v_locked.picks := v_fitting.picks;
        v_locked.passed := v_locked.passed || v_fitting.passed;

        -- 4. Take turns. Groups that were passed over keep theirs.
        PERFORM pulse_internal.take_turns(
            pick_groups.lane, v_turns, v_locked.passed, v_locked.picks, v_picked, picked_at
        );

        SELECT pick_groups.tids || array_agg(p.tid), v_picked || array_agg(p.job)
        INTO tids, v_picked
        FROM unnest(v_locked.picks) AS p;

        EXIT WHEN v_fitting.is_full;

        -- Every remaining group was tried in this claim, and other sessions hold its first jobs.
        -- Try the jobs behind those once; with in_order they have to wait.
        CONTINUE WHEN cardinality(v_locked.picks) > 0;
        IF (SELECT min(t.turn) FROM unnest(v_turns) AS t) >= v_first_own_turn THEN
            EXIT WHEN v_behind > 0 OR (pick_groups.lane).in_order;
            v_behind := 16;
        END IF;
    END LOOP;

    -- 5. Move the marks forward if 500 used turns or notices lie between a mark and the first live
    -- one, if the mark of wake-ups is ten seconds old, or if finding nothing has cost more than
    -- 1,000 index entries, and 500 for each known level.
    v_notice_entries
    := pulse_internal.entries_read('pulse_internal.group_notice_is_in_order') - v_notice_entries;
    v_turn_entries
    := pulse_internal.entries_read('pulse_internal.group_state_in_turn') - v_turn_entries;
    v_notices_are_far := v_notice_entries > 1000
        OR v_news.last_seq - v_mark.notice_from >= 500;
    IF v_notices_are_far
        OR (v_looked[1]).turn - coalesce(v_news.first_turn, 0) >= 500
        OR v_news.woken_until
        NOT BETWEEN v_mark.woken_until AND v_mark.woken_until + interval '10 seconds'
        OR v_looked = '{}'
        AND v_notice_entries + v_turn_entries > 1000 + 500 * cardinality(v_mark.ranks)
    THEN
        PERFORM pulse_internal.advance_groups(
            v_mark, array(SELECT DISTINCT t.rank FROM unnest(v_looked) AS t), v_news.woken_until,
            v_notices_are_far OR v_looked = '{}'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.pick_groups(
    pulse_internal.lane, integer, text [], pulse_internal.mark, boolean
) IS
'Lock the next jobs of a lane with groups, at most need, write their groups anew and return the addresses of the jobs in claim order; open are the kinds whose starts are to be counted, of leases above after_lease.';

-- Whose turn is it, and how many jobs may each group start? Each level is read from the mark of
-- its turns, as in claim/claim.sql. A claim that names kinds reads groups whose first job is of
-- one of these, by an index of their own.
CREATE FUNCTION pulse_internal.choose_groups(
    lane pulse_internal.lane,
    mark pulse_internal.group_mark,
    kinds text [],
    need integer,
    picked bigint [],
    has_rules boolean,
    at timestamptz
)
RETURNS pulse_internal.group_turn []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT
            array_agg(
                ROW(
                    c.tid, c.group_key, c.rank, c.place, c.turn, m.may_start
                )::pulse_internal.group_turn
                ORDER BY c.rank, c.turn
            )
        FROM (
            (
                SELECT h.*
                FROM generate_series(0, cardinality((choose_groups.mark).ranks)) AS n (level)
                CROSS JOIN LATERAL (
                    SELECT s.ctid AS tid, s.*
                    FROM pulse_internal.group_state AS s
                    WHERE s.lane = (choose_groups.lane).lane
                        AND s.turn IS NOT NULL
                        AND s.version > 0
                        AND (s.rank, s.turn) >= (
                            coalesce((choose_groups.mark).ranks[nullif(n.level, 0)], -2147483648),
                            coalesce((choose_groups.mark).turns[nullif(n.level, 0)], 0)
                        )
                        AND s.rank < coalesce((choose_groups.mark).ranks[n.level + 1], 2147483647)
                    ORDER BY s.rank, s.turn
                ) AS h
                WHERE choose_groups.kinds IS NULL
                LIMIT choose_groups.need
            )
            UNION ALL
            (
                SELECT h.*
                FROM (SELECT DISTINCT u.kind FROM unnest(choose_groups.kinds) AS u (kind)) AS k
                CROSS JOIN generate_series(0, cardinality((choose_groups.mark).ranks)) AS n (level)
                CROSS JOIN LATERAL (
                    SELECT s.ctid AS tid, s.*
                    FROM pulse_internal.group_state AS s
                    WHERE s.lane = (choose_groups.lane).lane
                        AND s.turn IS NOT NULL
                        AND s.place >= 0
                        AND s.kind = k.kind
                        AND (s.rank, s.turn) >= (
                            coalesce((choose_groups.mark).ranks[nullif(n.level, 0)], -2147483648),
                            coalesce((choose_groups.mark).turns[nullif(n.level, 0)], 0)
                        )
                        AND s.rank < coalesce((choose_groups.mark).ranks[n.level + 1], 2147483647)
                    ORDER BY s.rank, s.turn
                    LIMIT choose_groups.need
                ) AS h
                ORDER BY h.rank, h.turn
                LIMIT choose_groups.need
            )
        ) AS c
        -- OFFSET 0 keeps it one look by key, and none where the lane has no rules.
        LEFT JOIN LATERAL (
            SELECT r.*
            FROM pulse_internal.group_rule AS r
            WHERE choose_groups.has_rules
                AND r.lane = c.lane
                AND r.group_key = c.group_key
            OFFSET 0
        ) AS q ON true
        CROSS JOIN LATERAL (
            SELECT
                CASE
                    WHEN (choose_groups.lane).in_order THEN 1
                    ELSE coalesce(q.max_slots, (choose_groups.lane).group_slots)
                END AS slots,
                coalesce(q.rate, (choose_groups.lane).group_rate) AS rate,
                coalesce(q.rate_per, (choose_groups.lane).group_rate_per) AS rate_per
        ) AS l
        -- least() passes over NULL: no limit. The group without a name has none.
        CROSS JOIN LATERAL (
            SELECT
                least(
                    choose_groups.need,
                    CASE
                        WHEN c.group_key = '' THEN NULL
                        -- The end of a run writes nothing here. Which of these jobs still run is
                        -- looked up where it may matter.
                        WHEN cardinality(c.jobs) > greatest(l.slots - choose_groups.need, 0)
                            THEN (
                                SELECT greatest(l.slots - count(*), 0)
                                FROM unnest(c.jobs) AS u (job)
                                WHERE u.job = ANY (choose_groups.picked)
                                    OR (
                                        SELECT true
                                        FROM pulse_internal.lease AS e
                                        WHERE e.job = u.job
                                            AND e.lane = c.lane
                                            AND e.group_key = c.group_key
                                    )
                            )
                        ELSE l.slots - coalesce(cardinality(c.jobs), 0)
                    END,
                    CASE
                        WHEN c.group_key <> '' AND l.rate IS NOT NULL
                            THEN (
                                SELECT f.free
                                FROM pulse_internal.free_starts(
                                    c.starts, l.rate, l.rate_per, choose_groups.at
                                ) AS f
                            )
                    END
                ) AS may_start
            OFFSET 0
        ) AS m
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.choose_groups(
    pulse_internal.lane, pulse_internal.group_mark, text [], integer, bigint [], boolean,
    timestamptz
) IS
'The first groups of a lane in the order of their turns, at most need, and how many jobs each may start beside those that this claim has picked.';

-- Deal the jobs of these groups and lock them. With behind = 0 only the first share jobs of a group
-- are tried, so a job that another session holds is not replaced. passed are the groups that had a
-- job and were not tried.
CREATE FUNCTION pulse_internal.lock_in_groups(
    lane pulse_internal.lane,
    turns pulse_internal.group_turn [],
    need integer,
    kinds text [],
    picked bigint [],
    behind integer,
    OUT picks pulse_internal.group_pick [],
    OUT passed text [],
    OUT late tid []
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    -- A job with a start_by has a row in expiry. Where no job has one, that table has no page.
    v_jobs_expire boolean := pg_relation_size('pulse_internal.expiry') > 0;
    v_found record;
BEGIN
    -- share: one job each where that makes the batch; else four times the even part, because
    -- other groups may have fewer jobs. What is still missing is dealt in the next round.
    WITH turn AS MATERIALIZED (
        SELECT
            s.*,
            least(
                s.may_start,
                CASE
                    WHEN s.groups >= lock_in_groups.need THEN 1
                    ELSE 4 * lock_in_groups.need / s.groups
                END
            ) AS share
        FROM (
            SELECT t.*, count(*) OVER (PARTITION BY t.rank) AS groups
            FROM unnest(lock_in_groups.turns) WITH ORDINALITY AS t
        ) AS s
    ),

    -- The jobs of each group from its first place on, without locks: its share, and one more
    -- where the group may start more and the first jobs of all do not make the batch.
    line AS MATERIALIZED (
        SELECT
            t.group_key, t.ordinality, t.share, t.may_start, j.*,
            row_number() OVER line AS nth,
            bool_and(
                lock_in_groups.kinds IS NULL OR j.kind = ANY (lock_in_groups.kinds)
            ) OVER line AS is_wanted
        FROM turn AS t
        CROSS JOIN LATERAL (
            SELECT r.ctid AS tid, r.rank, r.seq, r.kind, r.job, r.attempts
            FROM pulse_internal.ready AS r
            WHERE r.lane = (lock_in_groups.lane).lane
                AND r.group_key = t.group_key
                AND (r.rank, r.seq) >= (t.rank, t.place)
                AND r.group_key IS NOT NULL
                AND r.job <> ALL (lock_in_groups.picked)
                -- In order, the group waits for a job in waiting that has run before: a job that
                -- has not run waits for each of them, another one for those with an earlier place.
                -- Read in this statement, since such a job may have left ready after step 1.
                AND (
                    (lock_in_groups.lane).in_order IS NOT TRUE
                    OR t.group_key = ''
                    OR (
                        SELECT true
                        FROM pulse_internal.waiting AS w
                        WHERE w.lane = r.lane
                            AND w.group_key = r.group_key
                            AND (w.place < r.seq OR r.attempts = 0)
                        LIMIT 1
                    ) IS NULL
                )
            ORDER BY r.rank, r.seq
            LIMIT
                CASE
                    WHEN t.share > 0
                        THEN
                            t.share
                            + (t.share < t.may_start AND t.groups < lock_in_groups.need)::integer
                            + lock_in_groups.behind
                    ELSE 0
                END
        ) AS j
        WINDOW line AS (
            PARTITION BY t.ordinality ORDER BY j.rank, j.seq ROWS UNBOUNDED PRECEDING
        )
    ),

    -- The level where reading stopped: a group may have more jobs there than its share, or more
    -- groups than were chosen may have a turn. No job below it is dealt.
    last_level AS MATERIALIZED (
        SELECT
            least(
                (
                    SELECT max(t.rank)
                    FROM turn AS t
                    HAVING count(*) >= lock_in_groups.need
                ),
                (
                    SELECT min(l.rank)
                    FROM line AS l
                    WHERE l.is_wanted AND l.nth > l.share AND l.share < l.may_start
                )
            ) AS rank
    ),

    dealt AS MATERIALIZED (
        SELECT l.*
        FROM line AS l
        WHERE l.is_wanted
            AND l.nth <= l.share + lock_in_groups.behind
            AND (l.rank > (SELECT e.rank FROM last_level AS e)) IS NOT TRUE
        ORDER BY l.rank, l.nth, l.ordinality
        LIMIT CASE WHEN lock_in_groups.behind = 0 THEN lock_in_groups.need END
    ),

    locked AS MATERIALIZED (
        SELECT
            d.*,
            row_number() OVER (PARTITION BY d.ordinality ORDER BY d.nth) AS nth_locked,
            (
                v_jobs_expire
                AND d.attempts = 0
                AND (SELECT b.start_by FROM pulse_internal.body AS b WHERE b.job = d.job) <= v_now
            ) IS TRUE AS is_late
        FROM dealt AS d
        CROSS JOIN LATERAL (
            SELECT
            FROM pulse_internal.ready AS r
            WHERE r.ctid = d.tid
            FOR UPDATE SKIP LOCKED
        ) AS r
    )

    SELECT
        array(
            SELECT ROW(k.tid, k.job, k.group_key, k.kind)::pulse_internal.group_pick
            FROM locked AS k
            WHERE k.nth_locked <= k.share
            ORDER BY k.rank, k.nth, k.ordinality
            LIMIT lock_in_groups.need
        ) AS picks,
        array(
            SELECT l.group_key::text
            FROM line AS l
            WHERE l.nth = 1
                AND l.is_wanted
                AND l.ordinality NOT IN (SELECT d.ordinality FROM dealt AS d)
        ) AS passed,
        array(SELECT k.tid FROM locked AS k WHERE k.is_late) AS late
    INTO v_found;

    picks := v_found.picks;
    passed := v_found.passed;
    late := v_found.late;
END;
$$;

COMMENT ON FUNCTION pulse_internal.lock_in_groups(
    pulse_internal.lane, pulse_internal.group_turn [], integer, text [], bigint [], integer
) IS
'Lock the next jobs of these groups in claim order, at most need; late are those that had to start by now, passed the groups whose jobs were not tried.';

-- Like the two functions above, it runs inside claim_batch, whose settings rule out other plans.
-- A group goes on at its first job that was seen and not taken, whether another session holds it or
-- not: that session may roll back. New turns are drawn in the order in which the groups would
-- have gone on: those that started fewer jobs first.
CREATE FUNCTION pulse_internal.take_turns(
    lane pulse_internal.lane,
    turns pulse_internal.group_turn [],
    passed text [],
    picks pulse_internal.group_pick [],
    picked bigint [],
    at timestamptz
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_groups pulse_internal.group_state [];
BEGIN
    WITH old AS (
        DELETE FROM pulse_internal.group_state AS s
        WHERE s.ctid = ANY (array(
                SELECT t.state
                FROM unnest(take_turns.turns) AS t
                WHERE t.group_key <> ALL (take_turns.passed)
            ))
        RETURNING s.*
    ),

    started AS (
        SELECT p.group_key, array_agg(p.job) AS jobs
        FROM unnest(take_turns.picks) AS p
        GROUP BY p.group_key
    )

    SELECT
        array_agg(
            ROW(
                o.lane, o.group_key, o.version, n.rank, n.seq, n.kind, o.jobs, NULL,
                o.starts, NULL, NULL, o.lasting
            )::pulse_internal.group_state
            ORDER BY coalesce(cardinality(s.jobs), 0), o.rank, o.turn
        )
    INTO v_groups
    FROM old AS o
    LEFT JOIN started AS s ON s.group_key = o.group_key
    LEFT JOIN LATERAL (
        SELECT r.rank, r.seq, r.kind
        FROM pulse_internal.ready AS r
        WHERE r.lane = o.lane
            AND r.group_key = o.group_key
            AND (r.rank, r.seq) >= (o.rank, o.place)
            AND r.group_key IS NOT NULL
            AND r.job <> ALL (coalesce(s.jobs, '{}'))
            AND r.job <> ALL (take_turns.picked)
        ORDER BY r.rank, r.seq
        LIMIT 1
    ) AS n ON true;

    PERFORM pulse_internal.write_groups(
        take_turns.lane, v_groups, take_turns.picks, take_turns.picked, take_turns.at
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_turns(
    pulse_internal.lane, pulse_internal.group_turn [], text [], pulse_internal.group_pick [],
    bigint [], timestamptz
) IS
'Write these groups, but those that were passed over, anew: with the jobs that they start, their next job and a turn at the end of the round.';
