-- All upkeep, in bounded steps. Safe to call from anywhere, any number of times at
-- once: each part takes its turn under an advisory lock and leaves at once when another
-- session has it or had it lately.

CREATE FUNCTION pulse.tick()
RETURNS TABLE (step text, did bigint, error text)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_step record;
    v_turn text := '';
    v_mine boolean;
    v_notify constant text := coalesce(current_setting('pulse.notify', true), '');
BEGIN
    PERFORM pulse._require_read_committed('tick');
    PERFORM pulse._meet_server();
    -- A caller that wants silence for its own jobs does not get it for those of others.
    PERFORM set_config('pulse.notify', 'on', true);

    -- Turns are a little shorter than the interval they are named for, so that a driver
    -- that comes a moment early does not miss its turn.
    FOR v_step IN
        SELECT s.*
        FROM (
            VALUES
            ('due', interval '900 milliseconds', 'promote', '_tick_promote()'),
            ('due', '900 milliseconds', 'schedules', '_fire_schedules()'),
            ('due', '900 milliseconds', 'marks', '_tick_marks()'),
            ('backstop', '1 hour', 'backstop', '_tick_backstop()'),
            ('sample', '59 seconds', 'sample', '_sample_stats()'),
            ('sample', '59 seconds', 'ledger', '_prune_schedule_runs(10000)'),
            ('sample', '59 seconds', 'audit', '_prune_audit(10000)'),
            ('sample', '59 seconds', 'caches', '_tick_caches()'),
            ('sweep', '9 seconds', 'approvals', '_expire_approvals(1000)'),
            ('sweep', '9 seconds', 'prune', 'prune(false, 10000)'),
            -- Last: reports wait for the leases it has locked.
            ('sweep', '9 seconds', 'reap', 'reap(10000)')
        ) AS s (turn, every, step, call)
    LOOP
        IF v_step.turn <> v_turn THEN
            v_turn := v_step.turn;
            v_mine := pulse._start_upkeep_run(v_turn, v_step.every);
        END IF;
        CONTINUE WHEN NOT v_mine;

        tick.step := v_step.step;
        tick.did := NULL;
        tick.error := NULL;
        -- A subtransaction each: one poison row must not stop the rest.
        BEGIN
            EXECUTE 'SELECT pulse.' || v_step.call INTO tick.did;
        EXCEPTION
            WHEN OTHERS THEN
                tick.error := format('%s: %s', SQLSTATE, SQLERRM);
                PERFORM pulse._write_upkeep_run(
                    pulse._newest_upkeep_run('error:' || v_step.step), 'error:' || v_step.step,
                    jsonb_build_object('error', tick.error)
                );
        END;
        RETURN NEXT;
    END LOOP;
    PERFORM set_config('pulse.notify', v_notify, true);
END;
$$;

COMMENT ON FUNCTION pulse.tick() IS
'Do all upkeep that is due, in bounded steps: promotion, schedules and marks at most once a second, reaping, approvals and retention every 10 seconds. A row for each step done, with its error if it had one. Safe from anywhere, any number of times at once. PU001 above READ COMMITTED.';

-- Advances the marks of every line that has some, and of lanes that have none yet.
CREATE FUNCTION pulse._tick_marks()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_horizon pulse.horizon := pulse._see_horizon();
    v_lane text COLLATE "C" := '';
    v_kind text COLLATE "C" := '';
    v_known record;
    v_new text COLLATE "C";
    v_lines bigint := 0;
BEGIN
    LOOP
        SELECT m.lane, m.kind INTO v_known
        FROM pulse.mark AS m
        WHERE (m.lane, m.kind) > (v_lane, v_kind)
        ORDER BY m.lane, m.kind, m.version DESC
        LIMIT 1;

        -- Two statements: an OR would not be a bound of the index.
        IF v_known.lane IS NULL THEN
            SELECT r.lane INTO v_new
            FROM pulse.ready AS r
            WHERE r.lane > v_lane
            ORDER BY r.lane, r.rank, r.seq
            LIMIT 1;
        ELSE
            SELECT r.lane INTO v_new
            FROM pulse.ready AS r
            WHERE r.lane > v_lane
                AND r.lane < v_known.lane
            ORDER BY r.lane, r.rank, r.seq
            LIMIT 1;
        END IF;

        IF v_new IS NOT NULL THEN
            v_lane := v_new;
            v_kind := '';
        ELSIF v_known.lane IS NOT NULL THEN
            v_lane := v_known.lane;
            v_kind := v_known.kind;
        ELSE
            EXIT;
        END IF;

        PERFORM pulse._advance_line(v_lane, v_kind, v_horizon.ready_q);
        v_lines := v_lines + 1;
    END LOOP;

    FOR v_lane IN SELECT pulse._waiting_lanes() LOOP
        PERFORM pulse._advance_due(v_lane, v_horizon.waiting_t);
    END LOOP;
    RETURN v_lines;
