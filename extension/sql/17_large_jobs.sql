-- What a claim does when the payloads of its jobs are large: an answer of a hundred times
-- 8 MB would fill a worker's memory, and one that PostgreSQL cannot send would make every
-- claim of the lane fail.

-- At most 64 MB, but at least one job. One that is above 256 MB (stored before there
-- was a cap) cannot be relied upon to be sent: it is claimed and failed at once, one such in
-- a claim, since finding out takes its time. NULL when none of these rows is there.
CREATE FUNCTION pulse._fit_claim(worker text, rows_of_ready tid [])
RETURNS tid []
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_row record;
    v_size bigint;
    v_all bigint := 0;
    v_failed boolean := false;
    v_fit tid [];
BEGIN
    FOR v_row IN
        SELECT r.ctid AS place, r.job
        FROM pulse.ready AS r
        WHERE r.ctid = ANY (_fit_claim.rows_of_ready)
        ORDER BY r.rank, r.seq
    LOOP
        v_fit := coalesce(v_fit, '{}');
        -- What is not compressed is about as large as text, and not read for this.
        SELECT
            CASE
                WHEN pg_column_compression(b.payload) IS NULL
                    AND pg_column_size(b.payload) <= 67108864
                    THEN pg_column_size(b.payload)
                ELSE pulse._text_size(b.payload)
            END INTO v_size
        FROM pulse.body AS b
        WHERE b.job = v_row.job;

        IF v_size > 268435456 THEN
            EXIT WHEN v_failed;
            PERFORM pulse._fail_unsent(_fit_claim.worker, v_row.place, v_size);
            v_failed := true;
        ELSE
            v_all := v_all + v_size;
            EXIT WHEN v_all > 67108864 AND v_fit <> '{}';
            v_fit := v_fit || v_row.place;
        END IF;
    END LOOP;
    RETURN v_fit;
END;
$$;

COMMENT ON FUNCTION pulse._fit_claim(text, tid []) IS
'Of the rows that a claim has locked, the first whose payloads fit into one answer; a job that fits into none is ended.';

CREATE FUNCTION pulse._fail_unsent(worker text, place tid, size bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lease bigint;
BEGIN
    WITH taken AS (
        DELETE FROM pulse.ready AS r
        WHERE r.ctid = _fail_unsent.place
        RETURNING r.*
    )

    INSERT INTO pulse.lease (
        lease, job, lane, kind, rank, attempt, failures, keyed,
        worker, claimed_at, lease_for, lease_until, ready_at
    )
    SELECT
        nextval('pulse.lease_seq') << 10 | floor(random() * 1024)::bigint,
        t.job, t.lane, t.kind, t.rank, t.attempts + 1, t.failures, t.keyed,
        _fail_unsent.worker, v_now, '1 second', v_now + interval '1 second', t.ready_at
    FROM taken AS t
    RETURNING lease INTO v_lease;

    PERFORM pulse._fail_runs(
        ARRAY[v_lease],
        ARRAY[format(
            'a payload of %s as text is too large to be handed out',
            CASE
                WHEN _fail_unsent.size >= 1073741824 THEN 'more than 1 GB'
                ELSE pg_size_pretty(_fail_unsent.size)
            END
        )],
        NULL, ARRAY[true], 'claim_batch'
    );
END;
$$;

COMMENT ON FUNCTION pulse._fail_unsent(text, tid, bigint) IS
'Claim a job and end it as dead, because its payload cannot be handed out.';
