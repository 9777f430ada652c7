-- What became of blocked jobs later: portions of watchers that were held or too many (wake) and
-- watches that an end may have missed (doubt), each looked at again in another transaction.
-- Claims take portions, tick takes the rest; flows/release.sql has the essay.

-- Reads first, then locks what can be settled. Sure: the row that says where the job stands
-- has no deleter, so its end, when it comes, sees who watches. An idle claim, which has no
-- until, leaves bad ends to tick, and what tick was not sure of.
CREATE FUNCTION pulse_internal.settle(
    max_notes integer,
    from_seq bigint,
    decided bigint [],
    skipped bigint [],
    until timestamptz,
    OUT released integer,
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
    v_sure bigint [];
    v_well bigint [];
    v_bad bigint [];
    v_held bigint [];
    v_completed bigint [];
    v_failed bigint [];
    v_gone bigint [];
    v_leaving bigint [];
BEGIN
    released := 0;

    SELECT
        count(*),
        max(x.seq),
        coalesce(array_agg(x.seq) FILTER (WHERE x.state IS NULL AND x.is_sure), '{}'),
        coalesce(array_agg(x.seq) FILTER (WHERE x.state = 'completed'), '{}'),
        coalesce(
            array_agg(x.seq) FILTER (
                WHERE x.state <> 'completed' OR x.state IS NULL AND x.is_sure IS NULL
            ),
            '{}'
        ),
        coalesce(
            array_agg(x.seq) FILTER (WHERE x.state IS NULL AND NOT x.is_sure), '{}'
        )
    INTO seen, last, v_sure, v_well, v_bad, unsure
    FROM (
        SELECT
            n.seq,
            (SELECT f.state FROM pulse_internal.finished AS f WHERE f.job = n.job) AS state,
            -- NULL where it stands nowhere: it was pruned.
            p.is_sure OR (p.is_sure IS NOT NULL AND n.seq = ANY (settle.decided)) AS is_sure
        FROM (
            SELECT o.seq, o.job
            FROM pulse_internal.doubt AS o
            WHERE o.seq >= settle.from_seq
                -- Not our own: who watches is seen by nobody yet.
                AND o.by IS DISTINCT FROM pg_current_xact_id_if_assigned()
                AND o.seq <> ALL (settle.skipped)
            ORDER BY o.seq
            LIMIT settle.max_notes
        ) AS n
        CROSS JOIN LATERAL (
            SELECT
                coalesce(
                    (SELECT l.xmax = 0 FROM pulse_internal.lease AS l WHERE l.job = n.job),
                    (SELECT r.xmax = 0 FROM pulse_internal.ready AS r WHERE r.job = n.job),
                    (SELECT b.xmax = 0 FROM pulse_internal.blocked AS b WHERE b.job = n.job),
                    (SELECT w.xmax = 0 FROM pulse_internal.waiting AS w WHERE w.job = n.job),
                    (SELECT a.xmax = 0 FROM pulse_internal.approval AS a WHERE a.job = n.job)
                ) AS is_sure
            OFFSET 0
        ) AS p
        OFFSET 0
    ) AS x;

    IF settle.until IS NULL THEN
        v_bad := '{}';
    END IF;

    v_held := array(
        SELECT n.seq
        FROM pulse_internal.doubt AS n
        WHERE n.seq = ANY (v_sure || v_well || v_bad)
        ORDER BY n.seq
        FOR UPDATE SKIP LOCKED
    );
    IF v_held = '{}' THEN
        RETURN;
    END IF;

    v_completed := array(
        SELECT DISTINCT n.job
        FROM pulse_internal.doubt AS n
        WHERE n.seq = ANY (v_held) AND n.seq = ANY (v_well)
    );

    IF v_bad <> '{}' THEN
        -- Nobody retries them until we are through.
        v_failed := array(
            SELECT f.job
            FROM pulse_internal.finished AS f
            WHERE f.job = ANY (array(
                    SELECT n.job
                    FROM pulse_internal.doubt AS n
                    WHERE n.seq = ANY (v_held) AND n.seq = ANY (v_bad)
                ))
                AND f.state <> 'completed'
            FOR KEY SHARE SKIP LOCKED
        );
        v_gone := array(
            SELECT DISTINCT n.job
            FROM pulse_internal.doubt AS n
            WHERE n.seq = ANY (v_held)
                AND n.seq = ANY (v_bad)
                -- Not EXISTS: a join may read the whole table (docs/decisions/pinned-plans.md).
                AND (SELECT true FROM pulse_internal.body AS b WHERE b.job = n.job) IS NULL
        );
        -- Those that moved meanwhile are looked at again.
        v_held := array(
            SELECT n.seq
            FROM pulse_internal.doubt AS n
            WHERE n.seq = ANY (v_held)
                AND (n.seq <> ALL (v_bad) OR n.job = ANY (v_failed || v_gone))
        );
    END IF;

    DELETE FROM pulse_internal.doubt AS n
    WHERE n.seq = ANY (v_held);

    -- With a deleter: it is being removed, and whoever judges later finds no row of it. An
    -- xmax that is none, of a rolled back one or of a lock, does no harm: it has completed.
    v_leaving := array(
        SELECT f.job
        FROM pulse_internal.finished AS f
        WHERE f.job = ANY (v_completed)
            AND f.xmax <> 0
    );
    IF v_leaving <> '{}' THEN
        UPDATE pulse_internal.dependency AS d
        SET met = true
        WHERE d.after = ANY (v_leaving)
            AND NOT d.met;
    END IF;

    IF v_completed <> '{}' THEN
        released := pulse_internal.wake(v_completed, true);
    END IF;
    IF v_gone <> '{}' THEN
        PERFORM pulse_internal.note_met(v_gone);
    END IF;
    IF v_failed || v_gone <> '{}' THEN
        PERFORM pulse_internal.ended_badly(v_failed || v_gone, settle.max_notes, settle.until);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.settle(
    integer, bigint, bigint [], bigint [], timestamptz
) IS
'Look at doubts: release who waits for a job that has ended, and drop the doubt about a job whose end will see who waits. decided are doubts that were unsure, and are not since every transaction that might have ended their job is over.';

-- What has ended once is enough for who takes any end, also when it is retried or pruned.
-- One that has run needs no gate any more. Of others that have ended their row is shared, so
-- that retention, which waits for nobody, leaves them until we are through.
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
    v_children bigint [] := array(
        SELECT d.job
        FROM pulse_internal.dependency AS d
        WHERE d.after = ANY (note_met.jobs)
            AND NOT d.met
            AND (SELECT b.after_failed FROM pulse_internal.body AS b WHERE b.job = d.job) = 'run'
    );
    v_kept bigint [] := array(
        SELECT f.job
        FROM pulse_internal.finished AS f
        WHERE f.job = ANY (v_children)
            AND f.attempts = 0
        FOR KEY SHARE SKIP LOCKED
    );
BEGIN
    UPDATE pulse_internal.dependency AS d
    SET met = true
    WHERE d.after = ANY (note_met.jobs)
        -- By hash: there may be 100,000 (docs/decisions/pinned-plans.md).
        AND (d.job IN (SELECT c.job FROM unnest(v_children) AS c (job))) IS TRUE
        AND (
            d.job IN (SELECT k.job FROM unnest(v_kept) AS k (job))
            OR (SELECT true FROM pulse_internal.finished AS f WHERE f.job = d.job) IS NOT TRUE
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_met(bigint []) IS
'Remember, for blocked jobs with after_failed run, that these jobs have ended once.';

-- A claim that found nothing to do.
CREATE FUNCTION pulse_internal.settle_some()
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_mark pulse_internal.note_mark := pulse_internal.newest_note_mark();
BEGIN
    RETURN (
        SELECT s.released
        FROM pulse_internal.settle(100, v_mark.doubt_from, '{}', v_mark.unsure, NULL) AS s
        -- Each of them is stepped over.
        WHERE cardinality(v_mark.unsure) < 100
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.settle_some() IS
'Look at up to a hundred doubts; returns how many jobs were released.';

-- The portions of watchers that a claim or tick takes (flows/settle.sql).

-- For claims and tick, which have seen that there is a note: who finds none writes nothing and
-- holds no lock on the table.
--
-- Notes above upto were written meanwhile, some by this: what another session holds is noted
-- anew, behind all others.
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
    v_note pulse_internal.wake;
    v_looked record;
    v_vain integer := 0;
BEGIN
    released := 0;
    taken := 0;

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
        RETURNING w.* INTO v_note;
        EXIT WHEN NOT FOUND;

        v_from := v_note.seq + 1;
        taken := taken + 1;
        -- It may have been retried since: then what ended once is in dependency.met.
        v_looked := pulse_internal.look(
            ARRAY[v_note.job],
            coalesce(
                (
                    SELECT f.state = 'completed'
                    FROM pulse_internal.finished AS f
                    WHERE f.job = v_note.job
                ),
                false
            ),
            v_note.from_seq, v_note.to_seq, 1000
        );
        released := released + v_looked.released;

        IF v_looked.left_over THEN
            INSERT INTO pulse_internal.wake (job, from_seq, to_seq)
            VALUES (v_note.job, v_note.from_seq, v_note.to_seq);
        END IF;
        -- Where one after the other is held, each look only writes its note anew.
        IF v_looked.released = 0 THEN
            v_vain := v_vain + 1;
        END IF;
        EXIT WHEN released >= take_portions.need OR v_vain = 3;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_portions(integer, integer, bigint, bigint) IS
'Take portions that were left for later, from a number on, and look at them; says how many, and how many jobs were released.';

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
'From which numbers on there can be live doubts and wakes.';