END;
$$;

COMMENT ON FUNCTION pulse._tick_marks() IS
'Advance every low-water mark.';

-- The backstop: a live row below its mark would be a bug, so it is looked for, reported
-- by health(), and the marks are forgotten so that the job still runs.
CREATE FUNCTION pulse._tick_backstop()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_found bigint;
BEGIN
    SELECT count(*) INTO v_found
    FROM pulse._below_marks(1000) AS c;

    IF v_found > 0 THEN
        DELETE FROM pulse.mark;
        DELETE FROM pulse.due_mark;
        DELETE FROM pulse.upkeep_run AS t WHERE t.step = 'watch';
    END IF;

    PERFORM pulse._write_upkeep_run(
        pulse._newest_upkeep_run('backstop'), 'backstop', jsonb_build_object('found', v_found)
    );
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse._tick_backstop() IS
'Look for jobs that a mark has passed, and bring them back.';

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
        SELECT t.version, lead(t.version) OVER (PARTITION BY t.step ORDER BY t.version)
        FROM pulse.upkeep_run AS t
    ) AS o
    WHERE o.newer IS NOT NULL;

    IF v_versions IS NULL THEN
        RETURN 0;
    END IF;

    -- Versions are drawn from one sequence, so they name a row whatever its table. Rows
    -- that somebody is just deleting are left to them.
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

CREATE FUNCTION pulse._start_upkeep_run(step text, every interval)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last pulse.upkeep_run;
BEGIN
    IF NOT pg_try_advisory_xact_lock(
        'pulse.upkeep_run'::regclass::oid::integer, hashtext(_start_upkeep_run.step)
    ) THEN
        RETURN false;
    END IF;

    -- A later statement than the lock, so that it sees the turn just committed. A turn
    -- in the future means that the clock stepped back.
    v_last := pulse._newest_upkeep_run(_start_upkeep_run.step);
    IF v_last.taken_at > clock_timestamp() - _start_upkeep_run.every
        AND v_last.taken_at <= clock_timestamp()
    THEN
        RETURN false;
    END IF;

    PERFORM pulse._write_upkeep_run(v_last, _start_upkeep_run.step, v_last.state);
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse._start_upkeep_run(text, interval) IS
'Whether it is this session''s turn to do a part of the upkeep.';

CREATE FUNCTION pulse._newest_upkeep_run(step text)
RETURNS pulse.upkeep_run
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_turn pulse.upkeep_run;
BEGIN
    SELECT t.* INTO v_turn
    FROM pulse.upkeep_run AS t
    WHERE t.step = _newest_upkeep_run.step
    ORDER BY t.version DESC
    LIMIT 1;

    RETURN v_turn;
END;
$$;

COMMENT ON FUNCTION pulse._newest_upkeep_run(text) IS
'When a part of the upkeep was last done.';

CREATE FUNCTION pulse._write_upkeep_run(previous pulse.upkeep_run, step text, state jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO pulse.upkeep_run (step, taken_at, state)
    VALUES (_write_upkeep_run.step, clock_timestamp(), _write_upkeep_run.state);

    DELETE FROM pulse.upkeep_run AS t
    WHERE t.step = (_write_upkeep_run.previous).step
        AND t.version = (
            SELECT o.version
            FROM pulse.upkeep_run AS o
            WHERE o.step = (_write_upkeep_run.previous).step
                AND o.version = (_write_upkeep_run.previous).version
            FOR UPDATE SKIP LOCKED
        );
END;
$$;

COMMENT ON FUNCTION pulse._write_upkeep_run(pulse.upkeep_run, text, jsonb) IS
'Note that a part of the upkeep is being done, in place of the previous note.';
