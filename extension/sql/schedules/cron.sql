-- Cron expressions: read one, and find when it fires next in a time zone.
--
-- An expression is about wall time: what the clock on the wall of the time zone shows.
-- cron_wall finds the next wall time that matches, field by field, without knowing
-- of time zones. cron_near turns wall times into moments around a change of the
-- clock; everywhere else a moment is the wall time minus the offset from UTC.
--
-- Around a change, say T, where the offset goes from o1 to o2:
--
--   forward   The wall times from T + o1 up to T + o2 do not exist. If any of them
--             matches, the expression fires once, at T.
--   back      The wall times from T + o2 up to T + o1 come twice. They fire the first
--             time.
--
-- That is for an expression that names its hours ("at half past two"). One whose hour
-- field begins with * ("every two hours") is about time that passes: it goes on
-- through a change forward by the offset that was, and fires both times when the
-- wall time comes twice.

CREATE FUNCTION pulse_internal.cron_parse(cron text)
RETURNS pulse_internal.cron_fields
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_text text := lower(btrim(cron_parse.cron, E' \t\r\n'));
    v_field text [];
    v_days integer [];
    v_months integer [];
    v_hours integer [];
    v_either_day boolean;
BEGIN
    IF v_text IS NULL OR length(v_text) > 1000 THEN
        PERFORM pulse_internal.raise_cron(
            coalesce(cron_parse.cron, ''), 'It is NULL or longer than 1000 characters.'
        );
    END IF;

    v_text := CASE v_text
        WHEN '@hourly' THEN '0 * * * *'
        WHEN '@daily' THEN '0 0 * * *'
        WHEN '@midnight' THEN '0 0 * * *'
        WHEN '@weekly' THEN '0 0 * * 0'
        WHEN '@monthly' THEN '0 0 1 * *'
        WHEN '@yearly' THEN '0 0 1 1 *'
        WHEN '@annually' THEN '0 0 1 1 *'
        ELSE v_text
    END;
    IF v_text LIKE '@%' THEN
        PERFORM pulse_internal.raise_cron(
            cron_parse.cron, format('%L is not a known shorthand.', left(v_text, 50))
        );
    END IF;

    v_field := regexp_split_to_array(v_text, '[[:space:]]+');
    IF cardinality(v_field) <> 5 THEN
        PERFORM pulse_internal.raise_cron(
            cron_parse.cron, format('It has %s fields, not 5.', cardinality(v_field))
        );
    END IF;

    v_hours := pulse_internal.cron_field(cron_parse.cron, 'hour', v_field[2], 0, 23, NULL);
    v_days := pulse_internal.cron_field(cron_parse.cron, 'day', v_field[3], 1, 31, NULL);
    v_months := pulse_internal.cron_field(
        cron_parse.cron, 'month', v_field[4], 1, 12,
        '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}'
    );

    -- As in vixie-cron: when both day fields are restricted either is enough, and a
    -- field that begins with * is not restricted, "*/2" included.
    v_either_day := v_field[3] NOT LIKE '*%' AND v_field[5] NOT LIKE '*%';

    IF NOT v_either_day
        AND NOT EXISTS (
            SELECT 1
            FROM unnest(v_months) AS m (month)
            WHERE v_days[1] <= CASE
                WHEN m.month = 2 THEN 29
                WHEN m.month IN (4, 6, 9, 11) THEN 30
                ELSE 31
            END
        )
    THEN
        PERFORM pulse_internal.raise_cron(
            cron_parse.cron,
            format('It never fires: no month it names has a day %s.', v_days[1])
        );
    END IF;

    RETURN ROW(
        pulse_internal.cron_field(cron_parse.cron, 'minute', v_field[1], 0, 59, NULL),
        v_hours,
        v_days,
        v_months,
        pulse_internal.cron_field(
            cron_parse.cron, 'weekday', v_field[5], 0, 7, '{sun,mon,tue,wed,thu,fri,sat}'
        ),
        v_either_day,
        v_field[2] LIKE '*%' OR cardinality(v_hours) = 24
    )::pulse_internal.cron_fields;
END;
$$;

