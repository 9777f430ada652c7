-- When a recurrence (cron, every or at) occurs.

CREATE FUNCTION pulse._occurrence_after(recurrence pulse.recurrence, after timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_recurrence pulse.recurrence := _occurrence_after.recurrence;
BEGIN
    IF v_recurrence.at IS NOT NULL THEN
        RETURN CASE WHEN v_recurrence.at > _occurrence_after.after THEN v_recurrence.at END;
    END IF;
    IF v_recurrence.every IS NOT NULL THEN
        RETURN pulse._interval_occurrence(
            v_recurrence, pulse._interval_count(v_recurrence, _occurrence_after.after) + 1
        );
    END IF;
    RETURN pulse._cron_next(v_recurrence.cron, v_recurrence.timezone, _occurrence_after.after);
END;
$$;

COMMENT ON FUNCTION pulse._occurrence_after(pulse.recurrence, timestamptz) IS
'The first occurrence after a moment; NULL when there is none.';

-- A cron expression is looked for further and further back, then followed.
CREATE FUNCTION pulse._occurrence_until(
    recurrence pulse.recurrence, since timestamptz, until timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_recurrence pulse.recurrence := _occurrence_until.recurrence;
    v_back interval := interval '1 minute';
    v_number bigint;
    v_found timestamptz;
    v_next timestamptz;
BEGIN
    IF v_recurrence.at IS NOT NULL THEN
        RETURN _occurrence_until.since;
    END IF;
    IF v_recurrence.every IS NOT NULL THEN
        v_number := pulse._interval_count(v_recurrence, _occurrence_until.until);
        IF v_number > 0 THEN
            v_found := pulse._interval_occurrence(v_recurrence, v_number);
        END IF;
        RETURN greatest(v_found, _occurrence_until.since);
    END IF;

    LOOP
        v_next := pulse._cron_next(
            v_recurrence.cron, v_recurrence.timezone,
            greatest(_occurrence_until.since, _occurrence_until.until - v_back)
        );
        EXIT WHEN v_next <= _occurrence_until.until
            OR _occurrence_until.until - v_back <= _occurrence_until.since;
        v_back := v_back * 2;
    END LOOP;
    v_found := _occurrence_until.since;
    WHILE v_next <= _occurrence_until.until LOOP
        v_found := v_next;
        v_next := pulse._cron_next(v_recurrence.cron, v_recurrence.timezone, v_next);
    END LOOP;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse._occurrence_until(pulse.recurrence, timestamptz, timestamptz) IS
'The newest occurrence up to a moment, given one that is known.';

CREATE FUNCTION pulse._recurrence(
    cron text, every interval, at timestamptz, anchor timestamptz, timezone text
)
RETURNS pulse.recurrence
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ROW(
        CASE WHEN _recurrence.cron IS NOT NULL THEN pulse._cron_parse(_recurrence.cron) END,
        _recurrence.every,
        _recurrence.at,
        _recurrence.anchor,
        _recurrence.timezone
    )::pulse.recurrence
$$;

COMMENT ON FUNCTION pulse._recurrence(text, interval, timestamptz, timestamptz, text) IS
'What says when a schedule is due, with its cron expression read.';

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
