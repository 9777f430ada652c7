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
        PERFORM pulse._require_name('kind', enqueue_many.kind);
        PERFORM pulse._require_between(
            'number of payloads', coalesce(cardinality(enqueue_many.payloads), 0), 1, 1000000
        );
    END IF;

    -- With a key or an approval each job is a story of its own.
    IF enqueue_many.unique_key IS NOT NULL
        OR enqueue_many.unique_for IS NOT NULL
        OR v_approval
    THEN
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

    PERFORM pulse._require_name('lane', v_lane);
    PERFORM pulse._require_run_at(enqueue_many.run_at, enqueue_many.delay);
    v_run_at := coalesce(enqueue_many.run_at, clock_timestamp() + enqueue_many.delay);
    PERFORM pulse._require_between('priority', enqueue_many.priority, -2000000000, 2000000000);
    PERFORM pulse._require_between('max_attempts', enqueue_many.max_attempts, 1, 100000);
    PERFORM pulse._require_duration('max_runtime', enqueue_many.max_runtime, '1 ms', '1 year');
    PERFORM pulse._require_between('length of group_key', length(enqueue_many.group_key), 0, 1000);
    PERFORM pulse._require_tags(enqueue_many.tags);
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
                v_lane, greatest(v_run_at, clock_timestamp()), w.job,
                enqueue_many.kind, v_rank, 0, 0, false, false
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
'Enqueue one job for each payload, with the same options, and return the ids in the order of the array. Errors as in enqueue; all or none.';

CREATE FUNCTION pulse.enqueue_many(jobs jsonb)
RETURNS SETOF bigint
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_caller name := pulse._caller();
    v_ids bigint [];
    v_created boolean [];
    v_lanes text [];
    v_replaced_by bigint [];
    v_lane text;
    v_key text;
    v_first bigint;
    v_item record;
    v_job pulse._enqueued;
    v_unknown text;