COMMENT ON FUNCTION pulse_internal.cron_parse(text) IS
'Read a cron expression; PU007 when it cannot be read or never fires.';

CREATE FUNCTION pulse_internal.cron_field(
    cron text, field text, value text, low integer, high integer, names text []
)
RETURNS integer []
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_weekday boolean := cron_field.field = 'weekday';
    v_item text;
    v_part text [];
    v_first integer;
    v_last integer;
    v_step integer;
    v_values integer [] := ARRAY[]::integer [];
BEGIN
    FOREACH v_item IN ARRAY string_to_array(cron_field.value, ',') LOOP
        v_part := regexp_match(v_item, '^([^-/]+)(?:-([^-/]+))?(?:/([^-/]+))?$');
        IF v_part IS NULL OR (v_part[1] = '*' AND v_part[2] IS NOT NULL) THEN
            PERFORM pulse_internal.raise_cron(
                cron_field.cron, format('%L is not a %s.', v_item, cron_field.field)
            );
        END IF;

        IF v_part[1] = '*' THEN
            v_first := cron_field.low;
            -- 0 and 7 are both Sunday.
            v_last := cron_field.high - v_weekday::integer;
        ELSE
            v_first := pulse_internal.cron_value(
                cron_field.cron, cron_field.field, v_part[1],
                cron_field.low, cron_field.high, cron_field.names
            );
            v_last := CASE
                WHEN v_part[2] IS NOT NULL THEN pulse_internal.cron_value(
                    cron_field.cron, cron_field.field, v_part[2],
                    cron_field.low, cron_field.high, cron_field.names
                )
                -- "5/15" is "from 5 on, every 15".
                WHEN v_part[3] IS NOT NULL THEN cron_field.high
                ELSE v_first
            END;
        END IF;

        -- A week may end on Sunday: fri-sun.
        IF v_weekday AND v_part[2] = 'sun' THEN
            v_last := 7;
        END IF;
        IF v_first > v_last THEN
            PERFORM pulse_internal.raise_cron(
                cron_field.cron,
                format(
                    'The range %L of the field %s runs backwards; write it as two.',
                    v_item, cron_field.field
                )
            );
        END IF;

        v_step := 1;
        IF v_part[3] IS NOT NULL THEN
            v_step := pulse_internal.cron_value(
                cron_field.cron, format('step of the field %s', cron_field.field), v_part[3],
                1, cron_field.high - cron_field.low + 1, NULL
            );
        END IF;
        v_values := v_values || ARRAY(SELECT generate_series(v_first, v_last, v_step));
    END LOOP;

    IF v_weekday THEN
        RETURN ARRAY(SELECT DISTINCT v.value % 7 FROM unnest(v_values) AS v (value) ORDER BY 1);
    END IF;
    RETURN ARRAY(SELECT DISTINCT v.value FROM unnest(v_values) AS v (value) ORDER BY 1);
END;
$$;

COMMENT ON FUNCTION pulse_internal.cron_field(text, text, text, integer, integer, text []) IS
'The values of one cron field, in order; PU007 when it cannot be read.';

CREATE FUNCTION pulse_internal.cron_value(
    cron text, field text, value text, low integer, high integer, names text []
)
RETURNS integer
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_value integer := cron_value.low + array_position(cron_value.names, cron_value.value) - 1;
BEGIN
    IF v_value IS NOT NULL THEN
        RETURN v_value;
    END IF;
    IF cron_value.value !~ '^[0-9]{1,3}$' THEN
        PERFORM pulse_internal.raise_cron(
            cron_value.cron,
            format('%s is not a %s.', quote_literal(cron_value.value), cron_value.field)
        );
    END IF;
    v_value := cron_value.value::integer;
    IF v_value NOT BETWEEN cron_value.low AND cron_value.high THEN
        PERFORM pulse_internal.raise_cron(
            cron_value.cron,
            format(
                'The %s %s is not between %s and %s.',
                cron_value.field, v_value, cron_value.low, cron_value.high
            )
        );
    END IF;
    RETURN v_value;
END;
$$;

COMMENT ON FUNCTION pulse_internal.cron_value(text, text, text, integer, integer, text []) IS
'One number or name of a cron field; PU007 when it is neither.';

