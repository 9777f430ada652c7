-- When tick last did which part of the upkeep, and where it stopped: appended to
-- upkeep_run and read newest first.

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

    -- A later statement than the lock, so that it sees the run just committed. A run
    -- in the future means that the clock stepped back.
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
'Whether this session is the one to do a part of the upkeep now.';

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
'When a part of the upkeep was last done.';

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
'Note that a part of the upkeep is being done, in place of the previous note.';

-- What another session is just removing or replacing is left to that one.
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
'Remove what was noted of a step.';

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
'Note how many seconds each part of tick took.';

-- How much time tick has.

-- Whoever calls tick may have a statement_timeout, and a tick that is cancelled has done
-- nothing at all: so it ends long before.
CREATE FUNCTION pulse_internal.upkeep_budget()
RETURNS interval
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
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
'How long a call of tick may go on.';

-- Of roles that may call tick, as settings of theirs, of the database or of the server: a
-- number without a unit is in milliseconds.
CREATE FUNCTION pulse_internal.short_timeouts()
RETURNS text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(format('%s has %s = %s', g.who, g.name, g.value), ', ' ORDER BY g.who, g.name)
    FROM (
        SELECT
            coalesce('role ' || r.rolname, 'every role') AS who,
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
'In words: who may call tick and has less than six seconds for it; NULL when nobody.';

-- One piece is done in any case, so it is smaller where there is little time: a tick that is
-- cancelled in it would be so every time.
CREATE FUNCTION pulse_internal.upkeep_piece(budget interval DEFAULT pulse_internal.upkeep_budget())
RETURNS integer
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT greatest(20, least(1000, 1000 * extract(epoch FROM upkeep_piece.budget) / 0.3))::integer
$$;

COMMENT ON FUNCTION pulse_internal.upkeep_piece(interval) IS
'How many rows a step of tick takes at a time.';

-- A time that is further off than any budget is one of before the clock was set back: what
-- a step does until then nobody would see, and nobody else do.
CREATE FUNCTION pulse_internal.time_is_over(until timestamptz)
RETURNS boolean
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT n.now >= time_is_over.until
        OR (time_is_over.until < 'infinity' AND n.now < time_is_over.until - interval '2 seconds')
    FROM (SELECT clock_timestamp() AS now) AS n
$$;

COMMENT ON FUNCTION pulse_internal.time_is_over(timestamptz) IS
'Whether a step of tick that has until then has to stop, also because the clock stepped back.';

-- Which steps of tick ran out of time, and since when.

-- since is when the step first ran out of time; a gap of a minute begins anew.
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
'Note that a step of tick ran out of time, or that it no longer does.';

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
'The steps of tick that ran out of time, their part of the upkeep, since when and when last.';

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
'Since when this step of tick has not come to its end, tick after tick; NULL when it does.';
