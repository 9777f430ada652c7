-- tick: the maintenance, in steps of bounded time. Any session may call it, at any time.
--
-- A part is a group of steps that are due at the same interval (tick_steps). A call, as numbered:
--   1. Leave a part to other callers, if this one has too little time for it.
--   2. End early, if two thirds of a short statement_timeout are over. The next tick begins there.
--   3. Start the part under its advisory lock, unless another session runs it or ran it lately.
--   4. Run the step in pieces of about a thousand rows, until it is done or its time is over.
--   5. Note a step that ran out of time: its part is due again after a second.
--
-- The budget is two seconds (maintenance/runs.sql). The share of a step is the part of the budget
-- after which it ends, counted from the start of the call, so time that a step does not need goes
-- to those behind it. Reap comes late because reports wait for the leases that it has locked
-- until tick commits. It writes upkeep_run and what its steps write; each step is a
-- subtransaction.

CREATE FUNCTION pulse.tick()
RETURNS TABLE (step text, did bigint, error text)
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.step, t.did, t.error
    FROM pulse_internal.tick('{due,backstop,count,sample,retention,sweep,groups}') AS t
$$;

COMMENT ON FUNCTION pulse.tick() IS
'Do the maintenance that is due, within about two seconds, or within a third of the time that statement_timeout leaves. Returns a row for each step that was done, with its error if it had one. Any session may call it, and several at once.

- At most once a second: schedules, promotion, flows and low-water marks.
- Every 10 seconds: reaping, approvals, start_by and retention; sooner if something is left.

Errors: PU001 above READ COMMITTED.';

