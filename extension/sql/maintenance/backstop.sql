-- tick_backstop: once an hour, look for jobs that no scan would find.
--
-- A job below its low-water mark, or a blocked job that no end has unblocked, would be a bug. So
-- tick looks for them: health() reports what it finds, and the marks are deleted, so that the job
-- still runs. The look reads the dead rows below the marks, in one statement. If an old snapshot
-- keeps very many of them, it waits for another hour; a caller with little time leaves it to
-- others.
--
-- It deletes from mark, due_mark and upkeep_run, SKIP LOCKED, and writes what tick_group_backstop
-- and backstop_flows write.

CREATE FUNCTION pulse_internal.tick_backstop()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last jsonb := coalesce((pulse_internal.newest_upkeep_run('backstop')).state, '{}');
    v_found bigint;
    v_flows record;
BEGIN
    -- The last call had no time for all blocked jobs: go on there.
    IF v_last ? 'from' THEN
        v_flows := pulse_internal.backstop_flows((v_last ->> 'from')::bigint);
        PERFORM pulse_internal.note_backstop(
            (v_last ->> 'found')::bigint,
            (v_last ->> 'unreleased')::bigint + v_flows.missed, v_flows.next
        );
        RETURN v_flows.missed;
    END IF;

    IF NOT pulse_internal.backstop_fits(interval '2 seconds') THEN
        RETURN 0;
    END IF;

    SELECT count(*) INTO v_found
    FROM pulse_internal.below_marks(1000) AS c;

    -- A row that another session is replacing is left to it: the new row would not be seen here
    -- even after waiting for it.
    IF v_found > 0 THEN
        DELETE FROM pulse_internal.mark AS m
        WHERE m.ctid = ANY (
            array(SELECT o.ctid FROM pulse_internal.mark AS o FOR UPDATE SKIP LOCKED)
        );
        DELETE FROM pulse_internal.due_mark AS m
        WHERE m.ctid = ANY (
            array(SELECT o.ctid FROM pulse_internal.due_mark AS o FOR UPDATE SKIP LOCKED)
        );
        DELETE FROM pulse_internal.upkeep_run AS t
        WHERE t.ctid = ANY (array(
                SELECT o.ctid FROM pulse_internal.upkeep_run AS o
                WHERE o.step = 'watch' FOR UPDATE SKIP LOCKED
            ));
    END IF;

    v_found := v_found + pulse_internal.tick_group_backstop();
    v_flows := pulse_internal.backstop_flows();
    PERFORM pulse_internal.note_backstop(v_found, v_flows.missed, v_flows.next);
    RETURN v_found + v_flows.missed;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick_backstop() IS
'The step of tick: look for jobs that a mark has passed, and for blocked jobs that were missed, and bring them back. Returns how many.';

CREATE FUNCTION pulse_internal.backstop_fits(budget interval)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    -- 250,000 dead rows take about 0.1 seconds: a tenth of the budget of one second, and so a
    -- thirtieth of the time that the caller has.
    SELECT pg_stat_get_dead_tuples('pulse_internal.ready'::regclass)
        + pg_stat_get_dead_tuples('pulse_internal.waiting'::regclass)
        + pg_stat_get_dead_tuples('pulse_internal.lease'::regclass)
        + pg_stat_get_dead_tuples('pulse_internal.group_notice'::regclass)
        + pg_stat_get_dead_tuples('pulse_internal.group_state'::regclass)
        <= 250000 * extract(epoch FROM backstop_fits.budget)
$$;

COMMENT ON FUNCTION pulse_internal.backstop_fits(interval) IS
'Whether a call of tick with this budget has the time to read the dead rows below the marks.';

CREATE FUNCTION pulse_internal.note_backstop(passed bigint, unreleased bigint, next bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.write_upkeep_run(
        pulse_internal.newest_upkeep_run('backstop'), 'backstop',
        jsonb_strip_nulls(
            jsonb_build_object(
                'found', note_backstop.passed, 'unreleased', note_backstop.unreleased,
                'from', note_backstop.next
            )
        )
    );
    PERFORM pulse_internal.note_cut(
        'backstop of flows', 'backstop', clock_timestamp(), note_backstop.next IS NOT NULL
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_backstop(bigint, bigint, bigint) IS
'Note what the backstop has found, and where it has to go on.';
