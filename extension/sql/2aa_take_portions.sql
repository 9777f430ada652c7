-- The portions of watchers that a claim or tick takes (2a_settle.sql).

-- For claims and tick, which have seen that there is a note: who finds none writes nothing and
-- holds no lock on the table.
--
-- Notes above upto were written meanwhile, some by this: what another session holds is noted
-- anew, behind all others.
CREATE FUNCTION pulse._take_portions(
    need integer,
    max_notes integer,
    from_seq bigint,
    upto bigint DEFAULT pg_sequence_last_value('pulse.note_seq'),
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
    v_from bigint := _take_portions.from_seq;
    v_note pulse.wake;
    v_looked record;
    v_vain integer := 0;
BEGIN
    released := 0;
    taken := 0;

    FOR v_round IN 1.._take_portions.max_notes LOOP
        DELETE FROM pulse.wake AS w
        WHERE w.ctid = ANY (array(
                SELECT o.ctid
                FROM pulse.wake AS o
                WHERE o.seq >= v_from
                    AND o.seq <= _take_portions.upto
                ORDER BY o.seq
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            ))
        RETURNING w.* INTO v_note;
        EXIT WHEN NOT FOUND;

        v_from := v_note.seq + 1;
        taken := taken + 1;
        IF v_note.job < 0 THEN
            v_looked := pulse._unpark(v_note.job, v_note.from_seq, v_note.to_seq);
        ELSE
            -- It may have been retried since: then what ended once is in dependency.met.
            v_looked := pulse._look(
                ARRAY[v_note.job],
                coalesce(
                    (
                        SELECT f.state = 'completed'
                        FROM pulse.finished AS f
                        WHERE f.job = v_note.job
                    ),
                    false
                ),
                v_note.from_seq, v_note.to_seq, 1000
            );
        END IF;
        released := released + v_looked.released;

        IF v_looked.left_over THEN
            INSERT INTO pulse.wake (job, from_seq, to_seq)
            VALUES (v_note.job, v_note.from_seq, v_note.to_seq);
        END IF;
        -- Where one after the other is held, each look only writes its note anew.
        IF v_looked.released = 0 THEN
            v_vain := v_vain + 1;
        END IF;
        EXIT WHEN released >= _take_portions.need OR v_vain = 3;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._take_portions(integer, integer, bigint, bigint) IS
'Take portions that were left for later, from a number on, and look at them; says how many, and how many jobs were released.';

CREATE FUNCTION pulse._newest_note_mark()
RETURNS pulse.note_mark
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_mark pulse.note_mark;
BEGIN
    SELECT m.* INTO v_mark
    FROM pulse.note_mark AS m
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

COMMENT ON FUNCTION pulse._newest_note_mark() IS
'From which numbers on there can be live doubts and wakes.';
