-- claim_batch: hand ready jobs of one lane (a named queue) to a worker.
--
-- A claim moves jobs from the table ready to the table lease: one statement deletes the
-- rows of ready and inserts their leases. So a job is running exactly while it has a lease,
-- two workers never get the same job, and a claim that is rolled back leaves its jobs ready.
--
-- The steps, numbered as in the function:
--
--   1. Check the arguments.
--   2. Take two advisory locks, so that no pause or set_lane commits during the claim.
--   3. Read what the claim depends on: settings, pauses, overdue work, low-water marks.
--   4. Before the pick, where step 3 says so: do overdue work, apply the lane's limits.
--   5. Pick: lock the first jobs in claim order, FOR UPDATE SKIP LOCKED.
--   6. Lease: move the picked jobs from ready to lease and return them.
--   7. After the lease, where needed: count the started jobs against the limits.
--
-- Claim order is the order of the index ready_for_claim (lane, rank, seq). rank is minus
-- the priority. seq comes from a sequence when a job becomes ready. So the highest priority
-- comes first, and within a priority the oldest job. In a lane with groups, groups take turns
-- inside a priority: their pick is groups/pick.sql. The condition failures >= 0 is true of every
-- row, and group_key IS NULL of every row that stands in no group. They are those of the partial
-- index, and so tie a statement to this index; the SET clauses of the function rule out other
-- plans (docs/decisions/pinned-plans.md).
--
-- Low-water marks. A claimed job leaves a dead tuple, which VACUUM cannot remove while any
-- transaction has an older snapshot. A scan from the start of the lane would read all of
-- them. Therefore the table mark has, for each priority level (all ready jobs of one priority),
-- a seq below which no job is left (common/marks.sql), and the pick starts there. A level may
-- be too new to have a mark. So the pick reads segments, which leave no gap between them:
-- each begins at the mark of one level and ends where the next marked level begins.
--
--     marks for priority 10 and 0:  ranks {-10, 0}, seqs {900, 1200}
--     segment 0:  from the start of the lane    up to, not including, rank -10
--     segment 1:  from (rank -10, seq 900)      up to, not including, rank 0
--     segment 2:  from (rank 0, seq 1200)       up to the end of the lane
--
-- A segment begins with a row comparison and ends with a plain one: before PostgreSQL 18 a
-- btree scan does not stop at the end of a row comparison whose first columns are equal.
--
-- Claims that name kinds scan the same index and filter, which is fast while most jobs at
-- the head of the lane are wanted. Such a claim reads a window of at most 100 jobs, plus
-- eight for each job that it asks for. If it finds too few in there, pick_kinds reads on,
-- and switches to the index by kind where jobs of other kinds pile up (claim/pick.sql).
-- The lane then counts as patchy for ten seconds: its claims call pick_kinds at once.
--
-- Row addresses. The pick returns an array of ctids, and the lease works on that array. The
-- executor may run a subquery with LIMIT twice and so lock too many rows; an array is a
-- value. A ctid stays valid here: rows of ready are never updated, and the claim holds
-- their locks.
--
-- Locks, in this order: the hold lock (shared; pause takes it exclusively), the lane lock
-- (shared; set_lane takes it exclusively), and, for a lane with groups, max_slots or a rate, the
-- roster lock (exclusive). The claim does not wait for the first two: set_lane may be
-- waiting for a report that this very transaction has made. It waits for the third, at most
-- 50 ms. What a lock protects is read in a later statement than the one that took it.
--
-- Cost. PL/pgSQL sets up every statement, expression and function call again in each
-- transaction, and that is most of the cost of a small claim (docs/decisions/speed.md). So
-- one IF guards all of step 4, and steps 5 and 6 are no functions of their own: with the
-- pick in a function a claim of one job costs 3 % more, one that finds nothing 3 to 5 %.