CREATE FUNCTION pulse_internal.raise_cron(cron text, detail text)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU007',
        format('cron expression %L cannot be used', left(raise_cron.cron, 100)),
        raise_cron.detail,
        'Five fields: minute (0-59) hour (0-23) day (1-31) month (1-12 or jan-dec) weekday (0-7 or sun-sat), each *, a value, a-b, */n, a-b/n or a list; or @hourly, @daily, @weekly, @monthly, @yearly.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_cron(text, text) IS
'Raise PU007.';

-- What lies further away is approached: no match lies between here and three days
-- before what was found, whatever the clocks do in between.
CREATE FUNCTION pulse_internal.cron_next(
    fields pulse_internal.cron_fields, timezone text, after timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_after timestamptz := cron_next.after;
    v_found timestamptz;
BEGIN
    FOR v_round IN 1..5 LOOP
        v_found := pulse_internal.cron_near(cron_next.fields, cron_next.timezone, v_after);
        EXIT WHEN v_found IS NULL OR v_found <= v_after + interval '96 hours';
        v_after := v_found - interval '72 hours';
    END LOOP;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse_internal.cron_next(pulse_internal.cron_fields, text, timestamptz) IS
'The next moment after the given one at which a cron expression fires in a time zone.';

-- The next moment after the given one, right if it lies within the next four days (or
-- no clock changes before it). A change matters from a day before: that is how
-- long a gap can be (Samoa had no 30 December 2011).
CREATE FUNCTION pulse_internal.cron_near(
    fields pulse_internal.cron_fields, timezone text, after timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lower timestamptz := cron_near.after - interval '24 hours';
    v_upper timestamptz := cron_near.after + interval '96 hours';
    v_old interval := pulse_internal.utc_offset(v_lower, cron_near.timezone);
    v_new interval := pulse_internal.utc_offset(v_upper, cron_near.timezone);
    v_after timestamp := cron_near.after AT TIME ZONE 'UTC';
    v_just interval := interval '1 microsecond';
    v_change timestamptz;
    v_gone timestamp;
    v_come timestamp;
    v_wall timestamp;
    v_lost timestamp;
BEGIN
    IF v_old = v_new THEN
        v_wall := pulse_internal.cron_wall(cron_near.fields, v_after + v_old);
        RETURN (v_wall - v_old) AT TIME ZONE 'UTC';
    END IF;

    -- The wall clock shows v_gone when it is set, and v_come when it has been set.
    v_change := pulse_internal.clock_change(v_lower, v_upper, cron_near.timezone);
    v_gone := (v_change AT TIME ZONE 'UTC') + v_old;
    v_come := (v_change AT TIME ZONE 'UTC') + v_new;

    IF cron_near.after < v_change THEN
        v_wall := pulse_internal.cron_wall(cron_near.fields, v_after + v_old);
        IF v_wall < v_gone THEN
            RETURN (v_wall - v_old) AT TIME ZONE 'UTC';
        END IF;
    END IF;

    IF v_new > v_old THEN
        v_wall := pulse_internal.cron_wall(
            cron_near.fields, greatest(v_after + v_new, v_come - v_just)
        );
        v_lost := pulse_internal.cron_wall(
            cron_near.fields, greatest(v_after + v_old, v_gone - v_just)
        );
        IF v_lost < v_come AND (cron_near.fields).every_hour THEN
            RETURN least(v_wall - v_new, v_lost - v_old) AT TIME ZONE 'UTC';
        END IF;
        IF v_lost < v_come AND cron_near.after < v_change THEN
            RETURN v_change;
        END IF;
    ELSIF (cron_near.fields).every_hour THEN
        v_wall := pulse_internal.cron_wall(
            cron_near.fields, greatest(v_after + v_new, v_come - v_just)
        );
    ELSE
        v_wall := pulse_internal.cron_wall(
            cron_near.fields, greatest(v_after + v_new, v_gone - v_just)
        );
    END IF;
    RETURN (v_wall - v_new) AT TIME ZONE 'UTC';
END;
$$;

COMMENT ON FUNCTION pulse_internal.cron_near(pulse_internal.cron_fields, text, timestamptz) IS
'The next moment a cron expression fires, exact for the next four days.';

-- The first matching wall time after the given one. Months are jumped over whole, days
-- one by one, hours and minutes looked up. 29 February on one weekday can be
-- forty years away, so the search ends after fifty.
CREATE FUNCTION pulse_internal.cron_wall(fields pulse_internal.cron_fields, after timestamp)
RETURNS timestamp
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_from timestamp := date_trunc('minute', cron_wall.after) + interval '1 minute';
    v_day date := v_from::date;
    v_end date := v_day + 50 * 366;
    v_days integer [] := (cron_wall.fields).days;
    v_months integer [] := (cron_wall.fields).months;
    v_weekdays integer [] := (cron_wall.fields).weekdays;
    v_either boolean := (cron_wall.fields).either_day;
    v_hour integer := extract(hour FROM v_from);
    v_minute integer := extract(minute FROM v_from);
    v_is_day boolean;
    v_is_weekday boolean;
BEGIN
    WHILE v_day < v_end LOOP
        IF extract(month FROM v_day) <> ALL (v_months) THEN
            v_day := date_trunc('month', v_day::timestamp) + interval '1 month';
            CONTINUE;
        END IF;

        v_is_day := extract(day FROM v_day) = ANY (v_days);
        v_is_weekday := extract(dow FROM v_day) = ANY (v_weekdays);
        IF (v_is_day AND v_is_weekday) OR (v_either AND (v_is_day OR v_is_weekday)) THEN
            IF v_day > v_from::date THEN
                v_hour := (cron_wall.fields).hours[1];
                v_minute := (cron_wall.fields).minutes[1];
                RETURN v_day + make_time(v_hour, v_minute, 0);
            END IF;

            -- The day itself: what is left of this hour, or else a later hour.
            IF v_hour = ANY ((cron_wall.fields).hours) THEN
                SELECT min(m.minute) INTO v_minute
                FROM unnest((cron_wall.fields).minutes) AS m (minute)
                WHERE m.minute >= extract(minute FROM v_from);
                IF v_minute IS NOT NULL THEN
                    RETURN v_day + make_time(v_hour, v_minute, 0);
                END IF;
            END IF;
            SELECT min(h.hour) INTO v_hour
            FROM unnest((cron_wall.fields).hours) AS h (hour)
            WHERE h.hour > extract(hour FROM v_from);
            IF v_hour IS NOT NULL THEN
                RETURN v_day + make_time(v_hour, (cron_wall.fields).minutes[1], 0);
            END IF;
        END IF;
        v_day := v_day + 1;
    END LOOP;
    RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse_internal.cron_wall(pulse_internal.cron_fields, timestamp) IS
'The first wall time after the given one that matches.';

-- Assumes one change in between. Hours and seconds only: days would be days of the
-- session's time zone.
CREATE FUNCTION pulse_internal.clock_change(
    lower timestamptz, upper timestamptz, timezone text
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lower bigint := floor(extract(epoch FROM clock_change.lower));
    v_upper bigint := floor(extract(epoch FROM clock_change.upper));
    v_middle bigint;
    v_offset interval := pulse_internal.utc_offset(clock_change.upper, clock_change.timezone);
BEGIN
    WHILE v_upper - v_lower > 1 LOOP
        v_middle := (v_lower + v_upper) / 2;
        IF pulse_internal.utc_offset(to_timestamp(v_middle), clock_change.timezone) = v_offset THEN
            v_upper := v_middle;
        ELSE
            v_lower := v_middle;
        END IF;
    END LOOP;
    RETURN to_timestamp(v_upper);
END;
$$;

COMMENT ON FUNCTION pulse_internal.clock_change(timestamptz, timestamptz, text) IS
'The moment between the two at which the offset of a time zone changes.';

CREATE FUNCTION pulse_internal.utc_offset(moment timestamptz, timezone text)
RETURNS interval
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (moment AT TIME ZONE utc_offset.timezone) - (moment AT TIME ZONE 'UTC')
$$;

COMMENT ON FUNCTION pulse_internal.utc_offset(timestamptz, text) IS
'How far the wall clock of a time zone is ahead of UTC at a moment.';
