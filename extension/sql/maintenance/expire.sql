-- start_by: cancel jobs that have not started in time.
--
-- A job with a start_by has a row in expiry until that time has come. The first that meets a late
-- job cancels it: the claim that has picked it, or tick, which reads expiry. A job that has
-- started once is never late, not even at its retries, so only jobs without attempts count. A job
-- without start_by has no row in expiry, and a claim reads start_by beside the payload: both cost
-- nothing.
--
-- tick_expiry deletes from blocked, approval, waiting and ready, and writes what finish_cancelled
-- writes (report/endings.sql). Locks: rows of expiry, then of those tables in this order, all
-- SKIP LOCKED. A job that is locked keeps its row of expiry for the next call.

CREATE FUNCTION pulse_internal.start_by(
    start_by timestamptz, expires_in interval, run_at timestamptz, delay interval
)
RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce(
        start_by.start_by,
        greatest(
            clock_timestamp(), start_by.run_at, clock_timestamp() + start_by.delay
        ) + start_by.expires_in
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.start_by(timestamptz, interval, timestamptz, interval) IS
'By when a job with these options has to start; expires_in counts from the time when it is due.';

CREATE FUNCTION pulse_internal.note_expiry(job bigint, start_by timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO pulse_internal.expiry (start_by, job)
    VALUES (note_expiry.start_by, note_expiry.job)
    ON CONFLICT ON CONSTRAINT expiry_is_noted_once DO NOTHING;
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_expiry(bigint, timestamptz) IS
'Have tick check a job when its start_by has come. A row that is there already stays: a replace may set the same start_by again.';

CREATE FUNCTION pulse_internal.expire_job(
    job bigint, lane text, kind text, rank integer, keyed boolean, start_by timestamptz
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.finish_cancelled(
        expire_job.job, expire_job.lane, expire_job.kind, expire_job.rank, 'expire',
        0, 0, expire_job.keyed,
        format(
            'expired: it had not begun by %s',
            to_char(expire_job.start_by, 'YYYY-MM-DD HH24:MI:SS TZ')
        )
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.expire_job(
    bigint, text, text, integer, boolean, timestamptz
) IS
'Store that a job was cancelled because it has not started in time. The caller has deleted the row that said where the job stood.';

CREATE FUNCTION pulse_internal.expire_picked(rows_of_ready tid [], at timestamptz)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_late pulse_internal.ready;
    v_ended integer := 0;
BEGIN
    FOR v_late IN
        DELETE FROM pulse_internal.ready AS r
        WHERE r.ctid = ANY (expire_picked.rows_of_ready)
            AND r.attempts = 0
            AND (
                SELECT b.start_by FROM pulse_internal.body AS b WHERE b.job = r.job
            ) <= expire_picked.at
        RETURNING r.*
    LOOP
        PERFORM pulse_internal.expire_job(
            v_late.job, v_late.lane, v_late.kind, v_late.rank, v_late.keyed,
            (SELECT b.start_by FROM pulse_internal.body AS b WHERE b.job = v_late.job)
        );
        -- It may have been counted as a run of its group when it was picked.
        IF v_late.group_key IS NOT NULL THEN
            PERFORM pulse_internal.notice_leaving(v_late);
            PERFORM pulse_internal.notice_ends(
                ARRAY[ROW(v_late.lane, v_late.group_key)::pulse_internal.lane_group]
            );
        END IF;
        v_ended := v_ended + 1;
    END LOOP;
    RETURN v_ended;
END;
$$;

COMMENT ON FUNCTION pulse_internal.expire_picked(tid [], timestamptz) IS
'Cancel those of the jobs that a claim has picked, and locked, which had to start by this time. Returns how many.';

CREATE FUNCTION pulse_internal.expire_pages(
    until timestamptz,
    most_pages integer,
    OUT expired bigint,
    OUT is_all boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_page record;
    v_pages integer := 0;
BEGIN
    expired := 0;
    -- Where the first page starts.
    SELECT '-infinity'::timestamptz AS next_start_by, 0::bigint AS next_job INTO v_page;
    LOOP
        SELECT p.* INTO v_page
        FROM pulse_internal.expire_page(
            v_page.next_start_by, v_page.next_job, pulse_internal.upkeep_piece()
        ) AS p;
        expired := expired + v_page.expired;
        v_pages := v_pages + 1;
        is_all := v_page.next_job IS NULL;
        EXIT WHEN is_all
            OR v_pages >= expire_pages.most_pages
            OR pulse_internal.time_is_over(expire_pages.until);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.expire_pages(timestamptz, integer) IS
'Cancel jobs that have not started by their start_by, until none is left, the time is over or so many pages are done (NULL: as many as there are). Returns how many jobs, and whether none is left.';

CREATE FUNCTION pulse_internal.tick_expiry(until timestamptz)
RETURNS bigint
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p.expired
    FROM pulse_internal.expire_pages(tick_expiry.until, NULL) AS p
$$;

COMMENT ON FUNCTION pulse_internal.tick_expiry(timestamptz) IS
'The step of tick: cancel jobs that have not started by their start_by, until none is left or the time is over. Returns how many.';

CREATE FUNCTION pulse_internal.expire_all(until timestamptz)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    -- A clock that steps back puts the end of the time off. The claim holds its lane meanwhile, so
    -- the work is bounded as well.
    SELECT p.is_all AND NOT pulse_internal.time_is_over(expire_all.until)
    FROM pulse_internal.expire_pages(expire_all.until, 3) AS p
$$;

COMMENT ON FUNCTION pulse_internal.expire_all(timestamptz) IS
'For a claim that has picked only late jobs: cancel all that have not started by their start_by, at most three pages of them. Returns false if these or the time did not suffice for all.';

CREATE FUNCTION pulse_internal.expire_page(
    after_start_by timestamptz,
    after_job bigint,
    page integer,
    OUT expired bigint,
    OUT next_start_by timestamptz,
    OUT next_job bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    -- The page of expiry: three columns of the same rows.
    v_start_bys timestamptz [];
    v_jobs bigint [];
    v_rows tid [];
    -- Where its jobs stand.
    v_blocked tid [];
    v_approval tid [];
    v_waiting tid [];
    v_ready tid [];
    v_job record;
BEGIN
    SELECT array_agg(d.start_by), array_agg(d.job), array_agg(d.tid)
    INTO v_start_bys, v_jobs, v_rows
    FROM (
        SELECT e.start_by, e.job, e.ctid AS tid
        FROM pulse_internal.expiry AS e
        WHERE (e.start_by, e.job) > (expire_page.after_start_by, expire_page.after_job)
            AND e.start_by <= v_now
        ORDER BY e.start_by, e.job
        LIMIT expire_page.page
        FOR UPDATE SKIP LOCKED
    ) AS d;

    expired := 0;
    IF v_jobs IS NULL THEN
        RETURN;
    END IF;
    IF cardinality(v_jobs) = expire_page.page THEN
        next_start_by := v_start_bys[expire_page.page];
        next_job := v_jobs[expire_page.page];
    END IF;

    v_blocked := array(
        SELECT b.ctid FROM pulse_internal.blocked AS b
        WHERE b.job = ANY (v_jobs) FOR UPDATE SKIP LOCKED
    );
    v_approval := array(
        SELECT a.ctid FROM pulse_internal.approval AS a
        WHERE a.job = ANY (v_jobs) FOR UPDATE SKIP LOCKED
    );
    v_waiting := array(
        SELECT w.ctid FROM pulse_internal.waiting AS w
        WHERE w.job = ANY (v_jobs) FOR UPDATE SKIP LOCKED
    );
    v_ready := array(
        SELECT r.ctid FROM pulse_internal.ready AS r
        WHERE r.job = ANY (v_jobs) FOR UPDATE SKIP LOCKED
    );

    -- A later statement than the locks: it sees the start_by that a replace has just changed. The
    -- unique keys are released in the order (lane, key), which is the lock order of keys.
    FOR v_job IN
        WITH blocked AS (
            DELETE FROM pulse_internal.blocked AS o
            WHERE o.ctid = ANY (v_blocked)
                AND o.attempts = 0
                AND EXISTS (
                    SELECT FROM pulse_internal.body AS b
                    WHERE b.job = o.job AND b.start_by <= v_now
                )
            RETURNING o.job, o.lane, o.kind, o.rank, o.keyed
        ),

        approval AS (
            DELETE FROM pulse_internal.approval AS a
            WHERE a.ctid = ANY (v_approval)
                AND EXISTS (
                    SELECT FROM pulse_internal.body AS b
                    WHERE b.job = a.job AND b.start_by <= v_now
                )
            RETURNING a.job, a.lane, a.kind, a.rank, a.keyed
        ),

        waiting AS (
            DELETE FROM pulse_internal.waiting AS w
            WHERE w.ctid = ANY (v_waiting)
                AND w.attempts = 0
                AND EXISTS (
                    SELECT FROM pulse_internal.body AS b
                    WHERE b.job = w.job AND b.start_by <= v_now
                )
            RETURNING w.job, w.lane, w.kind, w.rank, w.keyed
        ),

        ready AS (
            DELETE FROM pulse_internal.ready AS r
            WHERE r.ctid = ANY (v_ready)
                AND r.attempts = 0
                AND EXISTS (
                    SELECT FROM pulse_internal.body AS b
                    WHERE b.job = r.job AND b.start_by <= v_now
                )
            RETURNING r.job, r.lane, r.kind, r.rank, r.keyed, r.group_key, r.seq
        ),

        noticed AS (
            INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place)
            SELECT r.lane, r.group_key, r.rank, min(r.seq)
            FROM ready AS r
            WHERE r.group_key IS NOT NULL
            GROUP BY r.lane, r.group_key, r.rank
        )

        SELECT t.*, b.start_by
        FROM (
            SELECT o.* FROM blocked AS o
            UNION ALL
            SELECT a.* FROM approval AS a
            UNION ALL
            SELECT w.* FROM waiting AS w
            UNION ALL
            SELECT r.job, r.lane, r.kind, r.rank, r.keyed FROM ready AS r
        ) AS t
        CROSS JOIN LATERAL (
            SELECT o.start_by, o.unique_key
            FROM pulse_internal.body AS o
            WHERE o.job = t.job
            OFFSET 0
        ) AS b
        ORDER BY t.lane, b.unique_key COLLATE "C"
    LOOP
        PERFORM pulse_internal.expire_job(
            v_job.job, v_job.lane, v_job.kind, v_job.rank, v_job.keyed, v_job.start_by
        );
        expired := expired + 1;
    END LOOP;

    -- A row of expiry stays only for a job that still has this start_by and has not started. One
    -- snapshot says where each job stands.
    DELETE FROM pulse_internal.expiry AS e
    WHERE e.ctid = ANY (v_rows)
        AND NOT (
            EXISTS (
                SELECT FROM pulse_internal.body AS b WHERE b.job = e.job AND b.start_by = e.start_by
            )
            AND (
                EXISTS (SELECT FROM pulse_internal.approval AS a WHERE a.job = e.job)
                OR EXISTS (SELECT FROM pulse_internal.blocked AS o WHERE o.job = e.job)
                OR EXISTS (
                    SELECT FROM pulse_internal.waiting AS w WHERE w.job = e.job AND w.attempts = 0
                )
                OR EXISTS (
                    SELECT FROM pulse_internal.ready AS r WHERE r.job = e.job AND r.attempts = 0
                )
            )
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.expire_page(timestamptz, bigint, integer) IS
'Cancel the late jobs among a page of those whose start_by has come. Returns how many, and where to go on (NULL at the end).';
