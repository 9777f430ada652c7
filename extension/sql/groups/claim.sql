-- The claim of a lane whose jobs stand in groups.
--
-- Each group has a line of its own in ready, and what is known of it is one row
-- (group_state): its first place, the leases that count against its slots and, while it can
-- run, its turn. A claim reads groups by their turns, takes a job or more of each from its
-- first place on, and writes the group anew with a turn at the end of the round. A group at
-- its limit has no turn, so nothing that cannot run is ever read.
--
-- How a group gets to have a turn: who puts a job in line, or ends a run, leaves a notice in
-- the same transaction. A claim reads the notices first and looks at the groups they name.
-- A notice is a hint, never a fact: what runs is looked up in lease by key, what waits in
-- ready.
--
-- All this is under the roster lock and read in later statements, so that one claim at a
-- time decides. Producers and reports never wait for it: they only append.
--
-- The order is strict by priority, then by turns, and first in first out inside a level of a
-- group. A claim reads the line of a group on into its next levels, and takes nothing below a
-- level of which it has not read all. The next place of a group is the first one that was seen
-- and not taken, read without a lock: a row that was skipped because a cancel holds it must
-- not be passed.
--
-- A group has one job in a turn. A claim that has room for more goes round again, and draws
-- the new turns in the order in which the groups would have gone on.
--
-- With in_order nothing behind a row that another session holds is taken, nor anything while a job
-- that was taken before waits to be run again: its lease counts until it is back in line, or
-- gone.
--
-- One function under one lock, since calls cost; that is why the file is long.

CREATE FUNCTION pulse_internal.claim_grouped(
    worker text,
    lane text,
    max_jobs integer,
    lease_for interval,
    kinds text [],
    mark pulse_internal.mark
)
RETURNS SETOF pulse.claimed
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_mergejoin = off
SET enable_nestloop = off
AS $$
DECLARE
    v_now timestamptz;
    v_lane pulse_internal.lane;
    v_known record;
    v_mark pulse_internal.group_mark;
    v_sorted record;
    v_quota pulse_internal.quota;
    v_free integer;
    v_woken pulse_internal.group_state [];
    v_woken_until timestamptz;
    v_need integer := claim_grouped.max_jobs;
    v_roster pulse_internal.roster;
    v_leases bigint [];
    v_last_seq bigint;
    v_noticed pulse_internal.group_state [];
    v_serve pulse_internal.group_state [];
    v_slots integer [];
    v_rates integer [];
    v_pers interval [];
    v_wait pulse_internal.group_state [];
    v_old tid [];
    v_ranks integer [] := ARRAY[]::integer [];
    v_some integer [];
    v_top bigint := 0;
    v_turn bigint;
    v_bound integer;
    v_one_each boolean;
    v_first_turn bigint;
    v_start bigint;
    v_taken integer := 0;
    v_looked integer := 0;
    v_behind integer := 0;
    v_all integer := 0;
    v_first_lease bigint;
    v_hearing bigint;
    v_choosing bigint;
    v_hears boolean;
    v_kinds text [] := claim_grouped.kinds;
    v_spent text [] := ARRAY[]::text [];
    v_rated text [] := ARRAY[]::text [];
    v_now_open record;
    v_open text [];
    v_starts integer [];
    v_after_lease bigint;
