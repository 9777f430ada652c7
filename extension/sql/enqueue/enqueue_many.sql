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
    max_runtime interval DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    start_by timestamptz DEFAULT NULL,
    expires_in interval DEFAULT NULL,
    after bigint [] DEFAULT NULL,
    after_failed text DEFAULT NULL,
    flow text DEFAULT NULL,
    name text DEFAULT NULL
)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_jobs bigint [];
BEGIN
    INSERT INTO pulse_internal.batch_form AS b (kind, payloads, options)
    VALUES (
        enqueue_many.kind, enqueue_many.payloads,
        ROW(
            NULL, NULL, enqueue_many.lane, enqueue_many.priority, enqueue_many.run_at,
            enqueue_many.delay, enqueue_many.max_attempts, enqueue_many.unique_key,
            enqueue_many.unique_for, enqueue_many.on_conflict, enqueue_many.group_key,
            enqueue_many.requires_approval, enqueue_many.tags, enqueue_many.max_runtime,
            enqueue_many.headers, enqueue_many.start_by, enqueue_many.expires_in,
            enqueue_many.after, enqueue_many.after_failed, enqueue_many.flow,
            enqueue_many.name
        )::pulse_internal.item
    )
    RETURNING b.job_ids INTO v_jobs;
    IF v_jobs IS NULL THEN
        PERFORM pulse_internal.raise_replica();
    END IF;
    RETURN QUERY SELECT unnest(v_jobs);
END;
$$;

COMMENT ON FUNCTION pulse.enqueue_many(
    text, jsonb [], text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval, jsonb, timestamptz, interval,
    bigint [], text, text, text
) IS
'Enqueue one job for each payload, with the same options, and return the ids in the order of the array. Errors as in enqueue; all or none. Writes what enqueue writes.';

CREATE FUNCTION pulse_internal.enqueue_payloads(
    kind text, payloads jsonb [], options pulse_internal.item, owner integer
)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_kind pulse_internal.kind_settings := pulse_internal.kind_settings(enqueue_payloads.kind);
    v_item pulse_internal.item := enqueue_payloads.options;
    v_lane text := coalesce(v_item.lane, v_kind.lane);
    v_rank integer;
    v_run_at timestamptz;
    v_after boolean := coalesce(v_item.after <> '{}', false);
    v_after_failed text := CASE WHEN v_after THEN coalesce(v_item.after_failed, 'cancel') END;
    v_approval boolean := v_kind.requires_approval
        OR coalesce(v_item.requires_approval, false);
    v_payload jsonb;
    v_job bigint;
    v_jobs bigint [];
    v_grouped boolean := false;
