-- The jsonb filter of the bulk verbs and of find_jobs: checked and parsed here, once.

CREATE FUNCTION pulse_internal.parse_filter(verb text, filter jsonb)
RETURNS pulse_internal.job_filter
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_acts_on text [] := pulse_internal.acts_on(parse_filter.verb);
    v_now timestamptz := clock_timestamp();
    v_parsed pulse_internal.job_filter;
    v_key text;
    v_value jsonb;
    v_state text;
    v_fits boolean;
BEGIN
    IF jsonb_typeof(parse_filter.filter) IS DISTINCT FROM 'object' THEN
        PERFORM pulse_internal.raise_bad_filter(
            'filter must be a JSON object',
            format('It is %s.', coalesce(left(parse_filter.filter::text, 100), 'NULL'))
        );
    END IF;

    IF parse_filter.filter = '{}' AND parse_filter.verb <> 'find' THEN
        PERFORM pulse_internal.raise_bad_filter(
            'filter is empty', 'To act on every job, say so: {"all": true}.'
        );
    END IF;

    FOR v_key, v_value IN
        SELECT e.key, e.value
        FROM jsonb_each(parse_filter.filter) AS e
        ORDER BY e.key
    LOOP
        v_fits := pulse_internal.fits_filter(v_key, v_value);

        IF v_fits IS NULL THEN
            PERFORM pulse_internal.raise_bad_filter(
                format('filter key %s is unknown', to_jsonb(left(v_key, 100))),
                'Ignored, it would let the verb act on more jobs than were meant.'
            );
        END IF;

        IF NOT v_fits THEN
            PERFORM pulse_internal.raise_bad_filter(
                format('filter key %s has a bad value', to_jsonb(v_key)),
                format('It is %s.', left(v_value::text, 100))
            );
        END IF;
    END LOOP;

    v_parsed.states := coalesce(pulse_internal.texts(parse_filter.filter -> 'state'), v_acts_on);
    FOREACH v_state IN ARRAY v_parsed.states LOOP
        IF v_state <> ALL (v_acts_on) THEN
            PERFORM pulse_internal.raise_bad_filter(
                format(
                    CASE parse_filter.verb
                        WHEN 'find' THEN 'there is no state %2$s'
                        ELSE '%1$s_where cannot act on the state %2$s'
                    END,
                    parse_filter.verb, to_jsonb(left(v_state, 100))
                ),
                format('States: %s.', array_to_string(v_acts_on, ', '))
            );
        END IF;
    END LOOP;

    v_parsed.jobs := pulse_internal.texts(parse_filter.filter -> 'job_ids')::bigint [];
    v_parsed.lanes := pulse_internal.texts(parse_filter.filter -> 'lane');
    v_parsed.kinds := pulse_internal.texts(parse_filter.filter -> 'kind');
    v_parsed.workers := pulse_internal.texts(parse_filter.filter -> 'worker');
    v_parsed.rank := - (parse_filter.filter ->> 'priority')::integer;
    v_parsed.rank_above := - (parse_filter.filter ->> 'priority_below')::integer;
    v_parsed.rank_below := - (parse_filter.filter ->> 'priority_above')::integer;
    v_parsed.error_like := parse_filter.filter ->> 'error_like';
    v_parsed.error_contains := lower(parse_filter.filter ->> 'error_contains');
    v_parsed.asks_error := parse_filter.filter ?| '{error_like,error_contains}';
    v_parsed.tags := pulse_internal.texts(parse_filter.filter -> 'tag');
    v_parsed.group_keys := pulse_internal.texts(parse_filter.filter -> 'group_key');
    v_parsed.flows := pulse_internal.texts(parse_filter.filter -> 'flow');
    v_parsed.owners := pulse_internal.roles_named(
        pulse_internal.texts(parse_filter.filter -> 'enqueued_by')
    );
    v_parsed.enqueued_before := v_now - (parse_filter.filter ->> 'older_than')::interval;
    v_parsed.enqueued_after := v_now - (parse_filter.filter ->> 'newer_than')::interval;
    v_parsed.payload := parse_filter.filter -> 'payload';
    v_parsed.payload_contains := lower(parse_filter.filter ->> 'payload_contains');
    v_parsed.asks_body := parse_filter.filter
        ?| '{tag,group_key,flow,enqueued_by,older_than,newer_than,payload,payload_contains}';
    RETURN v_parsed;
