-- What is asked of arguments: each function raises, or returns nothing.

-- "Lock, then look in a later statement" sees nothing new under one frozen snapshot.
CREATE FUNCTION pulse_internal.require_read_committed(verb text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
    THEN
        PERFORM pulse_internal.raise(
            'PU001',
            format('%s needs the isolation level READ COMMITTED', verb),
            format(
                'This transaction is %s.',
                upper(current_setting('transaction_isolation'))
            ),
            'Call it in a transaction of its own, or SET TRANSACTION ISOLATION LEVEL READ COMMITTED.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_read_committed(text) IS
'Raise PU001 above READ COMMITTED.';

CREATE FUNCTION pulse_internal.require_name(argument text, value text)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NULL OR value = '' OR length(value) > 200 THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('%s must be a name of 1 to 200 characters', argument),
            CASE
                WHEN value IS NULL THEN 'It is NULL.'
                WHEN value = '' THEN 'It is empty.'
                ELSE format('It has %s characters.', length(value))
            END,
            format('Pass %s => ''a-name''.', argument)
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_name(text, text) IS
'Raise PU002 unless the value can be a name.';

-- NULL passes: a setting that is not given means the default.
CREATE FUNCTION pulse_internal.require_between(
    argument text, value numeric, lowest numeric, highest numeric
)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value < require_between.lowest OR value > require_between.highest THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format(
                '%s must be between %s and %s',
                argument, require_between.lowest, require_between.highest
            ),
            format('It is %s.', value),
            'Pass a value inside these bounds.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_between(text, numeric, numeric, numeric) IS
'Raise PU002 unless the number is NULL or inside the bounds.';

-- Intervals are compared by months of 30 days and days of 24 hours, and added as they are: with
-- negative parts one within the bounds may lie in the past, or beyond all time.
CREATE FUNCTION pulse_internal.require_duration(
    argument text, value interval, lowest interval, highest interval
)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value < require_duration.lowest OR value > require_duration.highest THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format(
                '%s must be between %s and %s',
                argument, require_duration.lowest, require_duration.highest
            ),
            format('It is %s.', value),
            'Pass a value inside these bounds.'
        );
    END IF;

    IF least(
        extract(year FROM value), extract(month FROM value), extract(day FROM value),
        extract(hour FROM value), extract(minute FROM value), extract(second FROM value)
    ) < 0 THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('%s must not count backwards', argument),
            format('It is %s.', value),
            'Pass an interval whose months, days and hours are all positive; justify_interval() makes one of 1 day -1 hour.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_duration(text, interval, interval, interval) IS
'Raise PU002 unless the interval is NULL, or inside the bounds and in no part negative.';

CREATE FUNCTION pulse_internal.require_one_of(argument text, value text, choices text [])
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value <> ALL (choices) THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('%s must be one of %s', argument, array_to_string(choices, ', ')),
            format('It is %L.', left(value, 100)),
            format('Pass %s => %L.', argument, choices[1])
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_one_of(text, text, text []) IS
'Raise PU002 unless the value is NULL or one of the choices.';

CREATE FUNCTION pulse_internal.require_size(argument text, bytes bigint, most bigint, hint text)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF bytes > most THEN
        PERFORM pulse_internal.raise(
            'PU003',
            format('%s is larger than %s', argument, pg_size_pretty(most)),
            format('It has %s bytes.', bytes),
            hint
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_size(text, bigint, bigint, text) IS
'Raise PU003 when something is too large.';

CREATE FUNCTION pulse_internal.require_reason(reason text)
RETURNS void
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pulse_internal.require_size(
        'reason', octet_length(reason), 1048576, 'Say it in fewer words.'
    )
$$;

COMMENT ON FUNCTION pulse_internal.require_reason(text) IS
'Raise PU003 when a reason is larger than an error may be.';

CREATE FUNCTION pulse_internal.require_json(argument text, value jsonb, type text, example text)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF jsonb_typeof(value) IS DISTINCT FROM type THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('%s must be a JSON %s', argument, type),
            format('It is %s.', coalesce(jsonb_typeof(value), 'NULL')),
            format('Pass %s => %L.', argument, example)
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_json(text, jsonb, text, text) IS
'Raise PU002 unless the value is JSON of this type.';

CREATE FUNCTION pulse_internal.require_priority(priority integer)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF require_priority.priority IS NULL THEN
        PERFORM pulse_internal.raise(
            'PU002', 'priority must be a number', 'It is NULL.', 'Pass priority => 0.'
        );
    END IF;

    PERFORM pulse_internal.require_between(
        'priority', require_priority.priority, -2000000000, 2000000000
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_priority(integer) IS
'Raise PU002 unless the value can be a priority.';

CREATE FUNCTION pulse_internal.require_claim(
    worker text, lane text, max_jobs integer, lease_for interval, kinds text []
)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF worker IS NULL OR worker = '' OR length(worker) > 200 THEN
        PERFORM pulse_internal.require_name('worker', worker);
    END IF;
    IF lane IS NULL OR lane = '' OR length(lane) > 200 THEN
        PERFORM pulse_internal.require_name('lane', lane);
    END IF;
    IF max_jobs IS NULL OR max_jobs < 1 THEN
        PERFORM pulse_internal.require_between('max_jobs', coalesce(max_jobs, 0), 1, 2147483647);
    END IF;
    IF lease_for IS NOT NULL THEN
        PERFORM pulse_internal.require_duration('lease_for', lease_for, '1 second', '1 day');
    END IF;
    IF (
        CASE
            WHEN kinds IS NULL THEN false
            WHEN array_ndims(kinds) = 1
                THEN array_position(kinds, NULL) IS NOT NULL OR '' = ANY (kinds)
            ELSE true
        END
    ) THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'kinds must name at least one kind, and no empty one',
            format('It is %s.', kinds),
            'Pass kinds => ARRAY[''send-email''], or NULL for every kind.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_claim(text, text, integer, interval, text []) IS
'Raise PU002 unless these can be the arguments of a claim.';
