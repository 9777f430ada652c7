-- The claim.
--
-- Whoever deletes a row of ready has claimed the job; the same statement inserts its
-- lease. So a job is running exactly when it has a lease, two claimers can never have
-- the same one, and a rolled back claim never happened.
--
-- What to delete is picked first, row by row, FOR UPDATE SKIP LOCKED, into an
-- array of row addresses. The array is what makes a batch never larger than asked: a
-- subquery with LIMIT may be run again by the executor, an array is a value. An address
-- is safe to keep because rows of ready are never updated, and locked by us.
--
-- The pick reads the line in claim order (rank, seq) and starts each level at its
-- low-water mark (common/marks.sql), so it never steps over rows that are dead but cannot
-- be vacuumed. Between two known levels there may be one that nobody has recorded yet:
-- a segment therefore runs from the mark of one level to the start of the next one.
-- Its start is a row comparison, its end is not: before PostgreSQL 18 a btree scan does
-- not stop at the end of a row comparison whose first columns are equal.
--
-- A claim that names kinds reads the same line and filters, which is right as long as
-- most of what it meets is wanted: it looks at 100 rows, and at eight for each job that it
-- asks for. If little of that is (jobs of other kinds pile up at the head), or if dead rows
-- stand behind such jobs where no mark can pass, it takes candidates kind by kind from
-- ready_for_claim_by_kind, merges them in claim order and locks only the first ones. The
-- line is then noted as patchy for ten seconds.
--
-- Locks, in this order: the hold lock shared (pause takes it exclusively), the lane lock
-- shared (set_lane takes it exclusively) and, where max_slots or rate is set, the roster
-- lock exclusively. The first two are tried, since set_lane may wait for what this transaction
-- has reported; the third is waited for, 50 ms at most. Settings and holds are read in a
-- statement after the first two, leases in one after the third.
--
-- Everything that a claim has to know is read in one statement, and what is rarely to be
-- done (reap, promote) is called only when that statement says so: PL/pgSQL sets up every
-- statement and function call anew in each transaction, which is most of the cost of
-- a small claim. So it is one function, and the file is long.
--
-- A lane whose jobs stand in groups has a claim of its own (groups/claim.sql).

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
    v_known record;
    v_need integer;
    v_tids tid [];
    v_shown bigint;
    v_dead bigint;
    v_note bigint;
    v_fitted boolean := false;
    v_roster pulse_internal.roster;
    v_quota pulse_internal.quota;
    v_claimed integer;
    v_open text [];
    v_after_lease bigint;
