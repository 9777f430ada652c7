-- What the steps of tick remember from one call to the next, and how much time a call has.
--
-- Both are for maintenance/tick.sql and its steps. The table upkeep_run has rows by name: of a
-- part of the maintenance (when it was last done), of a step (where it goes on), cut:STEP (it ran
-- out of time), error:STEP, left (before which step a tick ended early) and took (seconds of each
-- part). A new row is appended and the one before it deleted; the newest row of a name counts,
-- and a leftover is deleted by tick_caches. A row that another session has locked is left to it.
--
-- Locks: start_upkeep_run tries an advisory lock for each part, and never waits.

CREATE FUNCTION pulse_internal.start_upkeep_run(step text, every interval)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last pulse_internal.upkeep_run;
BEGIN
    IF NOT pg_try_advisory_xact_lock(
        'pulse_internal.upkeep_run'::regclass::oid::integer, hashtext(start_upkeep_run.step)
    ) THEN
        RETURN false;
    END IF;

    -- A later statement than the lock: it sees a run that was just committed. A run in the future
    -- means that the clock was set back.
    v_last := pulse_internal.newest_upkeep_run(start_upkeep_run.step);
    IF v_last.taken_at > clock_timestamp() - start_upkeep_run.every
        AND v_last.taken_at <= clock_timestamp()
    THEN
        RETURN false;
    END IF;

    PERFORM pulse_internal.write_upkeep_run(v_last, start_upkeep_run.step, v_last.state);
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.start_upkeep_run(text, interval) IS
'Whether this session is to do a part of the maintenance now; then other sessions leave it alone until this transaction ends, and for the interval after that.';

CREATE FUNCTION pulse_internal.newest_upkeep_run(step text)
RETURNS pulse_internal.upkeep_run
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_run pulse_internal.upkeep_run;
BEGIN
    SELECT t.* INTO v_run
    FROM pulse_internal.upkeep_run AS t
    WHERE t.step = newest_upkeep_run.step
    ORDER BY t.version DESC
    LIMIT 1;

    RETURN v_run;
END;
$$;

COMMENT ON FUNCTION pulse_internal.newest_upkeep_run(text) IS
'The newest row of a name in upkeep_run; NULL if there is none.';

