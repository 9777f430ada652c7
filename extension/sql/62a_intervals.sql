-- Occurrences by an interval, counted from the anchor.

-- anchor + n × every: nothing adds up, so nothing drifts. Months and days are days of
-- the wall clock, hours and less are time that passes.
CREATE FUNCTION pulse._interval_occurrence(recurrence pulse.recurrence, number bigint)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_every interval := (_interval_occurrence.recurrence).every;
    v_anchor timestamptz := (_interval_occurrence.recurrence).anchor;
    v_timezone text := (_interval_occurrence.recurrence).timezone;
    v_calendar interval := make_interval(
        months => (12 * extract(year FROM v_every) + extract(month FROM v_every))::integer,
        days => extract(day FROM v_every)::integer
    );
BEGIN
    IF v_calendar = interval '0' THEN
        RETURN v_anchor + v_every * _interval_occurrence.number;
    END IF;
    RETURN pulse._wall_moment(
        (v_anchor AT TIME ZONE v_timezone) + v_calendar * _interval_occurrence.number,
        v_timezone
    ) + (v_every - v_calendar) * _interval_occurrence.number;
END;
$$;

COMMENT ON FUNCTION pulse._interval_occurrence(pulse.recurrence, bigint) IS
'The occurrence of an interval with the given number; the first has number 1.';

CREATE FUNCTION pulse._interval_count(recurrence pulse.recurrence, until timestamptz)
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_every interval := (_interval_count.recurrence).every;
    v_months integer := 12 * extract(year FROM v_every) + extract(month FROM v_every);
    -- A month is 30.436875 days on average; the estimate is put right below.
    v_seconds numeric := v_months * 2629746.0
        + extract(epoch FROM v_every - make_interval(months => v_months));
    v_passed numeric := extract(
        epoch FROM _interval_count.until - (_interval_count.recurrence).anchor
    );
    v_count bigint := greatest(0, floor(v_passed / v_seconds));
BEGIN
    WHILE v_count > 0
        AND pulse._interval_occurrence(_interval_count.recurrence, v_count) > _interval_count.until
    LOOP
        v_count := v_count - 1;
    END LOOP;
    WHILE pulse._interval_occurrence(_interval_count.recurrence, v_count + 1)
        <= _interval_count.until
    LOOP
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END;
$$;

COMMENT ON FUNCTION pulse._interval_count(pulse.recurrence, timestamptz) IS
'How many occurrences an interval has had up to a moment.';

-- The moment a wall time stands for: of two the first, of none the end of the gap.
CREATE FUNCTION pulse._wall_moment(wall timestamp, timezone text)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_moment timestamptz := _wall_moment.wall AT TIME ZONE _wall_moment.timezone;
    v_day_before timestamptz := v_moment - interval '24 hours';
    v_earlier timestamptz;
BEGIN
    IF (v_moment AT TIME ZONE _wall_moment.timezone) <> _wall_moment.wall THEN
        RETURN pulse._clock_change(v_day_before, v_moment, _wall_moment.timezone);
    END IF;

    v_earlier := (
        _wall_moment.wall - pulse._utc_offset(v_day_before, _wall_moment.timezone)
    ) AT TIME ZONE 'UTC';
    IF v_earlier < v_moment
        AND (v_earlier AT TIME ZONE _wall_moment.timezone) = _wall_moment.wall
    THEN
        RETURN v_earlier;
    END IF;
    RETURN v_moment;
END;
$$;

COMMENT ON FUNCTION pulse._wall_moment(timestamp, text) IS
'The moment at which the wall clock of a time zone (first) shows a time.';