BEGIN
    IF (
        cardinality(enqueue_payloads.payloads)
        <= pulse_internal.highest('enqueue_many', 'payloads')::integer
    ) IS NOT TRUE THEN
        PERFORM pulse_internal.require_range(
            'enqueue_many', 'payloads', coalesce(cardinality(enqueue_payloads.payloads), -1)
        );
    END IF;
    -- As in take_request: asked once whether anything is out of the ordinary.
    IF (
        length(enqueue_payloads.kind) BETWEEN 1 AND pulse_internal.longest_name()
        AND num_nonnulls(
            v_item.lane, v_item.priority, v_item.run_at, v_item.delay, v_item.max_attempts,
            v_item.unique_key, v_item.unique_for, v_item.group_key, v_item.tags,
            v_item.max_runtime, v_item.headers, v_item.start_by, v_item.expires_in,
            v_item.after, v_item.after_failed, v_item.flow, v_item.name
        ) = 0
        AND v_item.on_conflict = 'skip'
    ) IS NOT TRUE THEN
        PERFORM pulse_internal.require_job_options(
            enqueue_payloads.kind, NULL, v_item.lane, v_item.priority, v_item.run_at,
            v_item.delay, v_item.max_attempts, v_item.unique_key, v_item.unique_for,
            v_item.on_conflict, v_item.group_key, v_item.tags, v_item.max_runtime,
            v_item.headers, v_item.start_by, v_item.expires_in
        );
        PERFORM pulse_internal.require_flow_options(
            v_item.after, v_item.after_failed, v_item.flow, v_item.name,
            cardinality(v_item.after) * cardinality(enqueue_payloads.payloads)::bigint
        );
    END IF;

    IF v_item.group_key IS NOT NULL THEN
        v_grouped := pulse_internal.joins_group(v_lane, v_item.group_key);
    END IF;

    -- With a key, an approval or a time to begin by each job is enqueued by itself.
    IF v_approval
        OR num_nonnulls(v_item.unique_key, v_item.start_by, v_item.expires_in) > 0
    THEN
        FOREACH v_payload IN ARRAY enqueue_payloads.payloads LOOP
            INSERT INTO pulse_internal.request AS r (
                kind, payload, lane, priority, options, owner
            )
            VALUES (
                enqueue_payloads.kind, v_payload, v_item.lane, v_item.priority, v_item,
                enqueue_payloads.owner
            )
            RETURNING r.job_id INTO v_job;
            RETURN NEXT v_job;
        END LOOP;
        RETURN;
    END IF;

    v_run_at := coalesce(v_item.run_at, clock_timestamp() + v_item.delay);
    PERFORM pulse_internal.require_payload(p.payload)
    FROM unnest(enqueue_payloads.payloads) AS p (payload)
    WHERE pg_column_size(p.payload) > 100000
        OR (pg_column_size(p.payload) > 1000 AND octet_length(p.payload::text) > 8388608)
        OR current_setting('pulse.max_payload', true) IS NOT NULL;
    v_rank := -coalesce(v_item.priority, v_kind.priority);

    -- Ids and places in line are drawn in the order of the array.
    IF v_after AND enqueue_payloads.payloads <> '{}' THEN
        WITH written AS (
            INSERT INTO pulse_internal.body (
                kind, payload, max_attempts, max_runtime, group_key, tags, owner, headers,
                flow, name, after_failed, run_at, delay
            )
            SELECT
                enqueue_payloads.kind, coalesce(p.payload, '{}'),
                coalesce(v_item.max_attempts, v_kind.max_attempts), v_item.max_runtime,
                v_item.group_key, v_item.tags, enqueue_payloads.owner, v_item.headers,
                v_item.flow, v_item.name, v_after_failed, v_item.run_at, v_item.delay
            FROM unnest(enqueue_payloads.payloads) WITH ORDINALITY AS p (payload, place)
            ORDER BY p.place
            RETURNING job
        ),

        counted AS (
            INSERT INTO pulse_internal.tally (lane, kind, event, jobs)
            SELECT v_lane, enqueue_payloads.kind, 'enqueued', count(*)
            FROM written AS w
        )

        SELECT array_agg(w.job ORDER BY w.job) INTO v_jobs
        FROM written AS w;

        PERFORM pulse_internal.put_after(
            v_jobs, v_item.after,
            ROW(
                NULL, NULL, NULL, v_lane, v_kind.kind, v_rank, v_item.run_at, v_item.delay,
                NULL, 0, 0, false, NULL, v_after_failed, false
            )::pulse_internal.blocked,
            enqueue_payloads.owner
        );
        RETURN QUERY SELECT unnest(v_jobs);
        RETURN;
    END IF;

    IF NOT pg_try_advisory_xact_lock_shared(
        'pulse_internal.ready_seq'::regclass::oid::integer, hashtext(v_lane) & 255
    ) THEN
        PERFORM pulse_internal.enter_lane(v_lane);
    END IF;

    IF v_run_at > clock_timestamp() THEN
        RETURN QUERY
        WITH written AS (
            INSERT INTO pulse_internal.body (
                kind, payload, max_attempts, max_runtime, group_key, tags, owner, headers,
                flow, name
            )
            SELECT
                enqueue_payloads.kind, coalesce(p.payload, '{}'),
                coalesce(v_item.max_attempts, v_kind.max_attempts), v_item.max_runtime,
                v_item.group_key, v_item.tags, enqueue_payloads.owner, v_item.headers,
                v_item.flow, v_item.name
            FROM unnest(enqueue_payloads.payloads) WITH ORDINALITY AS p (payload, place)
            ORDER BY p.place
            RETURNING job
        ),

        placed AS (
            INSERT INTO pulse_internal.waiting (
                lane, run_at, job, kind, rank, attempts, failures, keyed, retrying
            )
            SELECT
                v_lane, greatest(v_run_at, clock_timestamp(), (SELECT pulse_internal.due_floor())),
                w.job, enqueue_payloads.kind, v_rank, 0, 0, false, false
            FROM written AS w
        ),

        counted AS (
            INSERT INTO pulse_internal.tally (lane, kind, event, jobs)
            SELECT v_lane, enqueue_payloads.kind, 'enqueued', count(*)
            FROM written AS w
            HAVING count(*) > 0
        )

        SELECT w.job
        FROM written AS w
        ORDER BY w.job;
        RETURN;
    END IF;

    IF v_grouped THEN
        RETURN QUERY
        WITH written AS (
            INSERT INTO pulse_internal.body (
                kind, payload, max_attempts, max_runtime, group_key, tags, owner, headers,
                flow, name
            )
            SELECT
                enqueue_payloads.kind, coalesce(p.payload, '{}'),
                coalesce(v_item.max_attempts, v_kind.max_attempts), v_item.max_runtime,
                v_item.group_key, v_item.tags, enqueue_payloads.owner, v_item.headers,
                v_item.flow, v_item.name
            FROM unnest(enqueue_payloads.payloads) WITH ORDINALITY AS p (payload, place)
            ORDER BY p.place
            RETURNING job
        ),

        placed AS (
            INSERT INTO pulse_internal.ready AS r (
                lane, group_key, rank, kind, job, attempts, failures, keyed
            )
            SELECT
                v_lane, v_item.group_key, v_rank, enqueue_payloads.kind,
                w.job, 0, 0, false
            FROM written AS w
            ORDER BY w.job
            RETURNING r.seq
        ),

        noticed AS (
            INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place, kind)
            SELECT
                v_lane, v_item.group_key, v_rank, min(p.seq),
                enqueue_payloads.kind
            FROM placed AS p
            HAVING count(*) > 0
        ),

        counted AS (
            INSERT INTO pulse_internal.tally (lane, kind, event, jobs)
            SELECT v_lane, enqueue_payloads.kind, 'enqueued', count(*)
            FROM written AS w
            HAVING count(*) > 0
        )

        SELECT w.job
        FROM written AS w
        ORDER BY w.job;

        PERFORM pulse_internal.ring(v_lane);
        RETURN;
    END IF;

    RETURN QUERY
    WITH written AS (
        INSERT INTO pulse_internal.body (
            kind, payload, max_attempts, max_runtime, group_key, tags, owner, headers,
            flow, name
        )
        SELECT
            enqueue_payloads.kind, coalesce(p.payload, '{}'),
            coalesce(v_item.max_attempts, v_kind.max_attempts), v_item.max_runtime,
            v_item.group_key, v_item.tags, enqueue_payloads.owner, v_item.headers,
            v_item.flow, v_item.name
        FROM unnest(enqueue_payloads.payloads) WITH ORDINALITY AS p (payload, place)
        ORDER BY p.place
        RETURNING job
    ),

    placed AS (
        INSERT INTO pulse_internal.ready (lane, rank, kind, job, attempts, failures, keyed)
        SELECT v_lane, v_rank, enqueue_payloads.kind, w.job, 0, 0, false
        FROM written AS w
        ORDER BY w.job
    ),

    counted AS (
        INSERT INTO pulse_internal.tally (lane, kind, event, jobs)
        SELECT v_lane, enqueue_payloads.kind, 'enqueued', count(*)
        FROM written AS w
        HAVING count(*) > 0
    )

    SELECT w.job
    FROM written AS w
    ORDER BY w.job;

    PERFORM pulse_internal.ring(v_lane);
