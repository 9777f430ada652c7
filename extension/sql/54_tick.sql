-- All upkeep, in bounded steps. Safe to call from anywhere, any number of times at
-- once: each part takes its turn under an advisory lock and leaves at once when another
-- session has it or had it lately.
--
-- A call has a budget of time. Each step works in pieces of about a thousand rows and
-- goes on while there is more and its share of the budget lasts; one piece is done in
-- any case. A step that ran out of time is noted (cut:step), has its next turn a second
-- later instead of at its usual interval, and is named by health(). Shares count from the
-- start, so what is not needed goes to the steps behind, and nothing can take the last
-- fifth from reap. Reap is that late because reports wait for the leases that it has locked
-- until tick commits; and what can wait does so when jobs were just promoted or fired,
-- since nobody sees those before either.

CREATE FUNCTION pulse.tick()
RETURNS TABLE (step text, did bigint, error text)
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.step, t.did, t.error
    FROM pulse._tick('{due,backstop,count,sample,retention,sweep,groups}') AS t
$$;

COMMENT ON FUNCTION pulse.tick() IS
'Do all upkeep that is due, within about two seconds, or a third of what statement_timeout leaves: schedules, promotion, flows and marks at most once a second, reaping, approvals, start_by and retention every 10 seconds, sooner where something was left to do. A row for each step done, with its error if it had one. Safe from anywhere, any number of times at once. PU001 above READ COMMITTED. Writes what its steps write, and upkeep_run.';