END;
$$;

COMMENT ON FUNCTION pulse_internal.parse_filter(text, jsonb) IS
'The filter of a bulk verb, or of find, parsed; PU006 unless the verb understands it.';

-- Whether a value fits its key; NULL for a key that is not known.
CREATE FUNCTION pulse_internal.fits_filter(key text, value jsonb)
RETURNS boolean
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_type text := jsonb_typeof(fits_filter.value);
    v_text text := fits_filter.value #>> '{}';
BEGIN
    CASE
        WHEN fits_filter.key = ANY (
            '{state,lane,kind,tag,group_key,flow,enqueued_by,worker}'::text []
        ) THEN
            RETURN v_type = 'string' OR v_type = 'array' AND NOT EXISTS (
                SELECT
                FROM jsonb_array_elements(fits_filter.value) AS e (item)
                WHERE jsonb_typeof(e.item) <> 'string'
            );

        WHEN fits_filter.key = ANY ('{priority,priority_below,priority_above}'::text []) THEN
            RETURN v_type = 'number' AND v_text ~ '^-?[0-9]{1,10}$'
                AND abs(v_text::bigint) <= 2147483647;

        WHEN fits_filter.key = ANY ('{older_than,newer_than}'::text []) THEN
            IF v_type <> 'string' THEN
                RETURN false;
            END IF;

            BEGIN
                RETURN clock_timestamp() - v_text::interval IS NOT NULL;
            EXCEPTION
                WHEN invalid_datetime_format
                    OR datetime_field_overflow
                    OR interval_field_overflow THEN
                    RETURN false;
            END;

        WHEN fits_filter.key = 'error_like' THEN
            -- A pattern that ends within an escape is refused by LIKE, but only late.
            RETURN v_type = 'string' AND v_text !~ '(^|[^\\])(\\\\)*\\$';

        WHEN fits_filter.key = ANY ('{error_contains,payload_contains}'::text []) THEN
            RETURN v_type = 'string' AND v_text <> '';

        WHEN fits_filter.key = 'payload' THEN
            RETURN v_type IN ('object', 'array');

        WHEN fits_filter.key = 'job_ids' THEN
            RETURN v_type = 'array' AND NOT EXISTS (
                SELECT
                FROM jsonb_array_elements(fits_filter.value) AS e (item)
                WHERE jsonb_typeof(e.item) NOT IN ('string', 'number')
                    OR (e.item #>> '{}') !~ '^[0-9]{1,18}$'
            );

        WHEN fits_filter.key = 'all' THEN
            RETURN fits_filter.value = 'true';

        ELSE
            RETURN NULL;
    END CASE;
END;
$$;

COMMENT ON FUNCTION pulse_internal.fits_filter(text, jsonb) IS
'Whether a value may stand at this key of a filter; NULL when there is no such key.';

CREATE FUNCTION pulse_internal.texts(value jsonb)
RETURNS text []
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE jsonb_typeof(value)
            WHEN 'string' THEN ARRAY[value #>> '{}']
            WHEN 'array' THEN ARRAY(SELECT e.item FROM jsonb_array_elements_text(value) AS e (item))
        END
$$;

COMMENT ON FUNCTION pulse_internal.texts(jsonb) IS
'A JSON string, or an array of them, as an array; NULL for anything else.';

CREATE FUNCTION pulse_internal.raise_bad_filter(message text, detail text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise(
        'PU006',
        raise_bad_filter.message,
        raise_bad_filter.detail,
        'Keys: state, lane, kind, tag, group_key, flow, enqueued_by, worker (a string or an array of them); '
        'priority, priority_below, priority_above (an integer); older_than, newer_than (an interval); '
        'error_like (a LIKE pattern, in any case); error_contains, payload_contains (a text, in any case); '
        'payload (JSON that it contains); job_ids (an array of ids); or {"all": true}.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_bad_filter(text, text) IS
'Raise PU006 with the list of keys.';
