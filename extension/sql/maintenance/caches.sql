-- tick_caches: delete outdated rows of the caches.
--
-- horizon, mark, due_mark, roster, note_mark and upkeep_run are appended: the newest row of a name
-- counts. A session that writes a newer row deletes the one that it has read. If two sessions read
-- the same row, one of their new rows is left over; this function deletes it. Rows that another
-- session has locked are left to it.

CREATE FUNCTION pulse_internal.tick_caches()
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
        FROM pulse_internal.horizon AS h
        UNION ALL
        SELECT m.version, lead(m.version) OVER (PARTITION BY m.lane, m.kind ORDER BY m.version)
        FROM pulse_internal.mark AS m
        UNION ALL
        SELECT d.version, lead(d.version) OVER (PARTITION BY d.lane ORDER BY d.version)
        FROM pulse_internal.due_mark AS d
        UNION ALL
        SELECT r.version, lead(r.version) OVER (PARTITION BY r.lane ORDER BY r.version)
        FROM pulse_internal.roster AS r
        UNION ALL
        SELECT n.version, lead(n.version) OVER (ORDER BY n.version)
        FROM pulse_internal.note_mark AS n
        UNION ALL
        SELECT t.version, lead(t.version) OVER (PARTITION BY t.step ORDER BY t.version)
        FROM pulse_internal.upkeep_run AS t
        UNION ALL
        -- Notes of prune_walk.sql about a lane and final state that are gone.
        SELECT k.version, k.version
        FROM pulse_internal.upkeep_run AS k
        WHERE k.step >= 'kept:'
            AND k.step < 'kept;'
            AND k.taken_at < clock_timestamp() - interval '2 hours'
    ) AS o
    WHERE o.newer IS NOT NULL;

    IF v_versions IS NULL THEN
        RETURN 0;
    END IF;

    -- All versions come from one sequence, so a version names one row of one of the tables.
    DELETE FROM pulse_internal.horizon AS h
    WHERE h.ctid = ANY (array(
            SELECT o.ctid FROM pulse_internal.horizon AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse_internal.mark AS m
    WHERE m.ctid = ANY (array(
            SELECT o.ctid FROM pulse_internal.mark AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse_internal.due_mark AS d
    WHERE d.ctid = ANY (array(
            SELECT o.ctid FROM pulse_internal.due_mark AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse_internal.roster AS r
    WHERE r.ctid = ANY (array(
            SELECT o.ctid FROM pulse_internal.roster AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse_internal.note_mark AS n
    WHERE n.ctid = ANY (array(
            SELECT o.ctid FROM pulse_internal.note_mark AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    DELETE FROM pulse_internal.upkeep_run AS t
    WHERE t.ctid = ANY (array(
            SELECT o.ctid FROM pulse_internal.upkeep_run AS o
            WHERE o.version = ANY (v_versions) FOR UPDATE SKIP LOCKED
        ));
    RETURN cardinality(v_versions);
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_caches() IS
'The step of tick: delete rows of the caches that a newer row has replaced. Returns how many.';
