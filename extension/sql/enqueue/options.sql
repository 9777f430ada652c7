-- What the options of a job may be: the one room for enqueue, enqueue_one, enqueue_many
-- and schedule. An enqueue comes here only when something about it is out of the ordinary.

CREATE FUNCTION pulse_internal.require_job_options(
    kind text,
    payload jsonb,
    lane text,
    priority integer,
    run_at timestamptz,
    delay interval,
    max_attempts integer,
    unique_key text,
    unique_for interval,
    on_conflict text,
    group_key text,
    tags text [],
    max_runtime interval,
    headers jsonb,
    start_by timestamptz,
    expires_in interval
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Each function that is entered costs as much as all that is asked here: they are called
    -- to say what is wrong, or where it takes more to know.
    IF (
        length(require_job_options.kind)
        BETWEEN 1 AND pulse_internal.longest_name()
        AND coalesce(length(require_job_options.lane), 1)
        BETWEEN 1 AND pulse_internal.longest_name()
        AND coalesce(require_job_options.priority, 0)
        BETWEEN - pulse_internal.highest_priority()
        AND pulse_internal.highest_priority()
        AND coalesce(pg_column_size(require_job_options.payload), 0) <= 1000
        AND pg_column_compression(require_job_options.payload) IS NULL
        AND current_setting('pulse.max_payload', true) IS NULL
    ) IS NOT TRUE THEN
        PERFORM pulse_internal.require_name('kind', require_job_options.kind);
        IF require_job_options.lane IS NOT NULL THEN
            PERFORM pulse_internal.require_name('lane', require_job_options.lane);
        END IF;
        PERFORM pulse_internal.require_payload(require_job_options.payload);
        IF require_job_options.priority IS NOT NULL THEN
            PERFORM pulse_internal.require_priority(require_job_options.priority);
        END IF;
    END IF;
    IF require_job_options.on_conflict <> 'skip' THEN
        PERFORM pulse_internal.require_choice(
            require_job_options.on_conflict, pulse_internal.range_of('*', 'on_conflict')
        );
    END IF;
    IF num_nonnulls(require_job_options.run_at, require_job_options.delay) > 0 THEN
        IF (
            CASE
                WHEN require_job_options.delay IS NULL
                    THEN require_job_options.run_at
                        BETWEEN '0001-01-01 00:00+00' AND '9999-12-31 00:00+00'
                WHEN require_job_options.run_at IS NULL
                    THEN require_job_options.delay
                        BETWEEN (pulse_internal.range_of('enqueue', 'delay')).shortest
                        AND (pulse_internal.range_of('enqueue', 'delay')).longest
                        AND require_job_options.delay::text NOT LIKE '%-%'
            END
        ) IS NOT TRUE THEN
            PERFORM pulse_internal.require_run_at(
                require_job_options.run_at, require_job_options.delay
            );
        END IF;
    END IF;
    IF num_nonnulls(
        require_job_options.max_attempts, require_job_options.group_key,
        require_job_options.tags, require_job_options.max_runtime
    ) > 0 THEN
        IF require_job_options.max_attempts
            NOT BETWEEN pulse_internal.lowest('*', 'max_attempts')::integer
            AND pulse_internal.highest('*', 'max_attempts')::integer
        THEN
            PERFORM pulse_internal.require_between(
                require_job_options.max_attempts, pulse_internal.range_of('*', 'max_attempts')
            );
        END IF;
        IF length(require_job_options.group_key)
            > pulse_internal.highest('enqueue', 'group_key')::integer
        THEN
            PERFORM pulse_internal.require_between(
                length(require_job_options.group_key),
                pulse_internal.range_of('enqueue', 'group_key')
            );
        END IF;
        IF require_job_options.tags IS NOT NULL THEN
            PERFORM pulse_internal.require_tags(require_job_options.tags);
        END IF;
        IF require_job_options.max_runtime IS NOT NULL THEN
            PERFORM pulse_internal.require_duration(
                require_job_options.max_runtime, pulse_internal.range_of('enqueue', 'max_runtime')
            );
        END IF;
    END IF;
    IF num_nonnulls(
        require_job_options.headers, require_job_options.start_by,
        require_job_options.expires_in
    ) > 0 THEN
        IF require_job_options.headers IS NOT NULL THEN
            PERFORM pulse_internal.require_headers(require_job_options.headers);
        END IF;
        IF num_nonnulls(require_job_options.start_by, require_job_options.expires_in) > 0 THEN
            PERFORM pulse_internal.require_start_by(
                require_job_options.start_by, require_job_options.expires_in,
                require_job_options.run_at, require_job_options.delay
            );
        END IF;
    END IF;
    IF num_nonnulls(require_job_options.unique_key, require_job_options.unique_for) > 0 THEN
        -- In bytes: the key stands in an index.
        IF octet_length(require_job_options.unique_key)
            NOT BETWEEN pulse_internal.lowest('*', 'unique_key')::integer
            AND pulse_internal.highest('*', 'unique_key')::integer
        THEN
            PERFORM pulse_internal.require_between(
                octet_length(require_job_options.unique_key),
                pulse_internal.range_of('*', 'unique_key')
            );
        END IF;
        IF require_job_options.unique_for IS NOT NULL THEN
            PERFORM pulse_internal.require_duration(
                require_job_options.unique_for, pulse_internal.range_of('*', 'unique_for')
            );
        END IF;
        IF require_job_options.unique_key IS NULL THEN
            PERFORM pulse_internal.raise(
                'PU002',
                'unique_for needs a unique_key',
                'There is no key that could stay taken.',
                'Pass unique_key => ''…'' as well.'
            );
        END IF;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_job_options(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, text [], interval, jsonb, timestamptz, interval
) IS
'Raise PU002 or PU003 unless these can be the options of a job.';

CREATE FUNCTION pulse_internal.require_start_by(
    start_by timestamptz, expires_in interval, run_at timestamptz, delay interval
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF num_nonnulls(require_start_by.start_by, require_start_by.expires_in) > 1 THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'start_by and expires_in exclude each other',
            'Both say when the job is cancelled unless it has begun.',
            'Pass one of them.'
        );
    END IF;
    IF require_start_by.expires_in IS NOT NULL THEN
        PERFORM pulse_internal.require_duration(
            require_start_by.expires_in, pulse_internal.range_of('*', 'expires_in')
        );
    END IF;
    IF require_start_by.start_by NOT BETWEEN '0001-01-01 00:00+00' AND '9999-12-31 00:00+00'
        OR require_start_by.start_by <= require_start_by.run_at
        OR require_start_by.start_by <= clock_timestamp() + require_start_by.delay
    THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'start_by must be a moment after the job is due',
            format('It is %s.', require_start_by.start_by),
            'Pass a start_by that is later than run_at, or expires_in, which counts from there.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_start_by(
    timestamptz, interval, timestamptz, interval
) IS
'Raise PU002 unless at most one of start_by and expires_in is given and the job can begin by then.';

