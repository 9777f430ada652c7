-- When a recurrence (cron, every or at) occurs.

CREATE FUNCTION pulse_internal.occurrence_after(
    recurrence pulse_internal.recurrence, after timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_recurrence pulse_internal.recurrence := occurrence_after.recurrence;
BEGIN
    IF v_recurrence.at IS NOT NULL THEN
        RETURN CASE WHEN v_recurrence.at > occurrence_after.after THEN v_recurrence.at END;
    END IF;
    IF v_recurrence.every IS NOT NULL THEN
        RETURN pulse_internal.interval_occurrence(
            v_recurrence, pulse_internal.interval_count(v_recurrence, occurrence_after.after) + 1
        );
    END IF;
    RETURN pulse_internal.cron_next(
        v_recurrence.cron, v_recurrence.timezone, occurrence_after.after
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.occurrence_after(pulse_internal.recurrence, timestamptz) IS
'The first occurrence after a moment; NULL when there is none.';

-- A cron expression is looked for further and further back, then followed.
CREATE FUNCTION pulse_internal.occurrence_until(
    recurrence pulse_internal.recurrence, since timestamptz, until timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_recurrence pulse_internal.recurrence := occurrence_until.recurrence;
    v_back interval := interval '1 minute';
    v_number bigint;
    v_found timestamptz;
    v_next timestamptz;
BEGIN
    IF v_recurrence.at IS NOT NULL THEN
        RETURN occurrence_until.since;
    END IF;
    IF v_recurrence.every IS NOT NULL THEN
        v_number := pulse_internal.interval_count(v_recurrence, occurrence_until.until);
        IF v_number > 0 THEN
            v_found := pulse_internal.interval_occurrence(v_recurrence, v_number);
        END IF;
        RETURN greatest(v_found, occurrence_until.since);
    END IF;

    LOOP
        v_next := pulse_internal.cron_next(
            v_recurrence.cron, v_recurrence.timezone,
            greatest(occurrence_until.since, occurrence_until.until - v_back)
        );
        EXIT WHEN v_next <= occurrence_until.until
            OR occurrence_until.until - v_back <= occurrence_until.since;
        v_back := v_back * 2;
    END LOOP;
    v_found := occurrence_until.since;
    WHILE v_next <= occurrence_until.until LOOP
        v_found := v_next;
        v_next := pulse_internal.cron_next(v_recurrence.cron, v_recurrence.timezone, v_next);
    END LOOP;
    RETURN v_found;
END;
$$;

COMMENT ON FUNCTION pulse_internal.occurrence_until(
    pulse_internal.recurrence, timestamptz, timestamptz
) IS
'The newest occurrence up to a moment, given one that is known.';

CREATE FUNCTION pulse_internal.recurrence(
    cron text, every interval, at timestamptz, anchor timestamptz, timezone text
)
RETURNS pulse_internal.recurrence
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT ROW(
        CASE WHEN recurrence.cron IS NOT NULL THEN pulse_internal.cron_parse(recurrence.cron) END,
        recurrence.every,
        recurrence.at,
        recurrence.anchor,
        recurrence.timezone
    )::pulse_internal.recurrence
$$;

COMMENT ON FUNCTION pulse_internal.recurrence(text, interval, timestamptz, timestamptz, text) IS
'What says when a schedule is due, with its cron expression read.';

-- Occurrences by an interval, counted from the anchor.

-- anchor + n × every: nothing adds up, so nothing drifts. Months and days are days of
-- the wall clock, hours and less are time that passes.
CREATE FUNCTION pulse_internal.interval_occurrence(
    recurrence pulse_internal.recurrence, number bigint
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_every interval := (interval_occurrence.recurrence).every;
    v_anchor timestamptz := (interval_occurrence.recurrence).anchor;
    v_timezone text := (interval_occurrence.recurrence).timezone;
    v_calendar interval := make_interval(
        months => (12 * extract(year FROM v_every) + extract(month FROM v_every))::integer,
        days => extract(day FROM v_every)::integer
    );
BEGIN
    IF v_calendar = interval '0' THEN
        RETURN v_anchor + v_every * interval_occurrence.number;
    END IF;
    RETURN pulse_internal.wall_moment(
        (v_anchor AT TIME ZONE v_timezone) + v_calendar * interval_occurrence.number,
        v_timezone
    ) + (v_every - v_calendar) * interval_occurrence.number;
END;
$$;

COMMENT ON FUNCTION pulse_internal.interval_occurrence(pulse_internal.recurrence, bigint) IS
'The occurrence of an interval with the given number; the first has number 1.';

CREATE FUNCTION pulse_internal.interval_count(
    recurrence pulse_internal.recurrence, until timestamptz
)
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_every interval := (interval_count.recurrence).every;
    v_months integer := 12 * extract(year FROM v_every) + extract(month FROM v_every);
    -- A month is 30.436875 days on average; the estimate is put right below.
    v_seconds numeric := v_months * 2629746.0
        + extract(epoch FROM v_every - make_interval(months => v_months));
    v_passed numeric := extract(
        epoch FROM interval_count.until - (interval_count.recurrence).anchor
    );
    v_count bigint := greatest(0, floor(v_passed / v_seconds));
BEGIN
    WHILE v_count > 0
        AND pulse_internal.interval_occurrence(
            interval_count.recurrence, v_count
        ) > interval_count.until
    LOOP
        v_count := v_count - 1;
    END LOOP;
    WHILE pulse_internal.interval_occurrence(interval_count.recurrence, v_count + 1)
        <= interval_count.until
    LOOP
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END;
$$;

COMMENT ON FUNCTION pulse_internal.interval_count(pulse_internal.recurrence, timestamptz) IS
'How many occurrences an interval has had up to a moment.';

-- The moment a wall time stands for: of two the first, of none the end of the gap.
CREATE FUNCTION pulse_internal.wall_moment(wall timestamp, timezone text)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_moment timestamptz := wall_moment.wall AT TIME ZONE wall_moment.timezone;
    v_day_before timestamptz := v_moment - interval '24 hours';
    v_earlier timestamptz;
BEGIN
    IF (v_moment AT TIME ZONE wall_moment.timezone) <> wall_moment.wall THEN
        RETURN pulse_internal.clock_change(v_day_before, v_moment, wall_moment.timezone);
    END IF;

    v_earlier := (
        wall_moment.wall - pulse_internal.utc_offset(v_day_before, wall_moment.timezone)
    ) AT TIME ZONE 'UTC';
    IF v_earlier < v_moment
        AND (v_earlier AT TIME ZONE wall_moment.timezone) = wall_moment.wall
    THEN
        RETURN v_earlier;
    END IF;
    RETURN v_moment;
END;
$$;

COMMENT ON FUNCTION pulse_internal.wall_moment(timestamp, text) IS
'The moment at which the wall clock of a time zone (first) shows a time.';
