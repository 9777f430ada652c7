-- What the options of a job may be: the one room for enqueue, enqueue_one, enqueue_many
-- and schedule. An enqueue comes here only when something about it is out of the ordinary.

CREATE FUNCTION pulse._require_job_options(
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
    max_runtime interval
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_name('kind', _require_job_options.kind);
    IF _require_job_options.lane IS NOT NULL THEN
        PERFORM pulse._require_name('lane', _require_job_options.lane);
    END IF;
    PERFORM pulse._require_payload(_require_job_options.payload);
    IF _require_job_options.priority IS NOT NULL THEN
        PERFORM pulse._require_priority(_require_job_options.priority);
    END IF;
    PERFORM pulse._require_run_at(_require_job_options.run_at, _require_job_options.delay);
    PERFORM pulse._require_between(
        'max_attempts', _require_job_options.max_attempts, 1, 100000
    );
    PERFORM pulse._require_one_of(
        'on_conflict', _require_job_options.on_conflict, '{skip,replace,error}'
    );
    PERFORM pulse._require_between(
        'length of group_key', length(_require_job_options.group_key), 0, 1000
    );
    PERFORM pulse._require_between(
        'number of tags', cardinality(_require_job_options.tags), 0, 100
    );
    IF array_ndims(_require_job_options.tags) > 1 THEN
        PERFORM pulse._raise(
            'PU002',
            'tags must be a flat list',
            format('It has %s dimensions.', array_ndims(_require_job_options.tags)),
            'Pass tags => ''{a,b}''.'
        );
    END IF;
    PERFORM pulse._require_duration(
        'max_runtime', _require_job_options.max_runtime, '1 ms', '1 year'
    );
    IF num_nonnulls(_require_job_options.unique_key, _require_job_options.unique_for) > 0 THEN
        -- In bytes: the key stands in an index.
        PERFORM pulse._require_between(
            'size of unique_key in bytes',
            octet_length(_require_job_options.unique_key), 1, 1000
        );
        PERFORM pulse._require_duration(
            'unique_for', _require_job_options.unique_for, '0', '10 years'
        );
        IF _require_job_options.unique_key IS NULL THEN
            PERFORM pulse._raise(
                'PU002',
                'unique_for needs a unique_key',
                'There is no key that could stay taken.',
                'Pass unique_key => ''…'' as well.'
            );
        END IF;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._require_job_options(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, text [], interval
) IS
'Raise PU002 or PU003 unless these can be the options of a job.';

CREATE FUNCTION pulse._require_payload(payload jsonb)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_size(
        'payload',
        pg_column_size(_require_payload.payload),
        pg_size_bytes(coalesce(nullif(current_setting('pulse.max_payload', true), ''), '8 MB')),
        'Store the data elsewhere and enqueue a reference, or raise it: ALTER DATABASE … SET pulse.max_payload = ''16 MB''.'
    );
END;
$$;

COMMENT ON FUNCTION pulse._require_payload(jsonb) IS
'Raise PU003 when a payload is larger than pulse.max_payload (default 8 MB).';

CREATE FUNCTION pulse._require_run_at(run_at timestamptz, delay interval)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF _require_run_at.run_at IS NOT NULL AND _require_run_at.delay IS NOT NULL THEN
        PERFORM pulse._raise(
            'PU002',
            'run_at and delay exclude each other',
            'Both say when the job becomes due.',
            'Pass one of them.'
        );
    END IF;
    IF NOT isfinite(_require_run_at.run_at) THEN
        PERFORM pulse._raise(
            'PU002',
            'run_at must be a moment in time',
            format('It is %s.', _require_run_at.run_at),
            'Pass a finite run_at, or none for now.'
        );
    END IF;
    PERFORM pulse._require_duration('delay', _require_run_at.delay, '0', '100 years');
END;
$$;

COMMENT ON FUNCTION pulse._require_run_at(timestamptz, interval) IS
'Raise PU002 unless at most one of them is given and it can come.';
