-- What tick does once an hour, or less: a look below the marks, and caches written anew.

-- The backstop: a live row below its mark would be a bug, so it is looked for, reported
-- by health(), and the marks are forgotten so that the job still runs. It reads what lies
-- dead below the marks, in one statement: where an old snapshot keeps very much of that,
-- it waits for another hour.
CREATE FUNCTION pulse._tick_backstop()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last jsonb := coalesce((pulse._newest_upkeep_run('backstop')).state, '{}');
    v_found bigint;
    v_flows record;
BEGIN
    -- The flows were more than one turn could look at.
    IF v_last ? 'from' THEN
        v_flows := pulse._backstop_flows((v_last ->> 'from')::bigint);
        PERFORM pulse._note_backstop(
            (v_last ->> 'found')::bigint,
            (v_last ->> 'unreleased')::bigint + v_flows.missed, v_flows.next
        );
        RETURN v_flows.missed;
    END IF;

    IF pg_stat_get_dead_tuples('pulse.ready'::regclass)
        + pg_stat_get_dead_tuples('pulse.waiting'::regclass)
        + pg_stat_get_dead_tuples('pulse.lease'::regclass)
        + pg_stat_get_dead_tuples('pulse.group_ready'::regclass)
        + pg_stat_get_dead_tuples('pulse.group_notice'::regclass)
        + pg_stat_get_dead_tuples('pulse.group_state'::regclass) > 500000
    THEN
        RETURN 0;
    END IF;

    SELECT count(*) INTO v_found
    FROM pulse._below_marks(1000) AS c;

    -- Rows that another session is just replacing are left to it: to wait would be no better,
    -- as what they write is not seen here either.
    IF v_found > 0 THEN
        DELETE FROM pulse.mark AS m
        WHERE m.ctid = ANY (array(SELECT o.ctid FROM pulse.mark AS o FOR UPDATE SKIP LOCKED));
        DELETE FROM pulse.due_mark AS m
        WHERE m.ctid = ANY (array(SELECT o.ctid FROM pulse.due_mark AS o FOR UPDATE SKIP LOCKED));
        DELETE FROM pulse.upkeep_run AS t
        WHERE t.ctid = ANY (array(
                SELECT o.ctid FROM pulse.upkeep_run AS o
                WHERE o.step = 'watch' FOR UPDATE SKIP LOCKED
            ));
    END IF;

    v_found := v_found + pulse._tick_group_backstop();
    v_flows := pulse._backstop_flows();
    PERFORM pulse._note_backstop(v_found, v_flows.missed, v_flows.next);
    RETURN v_found + v_flows.missed;
END;
$$;

COMMENT ON FUNCTION pulse._tick_backstop() IS
'Look for jobs that a mark has passed, and bring them back.';

CREATE FUNCTION pulse._note_backstop(passed bigint, unreleased bigint, next bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._write_upkeep_run(
        pulse._newest_upkeep_run('backstop'), 'backstop',
        jsonb_strip_nulls(
            jsonb_build_object(
                'found', _note_backstop.passed, 'unreleased', _note_backstop.unreleased,
                'from', _note_backstop.next
            )
        )
    );
    PERFORM pulse._note_cut(
        'backstop of flows', 'backstop', clock_timestamp(), _note_backstop.next IS NOT NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse._note_backstop(bigint, bigint, bigint) IS
'Note what the backstop found, and where it has to go on.';

-- Whoever writes a newer row of a cache deletes the one it read. Two at once read the
-- same one, and one of theirs is left over.
CREATE FUNCTION pulse._tick_caches()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_versions bigint [];
BEGIN
    SELECT array_agg(o.version) INTO v_versions
    FROM (
        SELECT h.version, lead(h.version) OVER (ORDER BY h.version) AS newer
        FROM pulse.horizon AS h
        UNION ALL
        SELECT m.version, lead(m.version) OVER (PARTITION BY m.lane, m.kind ORDER BY m.version)
        FROM pulse.mark AS m
        UNION ALL
        SELECT d.version, lead(d.version) OVER (PARTITION BY d.lane ORDER BY d.version)
        FROM pulse.due_mark AS d
        UNION ALL
        SELECT r.version, lead(r.version) OVER (PARTITION BY r.lane ORDER BY r.version)
        FROM pulse.roster AS r
        UNION ALL
        SELECT n.version, lead(n.version) OVER (ORDER BY n.version)
        FROM pulse.note_mark AS n
        UNION ALL
        SELECT t.version, lead(t.version) OVER (PARTITION BY t.step ORDER BY t.version)
        FROM pulse.upkeep_run AS t
        UNION ALL
        -- Of a lane and final state that are gone (5b_tick_prune.sql).
        SELECT k.version, k.version
        FROM pulse.upkeep_run AS k
        WHERE k.step >= 'kept:'
            AND k.step < 'kept;'
            AND k.taken_at < clock_timestamp() - interval '2 hours'
    ) AS o
    WHERE o.newer IS NOT NULL;

    IF v_versions IS NULL THEN
        RETURN 0;
    END IF;

    -- Versions are drawn from one sequence, so they name a row whatever its table. Rows
    -- that another session is just deleting are left to it.
    DELETE FROM pulse.horizon AS h
    WHERE h.ctid = ANY (array(
            SELECT o.ctid FROM pulse.horizon AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse.mark AS m
    WHERE m.ctid = ANY (array(
            SELECT o.ctid FROM pulse.mark AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse.due_mark AS d
    WHERE d.ctid = ANY (array(
            SELECT o.ctid FROM pulse.due_mark AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse.roster AS r
    WHERE r.ctid = ANY (array(
            SELECT o.ctid FROM pulse.roster AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse.note_mark AS n
    WHERE n.ctid = ANY (array(
            SELECT o.ctid FROM pulse.note_mark AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse.upkeep_run AS t
    WHERE t.ctid = ANY (array(
            SELECT o.ctid FROM pulse.upkeep_run AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    RETURN cardinality(v_versions);
END;
$$;

COMMENT ON FUNCTION pulse._tick_caches() IS
'Remove rows of the caches that a newer one has taken the place of.';
