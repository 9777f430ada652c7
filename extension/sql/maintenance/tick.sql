-- All upkeep, in bounded steps. Safe to call from anywhere, any number of times at
-- once: each part of the upkeep is run under an advisory lock, and passed over when another
-- session runs it or ran it lately.
--
-- A call has a budget of time. Each step works in pieces of about a thousand rows and
-- goes on while there is more and its share of the budget lasts; one piece is done in
-- any case. A step that ran out of time is noted (cut:step), is run again a second
-- later instead of at its usual interval, and is named by health(). Shares count from the
-- start, so what is not needed goes to the steps behind, and nothing can take the last
-- fifth from reap. Reap is that late because reports wait for the leases that it has locked
-- until tick commits; and what can wait does so when jobs were just promoted or fired,
-- since nobody sees those before either. One piece in any case may be too much for a caller
-- with a small statement_timeout: when two thirds of that are gone the tick ends, and the
-- next one begins with the step that this one did not come to (left).

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
'Do all upkeep that is due, within about two seconds, or a third of what statement_timeout leaves: schedules, promotion, flows and marks at most once a second, reaping, approvals, start_by and retention every 10 seconds, sooner where something was left to do. A row for each step done, with its error if it had one. Safe from anywhere, any number of times at once. PU001 above READ COMMITTED. Writes what its steps write, and upkeep_run.';