CREATE FUNCTION pulse._tick(turns text [])
RETURNS TABLE (step text, did bigint, error text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_started_at timestamptz := clock_timestamp();
    v_budget interval := pulse._upkeep_budget();
    v_cut text [];
    v_step record;
    v_turn text := '';
    v_mine boolean;
    v_busy boolean := false;
    v_until timestamptz;
    v_some bigint;
    v_turn_at timestamptz;
    v_took jsonb := '{}'::jsonb;
    v_notify constant text := coalesce(current_setting('pulse.notify', true), '');
BEGIN
    PERFORM pulse._require_read_committed('tick');
    PERFORM pulse._meet_server();
    -- A caller that wants silence for its own jobs does not get it for those of others.
    PERFORM set_config('pulse.notify', 'on', true);

    v_cut := array(SELECT c.turn FROM pulse._cut_steps() AS c);

    -- Turns are a little shorter than the interval they are named for, so that a driver
    -- that comes a moment early does not miss its turn.
    FOR v_step IN
        SELECT s.*
        FROM (
            VALUES
            ('due', interval '900 milliseconds', 0.3, 'schedules', '_fire_schedules($1)', NULL),
            ('due', '900 milliseconds', 0.5, 'promote', '_tick_promote($1)', NULL),
            ('due', '900 milliseconds', 0.55, 'flows', '_tick_flows($1)', NULL),
            ('due', '900 milliseconds', 0.6, 'signals', '_tick_signals(1000)', 1000),
            ('due', '900 milliseconds', 0.6, 'marks', '_tick_marks($1)', NULL),
            ('backstop', '1 hour', 0.6, 'backstop', '_tick_backstop()', NULL),
            ('count', '9 seconds', 0.7, 'count', '_tick_count($1)', NULL),
            ('sample', '59 seconds', 0.7, 'sample', '_tick_sample($1)', NULL),
            ('sample', '59 seconds', 0.7, 'stats', '_thin_stats($1)', NULL),
            ('sample', '59 seconds', 0.7, 'ledger', '_prune_schedule_runs(1000)', 1000),
            ('sample', '59 seconds', 0.7, 'audit', '_prune_audit(1000)', 1000),
            ('sample', '59 seconds', 0.7, 'roles', '_refresh_roles()', NULL),
            ('sample', '59 seconds', 0.7, 'caches', '_tick_caches()', NULL),
            ('retention', '9 seconds', 0.8, 'approvals', '_expire_approvals(1000)', 1000),
            ('retention', '9 seconds', 0.8, 'expiry', '_tick_expiry($1)', NULL),
            ('retention', '9 seconds', 0.8, 'prune', '_tick_prune($1)', NULL),
            ('sweep', '9 seconds', 1.0, 'reap', '_tick_reap($1)', NULL),
            ('groups', '900 milliseconds', 1.0, 'groups', '_tick_groups($1)', NULL)
        ) AS s (turn, every, share, step, call, piece)
        WHERE s.turn = ANY (_tick.turns)
    LOOP
        -- A caller with next to no time does what is urgent, and leaves the rest to others:
        -- when those do not come, health() says so.
        IF v_budget < interval '300 milliseconds'
            AND v_step.turn IN ('backstop', 'count', 'sample', 'retention')
        THEN
            IF v_step.turn <> v_turn THEN
                v_turn := v_step.turn;
                PERFORM pulse._note_cut(
                    v_turn || ' (skipped)', v_turn, v_started_at,
                    (
                        (pulse._newest_upkeep_run(v_turn)).taken_at
                        BETWEEN clock_timestamp() - 3 * v_step.every AND clock_timestamp()
                    ) IS NOT TRUE
                );
            END IF;
            CONTINUE;
        END IF;

        IF v_step.turn <> v_turn THEN
            v_turn := v_step.turn;
            v_turn_at := clock_timestamp();
            v_mine := pulse._start_upkeep_run(
                v_turn,
                CASE
                    WHEN v_turn = ANY (v_cut) THEN interval '900 milliseconds'
                    ELSE v_step.every
                END * CASE WHEN v_busy AND v_turn NOT IN ('sweep', 'groups') THEN 2 ELSE 1 END
            );
        END IF;
        CONTINUE WHEN NOT v_mine;
        PERFORM pulse._note_cut(v_turn || ' (skipped)', v_turn, v_started_at, false);

        v_until := v_started_at + v_budget * v_step.share::double precision;
        _tick.step := v_step.step;
        _tick.did := NULL;
        _tick.error := NULL;
        LOOP
            -- A subtransaction each: one poison row must not stop the rest.
            BEGIN
                EXECUTE 'SELECT pulse.' || v_step.call INTO v_some USING v_until;
            EXCEPTION
                WHEN OTHERS THEN
                    v_some := NULL;
                    _tick.error := format('%s: %s', SQLSTATE, SQLERRM);
                    PERFORM pulse._write_upkeep_run(
                        pulse._newest_upkeep_run('error:' || v_step.step),
                        'error:' || v_step.step,
                        jsonb_build_object('error', _tick.error)
                    );
            END;
            _tick.did := coalesce(_tick.did + v_some, v_some, _tick.did);
            EXIT WHEN v_some IS NULL
                OR v_step.piece IS NULL
                OR v_some < v_step.piece
                OR pulse._time_is_over(v_until);
        END LOOP;

        -- What has no end to miss is not cut.
        PERFORM pulse._note_cut(
            v_step.step, v_turn, v_started_at,
            pulse._time_is_over(v_until) AND _tick.error IS NULL AND v_step.call NOT LIKE '%()'
        );
        v_took := v_took || jsonb_build_object(
            v_turn, date_part('epoch', clock_timestamp() - v_turn_at)
        );
        v_busy := v_busy OR (v_turn = 'due' AND v_step.step <> 'marks' AND _tick.did > 0);
        RETURN NEXT;
    END LOOP;
    IF v_took <> '{}' THEN
        PERFORM pulse._note_took(v_took);
    END IF;
    PERFORM set_config('pulse.notify', v_notify, true);
END;
$$;

COMMENT ON FUNCTION pulse._tick(text []) IS
'Do the parts of the upkeep that are due, in one transaction.';

-- Advances the marks of lines that have some, and of lanes that have none yet: five hundred
-- lines a tick, from where the last one stopped. Claims ask for those they need.
CREATE FUNCTION pulse._tick_marks(until timestamptz DEFAULT 'infinity')
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
    v_old pulse.upkeep_run := pulse._newest_upkeep_run('marks');
    v_from jsonb := coalesce(v_old.state, '{}');
    v_to jsonb := '{}'::jsonb;
    v_line record;
    v_lane text;
    v_lines bigint := 0;
    v_lanes bigint := 0;
BEGIN
    FOR v_line IN
        SELECT l.lane, l.kind
        FROM pulse._ready_lines(
            coalesce(v_from ->> 'lane', ''), coalesce(v_from ->> 'kind', ''), 500
        ) AS l
    LOOP
        PERFORM pulse._advance_line(v_line.lane, v_line.kind, v_horizon.ready_q);
        v_lines := v_lines + 1;
        IF v_lines = 500 OR pulse._time_is_over(_tick_marks.until) THEN
            v_to := jsonb_build_object('lane', v_line.lane, 'kind', v_line.kind);
            EXIT;
        END IF;
    END LOOP;

    FOR v_lane IN SELECT pulse._waiting_lanes(coalesce(v_from ->> 'due', ''), 500) LOOP
        PERFORM pulse._advance_due(v_lane, v_horizon.waiting_t);
        v_lanes := v_lanes + 1;
        IF v_lanes = 500 OR pulse._time_is_over(_tick_marks.until) THEN
            v_to := v_to || jsonb_build_object('due', v_lane);
            EXIT;
        END IF;
    END LOOP;

    IF v_to <> v_from THEN
        PERFORM pulse._write_upkeep_run(v_old, 'marks', v_to);
    END IF;
    RETURN v_lines;
END;
$$;

COMMENT ON FUNCTION pulse._tick_marks(timestamptz) IS
'Advance low-water marks; returns how many lines of ready it looked at.';

-- Known lines are those with marks; lanes that have none are looked for in the gaps
-- between them, so that no lane's dead rows are met.
CREATE FUNCTION pulse._ready_lines(after_lane text, after_kind text, max_lines integer)
RETURNS TABLE (lane text, kind text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_lane text COLLATE "C" := _ready_lines.after_lane;
    v_kind text COLLATE "C" := _ready_lines.after_kind;
    v_known record;
    v_new text COLLATE "C";
BEGIN
    FOR v_line IN 1.._ready_lines.max_lines LOOP
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
                AND r.failures >= 0
            ORDER BY r.lane, r.rank, r.seq
            LIMIT 1;
        ELSE
            SELECT r.lane INTO v_new
            FROM pulse.ready AS r
            WHERE r.lane > v_lane
                AND r.failures >= 0
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

        _ready_lines.lane := v_lane;
        _ready_lines.kind := v_kind;
        RETURN NEXT;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._ready_lines(text, text, integer) IS
'The lines after this one that have marks, or jobs in ready, at most so many.';
