-- Many jobs, each with options of its own. All keys are taken first, in one order for
-- every list, and then the jobs join their lines in the order of the list.

CREATE FUNCTION pulse.enqueue_many(jobs jsonb)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_jobs bigint [];
BEGIN
    INSERT INTO pulse._batch_form AS b (jobs)
    VALUES (enqueue_many.jobs)
    RETURNING b.job_ids INTO v_jobs;
    RETURN QUERY SELECT unnest(v_jobs);
END;
$$;

COMMENT ON FUNCTION pulse.enqueue_many(jsonb) IS
'Enqueue a mixed list, each element an object of enqueue''s arguments, and return the ids in the order of the list. Errors as in enqueue; all or none. Writes what enqueue writes.';

CREATE FUNCTION pulse._enqueue_jobs(jobs jsonb, owner integer)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_ids bigint [];
    v_created boolean [];
    v_lanes text [];
    v_replaced_by bigint [];
    v_lane text;
    v_key text;
    v_kind text;
    v_first bigint;
    v_item record;
    v_job pulse._enqueued;
    v_id bigint;
    v_unknown text;
BEGIN
    IF jsonb_typeof(_enqueue_jobs.jobs) IS DISTINCT FROM 'array' THEN
        PERFORM pulse._raise(
            'PU002',
            'jobs must be a JSON array of objects',
            format('It is %s.', coalesce(jsonb_typeof(_enqueue_jobs.jobs), 'NULL')),
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
                'requires_approval', 'tags', 'max_runtime', 'headers', 'start_by',
                'expires_in'
            )
            LIMIT 1
        ),
        'a ' || jsonb_typeof(j.job)
    ) INTO v_unknown
    FROM jsonb_array_elements(_enqueue_jobs.jobs) AS j (job)
    WHERE jsonb_typeof(j.job) <> 'object'
        OR NOT (
            j.job - '{kind,payload,lane,priority,run_at,delay,max_attempts,unique_key}'::text []
            - '{unique_for,on_conflict,group_key,requires_approval,tags,max_runtime}'::text []
            - '{headers,start_by,expires_in}'::text []
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
            r.run_at,
            r.delay,
            r.max_attempts,
            r.unique_key,
            r.unique_for,
            coalesce(r.on_conflict, 'skip') AS on_conflict,
            r.group_key,
            r.tags,
            r.max_runtime,
            r.headers,
            r.start_by,
            r.expires_in,
            coalesce(r.lane, k.lane) AS lane,
            k.priority AS kind_priority,
            k.requires_approval OR coalesce(r.requires_approval, false) AS needs_approval
        FROM jsonb_array_elements(_enqueue_jobs.jobs) WITH ORDINALITY AS e (job, place)
        CROSS JOIN LATERAL jsonb_populate_record(NULL::pulse._item, e.job) AS r
        CROSS JOIN LATERAL pulse._kind_settings(r.kind) AS k
        WHERE r.unique_key IS NOT NULL
        ORDER BY
            coalesce(r.lane, k.lane) COLLATE "C", r.unique_key COLLATE "C", e.place
    LOOP
        -- A conflict goes no further than this, so it is checked here.
        PERFORM pulse._require_job_options(
            v_item.kind, v_item.payload, v_item.lane, v_item.priority, v_item.run_at,
            v_item.delay, v_item.max_attempts, v_item.unique_key, v_item.unique_for,
            v_item.on_conflict, v_item.group_key, v_item.tags, v_item.max_runtime,
            v_item.headers, v_item.start_by, v_item.expires_in
        );
        v_lanes[v_item.place] := v_item.lane;

        IF (v_item.lane, v_item.unique_key) = (v_lane, v_key) THEN
            -- Taken by an earlier element of this list, which has no place yet.
            IF v_item.on_conflict = 'error'
                OR (v_item.on_conflict = 'replace' AND v_item.kind <> v_kind)
            THEN
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
            v_item.kind, coalesce(v_item.payload, '{}'),
            -coalesce(v_item.priority, v_item.kind_priority),
            coalesce(v_item.run_at, clock_timestamp() + v_item.delay),
            v_item.needs_approval, _enqueue_jobs.owner, v_item.headers,
            pulse._start_by(
                v_item.start_by, v_item.expires_in, v_item.run_at, v_item.delay
            )
        );
        v_ids[v_item.place] := v_job.job_id;
        v_created[v_item.place] := v_job.created;
        IF v_job.created THEN
            v_lane := v_item.lane;
            v_key := v_item.unique_key;
            v_kind := v_item.kind;
            v_first := v_item.place;
        END IF;
    END LOOP;

    FOR v_item IN
        SELECT r.*, e.place
        FROM jsonb_array_elements(_enqueue_jobs.jobs) WITH ORDINALITY AS e (job, place)
        CROSS JOIN LATERAL jsonb_populate_record(
            NULL::pulse._item,
            CASE
                WHEN v_replaced_by[e.place] IS NULL THEN e.job
                ELSE e.job - '{payload,priority,run_at,delay}'::text []
                    - '{headers,start_by,expires_in}'::text [] || (
                    SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}')
                    FROM jsonb_each(
                        _enqueue_jobs.jobs -> (v_replaced_by[e.place] - 1)::integer
                    ) AS o
                    WHERE o.key IN (
                            'payload', 'priority', 'run_at', 'delay', 'headers',
                            'start_by', 'expires_in'
                        )
                        OR (o.key = 'requires_approval' AND o.value = 'true')
                )
            END
        ) AS r
        ORDER BY e.place
    LOOP
        IF v_created[v_item.place] IS NOT false THEN
            INSERT INTO pulse._request AS r (
                kind, payload, lane, priority, options, owner, taken
            )
            VALUES (
                v_item.kind, v_item.payload,
                coalesce(v_lanes[v_item.place], v_item.lane), v_item.priority,
                ROW(
                    NULL, NULL, NULL, NULL, v_item.run_at, v_item.delay,
                    v_item.max_attempts, v_item.unique_key, v_item.unique_for,
                    v_item.on_conflict, v_item.group_key, v_item.requires_approval,
                    v_item.tags, v_item.max_runtime, v_item.headers, v_item.start_by,
                    v_item.expires_in
                )::pulse._item,
                _enqueue_jobs.owner, v_ids[v_item.place]
            )
            RETURNING r.job_id INTO v_id;
            v_ids[v_item.place] := v_id;
        END IF;
        RETURN NEXT v_ids[v_item.place];
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._enqueue_jobs(jsonb, integer) IS
'Enqueue a mixed list; returns the ids in its order.';