CREATE FUNCTION pulse_internal.tick(parts text [])
RETURNS TABLE (step text, did bigint, error text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_started_at timestamptz := clock_timestamp();
    v_budget interval := pulse_internal.upkeep_budget();
    v_cut text [];
    v_left pulse_internal.upkeep_run := pulse_internal.newest_upkeep_run('left');
    v_step record;
    v_part text := '';
    v_mine boolean;
    v_busy boolean := false;
    v_until timestamptz;
    v_some bigint;
    v_part_at timestamptz;
    v_took jsonb := '{}'::jsonb;
    v_notify constant text := coalesce(current_setting('pulse.notify', true), '');
    v_max_payload constant text := current_setting('pulse.max_payload', true);
BEGIN
    PERFORM pulse_internal.require_read_committed('tick');
    PERFORM pulse_internal.meet_server();
    -- A caller that wants silence, or small payloads, for its own jobs does not get it for
    -- those of others. One that never set the limit is spared it: '' would stay in its session.
    PERFORM set_config('pulse.notify', 'on', true);
    IF v_max_payload <> '' THEN
        PERFORM set_config('pulse.max_payload', '', true);
    END IF;

    v_cut := array(SELECT c.part FROM pulse_internal.cut_steps() AS c);

    -- every is a little shorter than the interval that is meant, so that a caller who comes
    -- a moment early does not miss it.
    FOR v_step IN
        SELECT o.*
        FROM (
            SELECT s.*, row_number() OVER () AS place
            FROM (
                VALUES
                ('due', interval '900 milliseconds', 0.3, 'schedules', 'fire_schedules($1)', NULL),
                ('due', '900 milliseconds', 0.5, 'promote', 'tick_promote($1)', NULL),
                ('due', '900 milliseconds', 0.55, 'flows', 'tick_flows($1)', NULL),
                ('due', '900 milliseconds', 0.6, 'signals', 'tick_signals(1000)', 1000),
                ('due', '900 milliseconds', 0.6, 'marks', 'tick_marks($1)', NULL),
                ('backstop', '1 hour', 0.6, 'backstop', 'tick_backstop()', NULL),
                ('count', '9 seconds', 0.7, 'count', 'tick_count($1)', NULL),
                ('sample', '59 seconds', 0.7, 'sample', 'tick_sample($1)', NULL),
                ('sample', '59 seconds', 0.7, 'stats', 'thin_stats($1)', NULL),
                ('sample', '59 seconds', 0.7, 'ledger', 'prune_rows(''pulse_internal.schedule_run'', ''handled_at'', ''90 days'', 1000)', 1000),
                ('sample', '59 seconds', 0.7, 'audit', 'prune_rows(''pulse_internal.audit_entry'', ''at'', ''90 days'', 1000)', 1000),
                ('sample', '59 seconds', 0.7, 'roles', 'refresh_roles()', NULL),
                ('sample', '59 seconds', 0.7, 'caches', 'tick_caches()', NULL),
                ('retention', '9 seconds', 0.8, 'approvals', 'expire_approvals(1000)', 1000),
                ('retention', '9 seconds', 0.8, 'expiry', 'tick_expiry($1)', NULL),
                ('retention', '9 seconds', 0.8, 'prune', 'tick_prune($1)', NULL),
                ('sweep', '9 seconds', 1.0, 'reap', 'tick_reap($1)', NULL),
                ('sweep', '9 seconds', 1.0, 'clock', 'tick_clock($1)', NULL),
                ('groups', '900 milliseconds', 1.0, 'groups', 'tick_groups($1)', NULL)
            ) AS s (part, every, share, step, call, piece)
            WHERE s.part = ANY (tick.parts)
        ) AS o
        ORDER BY
            o.place < min(o.place) FILTER (WHERE o.step = v_left.state ->> 'step') OVER (),
            o.place
    LOOP
        -- A caller with next to no time does what is urgent, and leaves the rest to others, as
        -- one with little time leaves a large backstop: when those do not come, health() says so.
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

        IF v_budget < interval '2 seconds'
            AND clock_timestamp() > v_started_at + 2 * v_budget
            AND v_took <> '{}'
        THEN
            PERFORM pulse_internal.write_upkeep_run(
                v_left, 'left', jsonb_build_object('step', v_step.step)
            );
            PERFORM pulse_internal.note_cut(v_step.step, v_step.part, v_started_at, true);
            v_left := NULL;
            EXIT;
        END IF;

        IF v_step.part <> v_part THEN
            v_part := v_step.part;
            v_part_at := clock_timestamp();
            v_mine := pulse_internal.start_upkeep_run(
                v_part,
                CASE
                    WHEN v_part = ANY (v_cut) THEN interval '900 milliseconds'
                    ELSE v_step.every
                END * CASE WHEN v_busy AND v_part NOT IN ('sweep', 'groups') THEN 2 ELSE 1 END
            );
        END IF;
        CONTINUE WHEN NOT v_mine;
        PERFORM pulse_internal.note_cut(v_part || ' (skipped)', v_part, v_started_at, false);

        v_until := v_started_at + v_budget * v_step.share::double precision;
        tick.step := v_step.step;
        tick.did := NULL;
        tick.error := NULL;
        LOOP
            -- A subtransaction each: one poison row must not stop the rest.
            BEGIN
                EXECUTE 'SELECT pulse_internal.' || v_step.call INTO v_some USING v_until;
            EXCEPTION
                WHEN OTHERS THEN
                    v_some := NULL;
                    tick.error := format('%s: %s', SQLSTATE, SQLERRM);
                    PERFORM pulse_internal.write_upkeep_run(
                        pulse_internal.newest_upkeep_run('error:' || v_step.step),
                        'error:' || v_step.step,
                        jsonb_build_object('error', tick.error)
                    );
            END;
            tick.did := coalesce(tick.did + v_some, v_some, tick.did);
            EXIT WHEN v_some IS NULL
                OR v_step.piece IS NULL
                OR v_some < v_step.piece
                OR pulse_internal.time_is_over(v_until);
        END LOOP;

        -- What has no end to miss is not cut.
        PERFORM pulse_internal.note_cut(
            v_step.step, v_part, v_started_at,
            pulse_internal.time_is_over(v_until) AND tick.error IS NULL AND v_step.call NOT LIKE '%()'
        );
        v_took := v_took || jsonb_build_object(
            v_part, date_part('epoch', clock_timestamp() - v_part_at)
        );
        v_busy := v_busy OR (v_part = 'due' AND v_step.step <> 'marks' AND tick.did > 0);
        RETURN NEXT;
    END LOOP;
    IF v_left.version IS NOT NULL THEN
        PERFORM pulse_internal.forget_upkeep_run('left');
    END IF;
    IF v_took <> '{}' THEN
        PERFORM pulse_internal.note_took(v_took);
    END IF;
    PERFORM set_config('pulse.notify', v_notify, true);
    IF v_max_payload <> '' THEN
        PERFORM set_config('pulse.max_payload', v_max_payload, true);
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.tick(text []) IS
'Do the parts of the upkeep that are due, in one transaction.';