END;
$$;

COMMENT ON FUNCTION pulse_internal.enqueue_payloads(text, jsonb [], pulse_internal.item, integer) IS
'Enqueue one job for each payload; returns the ids in their order.';

-- How enqueue_many hands over who calls: a form that is filled in with the caller's rights
-- (access/caller.sql).

-- As pulse_internal.request, one row for all the jobs of a call.
CREATE VIEW pulse_internal.batch
WITH (security_barrier)
AS
SELECT
    NULL::text AS kind,
    NULL::jsonb [] AS payloads,
    NULL::pulse_internal.item AS options,
    NULL::jsonb AS jobs,
    NULL::bigint [] AS job_ids,
    NULL::name AS who
WHERE false;

ALTER VIEW pulse_internal.batch ALTER COLUMN who SET DEFAULT current_user;

COMMENT ON VIEW pulse_internal.batch IS
'Many jobs that are asked for at once, and by whom; written by pulse itself.';

COMMENT ON COLUMN pulse_internal.batch.kind IS
'As in enqueue_many.';

COMMENT ON COLUMN pulse_internal.batch.payloads IS
'What enqueue_many(kind, payloads) was given.';

COMMENT ON COLUMN pulse_internal.batch.options IS
'Its further arguments; NULL for a list.';

COMMENT ON COLUMN pulse_internal.batch.jobs IS
'What enqueue_many(jobs) was given.';

