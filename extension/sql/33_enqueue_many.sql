-- Many jobs of one kind in one statement: as cheap for each job as it gets.

CREATE FUNCTION pulse.enqueue_many(
    kind text,
    payloads jsonb [],
    lane text DEFAULT NULL,
    priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    unique_key text DEFAULT NULL,
    unique_for interval DEFAULT NULL,
    on_conflict text DEFAULT 'skip',
    group_key text DEFAULT NULL,
    requires_approval boolean DEFAULT NULL,
    tags text [] DEFAULT NULL,
    max_runtime interval DEFAULT NULL
)
RETURNS SETOF bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kind pulse.kind := pulse._kind_settings(enqueue_many.kind);
    v_lane text := coalesce(enqueue_many.lane, v_kind.lane);
    v_rank integer;
    v_run_at timestamptz;
    v_approval boolean := v_kind.requires_approval
        OR coalesce(enqueue_many.requires_approval, false);
    v_payload jsonb;
BEGIN
    IF cardinality(enqueue_many.payloads) IS DISTINCT FROM 0 THEN
        PERFORM pulse._require_between(
            'number of payloads', coalesce(cardinality(enqueue_many.payloads), 0), 1, 1000000
        );
    END IF;
    -- As in _enqueue: asked once whether anything is out of the ordinary.
    IF (
        length(enqueue_many.kind) BETWEEN 1 AND 200
        AND num_nonnulls(
            enqueue_many.lane, enqueue_many.priority, enqueue_many.run_at,
            enqueue_many.delay, enqueue_many.max_attempts, enqueue_many.unique_key,
            enqueue_many.unique_for, enqueue_many.group_key, enqueue_many.tags,
            enqueue_many.max_runtime
        ) = 0
        AND enqueue_many.on_conflict = 'skip'
    ) IS NOT TRUE THEN
        PERFORM pulse._require_job_options(
            enqueue_many.kind, NULL, enqueue_many.lane, enqueue_many.priority,
            enqueue_many.run_at, enqueue_many.delay, enqueue_many.max_attempts,
            enqueue_many.unique_key, enqueue_many.unique_for, enqueue_many.on_conflict,
            enqueue_many.group_key, enqueue_many.tags, enqueue_many.max_runtime
        );
    END IF;

    -- With a key or an approval each job is enqueued by itself.
    IF enqueue_many.unique_key IS NOT NULL OR v_approval THEN
        FOREACH v_payload IN ARRAY enqueue_many.payloads LOOP
            RETURN NEXT pulse.enqueue(
                enqueue_many.kind, v_payload, enqueue_many.lane, enqueue_many.priority,
                enqueue_many.run_at, enqueue_many.delay, enqueue_many.max_attempts,
                enqueue_many.unique_key, enqueue_many.unique_for,
                enqueue_many.on_conflict, enqueue_many.group_key,
                enqueue_many.requires_approval, enqueue_many.tags,
                enqueue_many.max_runtime
            );
        END LOOP;
        RETURN;
    END IF;

    v_run_at := coalesce(enqueue_many.run_at, clock_timestamp() + enqueue_many.delay);
    PERFORM pulse._require_payload(p.payload)
    FROM unnest(enqueue_many.payloads) AS p (payload)
    WHERE pg_column_size(p.payload) > 100000
        OR (pg_column_size(p.payload) > 8000 AND octet_length(p.payload::text) > 8388608)
        OR current_setting('pulse.max_payload', true) IS NOT NULL;
    v_rank := -coalesce(enqueue_many.priority, v_kind.priority);

    -- Ids and places in line are drawn in the order of the array.
    IF v_run_at > clock_timestamp() THEN
        RETURN QUERY
        WITH written AS (
            INSERT INTO pulse.body (
                kind, payload, max_attempts, max_runtime, group_key, tags, enqueued_by
            )
            SELECT
                enqueue_many.kind, coalesce(p.payload, '{}'),
                coalesce(enqueue_many.max_attempts, v_kind.max_attempts),
                enqueue_many.max_runtime, enqueue_many.group_key, enqueue_many.tags,
                pulse._caller()
            FROM unnest(enqueue_many.payloads) WITH ORDINALITY AS p (payload, place)
            ORDER BY p.place
            RETURNING job
        ),

        placed AS (
            INSERT INTO pulse.waiting (
                lane, run_at, job, kind, rank, attempts, failures, keyed, retrying
            )
            SELECT
                v_lane, greatest(v_run_at, clock_timestamp(), (SELECT pulse._due_floor())),
                w.job, enqueue_many.kind, v_rank, 0, 0, false, false
            FROM written AS w
        )

        SELECT w.job
        FROM written AS w
        ORDER BY w.job;
        RETURN;
    END IF;

    RETURN QUERY
    WITH written AS (
        INSERT INTO pulse.body (
            kind, payload, max_attempts, max_runtime, group_key, tags, enqueued_by
        )
        SELECT
            enqueue_many.kind, coalesce(p.payload, '{}'),
            coalesce(enqueue_many.max_attempts, v_kind.max_attempts),
            enqueue_many.max_runtime, enqueue_many.group_key, enqueue_many.tags,
            pulse._caller()
        FROM unnest(enqueue_many.payloads) WITH ORDINALITY AS p (payload, place)
        ORDER BY p.place
        RETURNING job
    ),

    placed AS (
        INSERT INTO pulse.ready (lane, rank, kind, job, attempts, failures, keyed)
        SELECT v_lane, v_rank, enqueue_many.kind, w.job, 0, 0, false
        FROM written AS w
        ORDER BY w.job
    )

    SELECT w.job
    FROM written AS w
    ORDER BY w.job;

    PERFORM pulse._ring(v_lane);
END;
$$;

COMMENT ON FUNCTION pulse.enqueue_many(
    text, jsonb [], text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval
) IS
'Enqueue one job for each payload, with the same options, and return the ids in the order of the array. Errors as in enqueue; all or none. Writes what enqueue writes.';
