-- What a claim does when the payloads of its jobs are large: an answer of a hundred times
-- 8 MB would fill a worker's memory, and one that PostgreSQL cannot send would make every
-- claim of the lane fail.

-- Of these jobs, in this order, those that fit: at most 64 MB, but at least one job. One that
-- is above 256 MB (stored before there was a cap) cannot be relied upon to be sent: it is
-- named, with its size, one such in a claim, since finding out takes its time.
CREATE FUNCTION pulse_internal.fit_jobs(
    jobs bigint [],
    OUT fit bigint [],
    OUT unsent bigint,
    OUT size bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_job bigint;
    v_size bigint;
    v_all bigint := 0;
BEGIN
    fit := '{}';
    FOREACH v_job IN ARRAY fit_jobs.jobs LOOP
        -- What is not compressed is about as large as text, and not read for this.
        SELECT
            CASE
                WHEN pg_column_compression(b.payload) IS NULL
                    AND pg_column_size(b.payload) <= 67108864
                    THEN pg_column_size(b.payload)
                ELSE pulse_internal.text_size(b.payload)
            END INTO v_size
        FROM pulse_internal.body AS b
        WHERE b.job = v_job;

        IF v_size > 268435456 THEN
            EXIT WHEN unsent IS NOT NULL;
            unsent := v_job;
            size := v_size;
        ELSE
            v_all := v_all + v_size;
            EXIT WHEN v_all > 67108864 AND fit <> '{}';
            fit := fit || v_job;
        END IF;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.fit_jobs(bigint []) IS
'Of the jobs that a claim has locked, as many of the first as fit into one answer by their payloads; and one job that is too large for any.';

CREATE FUNCTION pulse_internal.keep_within_answer(
    INOUT picks pulse_internal.group_pick [],
    picked bigint [],
    OUT passed text [],
    OUT is_full boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_jobs bigint [] := keep_within_answer.picked
    || array(SELECT p.job FROM unnest(keep_within_answer.picks) AS p);
    v_fit record;
    v_pick pulse_internal.group_pick;
    v_kept pulse_internal.group_pick [] := ARRAY[]::pulse_internal.group_pick [];
BEGIN
    passed := '{}';
    is_full := false;

    -- The same estimate as in step 6 of the claim. Usually the payloads are far below the limit.
    IF (
        SELECT coalesce(sum(
            CASE
                WHEN pg_column_compression(b.payload) IS NULL
                    THEN 1 + pg_column_size(b.payload) / 256
                ELSE pg_column_size(b.payload)
            END
        ), 0)
        FROM unnest(v_jobs) AS u (job)
        CROSS JOIN LATERAL (
            SELECT o.payload FROM pulse_internal.body AS o WHERE o.job = u.job OFFSET 0
        ) AS b
    ) <= 67108864 / 256 THEN
        RETURN;
    END IF;

    v_fit := pulse_internal.fit_jobs(v_jobs);
    FOREACH v_pick IN ARRAY keep_within_answer.picks LOOP
        IF v_pick.job = ANY (v_fit.fit) OR v_pick.job IS NOT DISTINCT FROM v_fit.unsent THEN
            v_kept := v_kept || v_pick;
        ELSE
            is_full := true;
            passed := passed || v_pick.group_key;
        END IF;
    END LOOP;

    picks := v_kept;
    passed := array(
        SELECT DISTINCT d.group_key
        FROM unnest(keep_within_answer.passed) AS d (group_key)
        WHERE d.group_key NOT IN (SELECT p.group_key FROM unnest(v_kept) AS p)
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.keep_within_answer(pulse_internal.group_pick [], bigint []) IS
'Of the jobs that a claim of a lane with groups has locked, those that fit into its answer beside the jobs that it has picked before; passed are the groups that then start none.';

-- For claims of ready: NULL when none of these rows is there.
CREATE FUNCTION pulse_internal.fit_claim(worker text, rows_of_ready tid [])
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_jobs bigint [];
    v_rows tid [];
    v_fit record;
    v_row pulse_internal.ready;
BEGIN
    SELECT array_agg(o.job), array_agg(o.tid) INTO v_jobs, v_rows
    FROM (
        SELECT r.job, r.ctid AS tid
        FROM pulse_internal.ready AS r
        WHERE r.ctid = ANY (fit_claim.rows_of_ready)
        -- As in the claim.
        ORDER BY
            r.rank,
            CASE
                WHEN r.group_key IS NOT NULL
                    THEN array_position((SELECT trim_array(fit_claim.rows_of_ready, 0)), r.ctid)
            END,
            r.seq
    ) AS o;

    IF v_jobs IS NULL THEN
        RETURN NULL;
    END IF;

    SELECT f.* INTO v_fit
    FROM pulse_internal.fit_jobs(v_jobs) AS f;

    IF v_fit.unsent IS NOT NULL THEN
        DELETE FROM pulse_internal.ready AS r
        WHERE r.job = v_fit.unsent
        RETURNING r.* INTO v_row;

        PERFORM pulse_internal.fail_unsent(
            fit_claim.worker, v_row.job, v_row.lane, v_row.kind, v_row.rank,
            v_row.attempts, v_row.failures, v_row.keyed, v_row.ready_at, v_fit.size
        );
        IF v_row.group_key IS NOT NULL THEN
            PERFORM pulse_internal.notice_ends(
                ARRAY[ROW(v_row.lane, v_row.group_key)::pulse_internal.lane_group]
            );
        END IF;
    END IF;

    PERFORM pulse_internal.notice_back(array(
        SELECT o.tid
        FROM unnest(v_jobs, v_rows) AS o (job, tid)
        WHERE o.job <> ALL (v_fit.fit)
            AND o.job IS DISTINCT FROM v_fit.unsent
    ));

    RETURN array(
        SELECT o.tid
        FROM unnest(v_jobs, v_rows) AS o (job, tid)
        WHERE o.job = ANY (v_fit.fit)
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.fit_claim(text, tid []) IS
'Of the rows that a claim has locked, the first whose payloads fit into one answer; a job that fits into none is ended.';

-- The caller has taken it out of its line.
CREATE FUNCTION pulse_internal.fail_unsent(
    worker text,
    job bigint,
    lane text,
    kind text,
    rank integer,
    attempts integer,
    failures integer,
    keyed boolean,
    ready_at timestamptz,
    size bigint
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lease bigint;
BEGIN
    INSERT INTO pulse_internal.lease (
        lease, job, lane, kind, rank, attempt, failures, keyed,
        worker, claimed_at, lease_for, lease_until, ready_at
    )
    VALUES (
        nextval('pulse_internal.lease_seq') << 10 | floor(random() * 1024)::bigint,
        fail_unsent.job, fail_unsent.lane, fail_unsent.kind, fail_unsent.rank,
        fail_unsent.attempts + 1, fail_unsent.failures, fail_unsent.keyed,
        fail_unsent.worker, v_now, '1 second', v_now + interval '1 second',
        fail_unsent.ready_at
    )
    RETURNING lease INTO v_lease;

    PERFORM pulse_internal.fail_runs(
        ARRAY[v_lease],
        ARRAY[format(
            'a payload of %s as text is too large to be handed out',
            CASE
                WHEN fail_unsent.size >= 1073741824 THEN 'more than 1 GB'
                ELSE pg_size_pretty(fail_unsent.size)
            END
        )],
        NULL, ARRAY[true], 'claim_batch'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.fail_unsent(
    text, bigint, text, text, integer, integer, integer, boolean, timestamptz, bigint
) IS
'Claim a job and end it as dead, because its payload cannot be handed out.';