CREATE FUNCTION pulse_internal.write_upkeep_run(
    previous pulse_internal.upkeep_run, step text, state jsonb
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    INSERT INTO pulse_internal.upkeep_run (step, taken_at, state)
    VALUES (write_upkeep_run.step, clock_timestamp(), write_upkeep_run.state);

    DELETE FROM pulse_internal.upkeep_run AS t
    WHERE t.step = (write_upkeep_run.previous).step
        AND t.version = (
            SELECT o.version
            FROM pulse_internal.upkeep_run AS o
            WHERE o.step = (write_upkeep_run.previous).step
                AND o.version = (write_upkeep_run.previous).version
            FOR UPDATE SKIP LOCKED
        );
END;
$$;

COMMENT ON FUNCTION pulse_internal.write_upkeep_run(pulse_internal.upkeep_run, text, jsonb) IS
'Write the newest row of a name in upkeep_run, in place of the previous one.';

CREATE FUNCTION pulse_internal.forget_upkeep_run(step text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM pulse_internal.upkeep_run AS t
    WHERE t.ctid = ANY (array(
            SELECT o.ctid
            FROM pulse_internal.upkeep_run AS o
            WHERE o.step = forget_upkeep_run.step
            FOR UPDATE SKIP LOCKED
        ));
END;
$$;

COMMENT ON FUNCTION pulse_internal.forget_upkeep_run(text) IS
'Delete all rows of a name in upkeep_run that no other session has locked.';

CREATE FUNCTION pulse_internal.note_took(took jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('took');
BEGIN
    PERFORM pulse_internal.write_upkeep_run(v_old, 'took', coalesce(v_old.state, '{}') || note_took.took);
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_took(jsonb) IS
'Note how many seconds the parts of a tick took, beside those of the parts that it did not do.';

CREATE FUNCTION pulse_internal.upkeep_budget()
RETURNS interval
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    -- A tick that is cancelled by a timeout has done nothing at all. So it takes a third of the
    -- time that is left: the first piece of a step is done even where its time is over.
    SELECT least(interval '2 seconds', greatest(interval '0', t.is_left) / 3)
    FROM (
        SELECT
            coalesce(
                least(
                    statement_timestamp()
                    + nullif(current_setting('statement_timeout')::interval, interval '0'),
                    transaction_timestamp()
                    + nullif(current_setting('transaction_timeout', true)::interval, interval '0')
                ) - clock_timestamp(),
                interval '1 hour'
            ) AS is_left
    ) AS t
$$;

COMMENT ON FUNCTION pulse_internal.upkeep_budget() IS
'How long a call of tick may take: two seconds, or a third of what statement_timeout and transaction_timeout leave.';

CREATE FUNCTION pulse_internal.short_timeouts()
RETURNS text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    -- Settings of a role or of all roles, in this database or in all, and of the server. A value
    -- without a unit is in milliseconds.
    SELECT
        string_agg(
            format('%s has %s = %s', g.set_for, g.name, g.value), ', ' ORDER BY g.set_for, g.name
        )
    FROM (
        SELECT
            coalesce('role ' || r.rolname, 'every role') AS set_for,
            split_part(c.setting, '=', 1) AS name,
            split_part(c.setting, '=', 2) AS value
        FROM pg_db_role_setting AS s
        CROSS JOIN LATERAL unnest(s.setconfig) AS c (setting)
        LEFT JOIN pg_roles AS r ON r.oid = s.setrole
        WHERE s.setdatabase IN (
                0, (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
            )
            AND (s.setrole = 0 OR has_function_privilege(s.setrole, 'pulse.tick()', 'EXECUTE'))
        UNION ALL
        SELECT 'the server', s.name, s.setting
        FROM pg_settings AS s
        WHERE s.source IN ('configuration file', 'command line')
    ) AS g
    WHERE g.name IN ('statement_timeout', 'transaction_timeout')
        AND g.value ~ '^[0-9.]+ *(us|ms|s|min|h|d)?$'
        AND CASE WHEN g.value ~ '[a-z]' THEN g.value ELSE g.value || 'ms' END::interval
        BETWEEN '1 microsecond' AND '5.9 seconds'
$$;

COMMENT ON FUNCTION pulse_internal.short_timeouts() IS
'The roles that may call tick and have less than six seconds for it, as a text; NULL if there are none. Six seconds are three times the full budget.';

CREATE FUNCTION pulse_internal.upkeep_piece(budget interval DEFAULT pulse_internal.upkeep_budget())
RETURNS integer
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    -- The first piece of a step is done even where its time is over. So it is smaller where there
    -- is little time: a tick that is cancelled in that piece would be cancelled there every time.
    SELECT greatest(20, least(1000, 1000 * extract(epoch FROM upkeep_piece.budget) / 0.3))::integer
$$;

COMMENT ON FUNCTION pulse_internal.upkeep_piece(interval) IS
'How many rows a step of tick takes at a time: 1000, and fewer with a budget below 0.3 seconds.';

CREATE FUNCTION pulse_internal.time_is_over(until timestamptz)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    -- A time that is further off than any budget was set before the clock was set back.
    SELECT n.now >= time_is_over.until
        OR (time_is_over.until < 'infinity' AND n.now < time_is_over.until - interval '2 seconds')
    FROM (SELECT clock_timestamp() AS now) AS n
$$;

COMMENT ON FUNCTION pulse_internal.time_is_over(timestamptz) IS
'Whether a step of tick that has until then has to stop, also because the clock was set back.';

CREATE FUNCTION pulse_internal.note_cut(step text, part text, at timestamptz, is_cut boolean)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_name text := 'cut:' || note_cut.step;
    v_old pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run(v_name);
BEGIN
    IF note_cut.is_cut THEN
        PERFORM pulse_internal.write_upkeep_run(
            v_old, v_name,
            jsonb_build_object(
                'part', note_cut.part,
                'since', coalesce(pulse_internal.behind_since(note_cut.step), note_cut.at)
            )
        );
    ELSIF v_old.version IS NOT NULL THEN
        PERFORM pulse_internal.forget_upkeep_run(v_name);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.note_cut(text, text, timestamptz, boolean) IS
'Note that a step of tick ran out of time, or that it no longer does. The note has the time since when it does so, tick after tick.';

CREATE FUNCTION pulse_internal.cut_steps()
RETURNS TABLE (step text, part text, since timestamptz, noted_at timestamptz)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
BEGIN
    RETURN QUERY
    SELECT
        substr(t.step, 5), t.state ->> 'part', (t.state ->> 'since')::timestamptz, t.taken_at
    FROM pulse_internal.upkeep_run AS t
    WHERE t.step >= 'cut:'
        AND t.step < 'cut;'
    ORDER BY t.step, t.version DESC;
END;
$$;

COMMENT ON FUNCTION pulse_internal.cut_steps() IS
'The steps of tick that ran out of time: their part of the maintenance, since when and when last.';

CREATE FUNCTION pulse_internal.behind_since(step text)
RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_cut pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('cut:' || behind_since.step);
BEGIN
    IF v_cut.taken_at > clock_timestamp() - interval '1 minute' THEN
        RETURN (v_cut.state ->> 'since')::timestamptz;
    END IF;
    RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.behind_since(text) IS
'Since when this step of tick runs out of time, tick after tick; NULL if it does not. A minute without a note begins anew.';
