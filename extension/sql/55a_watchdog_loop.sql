-- What pg_cron is given to call (55_watchdog.sql).

-- Each upkeep run in a transaction of its own, the urgent ones first: nothing that takes long
-- keeps what was promoted, fired or reaped from being seen. Again, while there is more to
-- do and a tick of ten seconds is not over. A procedure that COMMITs cannot have a SET
-- clause, so it uses no operator and calls everything by its full name.
CREATE PROCEDURE pulse._watchdog_tick()
LANGUAGE plpgsql
AS $$
DECLARE
    v_started_at timestamptz := pg_catalog.clock_timestamp();
    v_part text;
    v_goes_on boolean;
BEGIN
    LOOP
        FOREACH v_part IN ARRAY ARRAY[
            'due', 'sweep', 'groups', 'retention', 'count', 'sample', 'backstop'
        ] LOOP
            -- Dropping pulse between two upkeep runs must not make an error.
            IF pg_catalog.to_regprocedure('pulse._tick(text[])') IS NULL THEN
                RETURN;
            END IF;
            PERFORM pulse._note_watchdog();
            PERFORM pulse._tick(ARRAY[v_part]);
            v_goes_on := pulse._watchdog_goes_on(v_started_at);
            COMMIT;
        END LOOP;
        EXIT WHEN NOT v_goes_on;
        PERFORM pg_catalog.pg_sleep(0.9);
        COMMIT;
    END LOOP;
END;
$$;

COMMENT ON PROCEDURE pulse._watchdog_tick () IS
'Tick, each part in a transaction of its own, for up to eight seconds while there is more to do: what pg_cron is given.';

CREATE FUNCTION pulse._watchdog_goes_on(started_at timestamptz)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN clock_timestamp() BETWEEN _watchdog_goes_on.started_at
        AND _watchdog_goes_on.started_at + interval '8 seconds'
        AND pulse._upkeep_budget() >= interval '2 seconds'
        AND EXISTS (
            SELECT 1
            FROM pulse._cut_steps() AS c
            WHERE c.noted_at > _watchdog_goes_on.started_at
        );
END;
$$;

COMMENT ON FUNCTION pulse._watchdog_goes_on(timestamptz) IS
'Whether a tick of the watchdog that began then has more to do, and the time for it.';

CREATE PROCEDURE pulse._watchdog_loop(every integer)
LANGUAGE plpgsql
AS $$
DECLARE
    v_started_at timestamptz := pg_catalog.clock_timestamp();
    v_ticks integer := 0;
    v_is_due boolean;
    v_pause double precision;
BEGIN
    -- Dropping pulse while this sleeps must not make an error.
    WHILE pg_catalog.to_regprocedure('pulse._watchdog_loop(integer)') IS NOT NULL LOOP
        SELECT r.ticks, r.is_due, r.pause INTO v_ticks, v_is_due, v_pause
        FROM pulse._watchdog_round(_watchdog_loop.every, v_started_at, v_ticks) AS r;
        COMMIT;
        EXIT WHEN v_pause IS NULL;
        IF v_is_due THEN
            CALL pulse._watchdog_tick();
        END IF;
        PERFORM pg_catalog.pg_sleep(v_pause);
        COMMIT;
    END LOOP;
END;
$$;

COMMENT ON PROCEDURE pulse._watchdog_loop (integer) IS
'Tick every so many seconds until the minute is nearly over: what pg_cron before 1.5 is given.';

-- One round of the loop: whether to tick, and how long to sleep afterwards; NULL at the
-- end of the minute, when the clock was set back, or at the end of what statement_timeout
-- leaves: to be cancelled would look like a fault. Slept in slices of a second, so that it
-- ends soon when the watchdog is stopped and holds no snapshot for long.
CREATE FUNCTION pulse._watchdog_round(
    every integer,
    started_at timestamptz,
    INOUT ticks integer,
    OUT is_due boolean,
    OUT pause double precision
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_due timestamptz := _watchdog_round.started_at
        + make_interval(secs => _watchdog_round.every * _watchdog_round.ticks);
BEGIN
    is_due := false;
    IF v_due > _watchdog_round.started_at + interval '58 seconds'
        OR v_now > _watchdog_round.started_at + interval '58 seconds'
        OR v_now < _watchdog_round.started_at
        OR pulse._upkeep_budget() < interval '1 second'
        OR pulse._watchdog_stopped()
    THEN
        RETURN;
    END IF;

    IF v_due <= v_now THEN
        is_due := true;
        -- After a long tick the next one waits for its time; none is made up for.
        ticks := 1 + floor(
            extract(epoch FROM v_now - _watchdog_round.started_at) / _watchdog_round.every
        );
        v_due := _watchdog_round.started_at
            + make_interval(secs => _watchdog_round.every * ticks);
    END IF;
    pause := least(1, greatest(0.01, extract(epoch FROM v_due - v_now)));
END;
$$;

COMMENT ON FUNCTION pulse._watchdog_round(integer, timestamptz, integer) IS
'Whether it is time to tick; returns the number of the next tick and how long to sleep, NULL when the minute is over or the watchdog was stopped.';

-- The guard lets it outlive DROP EXTENSION; DO may COMMIT, as pg_cron sends it alone.
CREATE FUNCTION pulse._watchdog_command(routine text, call text)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format(
        'DO $pulse$ BEGIN IF pg_catalog.to_regprocedure(%L) IS NOT NULL THEN %s; END IF; END $pulse$',
        _watchdog_command.routine,
        _watchdog_command.call
    )
$$;

COMMENT ON FUNCTION pulse._watchdog_command(text, text) IS
'The command of a pg_cron entry: call a routine of pulse if it is still there.';

CREATE FUNCTION pulse._watchdog_loop_command(every interval)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse._watchdog_command(
        'pulse._watchdog_loop(integer)',
        format('CALL pulse._watchdog_loop(%s)', extract(epoch FROM every)::integer)
    )
$$;

COMMENT ON FUNCTION pulse._watchdog_loop_command(interval) IS
'The command that ticks for a minute.';
