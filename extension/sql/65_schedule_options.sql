-- When a schedule may fire; what its job may be is in 31_options.sql.

CREATE FUNCTION pulse._require_recurrence(cron text, every interval, at timestamptz)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_given integer := num_nonnulls(
        _require_recurrence.cron, _require_recurrence.every, _require_recurrence.at
    );
BEGIN
    IF v_given <> 1 THEN
        PERFORM pulse._raise(
            'PU002',
            'a schedule needs exactly one of cron, every and at',
            format('%s of them are given.', v_given),
            'Pass cron => ''0 3 * * *'', every => ''15 minutes'' or at => ''2030-01-01 12:00+00''.'
        );
    END IF;

    PERFORM pulse._require_duration('every', _require_recurrence.every, '1 second', '10 years');
    IF NOT isfinite(_require_recurrence.at) THEN
        PERFORM pulse._raise(
            'PU002',
            'at must be a moment in time',
            format('It is %s.', _require_recurrence.at),
            'Pass a finite timestamptz.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_recurrence(text, interval, timestamptz) IS
'Raise PU002 unless exactly one is given and it can be followed.';

-- The name as the server's own list spells it. AT TIME ZONE would take any POSIX
-- string as well, and 'UTC+3' means three hours behind there.
CREATE FUNCTION pulse._require_timezone(timezone text)
RETURNS text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_timezone text;
BEGIN
    IF _require_timezone.timezone = 'UTC' THEN
        RETURN 'UTC';
    END IF;

    SELECT z.name INTO v_timezone
    FROM pg_timezone_names AS z
    WHERE lower(z.name) = lower(left(_require_timezone.timezone, 100))
    LIMIT 1;

    IF NOT FOUND THEN
        PERFORM pulse._raise(
            'PU008',
            format(
                'time zone %s is not known',
                coalesce(quote_literal(left(_require_timezone.timezone, 100)), 'NULL')
            ),
            'It must be a name of the time zone database.',
            'Pass timezone => ''Europe/Berlin''; SELECT name FROM pg_timezone_names lists them.'
        );
    END IF;
    RETURN v_timezone;
END;
$$;

COMMENT ON FUNCTION pulse._require_timezone(text) IS
'The name of a time zone, or PU008.';

CREATE FUNCTION pulse._require_future(at timestamptz)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _require_future.at < clock_timestamp() - interval '60 seconds' THEN
        PERFORM pulse._raise(
            'PU002',
            'at must not be in the past',
            format('It is %s.', _require_future.at),
            'Pass a moment to come, or enqueue the job directly.'
        );
    END IF;
    PERFORM pulse._require_run_at(_require_future.at, NULL);
END;
$$;

COMMENT ON FUNCTION pulse._require_future(timestamptz) IS
'Raise PU002 when a moment is past by more than a minute, or too far for clients to read.';
