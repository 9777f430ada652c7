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
    INSERT INTO pulse_internal.batch_form AS b (jobs)
    VALUES (enqueue_many.jobs)
    RETURNING b.job_ids INTO v_jobs;
    IF v_jobs IS NULL THEN
        PERFORM pulse_internal.raise_replica();
    END IF;
    RETURN QUERY SELECT unnest(v_jobs);
END;
$$;

COMMENT ON FUNCTION pulse.enqueue_many(jsonb) IS
'Enqueue a mixed list, each element an object of enqueue''s arguments, and return the ids in the order of the list. after holds ids, and names: a name stands for every earlier element that has it. In a list with names or after, an element without a flow gets the id of the first job as its flow. Errors as in enqueue; all or none. Writes what enqueue writes.';

-- flow is that of the elements that name none.
CREATE FUNCTION pulse_internal.enqueue_jobs(jobs jsonb, owner integer, flow text DEFAULT NULL)
RETURNS TABLE (job_id bigint, created boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_ids bigint [];
    v_created boolean [];
    v_lanes text [];
    v_changed jsonb [];
    v_lane text;
    v_key text;
    v_kind text;
    v_first bigint;
    v_item record;
    v_job pulse_internal.enqueued;
    v_options pulse_internal.item;
    v_unknown text;
    v_flow text := enqueue_jobs.flow;
    v_edges jsonb;
BEGIN
    IF jsonb_typeof(enqueue_jobs.jobs) IS DISTINCT FROM 'array' THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'jobs must be a JSON array of objects',
            format('It is %s.', coalesce(jsonb_typeof(enqueue_jobs.jobs), 'NULL')),
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
                'expires_in', 'after', 'after_failed', 'flow', 'name'
            )
            LIMIT 1
        ),
        'a ' || jsonb_typeof(j.job)
    ) INTO v_unknown
    FROM jsonb_array_elements(enqueue_jobs.jobs) AS j (job)
    WHERE jsonb_typeof(j.job) <> 'object'
        OR NOT (
            j.job - '{kind,payload,lane,priority,run_at,delay,max_attempts,unique_key}'::text []
            - '{unique_for,on_conflict,group_key,requires_approval,tags,max_runtime}'::text []
            - '{headers,start_by,expires_in,after,after_failed,flow,name}'::text []
        ) = '{}'
    LIMIT 1;

    IF FOUND THEN
        PERFORM pulse_internal.raise(
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
            e.job,
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
        FROM jsonb_array_elements(enqueue_jobs.jobs) WITH ORDINALITY AS e (job, place)
        CROSS JOIN LATERAL jsonb_populate_record(NULL::pulse_internal.item, e.job - 'after') AS r
        CROSS JOIN LATERAL pulse_internal.kind_settings(r.kind) AS k
        WHERE r.unique_key IS NOT NULL
        ORDER BY
            coalesce(r.lane, k.lane) COLLATE "C", r.unique_key COLLATE "C", e.place
    LOOP
        -- A conflict goes no further than this, so it is checked here.
        PERFORM pulse_internal.require_job_options(
            v_item.kind, v_item.payload, v_item.lane, v_item.priority, v_item.run_at,
            v_item.delay, v_item.max_attempts, v_item.unique_key, v_item.unique_for,
            v_item.on_conflict, v_item.group_key, v_item.tags, v_item.max_runtime,
            v_item.headers, v_item.start_by, v_item.expires_in
        );
        v_lanes[v_item.place] := v_item.lane;

        IF (v_item.lane, v_item.unique_key) = (v_lane, v_key) THEN
            -- Taken by an earlier element of this list, which has no place yet.
            IF v_item.on_conflict = 'error'
                OR (v_item.on_conflict <> 'skip' AND v_item.kind <> v_kind)
            THEN
                PERFORM pulse_internal.raise_key_taken(v_lane, v_key, v_ids[v_first]);
            ELSIF v_item.on_conflict <> 'skip' THEN
                v_changed[v_first] := pulse_internal.change_element(
                    coalesce(
                        v_changed[v_first],
                        enqueue_jobs.jobs -> (v_first - 1)::integer
                    ),
                    v_item.job
                );
            END IF;
            v_ids[v_item.place] := v_ids[v_first];
            v_created[v_item.place] := false;
            CONTINUE;
        END IF;

        v_job := pulse_internal.take_key_in_time(
            v_item.lane, v_item.unique_key, v_item.unique_for, v_item.on_conflict,
            v_item.kind, coalesce(v_item.payload, '{}'),
            -coalesce(v_item.priority, v_item.kind_priority),
            coalesce(v_item.run_at, clock_timestamp() + v_item.delay),
            v_item.needs_approval, enqueue_jobs.owner, v_item.headers,
            pulse_internal.start_by(
                v_item.start_by, v_item.expires_in, v_item.run_at, v_item.delay
            )
        );
        v_ids[v_item.place] := v_job.job_id;
        -- A new job in place of one that awaited approval is written already. So the loop
        -- below passes over it, and spawn takes it for the job that it replaces.
        v_created[v_item.place] := NOT v_job.written;
        IF NOT v_job.written THEN
            v_lane := v_item.lane;
            v_key := v_item.unique_key;
            v_kind := v_item.kind;
            v_first := v_item.place;
        END IF;
    END LOOP;

    IF jsonb_path_exists(enqueue_jobs.jobs, '$[*] ? (exists(@.after) || exists(@.name))') THEN
        PERFORM pulse_internal.meet_server();
        v_ids[1] := coalesce(v_ids[1], nextval('pulse_internal.job_id'));
        v_flow := coalesce(v_flow, v_ids[1]::text);
        v_edges := enqueue_jobs.jobs;
    END IF;

    -- Neighbours that differ by their payloads alone are enqueued as one.
    FOR v_item IN
        SELECT
            min(l.place) AS place, array_agg((l.item).payload ORDER BY l.place) AS payloads,
            (array_agg(l.item ORDER BY l.place)) [1] AS first, min(l.ids) AS ids,
            min(l.places) AS places
        FROM (
            SELECT n.*, count(*) FILTER (WHERE n.is_like_last IS NOT TRUE) OVER w AS run
            FROM (
                SELECT
                    e.place,
                    r AS item,
                    a.ids,
                    a.places,
                    e.job - 'payload' = lag(e.job - 'payload') OVER w
                    AND a.places IS NOT DISTINCT FROM lag(a.places) OVER w
                    AND num_nonnulls(v_ids[e.place - 1], v_ids[e.place]) = 0 AS is_like_last
                FROM jsonb_array_elements(enqueue_jobs.jobs) WITH ORDINALITY AS e (job, place)
                CROSS JOIN LATERAL jsonb_populate_record(
                    NULL::pulse_internal.item,
                    coalesce(v_changed[e.place], e.job) - 'after'
                ) AS r
                LEFT JOIN pulse_internal.list_edges(v_edges) AS a ON a.place = e.place
                WINDOW w AS (ORDER BY e.place)
            ) AS n
            WINDOW w AS (ORDER BY n.place)
        ) AS l
        GROUP BY l.run
        ORDER BY l.run
    LOOP
        v_options := v_item.first;
        v_options.payload := NULL;
        v_options.lane := coalesce(v_lanes[v_item.place], v_options.lane);
        v_options.on_conflict := coalesce(v_options.on_conflict, 'skip');
        v_options.flow := coalesce(v_options.flow, v_flow);
        v_options.after := nullif(
            v_item.ids || array(SELECT v_ids[u.place] FROM unnest(v_item.places) AS u (place)),
            '{}'
        );

        created := v_created[v_item.place] IS NOT false;
        job_id := v_ids[v_item.place];
        IF NOT created THEN
            RETURN NEXT;
        ELSIF cardinality(v_item.payloads) = 1 THEN
            INSERT INTO pulse_internal.request AS r (
                kind, payload, lane, priority, options, owner, taken
            )
            VALUES (
                v_options.kind, v_item.payloads[1], v_options.lane, v_options.priority,
                v_options, enqueue_jobs.owner, job_id
            )
            RETURNING r.job_id INTO job_id;
            v_ids[v_item.place] := job_id;
            RETURN NEXT;
        ELSE
            FOR job_id IN
                SELECT p.job
                FROM pulse_internal.enqueue_payloads(
                    v_options.kind, v_item.payloads, v_options, enqueue_jobs.owner
                ) AS p (job)
            LOOP
                v_ids[v_item.place] := job_id;
                v_item.place := v_item.place + 1;
                RETURN NEXT;
            END LOOP;
        END IF;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.enqueue_jobs(jsonb, integer, text) IS
'Enqueue a mixed list; returns the ids in its order. created is false for a job that has the unique key already, and for one that takes the place of such a job.';

-- What the elements of a list wait for: ids, and places of earlier elements, which their
-- names stand for. Only earlier ones, so that no list can write a cycle. By hash: the first that
-- is wrong among 10,000 names would be looked for in a loop over all.
CREATE FUNCTION pulse_internal.list_edges(jobs jsonb)
RETURNS TABLE (place bigint, ids bigint [], places bigint [])
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off
AS $$
DECLARE
    v_wrong record;
    v_places bigint [];
    v_upstreams text [];
    v_ids bigint [];
    v_pairs bigint;
BEGIN
    SELECT e.job ->> 'after' AS after INTO v_wrong
    FROM jsonb_array_elements(list_edges.jobs) AS e (job)
    WHERE jsonb_typeof(e.job -> 'after') NOT IN ('array', 'null')
        OR jsonb_path_exists(
            e.job, 'lax $.after[*] ? (@.type() != "string" && @.type() != "number")'
        )
    LIMIT 1;
    IF FOUND THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'after must be a list of job ids and names',
            format('It is %s.', left(v_wrong.after, 100)),
            'Pass "after": ["fetch", "71"].'
        );
    END IF;

    -- The ids and names in after, with the place of the element that has them; no id for a name.
    SELECT array_agg(w.place), array_agg(w.upstream), array_agg(w.id)
    INTO v_places, v_upstreams, v_ids
    FROM (
        SELECT DISTINCT
            e.place,
            u.upstream,
            CASE WHEN u.upstream ~ '^[0-9]{1,18}$' THEN u.upstream::bigint END AS id
        FROM jsonb_array_elements(list_edges.jobs) WITH ORDINALITY AS e (job, place)
        CROSS JOIN LATERAL jsonb_array_elements_text(
            CASE jsonb_typeof(e.job -> 'after') WHEN 'array' THEN e.job -> 'after' ELSE '[]' END
        ) AS u (upstream)
    ) AS w;

    SELECT w.upstream, w.place INTO v_wrong
    FROM unnest(v_places, v_upstreams, v_ids) AS w (place, upstream, id)
    LEFT JOIN (
        SELECT e.job ->> 'name' AS name, min(e.place) AS place
        FROM jsonb_array_elements(list_edges.jobs) WITH ORDINALITY AS e (job, place)
        GROUP BY e.job ->> 'name'
    ) AS n ON n.name = w.upstream
    WHERE w.id IS NULL
        AND (n.place < w.place) IS NOT TRUE
    ORDER BY w.place, w.upstream
    LIMIT 1;
    IF FOUND THEN
        PERFORM pulse_internal.raise(
            'PU002',
            format(
                'after has the name %L, which no earlier element has', left(v_wrong.upstream, 100)
            ),
            format('Element %s of the list waits for it.', v_wrong.place),
            'Put the jobs that come first before those that wait for them, each with its name.'
        );
    END IF;

    SELECT count(*) INTO v_pairs
    FROM (
        SELECT
        FROM unnest(v_places, v_upstreams, v_ids) AS w (place, upstream, id)
        LEFT JOIN jsonb_array_elements(list_edges.jobs) WITH ORDINALITY AS e (job, place)
            ON e.job ->> 'name' = w.upstream AND e.place < w.place AND w.id IS NULL
        LIMIT 1000001
    ) AS p;
    IF v_pairs > 1000000 THEN
        PERFORM pulse_internal.require_flow_options(NULL, NULL, NULL, NULL, v_pairs);
    END IF;

    RETURN QUERY
    SELECT
        w.place,
        coalesce(array_agg(w.id) FILTER (WHERE w.id IS NOT NULL), '{}'),
        array_agg(e.place) FILTER (WHERE e.place IS NOT NULL)
    FROM unnest(v_places, v_upstreams, v_ids) AS w (place, upstream, id)
    LEFT JOIN jsonb_array_elements(list_edges.jobs) WITH ORDINALITY AS e (job, place)
        ON e.job ->> 'name' = w.upstream AND e.place < w.place AND w.id IS NULL
    GROUP BY w.place;
END;
$$;

COMMENT ON FUNCTION pulse_internal.list_edges(jsonb) IS
'What each element of a list that has after waits for; PU002 for what it cannot, PU003 for more than a million.';
