-- Times that the server's clock wrote while it was ahead.
--
-- The engine stores a time as "now", or as "now" and an interval. A clock that is set back
-- leaves stored times that no clock of this moment could have written. One rule reads them
-- all: a stored time is at most now and the interval that it could have been set ahead.
-- The functions that rest on it write the time that they read, so that it passes from then on.
--
-- The length of a day or a month depends on the TimeZone of the session, which its role may
-- set to anything. Such an interval therefore counts as long as it can be in any time zone.
-- Else a role could shorten the leases and unique keys of others.

CREATE FUNCTION pulse_internal.by_clock(
    stored timestamptz, now timestamptz, ahead interval DEFAULT '0'
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_latest timestamptz;
BEGIN
    -- Not by least(), which would make a time of none.
    IF by_clock.stored > by_clock.now THEN
        v_latest := by_clock.now + pulse_internal.longest(by_clock.ahead);
        IF by_clock.stored > v_latest THEN
            RETURN v_latest;
        END IF;
    END IF;
    RETURN by_clock.stored;
END;
$$;

COMMENT ON FUNCTION pulse_internal.by_clock(timestamptz, timestamptz, interval) IS
'A time that the engine stored, as the clock of this moment could have written it: at most now and the interval ahead.';

-- A month has at most 31 days. Two changes of the clock of a time zone, each of less than a day,
-- may lie within the interval.
CREATE FUNCTION pulse_internal.longest(length interval)
RETURNS interval
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_days double precision := date_part('day', longest.length) + 31 * (
        12 * date_part('year', longest.length) + date_part('month', longest.length)
    );
BEGIN
    IF v_days = 0 THEN
        RETURN longest.length;
    END IF;
    RETURN make_interval(
        hours => 24 * (v_days + 2)::integer + date_part('hour', longest.length)::integer,
        mins => date_part('minute', longest.length)::integer,
        secs => date_part('second', longest.length)
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.longest(interval) IS
'How long an interval can be in any time zone, in hours, minutes and seconds.';
