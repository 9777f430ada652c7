-- complete, complete_batch: a worker reports that jobs have succeeded.
--
-- To complete a job is to delete its row of lease and to insert one into finished. If the lease
-- has expired and was reaped, there is no row to delete: the report changes nothing and answers
-- lost. finished keeps the number of the lease, so a repeated report is answered ok again.
--
-- complete_batch, numbered as in the function:
--   1. Sort the results by lease, and leave out those that are too large.
--   2. End the runs: delete the leases, insert into finished, count in tally.
--   3. Follow up: the groups, unique keys and dependents of the completed jobs.
--   4. Answer with a status for each lease.
--
-- Locks: leases in the order of their numbers, then what step 3 takes without waiting. Step 2 has
-- a form for one job: the statement for many costs a fifth more CPU there, because it sets up CTEs
-- and aggregates for one row. A function of its own would cost as much (decisions/speed.md).

CREATE FUNCTION pulse.complete(lease bigint, result jsonb DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_status text;
BEGIN
    -- The condition is that of require_size, and spares ordinary results the call.
    IF pulse_internal.text_size(complete.result)
        > pulse_internal.highest('complete', 'result')::integer
    THEN
        PERFORM pulse_internal.require_size(
            pulse_internal.text_size(complete.result),
            pulse_internal.range_of('complete', 'result'),
            'Store the data elsewhere and return a reference.'
        );
    END IF;

    SELECT s.verdict INTO v_status
    FROM pulse.complete_batch(ARRAY[complete.lease], ARRAY[complete.result]) AS s;

    IF v_status <> 'ok' THEN
        PERFORM pulse_internal.raise_lease_lost(complete.lease);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.complete(bigint, jsonb) IS
'Complete the job of a lease and store its result, at most 1 MB. A call with the same lease may be repeated.

Errors: PU001 above READ COMMITTED, PU003 the result is too large, PU101 the lease was lost.';

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
    -- Step 1: the leases to complete, and their results in the same order.
    v_leases bigint [] := complete_batch.leases;
    v_results jsonb [] := complete_batch.results;
    -- Step 2: what was completed.
    v_now timestamptz;
    v_lease pulse_internal.lease;
    v_completed integer := 0;
    v_first_job bigint;
    v_last_job bigint;
    v_jobs bigint [];
    v_jobs_with_key bigint [];
    v_groups pulse_internal.lane_group [];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM pulse_internal.require_read_committed('complete');
    END IF;

    -- 1. Sort by lease: step 2 finds the result of a lease by binary search. If a lease is
    -- named twice, width_bucket finds the last of its entries, and so the first that was
    -- given. A value of up to 100 bytes is below the limit whatever it contains.
    IF v_results IS NOT NULL THEN
        SELECT array_agg(s.lease), array_agg(s.result) INTO v_leases, v_results
        FROM (
            SELECT u.lease, u.result
            FROM unnest(complete_batch.leases, complete_batch.results)
            WITH ORDINALITY AS u (lease, result, nth)
            WHERE u.lease IS NOT NULL
                AND CASE
                    WHEN pg_column_size(u.result) > 100
                        THEN pulse_internal.text_size(u.result)
                            <= pulse_internal.highest('complete', 'result')::integer
                    ELSE true
                END
            ORDER BY u.lease, u.nth DESC
        ) AS s;
    END IF;

    -- 2. End the runs: one job.
    IF cardinality(v_leases) = 1 AND v_leases[1] IS NOT NULL THEN
        DELETE FROM pulse_internal.lease AS l
        WHERE l.lease = v_leases[1]
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

            -- Usually the job has no unique key and no group, and no job of this database
            -- was ever blocked: nothing is left to do.
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

            v_completed := 1;
            v_first_job := v_lease.job;
            v_last_job := v_lease.job;
            IF v_lease.keyed THEN
                v_jobs_with_key := ARRAY[v_lease.job];
            END IF;
            IF v_lease.group_key IS NOT NULL THEN
                v_groups := ARRAY[ROW(v_lease.lane, v_lease.group_key)::pulse_internal.lane_group];
            END IF;
        END IF;
    ELSE
        -- Many jobs. The index scan reads an array of keys in order, so two reports that
        -- share leases lock them in the same order.
        v_now := clock_timestamp();
        WITH ended AS (
            DELETE FROM pulse_internal.lease AS l
            WHERE l.lease = ANY (v_leases)
            -- Columns that are read more than once come first: a reader of a CTE unpacks
            -- each row up to the last column that it needs.
            RETURNING
                l.claimed_at, l.ready_at, l.job, l.keyed, l.lane, l.kind, l.group_key,
                l.lease, l.rank, l.attempt, l.failures, l.worker
        ),

        stored AS (
            INSERT INTO pulse_internal.finished (
                job, lane, kind, rank, state, ended_by, attempts, failures, keyed,
                claimed_at, lease, worker, result
            )
            SELECT
                e.job, e.lane, e.kind, e.rank, 'completed', 'complete', e.attempt, e.failures,
                e.keyed, e.claimed_at, e.lease, e.worker,
                CASE
                    -- trim_array(…, 0) makes one flat copy for the whole statement; a
                    -- reference to the variable would be copied for each row.
                    WHEN v_results IS NOT NULL
                        THEN v_results[width_bucket(e.lease, (SELECT trim_array(v_leases, 0)))]
                END
            FROM ended AS e
        ),

        counted AS (
            INSERT INTO pulse_internal.tally (
                lane, kind, event, jobs, wait_bucket, waited, run_bucket, ran
            )
            SELECT
                e.lane, e.kind, 'completed', count(*),
                width_bucket(
                    e.claimed_at - e.ready_at, pulse_internal.histogram_intervals()
                ) AS wait_bucket,
                sum(e.claimed_at - e.ready_at),
                width_bucket(
                    v_now - e.claimed_at, pulse_internal.histogram_intervals()
                ) AS run_bucket,
                sum(v_now - e.claimed_at)
            FROM ended AS e
            GROUP BY e.lane, e.kind, wait_bucket, run_bucket
        )

        SELECT
            count(*),
            min(e.job),
            max(e.job),
            -- Only a database that has had blocked jobs needs the whole list.
            array_agg(e.job) FILTER (
                WHERE (SELECT pg_sequence_last_value('pulse_internal.blocked_seq') IS NOT NULL)
            ),
            array_agg(e.job) FILTER (WHERE e.keyed),
            array_agg(ROW(e.lane, e.group_key)::pulse_internal.lane_group) FILTER (
                WHERE e.group_key IS NOT NULL
            )
        INTO v_completed, v_first_job, v_last_job, v_jobs, v_jobs_with_key, v_groups
        FROM ended AS e;
    END IF;

    -- 3. Follow up.
    IF v_groups IS NOT NULL THEN
        PERFORM pulse_internal.notice_ends(v_groups);
    END IF;

    IF v_jobs_with_key IS NOT NULL THEN
        PERFORM pulse_internal.release_keys(v_jobs_with_key);
    END IF;

    -- Blocked jobs that depend on the completed ones. This has to be a later statement than
    -- the one that deleted the leases: it also sees jobs that were blocked until then
    -- (flows/release.sql). The ids of a batch are mostly close together. Then one lookup of
    -- their range tells whether any job waits for one of them; a batch that is spread over
    -- ten times as many ids is looked up job by job.
    IF pg_sequence_last_value('pulse_internal.blocked_seq') IS NOT NULL AND v_completed > 0 THEN
        IF v_last_job - v_first_job >= 10 * v_completed
            OR (
                SELECT true
                FROM pulse_internal.blocked AS b
                WHERE b.waits_for BETWEEN v_first_job AND v_last_job
                ORDER BY b.waits_for, b.seq
                LIMIT 1
            )
        THEN
            -- The list is missing after a report of one job, and if the first job ever was
            -- blocked during this call.
            IF v_jobs IS NULL THEN
                v_jobs := array(
                    SELECT f.job
                    FROM pulse_internal.finished AS f
                    WHERE f.lease = ANY (v_leases)
                        AND f.ended_by = 'complete'
                );
            END IF;
            PERFORM pulse_internal.unblock_after(v_jobs, true);
        END IF;
    END IF;

    -- 4. Answer. Usually all are ok.
    IF v_completed = cardinality(complete_batch.leases) THEN
        IF complete_batch.quiet IS NOT TRUE THEN
            RETURN QUERY
            SELECT u.lease, 'ok'
            FROM unnest(complete_batch.leases) AS u (lease);
        END IF;
        RETURN;
    END IF;

    -- ok are also the leases that an earlier call has completed: their rows are in finished.
    RETURN QUERY
    SELECT s.*
    FROM pulse_internal.report_statuses(
        complete_batch.leases,
        v_leases,
        array(
            SELECT f.lease
            FROM pulse_internal.finished AS f
            WHERE f.lease = ANY (v_leases)
                AND f.ended_by = 'complete'
        ),
        'complete',
        complete_batch.quiet
    ) AS s;
END;
$$;

COMMENT ON FUNCTION pulse.complete_batch(bigint [], jsonb [], boolean) IS
'Complete the jobs of several leases. Returns a status for each lease, in the order given.

- results: the result of each lease, in the same order.
- quiet: return only the leases whose status is not ok.
- ok: the job is completed, by this call or by an earlier one with the same lease.
- lost: the lease has expired and was taken away. Nothing was written.
- too_large: the result is above 1 MB. Nothing was written, and the job is still running.

Errors: PU001 above READ COMMITTED.';
