-- Times that the server's clock wrote while it was ahead.
--
-- The engine stores a time as "now", or as "now" and an interval. A clock that is set back
-- leaves stored times that no clock of this moment could have written. One rule reads them
-- all: a stored time is at most now and the interval that it could have been set ahead.
-- The functions that rest on it write the time that they read, so that it passes from then on.

CREATE FUNCTION pulse_internal.by_clock(
    stored timestamptz, now timestamptz, ahead interval DEFAULT '0'
)
RETURNS timestamptz
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Not by least(), which would make a time of none.
    IF by_clock.stored > by_clock.now + by_clock.ahead THEN
        RETURN by_clock.now + by_clock.ahead;
    END IF;
    RETURN by_clock.stored;
END;
$$;

COMMENT ON FUNCTION pulse_internal.by_clock(timestamptz, timestamptz, interval) IS
'A time that the engine stored, as the clock of this moment could have written it: at most now and the interval ahead.';
