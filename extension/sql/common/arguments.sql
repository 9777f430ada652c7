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
    IF value IS NULL
        OR value = ''
        OR length(value) > pulse_internal.longest_name()
    THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format(
                '%s must be a name of 1 to %s characters',
                argument, pulse_internal.longest_name()
            ),
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

-- What an error says was out of bounds.
CREATE FUNCTION pulse_internal.measured(range pulse_internal.argument_range)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE (range).unit
            WHEN 'characters' THEN 'length of ' || (range).argument
            WHEN 'bytes' THEN format('size of %s in bytes', (range).argument)
            WHEN 'items' THEN 'number of ' || (range).argument
            ELSE (range).argument
        END
$$;

COMMENT ON FUNCTION pulse_internal.measured(pulse_internal.argument_range) IS
'The argument and the unit of a range, in the words of an error.';

-- NULL passes: a setting that is not given means the default.
CREATE FUNCTION pulse_internal.require_between(
    value numeric, range pulse_internal.argument_range
)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value < (range).lowest OR value > (range).highest THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format(
                '%s must be between %s and %s',
                pulse_internal.measured(range), (range).lowest, (range).highest
            ),
            format('It is %s.', value),
            'Pass a value inside these bounds.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_between(
    numeric, pulse_internal.argument_range
) IS
'Raise PU002 unless the number is NULL or inside the bounds.';

-- Intervals are compared by months of 30 days and days of 24 hours, and added as they are: with
-- negative parts one within the bounds may lie in the past, or beyond all time.
CREATE FUNCTION pulse_internal.require_duration(
    value interval, range pulse_internal.argument_range
)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value < (range).shortest OR value > (range).longest THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format(
                '%s must be between %s and %s',
                (range).argument, (range).shortest, (range).longest
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
            format('%s must not count backwards', (range).argument),
            format('It is %s.', value),
            'Pass an interval whose months, days and hours are all positive; justify_interval() makes one of 1 day -1 hour.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_duration(
    interval, pulse_internal.argument_range
) IS
'Raise PU002 unless the interval is NULL, or inside the bounds and in no part negative.';

CREATE FUNCTION pulse_internal.require_choice(
    value text, range pulse_internal.argument_range
)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value <> ALL ((range).choices) THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format(
                '%s must be one of %s',
                (range).argument, array_to_string((range).choices, ', ')
            ),
            format('It is %L.', left(value, 100)),
            format('Pass %s => %L.', (range).argument, (range).choices[1])
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_choice(text, pulse_internal.argument_range) IS
'Raise PU002 unless the value is NULL or one of the choices.';

-- The three above in short, where a call is not hot: they look the range up at each call.
CREATE FUNCTION pulse_internal.require_range(verb text, argument text, value numeric)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NOT NULL THEN
        PERFORM pulse_internal.require_between(value, pulse_internal.range_of(verb, argument));
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_range(text, text, numeric) IS
'require_between with the range of an argument.';

CREATE FUNCTION pulse_internal.require_range(verb text, argument text, value interval)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NOT NULL THEN
        PERFORM pulse_internal.require_duration(value, pulse_internal.range_of(verb, argument));
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_range(text, text, interval) IS
'require_duration with the range of an argument.';

CREATE FUNCTION pulse_internal.require_range(verb text, argument text, value text)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NOT NULL THEN
        PERFORM pulse_internal.require_choice(value, pulse_internal.range_of(verb, argument));
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_range(text, text, text) IS
'require_choice with the range of an argument.';

CREATE FUNCTION pulse_internal.require_size(
    bytes bigint, range pulse_internal.argument_range, hint text
)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF bytes > (range).highest THEN
        PERFORM pulse_internal.raise(
            'PU003',
            format(
                '%s is larger than %s',
                (range).argument, pg_size_pretty((range).highest)
            ),
            format('It has %s bytes.', bytes),
            hint
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_size(
    bigint, pulse_internal.argument_range, text
) IS
'Raise PU003 when something is too large.';

CREATE FUNCTION pulse_internal.require_reason(reason text)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF octet_length(reason) > pulse_internal.highest('*', 'reason')::integer THEN
        PERFORM pulse_internal.require_size(
            octet_length(reason), pulse_internal.range_of('*', 'reason'),
            'Say it in fewer words.'
        );
    END IF;
END;
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
        require_priority.priority, pulse_internal.range_of('*', 'priority')
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
    IF worker IS NULL
        OR worker = ''
        OR length(worker) > pulse_internal.longest_name()
    THEN
        PERFORM pulse_internal.require_name('worker', worker);
    END IF;
    IF lane IS NULL
        OR lane = ''
        OR length(lane) > pulse_internal.longest_name()
    THEN
        PERFORM pulse_internal.require_name('lane', lane);
    END IF;
    IF max_jobs IS NULL OR max_jobs < 1 THEN
        PERFORM pulse_internal.require_range(
            'claim_batch', 'max_jobs', coalesce(max_jobs, 0)
        );
    END IF;
    IF lease_for IS NOT NULL THEN
        PERFORM pulse_internal.require_duration(
            lease_for, pulse_internal.range_of('*', 'lease_for')
        );
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