BEGIN
    IF jsonb_typeof(enqueue_many.jobs) IS DISTINCT FROM 'array' THEN
        PERFORM pulse._raise(
            'PU002',
            'jobs must be a JSON array of objects',
            format('It is %s.', coalesce(jsonb_typeof(enqueue_many.jobs), 'NULL')),
            'Pass [{"kind": "send-email", "payload": {}}, …].'
        );
    END IF;

    SELECT coalesce(
        (
            SELECT o.key
            FROM jsonb_object_keys(
                CASE WHEN jsonb_typeof(j.job) = 'object' THEN j.job ELSE '{}' END
            ) AS o (key)
            WHERE o.key NOT IN (
                'kind', 'payload', 'lane', 'priority', 'run_at', 'delay', 'max_attempts',
                'unique_key', 'unique_for', 'on_conflict', 'group_key',
                'requires_approval', 'tags', 'max_runtime'
            )
            LIMIT 1
        ),
        'a ' || jsonb_typeof(j.job)
    ) INTO v_unknown
    FROM jsonb_array_elements(enqueue_many.jobs) AS j (job)
    WHERE jsonb_typeof(j.job) <> 'object'
        OR NOT (
            j.job - '{kind,payload,lane,priority,run_at,delay,max_attempts,unique_key}'::text []
            - '{unique_for,on_conflict,group_key,requires_approval,tags,max_runtime}'::text []
        ) = '{}'
    LIMIT 1;

    IF FOUND THEN
        PERFORM pulse._raise(
            'PU002',
            format('jobs has an element with %L', v_unknown),
            'Each element is an object whose keys are arguments of enqueue.',
            'Pass [{"kind": "send-email", "payload": {}}, …].'
        );
    END IF;

    -- Keys are taken in sorted order, so two lists cannot deadlock; then the jobs get in
    -- line in the order of the list, in the lane whose key they have.
    FOR v_item IN
        SELECT
            e.place,
            r.kind,
            r.payload,
            r.priority,
            r.delay,
            r.run_at,
            r.unique_key,
            r.unique_for,
            coalesce(r.on_conflict, 'skip') AS on_conflict,
            coalesce(r.lane, k.lane) AS lane,
            k.priority AS kind_priority,
            k.requires_approval OR coalesce(r.requires_approval, false) AS needs_approval
        FROM jsonb_array_elements(enqueue_many.jobs) WITH ORDINALITY AS e (job, place)
        CROSS JOIN LATERAL jsonb_populate_record(NULL::pulse._item, e.job) AS r
        CROSS JOIN LATERAL pulse._kind_settings(r.kind) AS k
        WHERE r.unique_key IS NOT NULL
        ORDER BY
            coalesce(r.lane, k.lane) COLLATE "C", r.unique_key COLLATE "C", e.place
    LOOP
        -- A conflict goes no further than this, so it is checked here.
        PERFORM pulse._require_name('kind', v_item.kind);
        PERFORM pulse._require_name('lane', v_item.lane);
        PERFORM pulse._require_payload(v_item.payload);
        PERFORM pulse._require_run_at(v_item.run_at, v_item.delay);
        PERFORM pulse._require_between('priority', v_item.priority, -2000000000, 2000000000);
        PERFORM pulse._require_one_of('on_conflict', v_item.on_conflict, '{skip,replace,error}');
        v_lanes[v_item.place] := v_item.lane;

        IF (v_item.lane, v_item.unique_key) = (v_lane, v_key) THEN
            -- Taken by an earlier element of this list, which has no place yet.
            IF v_item.on_conflict = 'error' THEN
                PERFORM pulse._raise_key_taken(v_lane, v_key, v_ids[v_first]);
            ELSIF v_item.on_conflict = 'replace' THEN
                v_replaced_by[v_first] := v_item.place;
            END IF;
            v_ids[v_item.place] := v_ids[v_first];
            v_created[v_item.place] := false;
            CONTINUE;
        END IF;

        v_job := pulse._take_key(
            v_item.lane, v_item.unique_key, v_item.unique_for, v_item.on_conflict,
            coalesce(v_item.payload, '{}'),
            -coalesce(v_item.priority, v_item.kind_priority),
            coalesce(v_item.run_at, clock_timestamp() + v_item.delay),
            v_item.needs_approval
        );
        v_ids[v_item.place] := v_job.job_id;
        v_created[v_item.place] := v_job.created;
        IF v_job.created THEN
            v_lane := v_item.lane;
            v_key := v_item.unique_key;
            v_first := v_item.place;
        END IF;
    END LOOP;

    FOR v_item IN
        SELECT r.*, e.place
        FROM jsonb_array_elements(enqueue_many.jobs) WITH ORDINALITY AS e (job, place)
        CROSS JOIN LATERAL jsonb_populate_record(
            NULL::pulse._item,
            CASE
                WHEN v_replaced_by[e.place] IS NULL THEN e.job
                ELSE e.job - '{payload,priority,run_at,delay}'::text [] || (
                    SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}')
                    FROM jsonb_each(
                        enqueue_many.jobs -> (v_replaced_by[e.place] - 1)::integer
                    ) AS o
                    WHERE o.key IN ('payload', 'priority', 'run_at', 'delay')
                )
            END
        ) AS r
        ORDER BY e.place
    LOOP
        IF v_created[v_item.place] IS NOT false THEN
            v_job := pulse._enqueue(
                v_item.kind, v_item.payload, coalesce(v_lanes[v_item.place], v_item.lane),
                v_item.priority, v_item.run_at, v_item.delay, v_item.max_attempts,
                v_item.unique_key, v_item.unique_for, v_item.on_conflict,
                v_item.group_key, v_item.requires_approval, v_item.tags,
                v_item.max_runtime, v_caller, v_ids[v_item.place]
            );
            v_ids[v_item.place] := v_job.job_id;
        END IF;
        RETURN NEXT v_ids[v_item.place];
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse.enqueue_many(jsonb) IS
'Enqueue a mixed list, each element an object of enqueue''s arguments, and return the ids in the order of the list. Errors as in enqueue; all or none.';
