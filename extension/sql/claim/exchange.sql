-- One round trip for a worker: it reports, and it claims as many jobs as it has slots
-- free. It only calls complete_batch, fail_batch and claim_batch.

CREATE FUNCTION pulse.exchange(
    worker text,
    wants jsonb DEFAULT '{}',
    done jsonb DEFAULT '[]',
    failed jsonb DEFAULT '[]',
    kinds text [] DEFAULT NULL,
    lease_for interval DEFAULT NULL,
    completed bigint [] DEFAULT NULL
)
RETURNS SETOF pulse.exchanged
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_leases bigint [] := exchange.completed;
    v_said text [];
    v_results jsonb [];
    v_sound boolean;
BEGIN
    -- Cheap to see that all is well; what is wrong is found out by require_exchange.
    IF (
        current_setting('transaction_isolation') = 'read committed'
        AND exchange.worker <> '' AND length(exchange.worker) <= pulse_internal.longest_name()
        AND jsonb_typeof(exchange.wants) = 'object'
        AND jsonb_typeof(exchange.done) = 'array'
        AND jsonb_typeof(exchange.failed) = 'array'
        AND NOT jsonb_path_exists(
            exchange.wants,
            'strict $.* ? (@.type() != "number" || @ < 0 || @ > 999999999 || @.floor() != @)'
        )
        AND (
            exchange.done = '[]'
            OR NOT jsonb_path_exists(exchange.done, 'strict $[*] ? (@.type() != "object")')
        )
        AND exchange.failed = '[]'
        AND coalesce(array_ndims(v_leases), 1) = 1
    ) IS NOT TRUE THEN
        PERFORM pulse_internal.require_exchange(
            exchange.worker, exchange.wants, exchange.done, exchange.failed, v_leases
        );
    END IF;

    IF exchange.done <> '[]' THEN
        -- One look at the digits of all leases.
        SELECT
            array_agg(r.lease),
            CASE WHEN count(r.result) > 0 THEN array_agg(r.result) END,
            string_agg(r.lease, '') !~ '[^0-9]'
            AND min(length(r.lease)) >= 1 AND max(length(r.lease)) <= 18
        INTO v_said, v_results, v_sound
        FROM jsonb_to_recordset(exchange.done) AS r (lease text, result jsonb);

        IF v_sound IS NOT TRUE THEN
            PERFORM pulse_internal.require_exchange(
                exchange.worker, exchange.wants, exchange.done, exchange.failed, v_leases
            );
        END IF;

        -- First, since the first mention counts: those of completed, behind, have no results.
        v_leases := v_said::bigint [] || v_leases;
    END IF;

    IF v_leases <> '{}' THEN
        RETURN QUERY
        SELECT
            'done', v.verdict, NULL::text, v.lease, NULL::bigint, NULL::text, NULL::jsonb,
            NULL::integer, NULL::integer, NULL::integer, NULL::integer, NULL::timestamptz,
            NULL::timestamptz, NULL::timestamptz, NULL::jsonb, NULL::text, NULL::jsonb,
            NULL::text, NULL::text
        FROM pulse.complete_batch(v_leases, v_results, quiet => true) AS v;
    END IF;

    IF exchange.failed <> '[]' THEN
        RETURN QUERY
        SELECT
            'failed', v.verdict, NULL::text, v.lease, NULL::bigint, NULL::text, NULL::jsonb,
            NULL::integer, NULL::integer, NULL::integer, NULL::integer, NULL::timestamptz,
            NULL::timestamptz, NULL::timestamptz, NULL::jsonb, NULL::text, NULL::jsonb,
            NULL::text, NULL::text
        FROM (
            SELECT
                array_agg(r.lease) AS leases,
                array_agg(r.error) AS errors,
                array_agg(r.retry_in) AS retry_in,
                array_agg(coalesce(r.fatal, false)) AS fatal
            FROM jsonb_to_recordset(exchange.failed) AS r (
                lease bigint, error text, retry_in interval, fatal boolean
            )
        ) AS a
        CROSS JOIN LATERAL pulse.fail_batch(
            a.leases, a.errors, a.retry_in, a.fatal, quiet => true
        ) AS v;
    END IF;

    -- In the order of the names: two exchanges try their lane locks in the same order.
    RETURN QUERY
    SELECT
        'job', NULL::text, w.lane, c.lease, c.job_id, c.kind, c.payload, c.attempt,
        c.failures, c.max_attempts, c.priority, c.lease_until, c.deadline,
        c.enqueued_at, c.checkpoint, c.group_key, c.headers, c.flow, c.name
    FROM (
        SELECT e.lane, e.n::numeric::integer AS n
        FROM jsonb_each_text(exchange.wants) AS e (lane, n)
        WHERE e.n::numeric > 0
        ORDER BY e.lane COLLATE "C"
        OFFSET 0
    ) AS w
    CROSS JOIN LATERAL pulse.claim_batch(
        exchange.worker, w.lane, w.n, exchange.lease_for, exchange.kinds
    ) AS c;