CREATE FUNCTION pulse_internal.tick(parts text [])
RETURNS TABLE (step text, did bigint, error text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_started_at timestamptz := clock_timestamp();
    v_budget interval := pulse_internal.upkeep_budget();
    v_ended_early pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('left');
    v_parts_behind text [];
    v_notify constant text := coalesce(current_setting('pulse.notify', true), '');
    v_max_payload constant text := current_setting('pulse.max_payload', true);
    -- The step, and the part that it belongs to.
    v_step record;
    v_until timestamptz;
    v_part text := '';
    v_part_started_at timestamptz;
    v_part_is_ours boolean;
    -- Jobs were promoted or fired: they are seen when this transaction ends.
    v_has_new_jobs boolean := false;
    v_seconds jsonb := '{}'::jsonb;
BEGIN
    PERFORM pulse_internal.require_read_committed('tick');
    PERFORM pulse_internal.meet_server();
    -- A caller may have switched off notifications, or set a limit for payloads, for its own jobs.
    -- Neither counts for the jobs of others. If it never set the limit, this does not set it
    -- either: '' would stay in its session.
    PERFORM set_config('pulse.notify', 'on', true);
    IF v_max_payload <> '' THEN
        PERFORM set_config('pulse.max_payload', '', true);
    END IF;

    v_parts_behind := array(SELECT c.part FROM pulse_internal.cut_steps() AS c);

    -- All steps in their order; but first the one before which the last tick ended early, and
    -- those behind it.
    FOR v_step IN
        SELECT s.*
        FROM pulse_internal.tick_steps() WITH ORDINALITY
        AS s (part, every, share, step, call, piece, nth)
        WHERE s.part = ANY (tick.parts)
        ORDER BY
            s.nth < min(s.nth) FILTER (
                WHERE s.step = v_ended_early.state ->> 'step'
            ) OVER (),
            s.nth
    LOOP
        -- 1. A caller with next to no time does what is urgent. One with little time leaves a
        -- large backstop to others. If no caller with more time comes, health() says so.
        IF v_budget < interval '300 milliseconds'
            AND v_step.part IN ('backstop', 'count', 'sample', 'retention')
            OR v_step.part = 'backstop'
            AND v_budget < interval '2 seconds'
            AND NOT pulse_internal.backstop_fits(v_budget)
        THEN
            IF v_step.part <> v_part THEN
                v_part := v_step.part;
                PERFORM pulse_internal.note_cut(
                    v_part || ' (skipped)', v_part, v_started_at,
                    (
                        (pulse_internal.newest_upkeep_run(v_part)).taken_at
                        BETWEEN clock_timestamp() - 3 * v_step.every AND clock_timestamp()
                    ) IS NOT TRUE
                );
            END IF;
            CONTINUE;
        END IF;

        -- 2. The first piece of a step is done whatever its share, so a caller with a short
        -- statement_timeout could be cancelled in it. The budget is a third of the time that
        -- this caller had.
        IF v_budget < interval '2 seconds'
            AND clock_timestamp() > v_started_at + 2 * v_budget
            AND v_seconds <> '{}'
        THEN
            PERFORM pulse_internal.write_upkeep_run(
                v_ended_early, 'left', jsonb_build_object('step', v_step.step)
            );
            PERFORM pulse_internal.note_cut(v_step.step, v_step.part, v_started_at, true);
            v_ended_early := NULL;
            EXIT;
        END IF;

        -- 3. What can wait does so for twice its interval, if jobs were just promoted or fired:
        -- no session sees these before this tick ends.
        IF v_step.part <> v_part THEN
            v_part := v_step.part;
            v_part_started_at := clock_timestamp();
            v_part_is_ours := pulse_internal.start_upkeep_run(
                v_part,
                CASE
                    WHEN v_part = ANY (v_parts_behind) THEN interval '900 milliseconds'
                    ELSE v_step.every
                END
                * CASE WHEN v_has_new_jobs AND v_part NOT IN ('sweep', 'groups') THEN 2 ELSE 1 END
            );
        END IF;
        CONTINUE WHEN NOT v_part_is_ours;
        PERFORM pulse_internal.note_cut(v_part || ' (skipped)', v_part, v_started_at, false);

        -- 4.
        v_until := v_started_at + v_budget * v_step.share::double precision;
        tick.step := v_step.step;
        SELECT r.did, r.error INTO tick.did, tick.error
        FROM pulse_internal.run_step(v_step.step, v_step.call, v_step.piece, v_until) AS r;

        -- 5. A step that takes no time limit never runs out of time.
        PERFORM pulse_internal.note_cut(
            v_step.step, v_part, v_started_at,
            pulse_internal.time_is_over(v_until) AND tick.error IS NULL AND v_step.call NOT LIKE '%()'
        );
        v_seconds := v_seconds || jsonb_build_object(
            v_part, date_part('epoch', clock_timestamp() - v_part_started_at)
        );
        v_has_new_jobs := v_has_new_jobs
            OR (v_part = 'due' AND v_step.step <> 'marks' AND tick.did > 0);
        RETURN NEXT;
    END LOOP;

    IF v_ended_early.version IS NOT NULL THEN
        PERFORM pulse_internal.forget_upkeep_run('left');
    END IF;
    IF v_seconds <> '{}' THEN
        PERFORM pulse_internal.note_took(v_seconds);
    END IF;
    PERFORM set_config('pulse.notify', v_notify, true);
    IF v_max_payload <> '' THEN
        PERFORM set_config('pulse.max_payload', v_max_payload, true);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick(text []) IS
'Do those of these parts of the maintenance that are due, in one transaction.';

CREATE FUNCTION pulse_internal.tick_steps()
RETURNS TABLE (part text, every interval, share numeric, step text, call text, piece integer)
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    -- every is a little shorter than the interval that is meant: a caller who comes a moment early
    -- does not miss it. $1 in a call is the time at which the step ends by itself. A step with a
    -- piece is called again while it answers that it did a whole piece.
    VALUES
    ('due', interval '900 milliseconds', 0.3, 'schedules', 'fire_schedules($1)', NULL::integer),
    ('due', '900 milliseconds', 0.5, 'promote', 'tick_promote($1)', NULL),
    ('due', '900 milliseconds', 0.55, 'flows', 'tick_flows($1)', NULL),
    ('due', '900 milliseconds', 0.6, 'signals', 'tick_signals(1000)', 1000),
    ('due', '900 milliseconds', 0.6, 'marks', 'tick_marks($1)', NULL),
    ('backstop', '1 hour', 0.6, 'backstop', 'tick_backstop()', NULL),
    ('count', '9 seconds', 0.7, 'count', 'tick_count($1)', NULL),
    ('count', '9 seconds', 0.7, 'sample', 'tick_sample($1, ''59 seconds'')', NULL),
    ('sample', '59 seconds', 0.7, 'stats', 'thin_stats($1)', NULL),
    (
        'sample', '59 seconds', 0.7, 'ledger',
        'prune_rows(''pulse_internal.schedule_run'', ''handled_at'', ''90 days'', 1000)', 1000
    ),
    (
        'sample', '59 seconds', 0.7, 'audit',
        'prune_rows(''pulse_internal.audit_entry'', ''at'', ''90 days'', 1000)', 1000
    ),
    ('sample', '59 seconds', 0.7, 'roles', 'refresh_roles()', NULL),
    ('sample', '59 seconds', 0.7, 'caches', 'tick_caches()', NULL),
    ('retention', '9 seconds', 0.8, 'approvals', 'expire_approvals(1000)', 1000),
    ('retention', '9 seconds', 0.8, 'expiry', 'tick_expiry($1)', NULL),
    ('retention', '9 seconds', 0.8, 'prune', 'tick_prune($1)', NULL),
    ('sweep', '9 seconds', 1.0, 'reap', 'tick_reap($1)', NULL),
    ('sweep', '9 seconds', 1.0, 'clock', 'tick_clock($1)', NULL),
    ('groups', '900 milliseconds', 1.0, 'groups', 'tick_groups($1)', NULL)
$$;

COMMENT ON FUNCTION pulse_internal.tick_steps() IS
'The steps of tick in their order, each with the part that it belongs to, how often that is due, its share of the budget and what is called.';

CREATE FUNCTION pulse_internal.run_step(
    step text, call text, piece integer, until timestamptz, OUT did bigint, OUT error text
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_did_now bigint;
BEGIN
    LOOP
        -- Each call is a subtransaction: an error in one step must not stop the others.
        BEGIN
            EXECUTE 'SELECT pulse_internal.' || run_step.call INTO v_did_now USING run_step.until;
        EXCEPTION
            WHEN OTHERS THEN
                v_did_now := NULL;
                error := format('%s: %s', SQLSTATE, SQLERRM);
                PERFORM pulse_internal.write_upkeep_run(
                    pulse_internal.newest_upkeep_run('error:' || run_step.step),
                    'error:' || run_step.step,
                    jsonb_build_object('error', run_step.error)
                );
        END;
        did := coalesce(did + v_did_now, v_did_now, did);
        EXIT WHEN v_did_now IS NULL
            OR run_step.piece IS NULL
            OR v_did_now < run_step.piece
            OR pulse_internal.time_is_over(run_step.until);
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.run_step(text, text, integer, timestamptz) IS
'Call a step of tick, again while there is more to do and time for it. Returns how many it did, and its error, which is noted as well.';
