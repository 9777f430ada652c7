-- How large a payload and headers may be, and how that is measured.

CREATE FUNCTION pulse._require_payload(payload jsonb)
RETURNS void
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Small and not compressed: never above 8 MB as text, whatever its numbers.
    IF _require_payload.payload IS NULL
        OR pg_column_size(_require_payload.payload) <= 1000
        AND pg_column_compression(_require_payload.payload) IS NULL
        AND current_setting('pulse.max_payload', true) IS NULL
    THEN
        RETURN;
    END IF;
    PERFORM pulse._require_size(
        'payload',
        pulse._text_size(_require_payload.payload),
        pulse._max_payload(),
        'Store the data elsewhere and enqueue a reference, or raise it up to 64 MB: ALTER DATABASE … SET pulse.max_payload = ''16 MB''.'
    );
END;
$$;

COMMENT ON FUNCTION pulse._require_payload(jsonb) IS
'Raise PU003 when a payload is larger than pulse.max_payload of the database (default 8 MB).';

-- What a session sets can lower the limit for itself. Only what ALTER DATABASE says raises
-- it, which needs the owner of the database; a role could set its own ALTER ROLE.
CREATE FUNCTION pulse._max_payload()
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

COMMENT ON FUNCTION pulse._max_payload() IS
'How large a payload may be in bytes: what ALTER DATABASE … SET pulse.max_payload says, 8 MB by default, 64 MB at most.';

-- The size that counts is the one that a claim hands out: text. pg_column_size of a value
-- from a table is its compressed size, and 16 bytes of jsonb can be a number of 131,072
-- digits: so 100,000 bytes can be 0.8 GB, and more may be above what PostgreSQL can hold.
CREATE FUNCTION pulse._text_size(value jsonb)
RETURNS bigint
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_column_compression(_text_size.value) IS NULL
        AND pg_column_size(_text_size.value) <= 100000
    THEN
        RETURN octet_length(_text_size.value::text);
    END IF;
    BEGIN
        RETURN octet_length(_text_size.value::text);
    EXCEPTION
        WHEN program_limit_exceeded THEN
            RETURN 1073741824;
    END;
END;
$$;

COMMENT ON FUNCTION pulse._text_size(jsonb) IS
'How many bytes a JSON value has as text, compressed or not; 1 GB where that is more than PostgreSQL can hold.';

-- Context of the job, not its data: a claim of a thousand jobs hands all of them out.
CREATE FUNCTION pulse._require_headers(headers jsonb)
RETURNS void
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF jsonb_typeof(_require_headers.headers) = 'object'
        AND pg_column_compression(_require_headers.headers) IS NULL
        AND pg_column_size(_require_headers.headers) <= 1000
        AND octet_length(_require_headers.headers::text) <= 16384
    THEN
        RETURN;
    END IF;
    PERFORM pulse._require_json(
        'headers', _require_headers.headers, 'object', '{"traceparent": "00-…"}'
    );
    PERFORM pulse._require_size(
        'headers', pulse._text_size(_require_headers.headers), 16384,
        'Headers are for context such as a trace id; put data into the payload.'
    );
END;
$$;

COMMENT ON FUNCTION pulse._require_headers(jsonb) IS
'Raise PU002 unless headers are a JSON object, PU003 when they are above 16 kB.';