CREATE FUNCTION pulse_internal.require_tags(tags text [])
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF cardinality(require_tags.tags)
        > (pulse_internal.range_of('*', 'tags', 'items')).highest::integer
        OR length(array_to_string(require_tags.tags, ''))
        > (pulse_internal.range_of('*', 'tags', 'characters')).highest::integer
    THEN
        PERFORM pulse_internal.require_between(
            cardinality(require_tags.tags), pulse_internal.range_of('*', 'tags', 'items')
        );
        PERFORM pulse_internal.require_between(
            length(array_to_string(require_tags.tags, '')),
            pulse_internal.range_of('*', 'tags', 'characters')
        );
    END IF;
    IF array_ndims(require_tags.tags) > 1 THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'tags must be a flat list',
            format('It has %s dimensions.', array_ndims(require_tags.tags)),
            'Pass tags => ''{a,b}''.'
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_tags(text []) IS
'Raise PU002 for too many tags, too long ones, or nested ones.';

CREATE FUNCTION pulse_internal.require_run_at(run_at timestamptz, delay interval)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF require_run_at.run_at IS NOT NULL AND require_run_at.delay IS NOT NULL THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'run_at and delay exclude each other',
            'Both say when the job becomes due.',
            'Pass one of them.'
        );
    END IF;
    -- What clients can read: drivers know years of four digits.
    IF require_run_at.run_at NOT BETWEEN '0001-01-01 00:00+00' AND '9999-12-31 00:00+00' THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'run_at must be a moment in time',
            format('It is %s.', require_run_at.run_at),
            'Pass a run_at before the year 10000, or none for now.'
        );
    END IF;
    PERFORM pulse_internal.require_duration(
        require_run_at.delay, pulse_internal.range_of('enqueue', 'delay')
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_run_at(timestamptz, interval) IS
'Raise PU002 unless at most one of them is given and it can come.';

-- How large a payload and headers may be, and how that is measured.

CREATE FUNCTION pulse_internal.require_payload(payload jsonb)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Small and not compressed: never above 8 MB as text, whatever its numbers.
    IF require_payload.payload IS NULL
        OR pg_column_size(require_payload.payload) <= 1000
        AND pg_column_compression(require_payload.payload) IS NULL
        AND current_setting('pulse.max_payload', true) IS NULL
    THEN
        RETURN;
    END IF;
    PERFORM pulse_internal.require_size(
        pulse_internal.text_size(require_payload.payload),
        ROW('payload', 'bytes', 0, pulse_internal.max_payload(), NULL, NULL, NULL),
        'Store the data elsewhere and enqueue a reference, or raise it up to 64 MB: ALTER DATABASE … SET pulse.max_payload = ''16 MB''.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_payload(jsonb) IS
'Raise PU003 when a payload is larger than pulse.max_payload of the database (default 8 MB).';

-- What a session sets can lower the limit for itself. Only what ALTER DATABASE says raises
-- it, which needs the owner of the database; a role could set its own ALTER ROLE.
CREATE FUNCTION pulse_internal.max_payload()
RETURNS bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_most bigint := coalesce(
        (
            SELECT pg_size_bytes(nullif(split_part(c.setting, '=', 2), ''))
            FROM pg_db_role_setting AS s
            INNER JOIN pg_database AS d ON d.oid = s.setdatabase
            CROSS JOIN LATERAL unnest(s.setconfig) AS c (setting)
            WHERE d.datname = current_database()
                AND s.setrole = 0
                AND c.setting LIKE 'pulse.max\_payload=%'
        ),
        8388608
    );
BEGIN
    -- Above 64 MB an answer to a claim could outgrow what the protocol can carry.
    RETURN least(
        v_most, 67108864,
        pg_size_bytes(nullif(current_setting('pulse.max_payload', true), ''))
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.max_payload() IS
'How large a payload may be in bytes: what ALTER DATABASE … SET pulse.max_payload says, 8 MB by default, 64 MB at most.';

-- The size that counts is the one that a claim hands out: text. pg_column_size of a value
-- from a table is its compressed size, and 16 bytes of jsonb can be a number of 131,072
-- digits: so 100,000 bytes can be 0.8 GB, and more may be above what PostgreSQL can hold.
CREATE FUNCTION pulse_internal.text_size(value jsonb)
RETURNS bigint
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_column_compression(text_size.value) IS NULL
        AND pg_column_size(text_size.value) <= 100000
    THEN
        RETURN octet_length(text_size.value::text);
    END IF;
    BEGIN
        RETURN octet_length(text_size.value::text);
    EXCEPTION
        WHEN program_limit_exceeded THEN
            RETURN 1073741824;
    END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.text_size(jsonb) IS
'How many bytes a JSON value has as text, compressed or not; 1 GB where that is more than PostgreSQL can hold.';

-- Context of the job, not its data: a claim of a thousand jobs hands all of them out.
CREATE FUNCTION pulse_internal.require_headers(headers jsonb)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF jsonb_typeof(require_headers.headers) = 'object'
        AND pg_column_compression(require_headers.headers) IS NULL
        AND pg_column_size(require_headers.headers) <= 1000
        AND octet_length(require_headers.headers::text)
        <= pulse_internal.highest('*', 'headers')::integer
    THEN
        RETURN;
    END IF;
    PERFORM pulse_internal.require_json(
        'headers', require_headers.headers, 'object', '{"traceparent": "00-…"}'
    );
    PERFORM pulse_internal.require_size(
        pulse_internal.text_size(require_headers.headers), pulse_internal.range_of('*', 'headers'),
        'Headers are for context such as a trace id; put data into the payload.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_headers(jsonb) IS
'Raise PU002 unless headers are a JSON object, PU003 when they are above 16 kB.';