BEGIN
    -- 1. The arguments: what is ordinary is asked in one expression.
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

    -- 2. The locks. Refused: a pause, or set_lane, is waiting or just being committed.
    IF NOT (
        pg_try_advisory_xact_lock_shared('pulse_internal.hold'::regclass::oid::integer, 0)
        AND pg_try_advisory_xact_lock_shared(
            'pulse_internal.lane'::regclass::oid::integer, hashtext(claim_batch.lane)
        )
    ) THEN
        RETURN;
    END IF;

    -- 3. All there is to know, in one statement after the locks.
    SELECT
        l.max_slots,
        l.grouped,
        l.rate,
        l.rate_per,
        coalesce(l.max_batch, d.max_batch) AS max_batch,
        coalesce(l.lease_for, d.lease_for) AS lease_for,
        l.max_runtime,
        -- Whether one has a rate; NULL: none differs from its lane.
        (
            SELECT k.rate IS NOT NULL
            FROM pulse_internal.kind AS k
            WHERE k.lease_for IS NOT NULL OR k.max_runtime IS NOT NULL OR k.rate IS NOT NULL
            ORDER BY k.rate
            LIMIT 1
        ) AS kinds_rated,
        coalesce(l.enabled, d.enabled)
        AND NOT EXISTS (
            SELECT 1 FROM pulse_internal.hold AS h WHERE h.lane IN ('', claim_batch.lane)
        ) AS is_open,
        pg_sequence_last_value('pulse_internal.server_start')
        = (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint AS is_met,
        (
            SELECT t.taken_at
            FROM pulse_internal.upkeep_run AS t
            WHERE t.step = 'sweep'
            ORDER BY t.version DESC
            LIMIT 1
        ) AS swept_at,
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
        ) AS is_due,
        pg_sequence_last_value('pulse_internal.note_seq') IS NOT NULL AS has_flows,
        n.mark,
        (n.mark).ranks,
        (n.mark).seqs,
        coalesce(cardinality((n.mark).ranks), 0) AS levels,
        claim_batch.kinds IS NOT NULL
        AND (n.mark).patchy_at BETWEEN v_now - interval '10 seconds' AND v_now AS is_patchy,
        -- What the line has shown so far, and cost to read.
        pg_stat_get_xact_tuples_fetched('pulse_internal.ready_for_claim'::regclass) AS shown,
        pg_stat_get_xact_tuples_returned('pulse_internal.ready_for_claim'::regclass) AS entries,
        pg_stat_get_xact_blocks_fetched('pulse_internal.ready_for_claim'::regclass) AS pages
    INTO v_known
    FROM pulse_internal.lane_default AS d
    LEFT JOIN pulse_internal.lane AS l ON l.lane = claim_batch.lane
    LEFT JOIN LATERAL (
        SELECT m AS mark
        FROM pulse_internal.mark AS m
        WHERE m.lane = claim_batch.lane
            AND m.kind = ''
        ORDER BY m.version DESC
        LIMIT 1
    ) AS n ON true;

    v_need := least(claim_batch.max_jobs, v_known.max_batch);

    -- Is there a portion to release?
    IF v_known.has_flows THEN
        v_note := (
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

    -- Mostly there is nothing to do but to pick: asked in one expression.
    IF (
        v_known.is_open
        AND v_known.is_met
        AND v_known.swept_at BETWEEN v_now - interval '15 seconds' AND v_now
        AND v_known.is_due IS NULL
        AND v_note IS NULL
        AND v_known.grouped IS NULL
        AND v_known.max_slots IS NULL
        AND v_known.rate IS NULL
    ) IS NOT TRUE THEN
        IF NOT v_known.is_open THEN
            RETURN;
        END IF;

        IF NOT v_known.is_met THEN
            PERFORM pulse_internal.meet_server();
        END IF;

        -- 4. What is rarely to be done: reap where no sweep did, promote what is due, release
        -- what waited for jobs that have ended.
        IF (v_known.swept_at BETWEEN v_now - interval '15 seconds' AND v_now) IS NOT TRUE THEN
            PERFORM pulse_internal.reap_if_overdue(v_need);
        END IF;

        IF v_known.is_due THEN
            PERFORM pulse_internal.promote(claim_batch.lane, v_need);
        END IF;

        IF v_note IS NOT NULL THEN
            v_known.is_due
            := (pulse_internal.take_portions(v_need, 3 + v_need / 10, v_note)).released > 0
            OR v_known.is_due;
        END IF;

        -- What was put in line just now is not what the line costs to read.
        IF v_known.is_due THEN
            v_known.pages := pg_stat_get_xact_blocks_fetched('pulse_internal.ready_for_claim'::regclass);
        END IF;

        -- Jobs stand in groups, or did until lately.
        IF v_known.grouped IS NOT NULL THEN
            IF v_known.grouped THEN
                RETURN QUERY
                SELECT c.*
                FROM pulse_internal.claim_grouped(
                    claim_batch.worker, claim_batch.lane, v_need, claim_batch.lease_for,
                    claim_batch.kinds, v_known.mark
                ) AS c;
                -- As below; what is released now is for the next claim.
                IF NOT FOUND AND v_known.has_flows THEN
                    PERFORM pulse_internal.settle_some();
                END IF;
                RETURN;
            END IF;
            PERFORM pulse_internal.leave_groups(claim_batch.lane, 500 + 4 * v_need);
        END IF;

        -- 5. Slots, of a lane with max_slots (claim/slots.sql), and starts, of one with a rate:
        -- both under the roster lock.
        IF v_known.rate IS NOT NULL THEN
            IF NOT pulse_internal.take_turn(claim_batch.lane) THEN
                RETURN;
            END IF;
            v_quota := pulse_internal.current_quota(claim_batch.lane, '');
            v_need := least(
                v_need,
                (
                    SELECT f.free
                    FROM pulse_internal.free_starts(
                        v_quota.starts, v_known.rate, v_known.rate_per, clock_timestamp()
                    ) AS f
                )
            );
        END IF;

        IF v_known.max_slots IS NOT NULL AND v_need > 0 THEN
            v_roster := pulse_internal.take_slots(
                claim_batch.lane, v_known.max_slots, v_need
            );
            v_need := least(
                v_need, coalesce(v_known.max_slots - cardinality(v_roster.leases), 0)
            );
        END IF;

        IF v_need <= 0 THEN
            RETURN;
        END IF;
    END IF;

    -- 6. Pick: lock the first jobs in line, level by level from the top, each from its mark.
    -- There is no element 0 of an array, and none behind its end: coalesce gives the ends of
    -- the line. Who finds nothing has time to look whether an end went unnoticed, and picks
    -- again if one did.
    LOOP
        IF (v_known.kinds_rated OR v_known.is_patchy) IS NOT TRUE THEN
            IF claim_batch.kinds IS NULL THEN
                v_tids := array(
                    SELECT r.tid
                    FROM (SELECT generate_series(0, v_known.levels) AS level) AS n
                    CROSS JOIN LATERAL (
                        SELECT r.ctid AS tid
                        FROM pulse_internal.ready AS r
                        WHERE r.lane = claim_batch.lane
                            AND r.failures >= 0
                            AND r.group_key IS NULL
                            AND (r.rank, r.seq) >= (
                                coalesce(v_known.ranks[n.level], -2147483648),
                                coalesce(v_known.seqs[n.level], 0)
                            )
                            AND r.rank < coalesce(v_known.ranks[n.level + 1], 2147483647)
                        ORDER BY r.rank, r.seq
                        FOR UPDATE SKIP LOCKED
                    ) AS r
                    LIMIT v_need
                );
            ELSE
                -- The same, of what the first part of the line shows. One statement, so one
                -- snapshot: a row address seen here cannot be reused before it is locked.
                v_tids := array(
                    SELECT t.tid
                    FROM (
                        SELECT r.tid, r.kind
                        FROM (SELECT generate_series(0, v_known.levels) AS level) AS n
                        CROSS JOIN LATERAL (
                            SELECT r.ctid AS tid, r.kind
                            FROM pulse_internal.ready AS r
                            WHERE r.lane = claim_batch.lane
                                AND r.failures >= 0
                                AND r.group_key IS NULL
                                AND (r.rank, r.seq) >= (
                                    coalesce(v_known.ranks[n.level], -2147483648),
                                    coalesce(v_known.seqs[n.level], 0)
                                )
                                AND r.rank < coalesce(v_known.ranks[n.level + 1], 2147483647)
                            ORDER BY r.rank, r.seq
                        ) AS r
                        LIMIT 100 + 8 * v_need
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

            -- Was there a pile of dead rows to step over? Their entries say so, or only their
            -- pages (entries_read). Behind a row that is not ours no mark can help. In a line
            -- without marks also what is shown counts, which will be such a pile: a level can
            -- be recorded while there is a row of it.
            v_shown := pg_stat_get_xact_tuples_fetched('pulse_internal.ready_for_claim'::regclass)
                - v_known.shown;
            v_dead := pg_stat_get_xact_tuples_returned('pulse_internal.ready_for_claim'::regclass)
                - v_known.entries - v_shown;
            IF (v_known.levels > 0 OR v_shown > 0)
                AND (
                    v_dead + CASE WHEN v_known.levels = 0 THEN v_shown ELSE 0 END >= 500
                    OR pg_stat_get_xact_blocks_fetched('pulse_internal.ready_for_claim'::regclass)
                    - v_known.pages > 10 + 5 * v_known.levels + v_need / 4
                )
            THEN
                PERFORM pulse_internal.ask_for_marks(
                    claim_batch.lane, '{}', v_known.mark,
                    claim_batch.kinds IS NOT NULL
                    AND v_shown > cardinality(v_tids)
                    AND v_dead > 1000 + 2 * v_need
                );
            END IF;
        END IF;

        IF v_known.kinds_rated THEN
            SELECT p.tids, p.open, p.after_lease INTO v_tids, v_open, v_after_lease
            FROM pulse_internal.pick_within_rates(
                claim_batch.lane, claim_batch.kinds, v_need, v_known.mark
            ) AS p;
        -- Little of the line is wanted, or there is more of it.
        ELSIF v_known.is_patchy
            OR claim_batch.kinds IS NOT NULL
            AND cardinality(v_tids) < v_need
            AND (v_shown >= 100 + 8 * v_need OR current_setting('track_counts') = 'off')
        THEN
            v_tids := pulse_internal.pick_kinds(
                claim_batch.lane, claim_batch.kinds, v_need, v_known.mark, '{}'
            );
        END IF;
        EXIT WHEN cardinality(v_tids) > 0;
        IF NOT v_known.has_flows OR pulse_internal.settle_some() = 0 THEN
            RETURN;
        END IF;
        v_known.has_flows := false;
    END LOOP;

    -- 7. Take: out of ready, into lease, and out to the worker; or nothing, when the payloads
    -- could be above 64 MB. Then those that fit into an answer, in a second round.
    v_now := clock_timestamp();

    LOOP
        RETURN QUERY
        -- In claim order, and so are the leases drawn: by the statement that inserts them,
        -- which holds the table lock by then, as the marks demand (common/marks.sql).
        WITH described AS MATERIALIZED (
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
                    -- One that is compressed may be 256 times as large.
                    sum(
                        CASE
                            WHEN pg_column_compression(b.payload) IS NULL
                                THEN 1 + pg_column_size(b.payload) / 256
                            ELSE pg_column_size(b.payload)
                        END
                    ) OVER () AS stored,
                    coalesce(claim_batch.lease_for, k.lease_for, v_known.lease_for)
                    AS lease_for,
                    v_now + coalesce(b.max_runtime, k.max_runtime, v_known.max_runtime)
                    AS deadline
                FROM (
                    SELECT
                        r.ctid AS place, r.job, r.kind, r.rank, r.seq, r.attempts,
                        r.failures, r.keyed, r.ready_at
                    FROM pulse_internal.ready AS r
                    WHERE r.ctid = ANY (v_tids)
                    ORDER BY r.rank, r.seq
                ) AS t
                -- OFFSET 0 keeps these what they are: one look by key for each job.
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
            ) AS s
            WHERE (s.stored <= 262144 OR v_fitted)
                AND (s.start_by <= v_now AND s.attempts = 0) IS NOT TRUE
        ),

        taken AS (
            DELETE FROM pulse_internal.ready AS r
            WHERE r.ctid = ANY (array(SELECT d.place FROM described AS d))
        ),

        leased AS (
            INSERT INTO pulse_internal.lease (
                lease, job, lane, kind, rank, attempt, failures, keyed,
                worker, claimed_at, lease_for, lease_until, deadline, ready_at
            )
            SELECT
                d.lease, d.job, claim_batch.lane, d.kind, d.rank, d.attempts + 1, d.failures,
                d.keyed, claim_batch.worker, v_now, d.lease_for,
                least(v_now + d.lease_for, d.deadline), d.deadline, d.ready_at
            FROM described AS d
        ),

        listed AS (
            INSERT INTO pulse_internal.roster (lane, leases)
            SELECT claim_batch.lane, v_roster.leases || array_agg(d.lease)
            FROM described AS d
            HAVING v_known.max_slots IS NOT NULL AND count(*) > 0
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
            -- A first run has nothing to take up.
            CASE
                WHEN d.attempts > 0
                    THEN (SELECT c.data FROM pulse_internal.job_checkpoint AS c WHERE c.job = d.job)
            END,
            d.group_key,
            d.headers,
            d.flow,
            d.name
        FROM described AS d;
        GET DIAGNOSTICS v_claimed = ROW_COUNT;
        IF v_claimed = cardinality(v_tids)
            AND num_nonnulls(v_known.max_slots, v_known.rate, v_open) = 0
        THEN
            RETURN;
        END IF;
        EXIT WHEN v_claimed = cardinality(v_tids);

        -- What had to begin before now ends here and is not handed out.
        PERFORM pulse_internal.expire_picked(v_tids, v_now);
        EXIT WHEN v_claimed > 0 OR v_fitted;
        v_tids := pulse_internal.fit_claim(claim_batch.worker, v_tids);
        EXIT WHEN v_tids IS NULL;
        IF v_tids = '{}' THEN
            RETURN;
        END IF;
        v_fitted := true;
    END LOOP;

    -- 8. What a claim of a limited lane leaves behind: its roster in place of the last one, and
    -- the starts that its rate has spent.
    IF v_known.max_slots IS NOT NULL AND v_claimed > 0 THEN
        DELETE FROM pulse_internal.roster AS r
        WHERE r.lane = v_roster.lane
            AND r.version = v_roster.version;
    END IF;

    IF v_known.rate IS NOT NULL AND v_claimed > 0 THEN
        PERFORM pulse_internal.spend_quota(
            v_quota, claim_batch.lane, '', v_claimed, v_known.rate_per, v_now
        );
    END IF;

    IF v_open <> '{}' THEN
        PERFORM pulse_internal.spend_kinds(claim_batch.lane, v_open, v_after_lease);
    END IF;

    -- Nothing but late ones: those behind them get their turn, once the late ones are gone.
    IF v_claimed = 0 THEN
        IF pulse_internal.expire_all(clock_timestamp() + interval '50 milliseconds') THEN
            RETURN QUERY
            SELECT c.*
            FROM pulse.claim_batch(
                claim_batch.worker, claim_batch.lane, claim_batch.max_jobs,
                claim_batch.lease_for, claim_batch.kinds
            ) AS c;
        END IF;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.claim_batch(text, text, integer, interval, text []) IS
'Claim at most max_jobs ready jobs of a lane, highest priority first, oldest first inside a priority, and lease them for lease_for (default: the kind''s, the lane''s, 30 s). With kinds, only jobs of these. No row means: nothing to do, the lane is full, held or just being changed; ask again after the poll interval. A job that did not begin by its start_by is cancelled instead; what is handed out is 64 MB of payload at most, but at least one job. PU001 above READ COMMITTED, PU002 bad argument. In a lane with fair or group_slots its groups take turns inside a priority, and a group that is at its limit, stopped or waits for a job of its own is passed over. Writes ready, lease and roster, where there is a rate quota, in grouped lanes group_notice, group_state and group_mark, and what it reaps, promotes, releases or marks on the way.';
