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
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_jobs bigint [];
BEGIN
    INSERT INTO pulse._batch_form AS b (kind, payloads, options)
    VALUES (
        enqueue_many.kind, enqueue_many.payloads,
        ROW(
            NULL, NULL, enqueue_many.lane, enqueue_many.priority, enqueue_many.run_at,
            enqueue_many.delay, enqueue_many.max_attempts, enqueue_many.unique_key,
            enqueue_many.unique_for, enqueue_many.on_conflict, enqueue_many.group_key,
            enqueue_many.requires_approval, enqueue_many.tags, enqueue_many.max_runtime
        )::pulse._item
    )
    RETURNING b.job_ids INTO v_jobs;
    RETURN QUERY SELECT unnest(v_jobs);
END;
$$;

COMMENT ON FUNCTION pulse.enqueue_many(
    text, jsonb [], text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval
) IS
'Enqueue one job for each payload, with the same options, and return the ids in the order of the array. Errors as in enqueue; all or none.';

-- As pulse._request, one row for all the jobs of a call.
CREATE VIEW pulse._batch
WITH (security_barrier)
AS
SELECT
    NULL::text AS kind,
    NULL::jsonb [] AS payloads,
    NULL::pulse._item AS options,
    NULL::jsonb AS jobs,
    NULL::bigint [] AS job_ids,
    NULL::name AS who
WHERE false;

ALTER VIEW pulse._batch ALTER COLUMN who SET DEFAULT current_user;

COMMENT ON VIEW pulse._batch IS
'Many jobs that are asked for at once, and by whom; written by pulse itself.';

COMMENT ON COLUMN pulse._batch.kind IS
'As in enqueue_many.';

COMMENT ON COLUMN pulse._batch.payloads IS
'What enqueue_many(kind, payloads) was given.';

COMMENT ON COLUMN pulse._batch.options IS
'Its further arguments; NULL for a list.';

COMMENT ON COLUMN pulse._batch.jobs IS
'What enqueue_many(jobs) was given.';

COMMENT ON COLUMN pulse._batch.job_ids IS
'The answer: the jobs, in order.';

COMMENT ON COLUMN pulse._batch.who IS
'The role that asks.';

CREATE VIEW pulse._batch_form
WITH (security_barrier)
AS
SELECT
    b.kind,
    b.payloads,
    b.options,
    b.jobs,
    b.job_ids
FROM pulse._batch AS b;

COMMENT ON VIEW pulse._batch_form IS
'Where enqueue_many asks for jobs.';

COMMENT ON COLUMN pulse._batch_form.kind IS
'As in enqueue_many.';

COMMENT ON COLUMN pulse._batch_form.payloads IS
'What enqueue_many(kind, payloads) was given.';

COMMENT ON COLUMN pulse._batch_form.options IS
'Its further arguments; NULL for a list.';

COMMENT ON COLUMN pulse._batch_form.jobs IS
'What enqueue_many(jobs) was given.';

COMMENT ON COLUMN pulse._batch_form.job_ids IS
'The answer: the jobs, in order.';

CREATE FUNCTION pulse._take_batch()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_owner integer := pulse._role(new.who);
    v_item pulse._item := new.options;
BEGIN
    IF v_item IS DISTINCT FROM NULL THEN
        new.job_ids := ARRAY(
            SELECT m.job_id
            FROM pulse._enqueue_payloads(
                new.kind, new.payloads, v_item.lane, v_item.priority, v_item.run_at,
                v_item.delay, v_item.max_attempts, v_item.unique_key,
                v_item.unique_for, v_item.on_conflict, v_item.group_key,
                v_item.requires_approval, v_item.tags, v_item.max_runtime, v_owner
            ) AS m (job_id)
        );
    ELSE
        new.job_ids := ARRAY(
            SELECT m.job_id
            FROM pulse._enqueue_jobs(new.jobs, v_owner) AS m (job_id)
        );
    END IF;
    RETURN new;
END;
$$;

COMMENT ON FUNCTION pulse._take_batch() IS
'Enqueue what was asked for, for the role that asked.';

CREATE TRIGGER batch_is_taken
INSTEAD OF INSERT ON pulse._batch
FOR EACH ROW EXECUTE FUNCTION pulse._take_batch();

CREATE FUNCTION pulse._enqueue_payloads(
    kind text,
    payloads jsonb [],
    lane text,
    priority integer,
    run_at timestamptz,
    delay interval,
    max_attempts integer,
    unique_key text,
    unique_for interval,
    on_conflict text,
    group_key text,
    requires_approval boolean,
    tags text [],
    max_runtime interval,
    owner integer
)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kind pulse._kind_settings := pulse._kind_settings(_enqueue_payloads.kind);
    v_lane text := coalesce(_enqueue_payloads.lane, v_kind.lane);
    v_rank integer;
    v_run_at timestamptz;
    v_approval boolean := v_kind.requires_approval
        OR coalesce(_enqueue_payloads.requires_approval, false);
    v_payload jsonb;
    v_job bigint;
