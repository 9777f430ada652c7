-- What tick does once an hour: a look below the marks.

-- The backstop: a live row below its mark would be a bug, so it is looked for, reported
-- by health(), and the marks are forgotten so that the job still runs. It reads what lies
-- dead below the marks, in one statement: where an old snapshot keeps very much of that,
-- it waits for another hour, and a caller with little time leaves it to others.
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
    -- The flows were more than one run could look at.
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

    -- Rows that another session is just replacing are left to it: to wait would be no better,
    -- as what they write is not seen here either.
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
'Look for jobs that a mark has passed, and bring them back.';

-- A quarter of a million rows in a second of budget take it a tenth of that, and a budget is a
-- third of the time there is.
CREATE FUNCTION pulse_internal.backstop_fits(budget interval)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_stat_get_dead_tuples('pulse_internal.ready'::regclass)
        + pg_stat_get_dead_tuples('pulse_internal.waiting'::regclass)
        + pg_stat_get_dead_tuples('pulse_internal.lease'::regclass)
        + pg_stat_get_dead_tuples('pulse_internal.group_notice'::regclass)
        + pg_stat_get_dead_tuples('pulse_internal.group_state'::regclass)
        <= 250000 * extract(epoch FROM backstop_fits.budget)
$$;

COMMENT ON FUNCTION pulse_internal.backstop_fits(interval) IS
'Whether a call of tick with this budget has the time to look below the marks.';

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
'Note what the backstop found, and where it has to go on.';
