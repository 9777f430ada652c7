-- Enqueue is part of the caller's transaction and works at every isolation level. It
-- writes body and one place (ready, waiting or approval) and touches no shared row, so
-- producers never wait for each other, except two that race for one unique key.

CREATE FUNCTION pulse.enqueue(
    kind text,
    payload jsonb DEFAULT '{}',
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
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_job bigint;
BEGIN
    -- Most calls give no option, and a statement of their own sets none up. An IF after it
    -- would cost more than to ask here whether triggers fire (access/caller.sql).
    IF enqueue.on_conflict = 'skip'
        AND num_nonnulls(
            enqueue.run_at, enqueue.delay, enqueue.max_attempts,
            enqueue.unique_key, enqueue.unique_for, enqueue.group_key,
            enqueue.requires_approval, enqueue.tags, enqueue.max_runtime,
            enqueue.headers, enqueue.start_by, enqueue.expires_in,
            enqueue.after, enqueue.after_failed, enqueue.flow, enqueue.name
        ) = 0
        AND current_setting('session_replication_role') <> 'replica'
    THEN
        INSERT INTO pulse_internal.request_form AS r (kind, payload, lane, priority)
        VALUES (enqueue.kind, enqueue.payload, enqueue.lane, enqueue.priority)
        RETURNING r.job_id INTO v_job;
        RETURN v_job;
    END IF;

    INSERT INTO pulse_internal.request_form AS r (kind, payload, lane, priority, options)
    VALUES (
        enqueue.kind, enqueue.payload, enqueue.lane, enqueue.priority,
        ROW(
            NULL, NULL, NULL, NULL, enqueue.run_at, enqueue.delay,
            enqueue.max_attempts, enqueue.unique_key, enqueue.unique_for,
            enqueue.on_conflict, enqueue.group_key, enqueue.requires_approval,
            enqueue.tags, enqueue.max_runtime, enqueue.headers, enqueue.start_by,
            enqueue.expires_in, enqueue.after, enqueue.after_failed, enqueue.flow,
            enqueue.name
        )::pulse_internal.item
    )
    RETURNING r.job_id INTO v_job;
    IF v_job IS NULL THEN
        PERFORM pulse_internal.raise_replica();
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse.enqueue(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval, jsonb, timestamptz, interval,
    bigint [], text, text, text
) IS
'Enqueue a job in the caller''s transaction and return its id. What is not given comes from the kind''s settings, then from the defaults. run_at or delay schedules it. start_by, or expires_in counted from when it is due, cancels it unless it has begun by then; a retry has begun. headers, a JSON object, is handed to the worker beside the payload. unique_key allows one waiting or running job per key and lane (with unique_for also that long after it finished); on_conflict is skip (return the existing id), replace (a job that does not run yet gets the new payload, headers, priority, run_at and start_by; one that is ready keeps its place unless priority or run_at say otherwise; one that awaits approval makes way for a new job), error, follow (as replace; behind a job that runs, one new job waits for its end, and later calls replace that one) or cancel (a waiting job is cancelled for the new one, a running one is asked to stop and the new one follows it). max_delay of the kind bounds how far replace and follow put a job off. after are jobs that have to end first: until then it is blocked. after_failed says what happens when one of them is dead or cancelled: cancel (the default) cancels this one too, hold lets it wait for a retry, run takes any end for good. run_at then means not before, delay so long after the last of them. flow is a label for all jobs that belong together, name what this one is called among them. PU002 bad argument, PU003 payload or headers too large or more than a million dependencies, PU004 no such job in after, PU102 key taken (or a change of another producer''s job, or of another kind), PU103 replace of a running job, PU105 replace or follow of one that was approved; PU111 its unique key is taken or freed by a transaction that stays open. Writes body and ready, waiting or approval; with a unique_key also job_key, with start_by or expires_in also expiry, with after and behind a running job blocked, dependency and doubt; cancel also finished, or lease, and audit_entry.';

CREATE FUNCTION pulse.enqueue_one(
    kind text,
    payload jsonb DEFAULT '{}',
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
    name text DEFAULT NULL,
    OUT job_id bigint,
    OUT created boolean
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- As in enqueue.
    IF enqueue_one.on_conflict = 'skip'
        AND num_nonnulls(
            enqueue_one.run_at, enqueue_one.delay, enqueue_one.max_attempts,
            enqueue_one.unique_key, enqueue_one.unique_for, enqueue_one.group_key,
            enqueue_one.requires_approval, enqueue_one.tags,
            enqueue_one.max_runtime, enqueue_one.headers, enqueue_one.start_by,
            enqueue_one.expires_in, enqueue_one.after, enqueue_one.after_failed,
            enqueue_one.flow, enqueue_one.name
        ) = 0
        AND current_setting('session_replication_role') <> 'replica'
    THEN
        INSERT INTO pulse_internal.request_form AS r (kind, payload, lane, priority)
        VALUES (enqueue_one.kind, enqueue_one.payload, enqueue_one.lane, enqueue_one.priority)
        RETURNING r.job_id, r.created INTO enqueue_one.job_id, enqueue_one.created;
        RETURN;
    END IF;

    INSERT INTO pulse_internal.request_form AS r (kind, payload, lane, priority, options)
    VALUES (
        enqueue_one.kind, enqueue_one.payload, enqueue_one.lane, enqueue_one.priority,
        ROW(
            NULL, NULL, NULL, NULL, enqueue_one.run_at, enqueue_one.delay,
            enqueue_one.max_attempts, enqueue_one.unique_key,
            enqueue_one.unique_for, enqueue_one.on_conflict, enqueue_one.group_key,
            enqueue_one.requires_approval, enqueue_one.tags,
            enqueue_one.max_runtime, enqueue_one.headers, enqueue_one.start_by,
            enqueue_one.expires_in, enqueue_one.after, enqueue_one.after_failed,
            enqueue_one.flow, enqueue_one.name
        )::pulse_internal.item
    )
    RETURNING r.job_id, r.created INTO enqueue_one.job_id, enqueue_one.created;
    IF enqueue_one.job_id IS NULL THEN
        PERFORM pulse_internal.raise_replica();
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse.enqueue_one(
    text, jsonb, text, integer, timestamptz, interval, integer, text,
    interval, text, text, boolean, text [], interval, jsonb, timestamptz, interval,
    bigint [], text, text, text
) IS
'Like enqueue, and says whether the job was created or its unique key found an existing one. Writes what enqueue writes.';

-- What producers ask for, one row a call. They fill in the form, which leads here and
-- says nothing of who: that is current_user (access/caller.sql). The trigger checks all the
-- rest, so an INSERT by hand is an enqueue too. Few columns, since each of them costs: what
-- is seldom given is one.
CREATE VIEW pulse_internal.request
WITH (security_barrier)
AS
SELECT
    NULL::text AS kind,
    NULL::jsonb AS payload,
    NULL::text AS lane,
    NULL::integer AS priority,
    NULL::pulse_internal.item AS options,
    NULL::bigint AS job_id,
    NULL::boolean AS created,
    NULL::name AS who,
    NULL::integer AS owner,
    NULL::bigint AS taken
WHERE false;

ALTER VIEW pulse_internal.request ALTER COLUMN who SET DEFAULT current_user;

COMMENT ON VIEW pulse_internal.request IS
'Jobs that are asked for, and by whom; written by pulse itself.';

COMMENT ON COLUMN pulse_internal.request.kind IS
'As in enqueue.';

COMMENT ON COLUMN pulse_internal.request.payload IS
'As in enqueue.';

COMMENT ON COLUMN pulse_internal.request.lane IS
'As in enqueue.';

COMMENT ON COLUMN pulse_internal.request.priority IS
'As in enqueue.';

COMMENT ON COLUMN pulse_internal.request.options IS
'The further arguments of enqueue; NULL when none is given.';

COMMENT ON COLUMN pulse_internal.request.job_id IS
'The answer: the job.';

COMMENT ON COLUMN pulse_internal.request.created IS
'The answer: whether it is new.';

COMMENT ON COLUMN pulse_internal.request.who IS
'The role that asks.';

COMMENT ON COLUMN pulse_internal.request.owner IS
'The role that the job shall belong to, where that is not the one that asks.';

COMMENT ON COLUMN pulse_internal.request.taken IS
'The job id that has the unique key already.';

CREATE VIEW pulse_internal.request_form
WITH (security_barrier)
AS
SELECT
    r.kind,
    r.payload,
    r.lane,
    r.priority,
    r.options,
    r.job_id,
    r.created
FROM pulse_internal.request AS r;

COMMENT ON VIEW pulse_internal.request_form IS
'Where enqueue asks for a job.';

COMMENT ON COLUMN pulse_internal.request_form.kind IS
'As in enqueue.';

COMMENT ON COLUMN pulse_internal.request_form.payload IS
'As in enqueue.';

COMMENT ON COLUMN pulse_internal.request_form.lane IS
'As in enqueue.';

COMMENT ON COLUMN pulse_internal.request_form.priority IS
'As in enqueue.';

COMMENT ON COLUMN pulse_internal.request_form.options IS
'The further arguments of enqueue; NULL when none is given.';

COMMENT ON COLUMN pulse_internal.request_form.job_id IS
'The answer: the job.';

COMMENT ON COLUMN pulse_internal.request_form.created IS
'The answer: whether it is new.';

-- Everything a single enqueue does. This is the hottest path of a producer, and
-- PL/pgSQL sets up every expression anew in each transaction, with each function in it
-- whether it is called or not: so what is ordinary is asked by one statement, and
-- whatever is seldom needed stands in a branch of its own.
CREATE FUNCTION pulse_internal.take_request()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_approval boolean;
    v_owner integer;
    v_lane text;
    v_priority integer;
    v_max_attempts integer;
    v_job pulse_internal.enqueued;
BEGIN
    -- The role as role_number finds it, the settings as kind_settings does.
    SELECT
        CASE
            -- This server drew the last numbers: settings/node.sql.
            WHEN pg_sequence_last_value('pulse_internal.server_start')
                = (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint
                AND length(new.kind)
                BETWEEN 1 AND pulse_internal.longest_name()
                AND coalesce(length(new.lane), 1)
                BETWEEN 1 AND pulse_internal.longest_name()
                AND coalesce(new.priority, 0)
                BETWEEN - pulse_internal.highest_priority()
                AND pulse_internal.highest_priority()
                AND num_nonnulls(new.taken, current_setting('pulse.max_payload', true)) = 0
                -- Whatever may be wrong is checked before an id is drawn, or the call
                -- would use one up and write nothing.
                AND (
                    new.options IS NULL
                    OR coalesce((new.options).on_conflict, 'skip') = 'skip'
                    AND coalesce(octet_length((new.options).group_key), 0) <= 1000
                    AND num_nonnulls(
                        (new.options).run_at, (new.options).delay,
                        (new.options).max_attempts, (new.options).unique_key,
                        (new.options).unique_for, (new.options).tags,
                        (new.options).max_runtime, (new.options).headers,
                        (new.options).start_by, (new.options).expires_in,
                        (new.options).after, (new.options).after_failed,
                        (new.options).flow, (new.options).name
                    ) = 0
                )
                AND k.requires_approval IS NOT TRUE
                -- As text_size says, without a call; 1000 bytes are never above 8 MB.
                -- concat() is STABLE: the planner computes the IMMUTABLE cast to text
                -- of any payload, before the size in front of it is tested.
                AND pg_column_compression(new.payload) IS NULL
                AND (
                    pg_column_size(new.payload) <= 1000
                    OR pg_column_size(new.payload) <= 100000
                    AND octet_length(concat(new.payload)) <= 8388608
                )
                -- As enter_lane: marks demand it before a place is drawn.
                AND pg_try_advisory_xact_lock_shared(
                    'pulse_internal.ready_seq'::regclass::oid::integer,
                    hashtext(coalesce(new.lane, k.lane, 'default')) & 255
                )
                THEN nextval('pulse_internal.job_id')
        END,
        true, k.requires_approval IS TRUE OR (new.options).requires_approval IS TRUE,
        coalesce(new.owner, o.role),
        coalesce(new.lane, k.lane, 'default'), coalesce(new.priority, k.priority, 0),
        coalesce((new.options).max_attempts, k.max_attempts, 3)
    INTO new.job_id, new.created, v_approval, v_owner, v_lane, v_priority, v_max_attempts
    FROM pulse_internal.role AS o
    LEFT JOIN pulse_internal.kind AS k ON k.kind = new.kind
    WHERE o.role_oid = to_regrole(quote_ident(new.who))
        AND o.name = new.who;

    IF new.job_id IS NULL OR num_nonnulls(new.options) > 0 THEN
        -- With options, the first job of a role, after a start of the server, or wrong.
        IF v_owner IS NULL THEN
            v_owner := coalesce(new.owner, pulse_internal.role_number(new.who));
            SELECT
                s.requires_approval OR (new.options).requires_approval IS TRUE,
                coalesce(new.lane, s.lane),
                coalesce(new.priority, s.priority),
                coalesce((new.options).max_attempts, s.max_attempts)
            INTO v_approval, v_lane, v_priority, v_max_attempts
            FROM pulse_internal.kind_settings(new.kind) AS s;
        END IF;
        v_job := pulse_internal.enqueue_slow_path(
            new.kind, new.payload, v_lane, v_priority, v_max_attempts, v_approval, v_owner,
            new.options, new.job_id, new.taken
        );
        new.job_id := v_job.job_id;
        new.created := v_job.created;
        RETURN new;
    END IF;

    -- One statement of three is cheaper than three.
    WITH asked AS (
        INSERT INTO pulse_internal.body (job, kind, payload, max_attempts, owner)
        VALUES (
            new.job_id, new.kind, coalesce(new.payload, '{}'), v_max_attempts, v_owner
        )
    ),

    counted AS (
        INSERT INTO pulse_internal.tally (lane, kind, event)
        VALUES (v_lane, new.kind, 'enqueued')
    )

    INSERT INTO pulse_internal.ready (lane, rank, kind, job, attempts, failures, keyed)
    VALUES (v_lane, -v_priority, new.kind, new.job_id, 0, 0, false);

    -- The bell, as in ring: nobody sleeps if the lock can be had.
    IF NOT (
        pg_try_advisory_lock('pulse_internal.ready'::regclass::oid::integer, hashtext(v_lane))
        AND pg_advisory_unlock('pulse_internal.ready'::regclass::oid::integer, hashtext(v_lane))
    ) THEN
        PERFORM pulse_internal.ring(v_lane);
    END IF;
    RETURN new;
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_request() IS
'Check, resolve the settings of the kind, write the job for the role that asked.';

CREATE TRIGGER request_is_taken
INSTEAD OF INSERT ON pulse_internal.request
FOR EACH ROW EXECUTE FUNCTION pulse_internal.take_request();