BEGIN
    IF cardinality(_enqueue_payloads.payloads) IS DISTINCT FROM 0 THEN
        PERFORM pulse._require_name('kind', _enqueue_payloads.kind);
        PERFORM pulse._require_between(
            'number of payloads', coalesce(cardinality(_enqueue_payloads.payloads), 0), 1, 1000000
        );
    END IF;

    -- With a key or an approval each job is a story of its own.
    IF _enqueue_payloads.unique_key IS NOT NULL
        OR _enqueue_payloads.unique_for IS NOT NULL
        OR v_approval
    THEN
        FOREACH v_payload IN ARRAY _enqueue_payloads.payloads LOOP
            INSERT INTO pulse._request AS r (
                kind, payload, lane, priority, options, owner
            )
            VALUES (
                _enqueue_payloads.kind, v_payload, _enqueue_payloads.lane,
                _enqueue_payloads.priority,
                ROW(
                    NULL, NULL, NULL, NULL, _enqueue_payloads.run_at,
                    _enqueue_payloads.delay, _enqueue_payloads.max_attempts,
                    _enqueue_payloads.unique_key, _enqueue_payloads.unique_for,
                    _enqueue_payloads.on_conflict, _enqueue_payloads.group_key,
                    _enqueue_payloads.requires_approval, _enqueue_payloads.tags,
                    _enqueue_payloads.max_runtime
                )::pulse._item,
                _enqueue_payloads.owner
            )
            RETURNING r.job_id INTO v_job;
            RETURN NEXT v_job;
        END LOOP;
        RETURN;
    END IF;

    PERFORM pulse._require_name('lane', v_lane);
    PERFORM pulse._require_run_at(_enqueue_payloads.run_at, _enqueue_payloads.delay);
    v_run_at := coalesce(_enqueue_payloads.run_at, clock_timestamp() + _enqueue_payloads.delay);
    PERFORM pulse._require_between('priority', _enqueue_payloads.priority, -2000000000, 2000000000);
    PERFORM pulse._require_between('max_attempts', _enqueue_payloads.max_attempts, 1, 100000);
    PERFORM pulse._require_duration('max_runtime', _enqueue_payloads.max_runtime, '1 ms', '1 year');
    PERFORM pulse._require_between('length of group_key', length(_enqueue_payloads.group_key), 0, 1000);
    PERFORM pulse._require_between('number of tags', cardinality(_enqueue_payloads.tags), 0, 100);
    PERFORM pulse._require_payload(p.payload)
    FROM unnest(_enqueue_payloads.payloads) AS p (payload)
    WHERE pg_column_size(p.payload) > 8000000
        OR current_setting('pulse.max_payload', true) <> '';
    v_rank := -coalesce(_enqueue_payloads.priority, v_kind.priority);

    -- Ids and places in line are drawn in the order of the array.
    IF v_run_at > clock_timestamp() THEN
        RETURN QUERY
        WITH written AS (
            INSERT INTO pulse.body (
                kind, payload, max_attempts, max_runtime, group_key, tags, owner
            )
            SELECT
                _enqueue_payloads.kind, coalesce(p.payload, '{}'),
                coalesce(_enqueue_payloads.max_attempts, v_kind.max_attempts),
                _enqueue_payloads.max_runtime, _enqueue_payloads.group_key, _enqueue_payloads.tags,
                _enqueue_payloads.owner
            FROM unnest(_enqueue_payloads.payloads) WITH ORDINALITY AS p (payload, place)
            ORDER BY p.place
            RETURNING job
        ),

        placed AS (
            INSERT INTO pulse.waiting (
                lane, run_at, job, kind, rank, attempts, failures, keyed, retrying
            )
            SELECT
                v_lane, greatest(v_run_at, clock_timestamp()), w.job,
                _enqueue_payloads.kind, v_rank, 0, 0, false, false
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
            kind, payload, max_attempts, max_runtime, group_key, tags, owner
        )
        SELECT
            _enqueue_payloads.kind, coalesce(p.payload, '{}'),
            coalesce(_enqueue_payloads.max_attempts, v_kind.max_attempts),
            _enqueue_payloads.max_runtime, _enqueue_payloads.group_key, _enqueue_payloads.tags,
            _enqueue_payloads.owner
        FROM unnest(_enqueue_payloads.payloads) WITH ORDINALITY AS p (payload, place)
        ORDER BY p.place
        RETURNING job
    ),

    placed AS (
        INSERT INTO pulse.ready (lane, rank, kind, job, attempts, failures, keyed)
        SELECT v_lane, v_rank, _enqueue_payloads.kind, w.job, 0, 0, false
        FROM written AS w
        ORDER BY w.job
    )

    SELECT w.job
    FROM written AS w
    ORDER BY w.job;

    PERFORM pulse._ring(v_lane);
END;
$$;

COMMENT ON FUNCTION pulse._enqueue_payloads(
    text, jsonb [], text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval, integer
) IS
'Enqueue one job for each payload; returns the ids in their order.';

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
'Enqueue a mixed list, each element an object of enqueue''s arguments, and return the ids in the order of the list. Errors as in enqueue; all or none.';

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
                'requires_approval', 'tags', 'max_runtime'
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
        FROM jsonb_array_elements(_enqueue_jobs.jobs) WITH ORDINALITY AS e (job, place)
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
            v_item.needs_approval, _enqueue_jobs.owner
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
                ELSE e.job - '{payload,priority,run_at,delay}'::text [] || (
                    SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}')
                    FROM jsonb_each(
                        _enqueue_jobs.jobs -> (v_replaced_by[e.place] - 1)::integer
                    ) AS o
                    WHERE o.key IN ('payload', 'priority', 'run_at', 'delay')
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
                    v_item.tags, v_item.max_runtime
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
