-- The way back out of groups.

-- After grouping was switched off: to the end of the line of the lane, group by group, from
-- where the last call stopped. Notices go when nothing is left that they could announce:
-- those that were there before the look.
CREATE FUNCTION pulse._leave_groups(lane text, max_jobs integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_mark pulse.group_mark;
    v_new pulse.group_mark;
    v_from text COLLATE "C";
    v_notices tid [];
    v_tids tid [];
BEGIN
    IF NOT pg_try_advisory_xact_lock(
        'pulse.roster'::regclass::oid::integer, hashtext(_leave_groups.lane)
    ) THEN
        RETURN 0;
    END IF;

    v_mark := pulse._newest_group_mark(_leave_groups.lane);
    v_from := coalesce(v_mark.roll_from, '');
    v_notices := array(
        SELECT n.ctid
        FROM pulse.group_notice AS n
        WHERE n.lane = _leave_groups.lane
        ORDER BY n.seq
        LIMIT _leave_groups.max_jobs
    );
    v_tids := array(
        SELECT r.ctid
        FROM pulse.group_ready AS r
        WHERE r.lane = _leave_groups.lane
            AND r.failures >= 0
            AND r.group_key >= v_from
        ORDER BY r.group_key, r.rank, r.seq
        LIMIT _leave_groups.max_jobs
        FOR UPDATE SKIP LOCKED
    );

    v_new := ROW(
        _leave_groups.lane, NULL, 0, '{}', '{}',
        CASE
            WHEN cardinality(v_tids) = _leave_groups.max_jobs
                THEN (
                    SELECT max(r.group_key)
                    FROM pulse.group_ready AS r
                    WHERE r.ctid = ANY (v_tids)
                )
            ELSE ''
        END,
        -2147483648, '-infinity'
    )::pulse.group_mark;

    IF v_tids = '{}' AND v_from = '' THEN
        DELETE FROM pulse.group_notice AS n
        WHERE n.ctid = ANY (v_notices)
            AND NOT EXISTS (
                SELECT FROM pulse.group_ready AS r
                WHERE r.lane = _leave_groups.lane
                    AND r.failures >= 0
            );
        RETURN 0;
    END IF;

    IF v_new.roll_from IS DISTINCT FROM v_mark.roll_from THEN
        PERFORM pulse._write_group_mark(v_mark, v_new);
    END IF;

    WITH taken AS (
        DELETE FROM pulse.group_ready AS r
        WHERE r.ctid = ANY (v_tids)
        RETURNING r.*
    )

    INSERT INTO pulse.ready (
        lane, rank, kind, job, attempts, failures, keyed, ready_at, last_lease, last_verb
    )
    SELECT
        t.lane, t.rank, t.kind, t.job, t.attempts, t.failures, t.keyed, t.ready_at,
        t.last_lease, t.last_verb
    FROM taken AS t
    ORDER BY t.rank, t.seq;

    RETURN cardinality(v_tids);
END;
$$;

COMMENT ON FUNCTION pulse._leave_groups(text, integer) IS
'Move jobs of a lane that is no longer grouped back into ready, at most so many; returns how many.';
