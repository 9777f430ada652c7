-- settle_doubts, take_portions: blocked jobs that the end of an upstream has missed or left over.
--
-- A doubt names a job that another one waits for, and whose end may not have seen that
-- (flows/release.sql). settle_doubts, as numbered in the function:
--   1. Read doubts of other transactions, and find out where each job stands.
--   2. Lock the doubts that can be settled now.
--   3. Sort out the jobs that have ended: completed, failed, or deleted.
--   4. Delete the doubts, and unblock or cancel the dependents of these jobs.
-- A doubt stays while the job may be ending in a transaction that is still open (unsure). An idle
-- claim settles only jobs that are not ending or were completed; tick settles all.
--
-- A portion (row of wake) is a range of blocked jobs that an end has left over: take_portions
-- looks at them. Claims take a few, tick takes the rest.
--
-- They delete from doubt and wake, and write dependency.met and what flows/release.sql and
-- flows/cascade.sql write. Locks: rows of doubt, wake and finished, all SKIP LOCKED.

CREATE FUNCTION pulse_internal.settle_doubts(
    max_notes integer,
    from_seq bigint,
    decided bigint [],
    skipped bigint [],
    until timestamptz,
    OUT unblocked integer,
    OUT seen integer,
    OUT last bigint,
    OUT unsure bigint []
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- Doubts, by seq: about a job that is not ending, was completed, or ended badly or was
    -- deleted.
    v_not_ending bigint [];
    v_ended_well bigint [];
    v_ended_badly bigint [];
    -- Those that are settled now.
    v_settled bigint [];
    -- The jobs that they name.
    v_completed bigint [];
    v_failed bigint [];
    v_deleted bigint [];
    v_being_deleted bigint [];
BEGIN
    unblocked := 0;

    -- 1. Where does each job stand? A row without a deleter (its xmax is 0) shows that no
    -- transaction is ending the job: an end that comes later sees the dependents. A row with one
    -- leaves it open, unless decided says that each transaction that could be ending the job is
    -- over. No row at all, not even in finished: the job was deleted.
    SELECT
        count(*),
        max(x.seq),
        coalesce(array_agg(x.seq) FILTER (WHERE x.state IS NULL AND x.is_not_ending), '{}'),
        coalesce(array_agg(x.seq) FILTER (WHERE x.state = 'completed'), '{}'),
        coalesce(
            array_agg(x.seq) FILTER (
                WHERE x.state <> 'completed' OR x.state IS NULL AND x.is_not_ending IS NULL
            ),
            '{}'
        ),
        coalesce(
            array_agg(x.seq) FILTER (WHERE x.state IS NULL AND NOT x.is_not_ending), '{}'
        )
    INTO seen, last, v_not_ending, v_ended_well, v_ended_badly, unsure
    FROM (
        SELECT
            n.seq,
            (SELECT f.state FROM pulse_internal.finished AS f WHERE f.job = n.job) AS state,
            -- NULL: it has no row.
            p.is_not_ending
            OR (p.is_not_ending IS NOT NULL AND n.seq = ANY (settle_doubts.decided))
            AS is_not_ending
        FROM (
            SELECT o.seq, o.job
            FROM pulse_internal.doubt AS o
            WHERE o.seq >= settle_doubts.from_seq
                -- Not those of this transaction: other sessions do not see its blocked jobs yet.
                AND o.by IS DISTINCT FROM pg_current_xact_id_if_assigned()
                AND o.seq <> ALL (settle_doubts.skipped)
            ORDER BY o.seq
            LIMIT settle_doubts.max_notes
        ) AS n
        CROSS JOIN LATERAL (
            SELECT
                coalesce(
                    (SELECT l.xmax = 0 FROM pulse_internal.lease AS l WHERE l.job = n.job),
                    (SELECT r.xmax = 0 FROM pulse_internal.ready AS r WHERE r.job = n.job),
                    (SELECT b.xmax = 0 FROM pulse_internal.blocked AS b WHERE b.job = n.job),
                    (SELECT w.xmax = 0 FROM pulse_internal.waiting AS w WHERE w.job = n.job),
                    (SELECT a.xmax = 0 FROM pulse_internal.approval AS a WHERE a.job = n.job)
                ) AS is_not_ending
            OFFSET 0
        ) AS p
        OFFSET 0
    ) AS x;

    -- 2. Lock. An idle claim passes no until, and leaves bad ends to tick.
    IF settle_doubts.until IS NULL THEN
        v_ended_badly := '{}';
    END IF;

    v_settled := array(
        SELECT n.seq
        FROM pulse_internal.doubt AS n
        WHERE n.seq = ANY (v_not_ending || v_ended_well || v_ended_badly)
        ORDER BY n.seq
        FOR UPDATE SKIP LOCKED
    );
    IF v_settled = '{}' THEN
        RETURN;
    END IF;

    -- 3. Sort out the jobs that have ended.
    v_completed := array(
        SELECT DISTINCT n.job
        FROM pulse_internal.doubt AS n
        WHERE n.seq = ANY (v_settled) AND n.seq = ANY (v_ended_well)
    );

    IF v_ended_badly <> '{}' THEN
        -- The lock keeps a job from being retried until this transaction ends.
        v_failed := array(
            SELECT f.job
            FROM pulse_internal.finished AS f
            WHERE f.job = ANY (array(
                    SELECT n.job
                    FROM pulse_internal.doubt AS n
                    WHERE n.seq = ANY (v_settled) AND n.seq = ANY (v_ended_badly)
                ))
                AND f.state <> 'completed'
            FOR KEY SHARE SKIP LOCKED
        );
        v_deleted := array(
            SELECT DISTINCT n.job
            FROM pulse_internal.doubt AS n
            WHERE n.seq = ANY (v_settled)
                AND n.seq = ANY (v_ended_badly)
                -- Not EXISTS: a join may read the whole table (docs/decisions/pinned-plans.md).
                AND (SELECT true FROM pulse_internal.body AS b WHERE b.job = n.job) IS NULL
        );
        -- A job that was retried meanwhile, or is locked, keeps its doubt.
        v_settled := array(
            SELECT n.seq
            FROM pulse_internal.doubt AS n
            WHERE n.seq = ANY (v_settled)
                AND (n.seq <> ALL (v_ended_badly) OR n.job = ANY (v_failed || v_deleted))
        );
    END IF;

    -- 4. Delete the doubts, then follow up.
    DELETE FROM pulse_internal.doubt AS n
    WHERE n.seq = ANY (v_settled);

    -- A row of finished with a deleter is being removed: a later check would find no trace of the
    -- job, so its edges are marked as met. An xmax of a transaction that was rolled back, or of a
    -- lock, does no harm: the job was completed.
    v_being_deleted := array(
        SELECT f.job
        FROM pulse_internal.finished AS f
        WHERE f.job = ANY (v_completed)
            AND f.xmax <> 0
    );
    IF v_being_deleted <> '{}' THEN
        UPDATE pulse_internal.dependency AS d
        SET met = true
        WHERE d.after = ANY (v_being_deleted)
            AND NOT d.met;
    END IF;

    IF v_completed <> '{}' THEN
        unblocked := pulse_internal.unblock_after(v_completed, true);
    END IF;
    IF v_deleted <> '{}' THEN
        PERFORM pulse_internal.note_met(v_deleted);
    END IF;
    IF v_failed || v_deleted <> '{}' THEN
        PERFORM pulse_internal.ended_badly(
            v_failed || v_deleted, settle_doubts.max_notes, settle_doubts.until
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.settle_doubts(
    integer, bigint, bigint [], bigint [], timestamptz
) IS
'Settle up to max_notes doubts from a seq on, except the skipped ones. decided are doubts that were unsure: each transaction that could have been ending their jobs is over. Returns how many jobs were unblocked, how many doubts were read, the last of them, and those that are unsure.';

CREATE FUNCTION pulse_internal.note_met(jobs bigint [])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_dependents bigint [] := array(
        SELECT d.job
        FROM pulse_internal.dependency AS d
        WHERE d.after = ANY (note_met.jobs)
            AND NOT d.met
            AND (SELECT b.after_failed FROM pulse_internal.body AS b WHERE b.job = d.job) = 'run'
    );
    -- Dependents that have ended without a run may be retried, and then wait again. The lock keeps
    -- retention, which skips locked rows, from deleting them until this transaction ends. A
    -- dependent that has run never waits again.
    v_unrun_dependents bigint [] := array(
        SELECT f.job
        FROM pulse_internal.finished AS f
        WHERE f.job = ANY (v_dependents)
            AND f.attempts = 0
        FOR KEY SHARE SKIP LOCKED
    );
BEGIN
    UPDATE pulse_internal.dependency AS d
    SET met = true
    WHERE d.after = ANY (note_met.jobs)
        -- IN a subquery becomes a hash table: there may be 100,000
        -- (docs/decisions/pinned-plans.md).
        AND (d.job IN (SELECT c.job FROM unnest(v_dependents) AS c (job))) IS TRUE
        AND (
            d.job IN (SELECT r.job FROM unnest(v_unrun_dependents) AS r (job))
            OR (SELECT true FROM pulse_internal.finished AS f WHERE f.job = d.job) IS NOT TRUE
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_met(bigint []) IS
'Mark these jobs as ended once for the dependents with after_failed = run: any end is enough for those, also if the job is then retried or deleted.';

CREATE FUNCTION pulse_internal.settle_some()
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_mark pulse_internal.note_mark := pulse_internal.newest_note_mark();
BEGIN
    RETURN (
        SELECT s.unblocked
        FROM pulse_internal.settle_doubts(100, v_mark.doubt_from, '{}', v_mark.unsure, NULL) AS s
        -- The scan steps over each unsure doubt: with many of them this is left to tick.
        WHERE cardinality(v_mark.unsure) < 100
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.settle_some() IS
'For a claim that has found no job: settle up to a hundred doubts. Returns how many jobs were unblocked.';

CREATE FUNCTION pulse_internal.take_portions(
    need integer,
    max_notes integer,
    from_seq bigint,
    upto bigint DEFAULT pg_sequence_last_value('pulse_internal.note_seq'),
    OUT released integer,
    OUT taken integer
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_nestloop = on
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_from bigint := take_portions.from_seq;
    v_portion pulse_internal.wake;
    v_result record;
    v_portions_in_vain integer := 0;
BEGIN
    released := 0;
    taken := 0;

    -- Not beyond upto: portions above it were written meanwhile, some of them below.
    FOR v_round IN 1..take_portions.max_notes LOOP
        DELETE FROM pulse_internal.wake AS w
        WHERE w.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse_internal.wake AS o
                WHERE o.seq >= v_from
                    AND o.seq <= take_portions.upto
                ORDER BY o.seq
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            ))
        RETURNING w.* INTO v_portion;
        EXIT WHEN NOT FOUND;

        v_from := v_portion.seq + 1;
        taken := taken + 1;
        -- The job may have been retried since: then it counts as ended badly, and dependency.met
        -- tells for which dependents that end is enough.
        v_result := pulse_internal.unblock_dependents(
            ARRAY[v_portion.job],
            coalesce(
                (
                    SELECT f.state = 'completed'
                    FROM pulse_internal.finished AS f
                    WHERE f.job = v_portion.job
                ),
                false
            ),
            v_portion.from_seq, v_portion.to_seq, 1000
        );
        released := released + v_result.unblocked;

        IF v_result.left_over THEN
            INSERT INTO pulse_internal.wake (job, from_seq, to_seq)
            VALUES (v_portion.job, v_portion.from_seq, v_portion.to_seq);
        END IF;
        -- What is left over is locked by another session: note it anew, behind all others. After
        -- three portions without a job to unblock, more would only be noted anew as well.
        IF v_result.unblocked = 0 THEN
            v_portions_in_vain := v_portions_in_vain + 1;
        END IF;
        EXIT WHEN released >= take_portions.need OR v_portions_in_vain = 3;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_portions(integer, integer, bigint, bigint) IS
'Unblock jobs of up to max_notes portions, from a seq on, until need jobs are unblocked. Returns how many jobs were unblocked and how many portions were taken.';

CREATE FUNCTION pulse_internal.newest_note_mark()
RETURNS pulse_internal.note_mark
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark pulse_internal.note_mark;
BEGIN
    SELECT m.* INTO v_mark
    FROM pulse_internal.note_mark AS m
    ORDER BY m.version DESC
    LIMIT 1;

    IF NOT FOUND THEN
        v_mark.wake_from := 0;
        v_mark.doubt_from := 0;
        v_mark.unsure := '{}';
    END IF;
    RETURN v_mark;
END;
$$;

COMMENT ON FUNCTION pulse_internal.newest_note_mark() IS
'The seq from which on there can be rows of doubt and of wake, and the doubts that are unsure.';
