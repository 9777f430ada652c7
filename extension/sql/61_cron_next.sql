-- What lies further away is approached: no match lies between here and three days
-- before what was found, whatever the clocks do in between.
CREATE FUNCTION pulse._cron_next(
    fields pulse.cron_fields, timezone text, after timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_after timestamptz := _cron_next.after;
    v_found timestamptz;
BEGIN
    FOR v_round IN 1..5 LOOP
        v_found := pulse._cron_near(_cron_next.fields, _cron_next.timezone, v_after);
        EXIT WHEN v_found IS NULL OR v_found <= v_after + interval '96 hours';
        v_after := v_found - interval '72 hours';
    END LOOP;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse._cron_next(pulse.cron_fields, text, timestamptz) IS
'The next moment after the given one at which a cron expression fires in a time zone.';

-- The next moment after the given one, right if it lies within the next four days (or
-- no clock changes before it). A change matters from a day before: that is how
-- long a gap can be (Samoa had no 30 December 2011).
CREATE FUNCTION pulse._cron_near(
    fields pulse.cron_fields, timezone text, after timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lower timestamptz := _cron_near.after - interval '24 hours';
    v_upper timestamptz := _cron_near.after + interval '96 hours';
    v_old interval := pulse._utc_offset(v_lower, _cron_near.timezone);
    v_new interval := pulse._utc_offset(v_upper, _cron_near.timezone);
    v_after timestamp := _cron_near.after AT TIME ZONE 'UTC';
    v_just interval := interval '1 microsecond';
    v_change timestamptz;
    v_gone timestamp;
    v_come timestamp;
    v_wall timestamp;
    v_lost timestamp;
BEGIN
    IF v_old = v_new THEN
        v_wall := pulse._cron_wall(_cron_near.fields, v_after + v_old);
        RETURN (v_wall - v_old) AT TIME ZONE 'UTC';
    END IF;

    -- The wall clock shows v_gone when it is set, and v_come when it has been set.
    v_change := pulse._clock_change(v_lower, v_upper, _cron_near.timezone);
    v_gone := (v_change AT TIME ZONE 'UTC') + v_old;
    v_come := (v_change AT TIME ZONE 'UTC') + v_new;

    IF _cron_near.after < v_change THEN
        v_wall := pulse._cron_wall(_cron_near.fields, v_after + v_old);
        IF v_wall < v_gone THEN
            RETURN (v_wall - v_old) AT TIME ZONE 'UTC';
        END IF;
    END IF;

    IF v_new > v_old THEN
        v_wall := pulse._cron_wall(
            _cron_near.fields, greatest(v_after + v_new, v_come - v_just)
        );
        v_lost := pulse._cron_wall(
            _cron_near.fields, greatest(v_after + v_old, v_gone - v_just)
        );
        IF v_lost < v_come AND (_cron_near.fields).every_hour THEN
            RETURN least(v_wall - v_new, v_lost - v_old) AT TIME ZONE 'UTC';
        END IF;
        IF v_lost < v_come AND _cron_near.after < v_change THEN
            RETURN v_change;
        END IF;
    ELSIF (_cron_near.fields).every_hour THEN
        v_wall := pulse._cron_wall(
            _cron_near.fields, greatest(v_after + v_new, v_come - v_just)
        );
    ELSE
        v_wall := pulse._cron_wall(
            _cron_near.fields, greatest(v_after + v_new, v_gone - v_just)
        );
    END IF;
    RETURN (v_wall - v_new) AT TIME ZONE 'UTC';
END;
$$;

COMMENT ON FUNCTION pulse._cron_near(pulse.cron_fields, text, timestamptz) IS
'The next moment a cron expression fires, exact for the next four days.';

-- The first matching wall time after the given one. Months are jumped over whole, days
-- one by one, hours and minutes looked up. 29 February on one weekday can be
-- forty years away, so the search ends after fifty.
CREATE FUNCTION pulse._cron_wall(fields pulse.cron_fields, after timestamp)
RETURNS timestamp
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_from timestamp := date_trunc('minute', _cron_wall.after) + interval '1 minute';
    v_day date := v_from::date;
    v_end date := v_day + 50 * 366;
    v_days integer [] := (_cron_wall.fields).days;
    v_months integer [] := (_cron_wall.fields).months;
    v_weekdays integer [] := (_cron_wall.fields).weekdays;
    v_either boolean := (_cron_wall.fields).either_day;
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
                v_hour := (_cron_wall.fields).hours[1];
                v_minute := (_cron_wall.fields).minutes[1];
                RETURN v_day + make_time(v_hour, v_minute, 0);
            END IF;

            -- The day itself: what is left of this hour, or else a later hour.
            IF v_hour = ANY ((_cron_wall.fields).hours) THEN
                SELECT min(m.minute) INTO v_minute
                FROM unnest((_cron_wall.fields).minutes) AS m (minute)
                WHERE m.minute >= extract(minute FROM v_from);
                IF v_minute IS NOT NULL THEN
                    RETURN v_day + make_time(v_hour, v_minute, 0);
                END IF;
            END IF;
            SELECT min(h.hour) INTO v_hour
            FROM unnest((_cron_wall.fields).hours) AS h (hour)
            WHERE h.hour > extract(hour FROM v_from);
            IF v_hour IS NOT NULL THEN
                RETURN v_day + make_time(v_hour, (_cron_wall.fields).minutes[1], 0);
            END IF;
        END IF;
        v_day := v_day + 1;
    END LOOP;
    RETURN NULL;
END;
$$;

COMMENT ON FUNCTION pulse._cron_wall(pulse.cron_fields, timestamp) IS
'The first wall time after the given one that matches.';

-- Assumes one change in between. Hours and seconds only: days would be days of the
-- session's time zone.
CREATE FUNCTION pulse._clock_change(
    lower timestamptz, upper timestamptz, timezone text
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_lower bigint := floor(extract(epoch FROM _clock_change.lower));
    v_upper bigint := floor(extract(epoch FROM _clock_change.upper));
    v_middle bigint;
    v_offset interval := pulse._utc_offset(_clock_change.upper, _clock_change.timezone);
BEGIN
    WHILE v_upper - v_lower > 1 LOOP
        v_middle := (v_lower + v_upper) / 2;
        IF pulse._utc_offset(to_timestamp(v_middle), _clock_change.timezone) = v_offset THEN
            v_upper := v_middle;
        ELSE
            v_lower := v_middle;
        END IF;
    END LOOP;
    RETURN to_timestamp(v_upper);
END;
$$;

COMMENT ON FUNCTION pulse._clock_change(timestamptz, timestamptz, text) IS
'The moment between the two at which the offset of a time zone changes.';

CREATE FUNCTION pulse._utc_offset(moment timestamptz, timezone text)
RETURNS interval
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT (moment AT TIME ZONE _utc_offset.timezone) - (moment AT TIME ZONE 'UTC')
$$;

COMMENT ON FUNCTION pulse._utc_offset(timestamptz, text) IS
'How far the wall clock of a time zone is ahead of UTC at a moment.';