BEGIN
    -- 1. The lock, then all there is to know.
    IF NOT pulse_internal.take_turn(claim_grouped.lane) THEN
        RETURN;
    END IF;

    v_hearing := pulse_internal.entries_read('pulse_internal.group_notice_is_in_order');
    v_choosing := pulse_internal.entries_read('pulse_internal.group_state_in_turn');

    SELECT
        l AS lane,
        l.max_slots,
        coalesce(l.lease_for, d.lease_for) AS lease_for,
        l.max_runtime,
        -- As in claim_batch.
        (
            SELECT k.rate IS NOT NULL
            FROM pulse_internal.kind AS k
            WHERE k.lease_for IS NOT NULL OR k.max_runtime IS NOT NULL OR k.rate IS NOT NULL
            ORDER BY k.rate
            LIMIT 1
        ) AS kinds_rated,
        l.group_rate IS NOT NULL
        OR EXISTS (
            SELECT 1
            FROM pulse_internal.group_rule AS q
            WHERE q.lane = claim_grouped.lane AND q.rate IS NOT NULL
        ) AS rated,
        (
            SELECT true
            FROM pulse_internal.group_rule AS q
            WHERE q.lane = claim_grouped.lane
            ORDER BY q.group_key
            LIMIT 1
        ) AS ruled,
        (
            SELECT true
            FROM pulse_internal.group_notice AS n
            WHERE n.lane = claim_grouped.lane
                AND n.seq >= (m.mark).notice_from
            ORDER BY n.seq
            LIMIT 1
        ) AS heard,
        m.mark,
        (SELECT min(u.turn) FROM unnest((m.mark).turns) AS u (turn)) AS first_turn,
        r.roster
    INTO v_known
    FROM pulse_internal.lane_default AS d
    INNER JOIN pulse_internal.lane AS l ON l.lane = claim_grouped.lane
    LEFT JOIN LATERAL (
        SELECT o AS mark
        FROM pulse_internal.group_mark AS o
        WHERE o.lane = claim_grouped.lane
        ORDER BY o.version DESC
        LIMIT 1
    ) AS m ON true
    LEFT JOIN LATERAL (
        SELECT o AS roster
        FROM pulse_internal.roster AS o
        WHERE l.max_slots IS NOT NULL
            AND o.lane = claim_grouped.lane
        ORDER BY o.version DESC
        LIMIT 1
    ) AS r ON true;

    v_lane := v_known.lane;
    v_mark := v_known.mark;

    -- 2. Slots of the lane, as in claim_batch.
    IF v_known.max_slots IS NOT NULL THEN
        v_roster := v_known.roster;
        v_leases := v_roster.leases;
        IF v_leases IS NULL THEN
            v_leases := (pulse_internal.rebuild_roster(claim_grouped.lane)).leases;
        END IF;
        IF cardinality(v_leases) + v_need > v_known.max_slots THEN
            v_leases := array(
                SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lease = ANY (v_leases)
            );
        END IF;
        v_need := least(v_need, v_known.max_slots - cardinality(v_leases));
        IF v_need <= 0 THEN
            RETURN;
        END IF;
    END IF;

    -- Starts that its rate has left.
    v_now := clock_timestamp();
    IF v_lane.rate IS NOT NULL THEN
        v_quota := pulse_internal.current_quota(claim_grouped.lane, '');
        SELECT f.free INTO v_free
        FROM pulse_internal.free_starts(v_quota.starts, v_lane.rate, v_lane.rate_per, v_now) AS f;
        v_need := least(v_need, v_free);
        IF v_need <= 0 THEN
            RETURN;
        END IF;
    END IF;

    -- 3. Who is there: the roll after a restore, jobs that stand in ready, notices.
    IF v_mark.lane IS NULL OR v_mark.roll_from IS NOT NULL THEN
        v_mark := pulse_internal.announce_groups(v_lane, v_mark, 1000);
        v_known.heard := true;
    END IF;
    SELECT o.* INTO v_sorted
    FROM pulse_internal.sort_into_groups(
        claim_grouped.lane, 500 + 4 * v_need, claim_grouped.mark
    ) AS o;
    IF v_lane.in_order AND v_sorted.moved >= 500 + 4 * v_need THEN
        RETURN;
    END IF;
    IF v_known.heard OR v_sorted.moved > 0 THEN
        SELECT n.groups, n.last_seq INTO v_noticed, v_last_seq
        FROM pulse_internal.read_notices(
            v_lane, v_mark.notice_from, 1000 + 4 * v_need, v_mark.roll_from
        ) AS n;
    END IF;

    -- Groups whose rate has a start again. Where the clock stepped back, from the beginning,
    -- and those that it would let sleep for longer than the period of any rate.
    IF v_known.rated THEN
        v_woken := pulse_internal.wake_groups(
            v_lane,
            CASE WHEN v_mark.woken_until > v_now THEN '-infinity' ELSE v_mark.woken_until END,
            v_now, 1000 + 4 * v_need
        );
        IF v_mark.woken_until > v_now THEN
            v_woken := v_woken || pulse_internal.wake_groups(
                v_lane, v_now + pulse_internal.longest_group_period(v_lane), 'infinity',
                1000 + 4 * v_need
            );
        END IF;
        v_noticed := v_noticed || v_woken;
        IF coalesce(cardinality(v_woken), 0) < 1000 + 4 * v_need THEN
            v_woken_until := v_now;
        END IF;
    END IF;

    -- Whoever saw the lane ungrouped may have committed since, before one that was just
    -- noticed began: in order means that it is sorted in first.
    IF v_lane.in_order THEN
        SELECT o.* INTO v_sorted
        FROM pulse_internal.sort_into_groups(
            claim_grouped.lane, 500 + 4 * v_need, claim_grouped.mark
        ) AS o;
        IF v_sorted.named > 0 THEN
            PERFORM pulse_internal.write_groups(v_lane, v_noticed);
            RETURN;
        END IF;
    END IF;

    IF v_known.kinds_rated THEN
        v_spent := pulse_internal.spent_kinds(claim_grouped.kinds);
    END IF;

    WHILE v_need > 0 AND v_looked < 1000 + 4 * claim_grouped.max_jobs LOOP
        -- Kinds whose rate has no start left are left out: of which kinds there are then?
        IF v_spent <> '{}' THEN
            v_kinds := CASE
                WHEN claim_grouped.kinds IS NULL
                    THEN pulse_internal.kinds_in_turn(claim_grouped.lane, v_spent)
                ELSE array(
                    SELECT u.kind
                    FROM unnest(claim_grouped.kinds) AS u (kind)
                    WHERE u.kind <> ALL (v_spent)
                )
            END;
        END IF;

        -- 4. Whose turn it is: the first groups in turn, each level from its mark, then those
        -- just noticed. With kinds, groups whose first job is of one of these.
        SELECT
            array_agg(c.state) FILTER (WHERE c.served),
            array_agg(c.slots) FILTER (WHERE c.served),
            array_agg(c.rate) FILTER (WHERE c.served),
            array_agg(c.rate_per) FILTER (WHERE c.served),
            array_agg(c.state) FILTER (WHERE NOT c.served AND c.tid IS NULL),
            array_agg(c.tid) FILTER (WHERE c.served),
            array_agg(DISTINCT c.rank) FILTER (WHERE c.rank IS NOT NULL),
            min(c.turn) FILTER (WHERE c.served AND c.tid IS NOT NULL),
            max(c.turn) FILTER (WHERE c.served AND c.tid IS NOT NULL),
            CASE
                WHEN count(*) FILTER (WHERE c.served) = v_need
                    THEN max(c.rank) FILTER (WHERE c.served)
            END,
            -- A job of each is the whole batch, all of one level.
            count(*) FILTER (WHERE c.served) = v_need
            AND min(c.rank) FILTER (WHERE c.served) = max(c.rank) FILTER (WHERE c.served)
        INTO v_serve, v_slots, v_rates, v_pers, v_wait, v_old, v_some, v_first_turn,
            v_turn, v_bound, v_one_each
        FROM (
            SELECT x.*, x.runs AND x.nth <= v_need AS served
            FROM (
                SELECT z.*, row_number() OVER turns AS nth
                FROM (
                    SELECT
                        y.*,
                        l.slots,
                        l.rate,
                        l.rate_per,
                        y.tid IS NOT NULL
                        OR y.wanted
                        AND q.enabled IS NOT FALSE
                        AND (
                            l.rate IS NULL
                            OR (
                                SELECT o.free > 0
                                FROM pulse_internal.free_starts(
                                    (y.state).starts, l.rate, l.rate_per, v_now
                                ) AS o
                            )
                        )
                        AND (
                            l.slots IS NULL
                            OR coalesce(cardinality((y.state).leases), 0) < l.slots
                        ) AS runs
                    FROM (
                        (
                            SELECT
                                h.state, h.tid, h.group_key, h.rank, h.turn, h.place,
                                true AS wanted
                            FROM generate_series(0, cardinality(v_mark.ranks)) AS n (level)
                            CROSS JOIN LATERAL (
                                SELECT s AS state, s.ctid AS tid, s.*
                                FROM pulse_internal.group_state AS s
                                WHERE s.lane = claim_grouped.lane
                                    AND s.turn IS NOT NULL
                                    AND s.version > 0
                                    AND (s.rank, s.turn) >= (
                                        coalesce(v_mark.ranks[nullif(n.level, 0)], -2147483648),
                                        coalesce(v_mark.turns[nullif(n.level, 0)], 0)
                                    )
                                    AND s.rank < coalesce(v_mark.ranks[n.level + 1], 2147483647)
                                ORDER BY s.rank, s.turn
                                LIMIT v_need
                            ) AS h
                            WHERE v_kinds IS NULL
                            LIMIT v_need
                        )
                        UNION ALL
                        SELECT
                            h.state, h.tid, h.group_key, h.rank, h.turn, h.place, true
                        FROM (
                            SELECT DISTINCT u.kind FROM unnest(v_kinds) AS u (kind)
                        ) AS k
                        CROSS JOIN generate_series(0, cardinality(v_mark.ranks)) AS n (level)
                        CROSS JOIN LATERAL (
                            SELECT s AS state, s.ctid AS tid, s.*
                            FROM pulse_internal.group_state AS s
                            WHERE s.lane = claim_grouped.lane
                                AND s.turn IS NOT NULL
                                AND s.place >= 0
                                AND s.kind = k.kind
                                AND (s.rank, s.turn) >= (
                                    coalesce(v_mark.ranks[nullif(n.level, 0)], -2147483648),
                                    coalesce(v_mark.turns[nullif(n.level, 0)], 0)
                                )
                                AND s.rank < coalesce(v_mark.ranks[n.level + 1], 2147483647)
                            ORDER BY s.rank, s.turn
                            LIMIT v_need
                        ) AS h
                        UNION ALL
                        SELECT
                            g, NULL, g.group_key, g.rank, g.turn, g.place,
                            g.rank IS NOT NULL
                            AND (
                                claim_grouped.kinds IS NULL
                                OR g.kind = ANY (claim_grouped.kinds)
                            )
                            AND g.kind <> ALL (v_spent)
                        FROM unnest(v_noticed) AS g
                    ) AS y
                    LEFT JOIN LATERAL (
                        SELECT r.*
                        FROM pulse_internal.group_rule AS r
                        WHERE v_known.ruled
                            AND r.lane = claim_grouped.lane
                            AND r.group_key = y.group_key
                        OFFSET 0
                    ) AS q ON true
                    CROSS JOIN LATERAL (
                        SELECT
                            CASE
                                WHEN y.group_key = '' THEN NULL
                                WHEN v_lane.in_order THEN 1
                                ELSE coalesce(q.max_slots, v_lane.group_slots)
                            END AS slots,
                            CASE
                                WHEN y.group_key <> ''
                                    THEN coalesce(q.rate, v_lane.group_rate)
                            END AS rate,
                            coalesce(q.rate_per, v_lane.group_rate_per) AS rate_per
                    ) AS l
                ) AS z
                WINDOW turns AS (
                    ORDER BY NOT z.runs, z.rank, z.turn, z.place, z.group_key
                )
                ORDER BY NOT z.runs, z.rank, z.turn, z.place, z.group_key
            ) AS x
        ) AS c;

        -- Of groups whose first job is of a kind with a rate, as many as it has starts, each
        -- with its part of them; the others keep their turn. Refused, or none left: choose
        -- anew, without that kind.
        IF v_known.kinds_rated AND v_serve IS NOT NULL THEN
            SELECT o.* INTO v_now_open
            FROM pulse_internal.open_kinds(
                array(SELECT g.kind FROM unnest(v_serve) AS g), v_spent
            ) AS o;
            IF v_now_open.spent <> v_spent THEN
                v_spent := v_now_open.spent;
                CONTINUE;
            END IF;
            v_rated := v_now_open.rated;
            v_open := v_now_open.open;
            v_after_lease := pulse_internal.last_lease();

            SELECT
                array_agg(v_serve[k.ord] ORDER BY k.ord) FILTER (WHERE k.fits),
                array_agg(v_slots[k.ord] ORDER BY k.ord) FILTER (WHERE k.fits),
                array_agg(v_rates[k.ord] ORDER BY k.ord) FILTER (WHERE k.fits),
                array_agg(v_pers[k.ord] ORDER BY k.ord) FILTER (WHERE k.fits),
                array_agg(v_old[k.ord] ORDER BY k.ord) FILTER (WHERE k.fits),
                array_agg(k.starts / least(k.groups, k.starts) ORDER BY k.ord)
                FILTER (WHERE k.fits),
                v_wait
                || array_agg(v_serve[k.ord]) FILTER (WHERE NOT k.fits AND v_old[k.ord] IS NULL)
            INTO v_serve, v_slots, v_rates, v_pers, v_old, v_starts, v_wait
            FROM (
                -- Of its highest priority alone: what is behind that comes later.
                SELECT
                    g.ord,
                    g.starts,
                    count(*) OVER (PARTITION BY g.kind, g.rank) AS groups,
                    g.starts IS NULL
                    OR g.rank = min(g.rank) OVER (PARTITION BY g.kind)
                    AND row_number() OVER (PARTITION BY g.kind ORDER BY g.ord) <= g.starts AS fits
                FROM (
                    SELECT
                        n.ord,
                        (v_serve[n.ord]).kind,
                        (v_serve[n.ord]).rank,
                        v_now_open.free[array_position(v_open, (v_serve[n.ord]).kind::text)]
                        AS starts
                    FROM generate_subscripts(v_serve, 1) AS n (ord)
                ) AS g
            ) AS k;
        END IF;

        v_noticed := NULL;
        v_ranks := v_ranks || v_some;
        v_top := greatest(v_top, v_turn);
        IF v_wait IS NOT NULL THEN
            PERFORM pulse_internal.write_groups(v_lane, v_wait);
        END IF;
        EXIT WHEN v_serve IS NULL;

        -- Turns drawn from here on are of groups that were looked at. Where these are all
        -- that is left and gave nothing, another session holds their first jobs: those behind
        -- are tried, once, where their order allows it.
        IF v_start IS NULL THEN
            v_start := coalesce(pg_sequence_last_value('pulse_internal.version'), 0);
            v_first_lease := pulse_internal.last_lease();
        ELSIF v_taken = 0 AND v_first_turn > v_start THEN
            EXIT WHEN v_behind > 0 OR v_lane.in_order;
            v_behind := 16;
        END IF;
        v_looked := v_looked + cardinality(v_serve);
        v_now := clock_timestamp();

        -- 5. Serve. Mostly one job of each group makes a batch, and nothing else counts: the
        -- statement for that, which leaves all to the other where a job is late or large.
        v_taken := 0;
        IF v_one_each
            AND v_behind = 0
            AND claim_grouped.kinds IS NULL
            AND v_known.kinds_rated IS NOT TRUE
            AND v_known.ruled IS NULL
            AND NOT v_known.rated
        THEN
            RETURN QUERY
            WITH first AS MATERIALIZED (
                SELECT s.*
                FROM (
                    SELECT
                        g.group_key AS named, g.version, g.lasting, g.rank AS level, g.slots,
                        g.ord, l.leases, r.*,
                        row_number() OVER line AS nth,
                        lead(r.rank) OVER line AS next_rank,
                        lead(r.seq) OVER line AS next_seq,
                        lead(r.kind) OVER line AS next_kind
                    FROM unnest(v_serve, v_slots) WITH ORDINALITY AS g (
                        lane, group_key, version, rank, place, kind, leases, turn, starts,
                        wake_at, written_at, lasting, slots, ord
                    )
                    CROSS JOIN LATERAL (
                        SELECT
                            CASE
                                WHEN cardinality(g.leases) >= g.slots - 1
                                    THEN
                                        array(
                                            SELECT u.lease
                                            FROM unnest(g.leases) AS u (lease)
                                            WHERE (
                                                SELECT true
                                                FROM pulse_internal.lease AS e
                                                WHERE e.lease = u.lease
                                            )
                                                OR v_lane.in_order
                                                AND (
                                                    SELECT true
                                                    FROM pulse_internal.waiting AS w
                                                    WHERE w.last_lease = u.lease
                                                        AND w.place IS NOT NULL
                                                    LIMIT 1
                                                )
                                        )
                                ELSE g.leases
                            END AS leases
                        OFFSET 0
                    ) AS l
                    LEFT JOIN LATERAL (
                        SELECT
                            o.ctid AS tid, o.rank, o.seq, o.kind, o.job, o.attempts,
                            o.failures, o.keyed, o.group_key, o.ready_at
                        FROM pulse_internal.ready AS o
                        WHERE o.lane = claim_grouped.lane
                            AND o.group_key = g.group_key
                            AND (o.rank, o.seq) >= (g.rank, g.place)
                            AND o.group_key IS NOT NULL
                        ORDER BY o.rank, o.seq
                        LIMIT 2
                    ) AS r ON true
                    WINDOW line AS (PARTITION BY g.ord ORDER BY r.rank, r.seq)
                ) AS s
                WHERE s.nth = 1
            ),

            described AS MATERIALIZED (
                SELECT
                    nextval('pulse_internal.lease_seq') << 10 | floor(random() * 1024)::bigint AS lease,
                    t.*
                FROM (
                    SELECT
                        f.*,
                        b.payload,
                        b.max_attempts,
                        b.enqueued_at,
                        b.group_key AS given_key,
                        b.headers,
                        b.flow,
                        b.name,
                        coalesce(claim_grouped.lease_for, k.lease_for, v_known.lease_for)
                        AS lease_for,
                        v_now + coalesce(b.max_runtime, k.max_runtime, v_known.max_runtime)
                        AS deadline,
                        sum(
                            CASE
                                WHEN f.attempts = 0 AND b.start_by <= v_now THEN 262145
                                ELSE pg_column_size(b.payload)
                            END
                        ) OVER () AS stored
                    FROM first AS f
                    CROSS JOIN LATERAL (
                        SELECT
                        FROM pulse_internal.ready AS o
                        WHERE o.ctid = f.tid
                            AND f.rank = f.level
                        FOR UPDATE SKIP LOCKED
                    ) AS r
                    CROSS JOIN LATERAL (
                        SELECT o.*
                        FROM pulse_internal.body AS o
                        WHERE o.job = f.job
                        OFFSET 0
                    ) AS b
                    LEFT JOIN LATERAL (
                        SELECT o.lease_for, o.max_runtime
                        FROM pulse_internal.kind AS o
                        WHERE v_known.kinds_rated IS NOT NULL AND o.kind = f.kind
                        OFFSET 0
                    ) AS k ON true
                ) AS t
                WHERE t.stored <= 262144
            ),

            taken AS (
                DELETE FROM pulse_internal.ready AS r
                WHERE r.ctid = ANY (array(SELECT d.tid FROM described AS d))
            ),

            leased AS (
                INSERT INTO pulse_internal.lease (
                    lease, job, lane, kind, rank, attempt, failures, keyed,
                    worker, claimed_at, lease_for, lease_until, deadline, group_key, place,
                    ready_at
                )
                SELECT
                    d.lease, d.job, claim_grouped.lane, d.kind, d.rank, d.attempts + 1,
                    d.failures, d.keyed, claim_grouped.worker, v_now, d.lease_for,
                    least(v_now + d.lease_for, d.deadline), d.deadline,
                    CASE WHEN d.slots IS NOT NULL THEN d.group_key END,
                    CASE WHEN v_lane.in_order AND d.group_key <> '' THEN d.seq END,
                    d.ready_at
                FROM described AS d
            ),

            gone AS (
                DELETE FROM pulse_internal.group_state AS s
                WHERE s.ctid = ANY (v_old)
                    AND EXISTS (SELECT FROM described)
            ),

            -- One that another session holds keeps its place in front.
            fresh AS (
                SELECT
                    f.named, f.version, f.lasting, f.slots,
                    CASE WHEN d.lease IS NULL THEN f.rank ELSE f.next_rank END AS rank,
                    CASE WHEN d.lease IS NULL THEN f.seq ELSE f.next_seq END AS place,
                    CASE WHEN d.lease IS NULL THEN f.kind ELSE f.next_kind END AS kind,
                    CASE
                        WHEN f.slots IS NOT NULL
                            THEN
                                coalesce(f.leases, '{}')
                                || CASE WHEN d.lease IS NOT NULL THEN ARRAY[d.lease] END
                    END AS leases
                FROM first AS f
                LEFT JOIN described AS d ON d.ord = f.ord
                WHERE EXISTS (SELECT FROM described)
                ORDER BY d.lease IS NOT NULL, f.ord
            ),

            written AS (
                INSERT INTO pulse_internal.group_state (
                    lane, group_key, rank, place, kind, leases, turn, lasting
                )
                SELECT
                    claim_grouped.lane, f.named, f.rank, f.place, f.kind, f.leases,
                    CASE
                        WHEN f.rank IS NOT NULL
                            AND (cardinality(f.leases) >= f.slots) IS NOT TRUE
                            THEN nextval('pulse_internal.version')
                    END,
                    f.version IS NOT NULL OR random() < 0.0625
                FROM fresh AS f
                WHERE f.rank IS NOT NULL OR f.lasting OR f.leases IS NOT NULL
            )

            SELECT
                d.lease,
                d.job,
                d.kind,
                d.payload,
                d.attempts + 1,
                d.failures,
                d.max_attempts,
                -d.rank,
                least(v_now + d.lease_for, d.deadline),
                d.deadline,
                d.enqueued_at,
                CASE
                    WHEN d.attempts > 0
                        THEN (
                            SELECT c.data
                            FROM pulse_internal.job_checkpoint AS c
                            WHERE c.job = d.job
                        )
                END,
                d.given_key,
                d.headers,
                d.flow,
                d.name
            FROM described AS d;
            GET DIAGNOSTICS v_taken = ROW_COUNT;
        END IF;

        -- Else in rounds, of each group as much as it may and no further than the first job
        -- that is not wanted; lock, take out, lease, write the group anew.
        IF v_taken = 0 THEN
            RETURN QUERY
            WITH served AS MATERIALIZED (
                SELECT
                    f.*,
                    least(
                        f.free,
                        CASE
                            WHEN f.groups >= v_need THEN 1
                            ELSE least(v_need, 4 * v_need / f.groups)
                        END
                    ) AS share
                FROM (
                    SELECT
                        g.group_key, g.version, g.rank, g.place, g.kind,
                        g.slots, g.rate, g.rate_per, g.starts, g.lasting, g.ord, l.leases,
                        count(*) OVER (PARTITION BY g.rank) AS groups,
                        least(
                            CASE
                                WHEN g.slots IS NULL THEN v_need
                                ELSE greatest(g.slots - coalesce(cardinality(l.leases), 0), 0)
                            END,
                            CASE
                                WHEN g.rate IS NOT NULL
                                    THEN (
                                        SELECT o.free
                                        FROM pulse_internal.free_starts(
                                            g.starts, g.rate, g.rate_per, v_now
                                        ) AS o
                                    )
                            END,
                            g.of_kind
                        ) AS free
                    FROM unnest(v_serve, v_slots, v_rates, v_pers, v_starts)
                    WITH ORDINALITY AS g (
                        lane, group_key, version, rank, place, kind, leases, turn, starts,
                        wake_at, written_at, lasting, slots, rate, rate_per, of_kind, ord
                    )
                    -- Ends of leases write nothing here: who is gone is found out when the
                    -- slots seem to be full, or may be with this claim.
                    CROSS JOIN LATERAL (
                        SELECT
                            CASE
                                WHEN cardinality(g.leases) >= g.slots - v_need
                                    THEN
                                        array(
                                            SELECT u.lease
                                            FROM unnest(g.leases) AS u (lease)
                                            WHERE (
                                                SELECT true
                                                FROM pulse_internal.lease AS e
                                                WHERE e.lease = u.lease
                                            )
                                                OR v_lane.in_order
                                                AND (
                                                    SELECT true
                                                    FROM pulse_internal.waiting AS w
                                                    WHERE w.last_lease = u.lease
                                                        AND w.place IS NOT NULL
                                                    LIMIT 1
                                                )
                                        )
                                ELSE g.leases
                            END AS leases
                        OFFSET 0
                    ) AS l
                ) AS f
            ),

            seen AS MATERIALIZED (
                SELECT
                    s.ord, s.share, s.free, s.slots, n.*,
                    row_number() OVER line AS nth,
                    bool_and(
                        (claim_grouped.kinds IS NULL OR n.kind = ANY (claim_grouped.kinds))
                        AND (n.kind <> ALL (v_rated) OR n.kind = s.kind)
                    ) OVER line AS wanted
                FROM served AS s
                CROSS JOIN LATERAL (
                    SELECT
                        r.ctid AS tid, r.rank, r.seq, r.kind, r.job, r.attempts,
                        r.failures, r.keyed, r.group_key, r.ready_at
                    FROM pulse_internal.ready AS r
                    WHERE r.lane = claim_grouped.lane
                        AND r.group_key = s.group_key
                        AND (r.rank, r.seq) >= (s.rank, s.place)
                        AND r.group_key IS NOT NULL
                    ORDER BY r.rank, r.seq
                    LIMIT CASE WHEN s.share > 0 THEN s.share + 1 + v_behind ELSE 0 END
                ) AS n
                WINDOW line AS (
                    PARTITION BY s.ord ORDER BY n.rank, n.seq ROWS UNBOUNDED PRECEDING
                )
            ),

            -- The last level of which all is known: a group may have more than its share, and
            -- more groups may have a turn.
            bound AS MATERIALIZED (
                SELECT
                    least(
                        v_bound,
                        min(s.rank) FILTER (WHERE s.wanted AND s.nth > s.share AND s.share < s.free)
                    ) AS rank
                FROM seen AS s
            ),

            candidate AS MATERIALIZED (
                SELECT c.*, row_number() OVER () AS pos
                FROM (
                    SELECT s.*
                    FROM seen AS s
                    WHERE s.wanted
                        AND s.nth <= s.share + v_behind
                        AND (s.rank > (SELECT b.rank FROM bound AS b)) IS NOT TRUE
                    ORDER BY s.rank, s.nth, s.ord
                    LIMIT CASE WHEN v_behind = 0 THEN v_need END
                ) AS c
            ),

            locked AS MATERIALIZED (
                SELECT c.*
                FROM candidate AS c
                CROSS JOIN LATERAL (
                    SELECT
                    FROM pulse_internal.ready AS r
                    WHERE r.ctid = c.tid
                    FOR UPDATE SKIP LOCKED
                ) AS r
            ),

            -- Of a group no more than its share, also where more of it was tried.
            chosen AS (
                SELECT l.*
                FROM locked AS l
                WHERE v_behind = 0
                    OR l.tid IN (
                        SELECT k.tid
                        FROM (
                            SELECT
                                o.tid,
                                o.share,
                                row_number() OVER (PARTITION BY o.ord ORDER BY o.nth) AS kth
                            FROM locked AS o
                        ) AS k
                        WHERE k.kth <= k.share
                    )
                ORDER BY l.pos
                LIMIT v_need
            ),

            looked_up AS MATERIALIZED (
                SELECT
                    t.*,
                    b.payload,
                    b.max_attempts,
                    b.enqueued_at,
                    b.group_key AS given_key,
                    b.headers,
                    b.flow,
                    b.name,
                    (t.attempts = 0 AND b.start_by <= v_now) IS TRUE AS is_late,
                    b.start_by,
                    coalesce(claim_grouped.lease_for, k.lease_for, v_known.lease_for) AS lease_for,
                    v_now
                    + coalesce(b.max_runtime, k.max_runtime, v_known.max_runtime) AS deadline
                FROM chosen AS t
                CROSS JOIN LATERAL (
                    SELECT o.*
                    FROM pulse_internal.body AS o
                    WHERE o.job = t.job
                    OFFSET 0
                ) AS b
                LEFT JOIN LATERAL (
                    SELECT o.lease_for, o.max_runtime
                    FROM pulse_internal.kind AS o
                    WHERE v_known.kinds_rated IS NOT NULL AND o.kind = t.kind
                    OFFSET 0
                ) AS k ON true
            ),

            -- An answer has 64 MB of payload at most, but at least one job; how much fits is
            -- asked only when they are large as stored (claim/large_payloads.sql).
            fitting AS MATERIALIZED (
                SELECT f.*
                FROM (
                    SELECT array_agg(t.job ORDER BY t.pos) AS jobs
                    FROM looked_up AS t
                    HAVING sum(pg_column_size(t.payload)) > 262144
                ) AS l
                CROSS JOIN LATERAL pulse_internal.fit_jobs(l.jobs) AS f
            ),

            -- Leases are drawn in claim order, by the statement that inserts them.
            described AS MATERIALIZED (
                SELECT
                    nextval('pulse_internal.lease_seq') << 10 | floor(random() * 1024)::bigint AS lease,
                    f.is_late OR f.unsent IS NOT NULL AS is_over,
                    f.*
                FROM (
                    SELECT t.*, CASE WHEN t.job = x.unsent THEN x.size END AS unsent
                    FROM looked_up AS t
                    LEFT JOIN fitting AS x ON true
                    WHERE x.fit IS NULL
                        OR t.job = ANY (x.fit)
                        OR t.job = x.unsent
                ) AS f
            ),

            taken AS (
                DELETE FROM pulse_internal.ready AS r
                WHERE r.ctid = ANY (array(SELECT d.tid FROM described AS d))
            ),

            leased AS (
                INSERT INTO pulse_internal.lease (
                    lease, job, lane, kind, rank, attempt, failures, keyed,
                    worker, claimed_at, lease_for, lease_until, deadline, group_key, place,
                    ready_at
                )
                SELECT
                    d.lease, d.job, claim_grouped.lane, d.kind, d.rank, d.attempts + 1,
                    d.failures, d.keyed, claim_grouped.worker, v_now, d.lease_for,
                    least(v_now + d.lease_for, d.deadline), d.deadline,
                    CASE WHEN d.slots IS NOT NULL THEN d.group_key END,
                    CASE WHEN v_lane.in_order AND d.group_key <> '' THEN d.seq END,
                    d.ready_at
                FROM described AS d
                WHERE NOT d.is_over
            ),

            left_over AS (
                SELECT
                    s.ord,
                    (array_agg(s.rank) FILTER (WHERE s.taken IS NULL))[1] AS rank,
                    (array_agg(s.seq) FILTER (WHERE s.taken IS NULL))[1] AS place,
                    (array_agg(s.kind) FILTER (WHERE s.taken IS NULL))[1] AS kind,
                    array_agg(s.lease) FILTER (WHERE NOT s.is_over) AS leases,
                    count(s.taken) AS n,
                    count(s.taken) FILTER (WHERE NOT s.is_over) AS started
                FROM (
                    SELECT s.ord, s.rank, s.seq, s.kind, d.job AS taken, d.lease, d.is_over
                    FROM seen AS s
                    LEFT JOIN described AS d ON d.job = s.job
                    ORDER BY s.ord, s.rank, s.seq
                ) AS s
                GROUP BY s.ord
            ),

            -- A group that has had more turns than others goes behind them.
            fresh AS (
                SELECT
                    s.group_key,
                    s.version,
                    s.lasting,
                    s.ord,
                    s.slots,
                    coalesce(o.n, 0) AS rounds,
                    s.rate,
                    s.rate_per,
                    CASE
                        WHEN s.rate IS NOT NULL
                            THEN pulse_internal.add_starts(
                                s.starts, coalesce(o.started, 0)::integer, s.rate_per, v_now
                            )
                    END AS starts,
                    CASE WHEN s.share = 0 THEN s.rank ELSE o.rank END AS rank,
                    CASE WHEN s.share = 0 THEN s.place ELSE o.place END AS place,
                    CASE WHEN s.share = 0 THEN s.kind ELSE o.kind END AS kind,
                    CASE
                        WHEN s.slots IS NOT NULL THEN coalesce(s.leases, '{}') || o.leases
                    END AS leases
                FROM served AS s
                LEFT JOIN left_over AS o ON o.ord = s.ord
                ORDER BY rounds, s.ord
            ),

            gone AS (
                DELETE FROM pulse_internal.group_state AS s
                WHERE s.ctid = ANY (v_old)
            ),

            -- As write_groups does.
            written AS (
                INSERT INTO pulse_internal.group_state (
                    lane, group_key, rank, place, kind, leases, turn, starts, wake_at, lasting
                )
                SELECT
                    claim_grouped.lane, f.group_key, f.rank, f.place, f.kind, f.leases,
                    CASE
                        WHEN f.rank IS NOT NULL
                            AND (cardinality(f.leases) >= f.slots) IS NOT TRUE
                            AND w.free_at IS NULL
                            THEN nextval('pulse_internal.version')
                    END,
                    f.starts,
                    CASE WHEN f.rank IS NOT NULL THEN w.free_at END,
                    f.version IS NOT NULL OR random() < 0.0625
                FROM fresh AS f
                CROSS JOIN LATERAL (
                    SELECT
                        CASE
                            WHEN f.rate IS NOT NULL
                                THEN (
                                    SELECT o.free_at
                                    FROM pulse_internal.free_starts(
                                        f.starts, f.rate, f.rate_per, v_now
                                    ) AS o
                                )
                        END AS free_at
                    OFFSET 0
                ) AS w
                WHERE f.rank IS NOT NULL
                    OR f.lasting
                    OR f.leases IS NOT NULL
                    OR f.starts IS NOT NULL
            )

            SELECT
                d.lease,
                d.job,
                d.kind,
                d.payload,
                d.attempts + 1,
                d.failures,
                d.max_attempts,
                -d.rank,
                least(v_now + d.lease_for, d.deadline),
                d.deadline,
                d.enqueued_at,
                CASE
                    WHEN d.attempts > 0
                        THEN (
                            SELECT c.data
                            FROM pulse_internal.job_checkpoint AS c
                            WHERE c.job = d.job
                        )
                END,
                d.given_key,
                d.headers,
                d.flow,
                d.name
            FROM described AS d
            -- What had to begin before now ends here and is not handed out, nor what is too large.
            WHERE
                CASE
                    WHEN d.is_late
                        THEN pulse_internal.expire_job(
                            d.job, claim_grouped.lane, d.kind, d.rank, d.keyed, d.start_by
                        )
                    WHEN d.is_over
                        THEN pulse_internal.fail_unsent(
                            claim_grouped.worker, d.job, claim_grouped.lane, d.kind, d.rank,
                            d.attempts, d.failures, d.keyed, d.ready_at, d.unsent
                        )
                    ELSE true
                END;

            GET DIAGNOSTICS v_taken = ROW_COUNT;
        END IF;
        v_need := v_need - v_taken;
        v_all := v_all + v_taken;
        IF v_open <> '{}' THEN
            PERFORM pulse_internal.spend_kinds(claim_grouped.lane, v_open, v_after_lease);
        END IF;

        -- Short of what was asked for, and large already: that is the answer.
        IF v_need > 0 AND v_taken > 0 THEN
            EXIT WHEN (
                SELECT sum(pg_column_size(b.payload)) > 262144
                FROM (
                    SELECT l.job
                    FROM pulse_internal.lease AS l
                    WHERE l.lease > v_first_lease
                    ORDER BY l.lease
                ) AS l
                CROSS JOIN LATERAL (
                    SELECT o.payload FROM pulse_internal.body AS o WHERE o.job = l.job OFFSET 0
                ) AS b
            );
        END IF;
    END LOOP;

    -- Who runs in the lane, and what its rate has spent.
    IF v_known.max_slots IS NOT NULL AND v_all > 0 THEN
        INSERT INTO pulse_internal.roster (lane, leases)
        SELECT claim_grouped.lane, v_leases || array_agg(l.lease)
        FROM (
            SELECT o.lease
            FROM pulse_internal.lease AS o
            WHERE o.lease > v_first_lease
                AND o.lane = claim_grouped.lane
            ORDER BY o.lease
        ) AS l;

        DELETE FROM pulse_internal.roster AS r
        WHERE r.lane = v_roster.lane
            AND r.version = v_roster.version;
    END IF;

    IF v_lane.rate IS NOT NULL AND v_all > 0 THEN
        PERFORM pulse_internal.spend_quota(
            v_quota, claim_grouped.lane, '', v_all, v_lane.rate_per, v_now
        );
    END IF;

    -- Perhaps nothing but late ones: those behind them get their turn in the next claim.
    IF v_looked > 0 AND v_all = 0 THEN
        PERFORM pulse_internal.expire_all(clock_timestamp() + interval '50 milliseconds');
    END IF;

    -- 6. Marks, when what was read lies 500 places behind them, or when nothing was found and
    -- looking for it was not cheap: as in ask_for_marks.
    v_hearing := pulse_internal.entries_read('pulse_internal.group_notice_is_in_order') - v_hearing;
    v_hears := v_hearing > 1000 OR v_last_seq - v_mark.notice_from >= 500;
    IF v_hears
        OR v_top - coalesce(v_known.first_turn, 0) >= 500
        OR v_woken_until NOT BETWEEN v_mark.woken_until AND v_mark.woken_until + interval '10 seconds'
        OR v_looked = 0
        AND v_hearing + pulse_internal.entries_read('pulse_internal.group_state_in_turn') - v_choosing
        > 1000 + 500 * cardinality(v_mark.ranks)
    THEN
        PERFORM pulse_internal.advance_groups(
            v_mark, v_ranks, v_woken_until, v_hears OR v_looked = 0
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.claim_grouped(
    text, text, integer, interval, text [], pulse_internal.mark
) IS
'claim_batch for a lane whose jobs stand in groups; mark is the newest of its line in ready.';