CREATE FUNCTION pulse.claim_batch(
    worker text,
    lane text DEFAULT 'default',
    max_jobs integer DEFAULT 1,
    lease_for interval DEFAULT NULL,
    kinds text [] DEFAULT NULL
)
RETURNS SETOF pulse.claimed
LANGUAGE plpgsql
SECURITY DEFINER
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
    v_now timestamptz := clock_timestamp();
    -- Step 3: what the claim depends on.
    v_settings record;
    v_overdue record;
    v_first_wake bigint;
    v_mark pulse_internal.mark;
    v_levels integer;
    -- Step 4: how many jobs it may start, and the limits that say so.
    v_need integer;
    v_lane pulse_internal.lane;
    v_groups_have_slots boolean := false;
    v_roster pulse_internal.roster;
    v_quota pulse_internal.quota;
    -- Step 5: the picked rows of ready, and what the index scan has read.
    v_picked tid [];
    v_window integer;
    v_live_before bigint;
    v_entries_before bigint;
    v_pages_before bigint;
    v_live bigint;
    v_dead bigint;
    v_rated_kinds text [];
    v_picked_at timestamptz;
    v_last_lease bigint;
    -- Step 6: the leases.
    v_sizes_are_checked boolean := false;
    v_claimed integer;
BEGIN
    -- 1. Check the arguments. One expression lets ordinary ones pass; for the others the two
    -- functions check one by one, and raise the error.
    IF (
        current_setting('transaction_isolation') = 'read committed'
        AND claim_batch.max_jobs > 0
        AND claim_batch.lease_for IS NULL
        AND claim_batch.worker <> ''
        AND length(claim_batch.worker) <= pulse_internal.longest_name()
        AND claim_batch.lane <> ''
        AND length(claim_batch.lane) <= pulse_internal.longest_name()
        AND (
            claim_batch.kinds IS NULL
            OR array_ndims(claim_batch.kinds) = 1
            AND array_position(claim_batch.kinds, NULL) IS NULL
            AND '' <> ALL (claim_batch.kinds)
        )
    ) IS NOT TRUE THEN
        PERFORM pulse_internal.require_read_committed('claim_batch');
        PERFORM pulse_internal.require_claim(
            claim_batch.worker, claim_batch.lane, claim_batch.max_jobs,
            claim_batch.lease_for, claim_batch.kinds
        );
    END IF;

    -- 2. Take the hold lock and the lane lock. If one cannot be had, a pause or set_lane is
    -- about to commit: return no jobs. Their keys are the oid of a table of pulse, which no
    -- other application uses, and a hash of the lane.
    IF NOT (
        pg_try_advisory_xact_lock_shared('pulse_internal.hold'::regclass::oid::integer, 0)
        AND pg_try_advisory_xact_lock_shared(
            'pulse_internal.lane'::regclass::oid::integer, hashtext(claim_batch.lane)
        )
    ) THEN
        RETURN;
    END IF;

    -- 3. Read what the claim depends on.
    --
    -- 3a. Settings of the lane and of kinds. A lane has limits if it has groups, max_slots or
    -- a rate.
    SELECT
        NOT coalesce(l.enabled, d.enabled)
        OR EXISTS (
            SELECT 1 FROM pulse_internal.hold AS h WHERE h.lane IN ('', claim_batch.lane)
        ) AS is_paused,
        num_nonnulls(l.grouped, l.max_slots, l.rate) > 0 AS lane_has_limits,
        l AS lane,
        coalesce(l.max_batch, d.max_batch) AS max_batch,
        coalesce(l.lease_for, d.lease_for) AS lease_for,
        l.max_runtime,
        k.has_rate IS NOT NULL AS kinds_have_settings,
        k.has_rate AS kinds_have_rates
    INTO v_settings
    FROM pulse_internal.lane_default AS d
    LEFT JOIN pulse_internal.lane AS l ON l.lane = claim_batch.lane
    -- The index has kinds with a rate first: one row says whether any kind has one.
    LEFT JOIN LATERAL (
        SELECT o.rate IS NOT NULL AS has_rate
        FROM pulse_internal.kind AS o
        WHERE o.lease_for IS NOT NULL OR o.max_runtime IS NOT NULL OR o.rate IS NOT NULL
        ORDER BY o.rate
        LIMIT 1
    ) AS k ON true;

    IF v_settings.is_paused THEN
        RETURN;
    END IF;

    v_need := least(claim_batch.max_jobs, v_settings.max_batch);

    -- 3b. Overdue work. The server is new after a restart or a failover (settings/node.sql). tick
    -- reaps every 10 seconds, so after 15 it is late.
    SELECT
        pg_sequence_last_value('pulse_internal.server_start')
        <> (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint AS server_is_new,
        (
            (
                SELECT t.taken_at
                FROM pulse_internal.upkeep_run AS t
                WHERE t.step = 'sweep'
                ORDER BY t.version DESC
                LIMIT 1
            ) BETWEEN v_now - interval '15 seconds' AND v_now
        ) IS NOT TRUE AS reap_is_overdue,
        -- Not EXISTS: the order that is asked for leaves one index to read
        -- (docs/decisions/pinned-plans.md).
        (
            SELECT true
            FROM pulse_internal.waiting AS w
            WHERE w.lane = claim_batch.lane
                AND w.attempts >= 0
                AND w.run_at >= coalesce(
                    (
                        SELECT m.run_at
                        FROM pulse_internal.due_mark AS m
                        WHERE m.lane = claim_batch.lane
                        ORDER BY m.version DESC
                        LIMIT 1
                    ),
                    '-infinity'
                )
                AND w.run_at <= v_now
            ORDER BY w.run_at
            LIMIT 1
        ) AS has_due_jobs,
        -- True once this database has had a blocked job: the sequence was drawn.
        pg_sequence_last_value('pulse_internal.note_seq') IS NOT NULL AS has_flows
    INTO v_overdue;

    -- The first note about blocked jobs whose dependencies have ended.
    IF v_overdue.has_flows THEN
        v_first_wake := (
            SELECT w.seq
            FROM pulse_internal.wake AS w
            WHERE w.seq >= coalesce(
                    (
                        SELECT m.wake_from
                        FROM pulse_internal.note_mark AS m
                        ORDER BY m.version DESC
                        LIMIT 1
                    ),
                    0
                )
            ORDER BY w.seq
            LIMIT 1
        );
    END IF;

    -- 3c. The newest low-water marks of the lane, if it has some.
    SELECT m.* INTO v_mark
    FROM pulse_internal.mark AS m
    WHERE m.lane = claim_batch.lane
        AND m.kind = ''
    ORDER BY m.version DESC
    LIMIT 1;

    v_levels := coalesce(cardinality(v_mark.ranks), 0);

    -- 4. Before the pick. Each of these is rare, so one IF guards them all.
    IF v_settings.lane_has_limits
        OR v_overdue.server_is_new
        OR v_overdue.reap_is_overdue
        OR v_overdue.has_due_jobs
        OR v_first_wake IS NOT NULL
    THEN
        -- 4a. Overdue work, as much as a claim of this size may do.
        IF v_overdue.server_is_new THEN
            PERFORM pulse_internal.meet_server();
        END IF;

        IF v_overdue.reap_is_overdue THEN
            PERFORM pulse_internal.reap_if_overdue(v_need);
        END IF;

        IF v_overdue.has_due_jobs THEN
            PERFORM pulse_internal.promote(claim_batch.lane, v_need);
        END IF;

        -- At most three portions of blocked jobs, and one more for every ten jobs wanted.
        IF v_first_wake IS NOT NULL THEN
            PERFORM pulse_internal.take_portions(v_need, 3 + v_need / 10, v_first_wake);
        END IF;

        v_lane := v_settings.lane;

        -- 4b. One claim at a time decides whose turn it is in a lane with groups, and counts the
        -- starts of one with a rate. The roster lock is held until this transaction ends.
        IF (v_lane.grouped IS TRUE OR v_lane.rate IS NOT NULL)
            AND NOT pulse_internal.take_turn(claim_batch.lane)
        THEN
            RETURN;
        END IF;

        -- 4c. Groups. Where groups have slots, each lease stores its group, so that the end of the
        -- run inserts a row into group_notice.
        IF v_lane.grouped THEN
            v_groups_have_slots := v_lane.group_slots IS NOT NULL OR EXISTS (
                SELECT 1
                FROM pulse_internal.group_rule AS g
                WHERE g.lane = claim_batch.lane AND g.max_slots IS NOT NULL
            );
        -- grouped is NULL: the lane never had groups. grouped is false: groups were switched off,
        -- and claims move jobs back to the lane: 500, and four for each job wanted.
        ELSIF NOT v_lane.grouped THEN
            PERFORM pulse_internal.leave_groups(claim_batch.lane, 500 + 4 * v_need);
        END IF;

        -- 4d. Rate and slots bound how many jobs may start. Slots are counted under the roster lock
        -- as well (claim/slots.sql).
        IF v_lane.rate IS NOT NULL THEN
            v_quota := pulse_internal.current_quota(claim_batch.lane, '');
            v_need := least(
                v_need,
                (
                    SELECT f.free
                    FROM pulse_internal.free_starts(
                        v_quota.starts, v_lane.rate, v_lane.rate_per, clock_timestamp()
                    ) AS f
                )
            );
        END IF;

        IF v_lane.max_slots IS NOT NULL AND v_need > 0 THEN
            v_roster := pulse_internal.take_slots(claim_batch.lane, v_lane.max_slots, v_need);
            v_need := least(
                v_need, coalesce(v_lane.max_slots - cardinality(v_roster.leases), 0)
            );
        END IF;

        IF v_need <= 0 THEN
            RETURN;
        END IF;
    END IF;

    -- 5. Pick: lock the first jobs in claim order. Usually this is one round. Another one
    -- follows where jobs were unblocked.
    v_live_before := pg_stat_get_xact_tuples_fetched('pulse_internal.ready_for_claim'::regclass);
    v_entries_before := pg_stat_get_xact_tuples_returned('pulse_internal.ready_for_claim'::regclass);
    v_pages_before := pg_stat_get_xact_blocks_fetched('pulse_internal.ready_for_claim'::regclass);
    LOOP
        -- There are five ways. The first: the lane has groups, and they take turns.
        IF v_lane.grouped THEN
            SELECT p.tids, p.open, p.after_lease, p.picked_at
            INTO v_picked, v_rated_kinds, v_last_lease, v_picked_at
            FROM pulse_internal.pick_groups(
                v_lane, v_need, claim_batch.kinds, v_mark,
                v_settings.kinds_have_rates IS TRUE
            ) AS p;
        -- The second: some kinds have a rate, and the pick takes no more jobs than it allows.
        ELSIF v_settings.kinds_have_rates THEN
            SELECT p.tids, p.open, p.after_lease INTO v_picked, v_rated_kinds, v_last_lease
            FROM pulse_internal.pick_within_rates(
                claim_batch.lane, claim_batch.kinds, v_need, v_mark
            ) AS p;
        -- The third: kinds are named, and the lane was patchy less than ten seconds ago.
        ELSIF claim_batch.kinds IS NOT NULL
            AND v_mark.patchy_at BETWEEN v_now - interval '10 seconds' AND v_now
        THEN
            v_picked := pulse_internal.pick_kinds(
                claim_batch.lane, claim_batch.kinds, v_need, v_mark, '{}'
            );
        ELSE
            -- The fourth and usual: any kind. Segment n begins at the mark of level n and ends
            -- at level n + 1. An array has no element 0 and none after its last: there the
            -- lowest and the highest integer stand for the ends of the lane.
            IF claim_batch.kinds IS NULL THEN
                v_picked := array(
                    SELECT r.tid
                    FROM (SELECT generate_series(0, v_levels) AS level) AS n
                    CROSS JOIN LATERAL (
                        SELECT r.ctid AS tid
                        FROM pulse_internal.ready AS r
                        WHERE r.lane = claim_batch.lane
                            AND r.failures >= 0
                            AND r.group_key IS NULL
                            AND (r.rank, r.seq) >= (
                                coalesce(v_mark.ranks[n.level], -2147483648),
                                coalesce(v_mark.seqs[n.level], 0)
                            )
                            AND r.rank < coalesce(v_mark.ranks[n.level + 1], 2147483647)
                        ORDER BY r.rank, r.seq
                        FOR UPDATE SKIP LOCKED
                    ) AS r
                    LIMIT v_need
                );
            ELSE
                -- The fifth: kinds are named. The same segments, but only a window of them,
                -- and without locks; the jobs of these kinds are then locked by address. One
                -- statement has one snapshot, so no address is reused in between.
                v_window := 100 + 8 * v_need;
                v_picked := array(
                    SELECT t.tid
                    FROM (
                        SELECT r.tid, r.kind
                        FROM (SELECT generate_series(0, v_levels) AS level) AS n
                        CROSS JOIN LATERAL (
                            SELECT r.ctid AS tid, r.kind
                            FROM pulse_internal.ready AS r
                            WHERE r.lane = claim_batch.lane
                                AND r.failures >= 0
                                AND r.group_key IS NULL
                                AND (r.rank, r.seq) >= (
                                    coalesce(v_mark.ranks[n.level], -2147483648),
                                    coalesce(v_mark.seqs[n.level], 0)
                                )
                                AND r.rank < coalesce(v_mark.ranks[n.level + 1], 2147483647)
                            ORDER BY r.rank, r.seq
                        ) AS r
                        LIMIT v_window
                    ) AS s
                    CROSS JOIN LATERAL (
                        SELECT r.ctid AS tid
                        FROM pulse_internal.ready AS r
                        WHERE r.ctid = s.tid
                        FOR UPDATE SKIP LOCKED
                    ) AS t
                    WHERE s.kind = ANY (claim_batch.kinds)
                    LIMIT v_need
                );
            END IF;

            -- Ask for newer marks if the scan has stepped over many dead tuples. Many is 500
            -- index entries (two or three pages), or more pages than live jobs need: five for
            -- the descent into each segment, ten more, and one for every four jobs. Pages
            -- count because the scan does not report entries that the index knows as dead.
            -- In a lane without marks live jobs count as well: they are dead tuples soon, and
            -- a level can get its first mark only while it has a job.
            v_live := pg_stat_get_xact_tuples_fetched('pulse_internal.ready_for_claim'::regclass)
                - v_live_before;
            v_dead := pg_stat_get_xact_tuples_returned('pulse_internal.ready_for_claim'::regclass)
                - v_entries_before - v_live;
            IF (v_levels > 0 OR v_live > 0)
                AND (
                    v_dead + CASE WHEN v_levels = 0 THEN v_live ELSE 0 END >= 500
                    OR pg_stat_get_xact_blocks_fetched('pulse_internal.ready_for_claim'::regclass)
                    - v_pages_before > 10 + 5 * v_levels + v_need / 4
                )
            THEN
                -- The last argument says that the lane is patchy: most of the dead tuples are
                -- behind a job of another kind, where no mark can pass.
                PERFORM pulse_internal.ask_for_marks(
                    claim_batch.lane, '{}', v_mark,
                    claim_batch.kinds IS NOT NULL
                    AND v_live > cardinality(v_picked)
                    AND v_dead > 1000 + 2 * v_need
                );
            END IF;

            -- Too few wanted jobs in the window, and the lane goes on behind it: read on.
            -- Without statistics the claim cannot know whether it does.
            IF claim_batch.kinds IS NOT NULL
                AND cardinality(v_picked) < v_need
                AND (v_live >= v_window OR current_setting('track_counts') = 'off')
            THEN
                v_picked := pulse_internal.pick_kinds(
                    claim_batch.lane, claim_batch.kinds, v_need, v_mark, '{}'
                );
            END IF;
        END IF;

        EXIT WHEN cardinality(v_picked) > 0;

        -- Nothing to claim. An idle claim has time to look for blocked jobs that the end of
        -- their upstream has missed (flows/settle.sql). If it unblocks some, it picks once more.
        IF NOT v_overdue.has_flows THEN
            RETURN;
        END IF;
        IF pulse_internal.settle_some() = 0 THEN
            RETURN;
        END IF;
        v_overdue.has_flows := false;
    END LOOP;

    -- 6. Lease: delete from ready, insert into lease, return to the worker. Usually this is
    -- one round. If the payloads could be above 64 MB together, the first round claims
    -- nothing, and a second one claims the jobs that fit (claim/large_payloads.sql). The pick of
    -- groups has dated their starts, and the leases have the same date.
    v_now := coalesce(v_picked_at, clock_timestamp());
    LOOP
        RETURN QUERY
        -- The picked jobs in claim order, with all that the worker gets. The number of a
        -- lease is drawn here, where the INSERT has locked the table already: low-water marks
        -- rely on that (common/marks.sql). Ten random bits at its end keep other leases from
        -- being guessed.
        WITH picked AS MATERIALIZED (
            SELECT
                nextval('pulse_internal.lease_seq') << 10 | floor(random() * 1024)::bigint AS lease,
                s.*
            FROM (
                SELECT
                    t.*,
                    b.payload,
                    b.max_attempts,
                    b.enqueued_at,
                    b.group_key,
                    b.headers,
                    b.flow,
                    b.name,
                    b.start_by,
                    -- An upper bound of the text of the payloads, in units of 256 bytes: a
                    -- compressed payload may grow to 256 times its size.
                    sum(
                        CASE
                            WHEN pg_column_compression(b.payload) IS NULL
                                THEN 1 + pg_column_size(b.payload) / 256
                            ELSE pg_column_size(b.payload)
                        END
                    ) OVER () AS all_payloads,
                    coalesce(claim_batch.lease_for, k.lease_for, v_settings.lease_for)
                    AS lease_for,
                    v_now + coalesce(b.max_runtime, k.max_runtime, v_settings.max_runtime)
                    AS deadline
                FROM (
                    SELECT
                        r.ctid AS tid, r.job, r.kind, r.rank, r.seq, r.attempts,
                        r.failures, r.keyed, r.ready_at, r.group_key AS line
                    FROM pulse_internal.ready AS r
                    WHERE r.ctid = ANY (v_picked)
                    ORDER BY
                        r.rank,
                        -- Jobs of groups were picked in the order of their turns. trim_array
                        -- makes one flat value of the variable, else each look copies it.
                        CASE
                            WHEN r.group_key IS NOT NULL
                                THEN array_position((SELECT trim_array(v_picked, 0)), r.ctid)
                        END,
                        r.seq
                ) AS t
                -- OFFSET 0 keeps the planner from making a join of it: one lookup by primary
                -- key for each job, whatever the statistics say.
                CROSS JOIN LATERAL (
                    SELECT o.*
                    FROM pulse_internal.body AS o
                    WHERE o.job = t.job
                    OFFSET 0
                ) AS b
                LEFT JOIN LATERAL (
                    SELECT o.lease_for, o.max_runtime
                    FROM pulse_internal.kind AS o
                    WHERE v_settings.kinds_have_settings AND o.kind = t.kind
                    OFFSET 0
                ) AS k ON true
            ) AS s
            WHERE (s.all_payloads <= 67108864 / 256 OR v_sizes_are_checked)
                -- A job that had to start by now is not handed out.
                AND (s.start_by <= v_now AND s.attempts = 0) IS NOT TRUE
        ),

        removed AS (
            DELETE FROM pulse_internal.ready AS r
            WHERE r.ctid = ANY (array(SELECT p.tid FROM picked AS p))
        ),

        leased AS (
            INSERT INTO pulse_internal.lease (
                lease, job, lane, kind, rank, attempt, failures, keyed,
                worker, claimed_at, lease_for, lease_until, deadline, group_key, place,
                ready_at
            )
            SELECT
                p.lease, p.job, claim_batch.lane, p.kind, p.rank, p.attempts + 1, p.failures,
                p.keyed, claim_batch.worker, v_now, p.lease_for,
                least(v_now + p.lease_for, p.deadline), p.deadline,
                CASE WHEN v_groups_have_slots THEN nullif(p.line, '') END,
                CASE WHEN v_lane.in_order AND p.line <> '' THEN p.seq END,
                p.ready_at
            FROM picked AS p
        ),

        slots_taken AS (
            INSERT INTO pulse_internal.roster (lane, leases)
            SELECT claim_batch.lane, v_roster.leases || array_agg(p.lease)
            FROM picked AS p
            HAVING v_lane.max_slots IS NOT NULL AND count(*) > 0
        )

        SELECT
            p.lease,
            p.job,
            p.kind,
            p.payload,
            p.attempts + 1,
            p.failures,
            p.max_attempts,
            -p.rank,
            least(v_now + p.lease_for, p.deadline),
            p.deadline,
            p.enqueued_at,
            -- The first attempt has no checkpoint.
            CASE
                WHEN p.attempts > 0
                    THEN (SELECT c.data FROM pulse_internal.job_checkpoint AS c WHERE c.job = p.job)
            END,
            p.group_key,
            p.headers,
            p.flow,
            p.name
        FROM picked AS p;

        GET DIAGNOSTICS v_claimed = ROW_COUNT;
        EXIT WHEN v_claimed = cardinality(v_picked);

        -- Some picked jobs were not leased: cancel those whose start_by has passed. If none
        -- was leased, the payloads were too large, or all of them were late (then
        -- fit_claim finds no row and returns NULL).
        PERFORM pulse_internal.expire_picked(v_picked, v_now);
        EXIT WHEN v_claimed > 0 OR v_sizes_are_checked;
        v_picked := pulse_internal.fit_claim(claim_batch.worker, v_picked);
        EXIT WHEN v_picked IS NULL;
        IF v_picked = '{}' THEN
            RETURN;
        END IF;
        v_sizes_are_checked := true;
    END LOOP;

    -- 7. Count the started jobs against the limits of the lane and of kinds.
    IF v_claimed > 0 THEN
        IF v_settings.lane_has_limits OR v_settings.kinds_have_rates THEN
            IF v_lane.max_slots IS NOT NULL THEN
                DELETE FROM pulse_internal.roster AS r
                WHERE r.lane = v_roster.lane
                    AND r.version = v_roster.version;
            END IF;

            IF v_lane.rate IS NOT NULL THEN
                PERFORM pulse_internal.spend_quota(
                    v_quota, claim_batch.lane, '', v_claimed, v_lane.rate_per, v_now
                );
            END IF;

            IF v_rated_kinds <> '{}' THEN
                PERFORM pulse_internal.spend_kinds(claim_batch.lane, v_rated_kinds, v_last_lease);
            END IF;
        END IF;
        RETURN;
    END IF;

    -- All picked jobs were late. Cancel every late job, then claim again; if 50 ms are not
    -- enough for that, leave it to the next claim.
    IF pulse_internal.expire_all(clock_timestamp() + interval '50 milliseconds') THEN
        RETURN QUERY
        SELECT c.*
        FROM pulse.claim_batch(
            claim_batch.worker, claim_batch.lane, claim_batch.max_jobs,
            claim_batch.lease_for, claim_batch.kinds
        ) AS c;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.claim_batch(text, text, integer, interval, text []) IS
'Claim at most max_jobs ready jobs of a lane, highest priority first, oldest first inside a priority, and lease them for lease_for (default: the kind''s, the lane''s, 30 s). With kinds, only jobs of these. No row means: nothing to do, the lane is full, held or just being changed; ask again after the poll interval. A job that did not begin by its start_by is cancelled instead; what is handed out is 64 MB of payload at most, but at least one job. PU001 above READ COMMITTED, PU002 bad argument. In a lane with fair or group_slots its groups take turns inside a priority, and a group that is at its limit, stopped or waits for a job of its own is passed over. Writes ready, lease and roster, where there is a rate quota, in grouped lanes group_notice, group_state and group_mark, and what it reaps, promotes, releases or marks on the way.';