END;
$$;

COMMENT ON FUNCTION pulse.exchange(
    text, jsonb, jsonb, jsonb, text [], interval, bigint []
) IS
'Report and claim in one round trip. completed: leases of jobs that are done and have no result, done: [{"lease", "result"}] (this one counts where a lease is in both), failed: [{"lease", "error", "retry_in", "fatal"}], wants: {lane: how many}; leases in JSON are strings. First a row for each report that was not accepted (item done or failed, with its verdict lost or too_large), then a row for each claimed job (item job). Errors as in claim_batch; a lost lease is a verdict, not an error. Writes what complete_batch, fail_batch and claim_batch write.';

CREATE FUNCTION pulse_internal.require_exchange(
    worker text, wants jsonb, done jsonb, failed jsonb, completed bigint []
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_wrong record;
BEGIN
    PERFORM pulse_internal.require_read_committed('exchange');
    PERFORM pulse_internal.require_name('worker', require_exchange.worker);
    PERFORM pulse_internal.require_json(
        'wants', require_exchange.wants, 'object', '{"default": 10}'
    );
    PERFORM pulse_internal.require_json(
        'done', require_exchange.done, 'array', '[{"lease": "123", "result": {}}]'
    );
    PERFORM pulse_internal.require_json(
        'failed', require_exchange.failed, 'array', '[{"lease": "123", "error": "why"}]'
    );

    IF array_ndims(require_exchange.completed) > 1 THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'completed must be a flat list',
            format('It has %s dimensions.', array_ndims(require_exchange.completed)),
            'Pass completed => ''{123,124}''.'
        );
    END IF;

    SELECT w.lane, w.n INTO v_wrong
    FROM jsonb_each_text(require_exchange.wants) AS w (lane, n)
    WHERE w.n !~ '^[0-9]{1,9}(\.0+)?$' OR w.n IS NULL
    LIMIT 1;
    IF FOUND THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format('wants must say how many jobs of lane %L', v_wrong.lane),
            format('It says %s.', coalesce(v_wrong.n, 'null')),
            'Pass wants => ''{"default": 10}''.'
        );
    END IF;

    SELECT e.report INTO v_wrong
    FROM jsonb_array_elements(
        require_exchange.done || require_exchange.failed
    ) AS e (report)
    WHERE
        CASE
            WHEN jsonb_typeof(e.report) <> 'object' THEN true
            WHEN e.report ->> 'lease' !~ '^[0-9]{1,19}$' THEN true
            ELSE (e.report ->> 'lease')::numeric > 9223372036854775807
        END
    LIMIT 1;
    IF FOUND THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'done and failed must be lists of objects whose lease is a number',
            format('One of them is %s.', left(v_wrong.report::text, 100)),
            'Pass done => ''[{"lease": "123", "result": {}}]''; leases are strings.'
        );
    END IF;

    BEGIN
        PERFORM r.retry_in, r.fatal
        FROM jsonb_to_recordset(require_exchange.failed) AS r (
            retry_in interval, fatal boolean
        );
    EXCEPTION WHEN data_exception THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'retry_in in failed must be an interval, and fatal true or false',
            SQLERRM,
            'Pass failed => ''[{"lease": "123", "error": "why", "retry_in": "5 s", "fatal": false}]''.'
        );
    END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.require_exchange(text, jsonb, jsonb, jsonb, bigint []) IS
'Raise PU001 or PU002 unless these can be the arguments of an exchange.';