COMMENT ON COLUMN pulse_internal.batch.job_ids IS
'The answer: the jobs, in order.';

COMMENT ON COLUMN pulse_internal.batch.who IS
'The role that asks.';

CREATE VIEW pulse_internal.batch_form
WITH (security_barrier)
AS
SELECT
    b.kind,
    b.payloads,
    b.options,
    b.jobs,
    b.job_ids
FROM pulse_internal.batch AS b;

COMMENT ON VIEW pulse_internal.batch_form IS
'Where enqueue_many asks for jobs.';

COMMENT ON COLUMN pulse_internal.batch_form.kind IS
'As in enqueue_many.';

COMMENT ON COLUMN pulse_internal.batch_form.payloads IS
'What enqueue_many(kind, payloads) was given.';

COMMENT ON COLUMN pulse_internal.batch_form.options IS
'Its further arguments; NULL for a list.';

COMMENT ON COLUMN pulse_internal.batch_form.jobs IS
'What enqueue_many(jobs) was given.';

COMMENT ON COLUMN pulse_internal.batch_form.job_ids IS
'The answer: the jobs, in order.';

CREATE FUNCTION pulse_internal.take_batch()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_owner integer := pulse_internal.role_number(new.who);
    v_item pulse_internal.item := new.options;
BEGIN
    IF v_item IS DISTINCT FROM NULL THEN
        new.job_ids := ARRAY(
            SELECT m.job_id
            FROM pulse_internal.enqueue_payloads(
                new.kind, new.payloads, v_item, v_owner
            ) AS m (job_id)
        );
    ELSE
        new.job_ids := ARRAY(
            SELECT m.job_id
            FROM pulse_internal.enqueue_jobs(new.jobs, v_owner) AS m
        );
    END IF;
    RETURN new;
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_batch() IS
'Enqueue what was asked for, for the role that asked.';

CREATE TRIGGER batch_is_taken
INSTEAD OF INSERT ON pulse_internal.batch
FOR EACH ROW EXECUTE FUNCTION pulse_internal.take_batch();
