-- Deleting the lease row is the fence: a stale lease finds nothing. finished remembers
-- the lease, so the same report succeeds again when its answer was lost.

CREATE FUNCTION pulse.complete(lease bigint, result jsonb DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_verdict text;
BEGIN
    IF pulse_internal.text_size(complete.result)
        > pulse_internal.highest('complete', 'result')::integer
    THEN
        PERFORM pulse_internal.require_size(
            pulse_internal.text_size(complete.result),
            pulse_internal.range_of('complete', 'result'),
            'Store the data elsewhere and return a reference.'
        );
    END IF;

    SELECT v.verdict INTO v_verdict
    FROM pulse.complete_batch(ARRAY[complete.lease], ARRAY[complete.result]) AS v;

    IF v_verdict <> 'ok' THEN
        PERFORM pulse_internal.raise_lease_lost(complete.lease);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.complete(bigint, jsonb) IS
'Complete the job of a lease and keep its result (at most 1 MB). Repeating it with the same lease is harmless. PU101 when the lease was lost, PU003 when the result is too large. Writes lease, finished and job_key.';

CREATE FUNCTION pulse.complete_batch(
    leases bigint [], results jsonb [] DEFAULT NULL, quiet boolean DEFAULT false
)
RETURNS SETOF pulse.verdict
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_sound bigint [] := complete_batch.leases;
    v_results jsonb [] := complete_batch.results;
    v_lease pulse_internal.lease;
    v_now timestamptz;
    v_ended integer := 0;
    v_keyed bigint [];
    v_jobs bigint [];
    v_first bigint;
    v_last bigint;
    v_groups pulse_internal.lane_group [];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM pulse_internal.require_read_committed('complete');
    END IF;

    -- By lease, so that the result of each is found by a binary search. Of a lease that is
    -- named twice the first counts.
    IF v_results IS NOT NULL THEN
        SELECT array_agg(s.lease), array_agg(s.result) INTO v_sound, v_results
        FROM (
            SELECT u.lease, u.result
            FROM unnest(complete_batch.leases, complete_batch.results)
            WITH ORDINALITY AS u (lease, result, place)
            WHERE u.lease IS NOT NULL
                AND CASE
                    WHEN pg_column_size(u.result) > 100
                        THEN pulse_internal.text_size(u.result)
                            <= pulse_internal.highest('complete', 'result')::integer
                    ELSE true
                END
            ORDER BY u.lease, u.place DESC
        ) AS s;
    END IF;

    -- Here and not in report/endings.sql: a report of one job would cost a fifth more CPU by one
    -- more call, and as much by the one statement that is best for many.
    IF cardinality(v_sound) = 1 AND v_sound[1] IS NOT NULL THEN
        DELETE FROM pulse_internal.lease AS l
        WHERE l.lease = v_sound[1]
        RETURNING l.* INTO v_lease;

        IF v_lease.lease IS NOT NULL THEN
            INSERT INTO pulse_internal.finished (
                job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
                claimed_at, lease, worker, result
            )
            VALUES (
                v_lease.job, v_lease.lane, v_lease.kind, v_lease.rank, 'completed',
                'complete', v_lease.attempt, v_lease.failures, v_lease.keyed,
                v_lease.claimed_at, v_lease.lease, v_lease.worker, v_results[1]
            );

            INSERT INTO pulse_internal.tally (lane, kind, event, waited, ran)
            VALUES (
                v_lease.lane, v_lease.kind, 'completed',
                v_lease.claimed_at - v_lease.ready_at,
                clock_timestamp() - v_lease.claimed_at
            );

            -- Mostly that is all.
            IF NOT v_lease.keyed
                AND v_lease.group_key IS NULL
                AND pg_sequence_last_value('pulse_internal.blocked_seq') IS NULL
                AND cardinality(complete_batch.leases) = 1
            THEN
                IF complete_batch.quiet IS NOT TRUE THEN
                    RETURN NEXT ROW(v_lease.lease, 'ok'::text);
                END IF;
                RETURN;
            END IF;

            v_ended := 1;
            v_first := v_lease.job;
            v_last := v_lease.job;
            IF v_lease.keyed THEN
                v_keyed := ARRAY[v_lease.job];
            END IF;
            IF v_lease.group_key IS NOT NULL THEN
                v_groups := ARRAY[ROW(v_lease.lane, v_lease.group_key)::pulse_internal.lane_group];
            END IF;
        END IF;
    ELSE
        v_now := clock_timestamp();
        -- The index scan visits an array of keys in order, so leases are locked in order.
        WITH gone AS (
            DELETE FROM pulse_internal.lease AS l
            WHERE l.lease = ANY (v_sound)
            -- First what is read more than once: a reader takes a row apart up to the last
            -- column it needs.
            RETURNING
                l.claimed_at, l.ready_at, l.job, l.keyed, l.lane, l.kind, l.group_key,
                l.lease, l.rank, l.attempt, l.failures, l.worker
        ),

        kept AS (
            INSERT INTO pulse_internal.finished (
                job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
                claimed_at, lease, worker, result
            )
            SELECT
                g.job, g.lane, g.kind, g.rank, 'completed', 'complete', g.attempt, g.failures,
                g.keyed, g.claimed_at, g.lease, g.worker,
                CASE
                    -- The list as one flat value: of a variable, each look would make a copy.
                    WHEN v_results IS NOT NULL
                        THEN v_results[width_bucket(g.lease, (SELECT trim_array(v_sound, 0)))]
                END
            FROM gone AS g
        ),

        counted AS (
            INSERT INTO pulse_internal.tally (
                lane, kind, event, jobs, wait_bucket, waited, run_bucket, ran
            )
            SELECT
                g.lane, g.kind, 'completed', count(*),
                width_bucket(
                    g.claimed_at - g.ready_at, pulse_internal.histogram_intervals()
                ) AS waits,
                sum(g.claimed_at - g.ready_at),
                width_bucket(v_now - g.claimed_at, pulse_internal.histogram_intervals()) AS runs,
                sum(v_now - g.claimed_at)
            FROM gone AS g
            GROUP BY g.lane, g.kind, waits, runs
        )

        SELECT
            count(*),
            array_agg(g.job) FILTER (WHERE g.keyed),
            array_agg(g.job) FILTER (
                WHERE (SELECT pg_sequence_last_value('pulse_internal.blocked_seq') IS NOT NULL)
            ),
            min(g.job),
            max(g.job),
            array_agg(ROW(g.lane, g.group_key)::pulse_internal.lane_group) FILTER (
                WHERE g.group_key IS NOT NULL
            )
        INTO v_ended, v_keyed, v_jobs, v_first, v_last, v_groups
        FROM gone AS g;
    END IF;

    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.notice_ends(v_groups);
    END IF;

    IF v_keyed IS NOT NULL THEN
        PERFORM pulse_internal.release_keys(v_keyed);
    END IF;

    -- Who waits for them, in a later statement than the one that ended them: who began
    -- to wait until then is seen. Most batches are of neighbours: one look for all. Which
    -- jobs they are is not collected where nobody ever waited.
    IF pg_sequence_last_value('pulse_internal.blocked_seq') IS NOT NULL AND v_ended > 0 THEN
        IF v_last - v_first >= 10 * v_ended
            OR (
                SELECT true
                FROM pulse_internal.blocked AS b
                WHERE b.waits_for BETWEEN v_first AND v_last
                ORDER BY b.waits_for, b.seq
                LIMIT 1
            )
        THEN
            IF v_jobs IS NULL THEN
                v_jobs := array(
                    SELECT f.job
                    FROM pulse_internal.finished AS f
                    WHERE f.lease = ANY (v_sound)
                        AND f.ended_by = 'complete'
                );
            END IF;
            PERFORM pulse_internal.wake(v_jobs, true);
        END IF;
    END IF;

    IF v_ended = cardinality(complete_batch.leases) THEN
        IF complete_batch.quiet IS NOT TRUE THEN
            RETURN QUERY
            SELECT u.lease, 'ok'
            FROM unnest(complete_batch.leases) AS u (lease);
        END IF;
        RETURN;
    END IF;

    -- What was ended now, and what was before by the same report.
    RETURN QUERY
    SELECT v.*
    FROM pulse_internal.verdicts(
        complete_batch.leases,
        v_sound,
        array(
            SELECT f.lease
            FROM pulse_internal.finished AS f
            WHERE f.lease = ANY (v_sound)
                AND f.ended_by = 'complete'
        ),
        'complete',
        complete_batch.quiet
    ) AS v;
END;
$$;

COMMENT ON FUNCTION pulse.complete_batch(bigint [], jsonb [], boolean) IS
'Complete the jobs of several leases, each with its result at the same place. One row for each lease: ok, lost, or too_large (a result above 1 MB; that job goes on running); with quiet, only for those that are not ok. A repeated report is ok again. Writes lease, finished and job_key.';
