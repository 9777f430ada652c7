-- Any job that has an option, or about which something is out of the ordinary. job is its
-- number where take_request has found kind, lane, priority, payload and options in order;
-- where it is NULL they are checked here, before a number is drawn.
-- taken is the number that it has from a list. Here too each function that is entered
-- and each statement counts (docs/decisions/speed.md).
CREATE FUNCTION pulse_internal.enqueue_slow_path(
    kind text,
    payload jsonb,
    lane text,
    priority integer,
    max_attempts integer,
    needs_approval boolean,
    owner integer,
    options pulse_internal.item,
    job bigint,
    taken bigint
)
RETURNS pulse_internal.enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_item pulse_internal.item := enqueue_slow_path.options;
    v_run_at timestamptz;
    v_start_by timestamptz;
    v_after_failed text;
    v_grouped boolean;
    v_follows boolean;
    v_job pulse_internal.enqueued;
BEGIN
    -- What has its key already was checked before it took it.
    IF num_nonnulls(enqueue_slow_path.taken, v_item.unique_key) < 2
        AND enqueue_slow_path.job IS NULL
    THEN
        PERFORM pulse_internal.require_job_options(
            enqueue_slow_path.kind, enqueue_slow_path.payload, enqueue_slow_path.lane,
            enqueue_slow_path.priority, v_item.run_at, v_item.delay, v_item.max_attempts,
            v_item.unique_key, v_item.unique_for, v_item.on_conflict, v_item.group_key,
            v_item.tags, v_item.max_runtime, v_item.headers, v_item.start_by,
            v_item.expires_in
        );
    END IF;
    IF num_nonnulls(v_item.after, v_item.after_failed, v_item.flow, v_item.name) > 0 THEN
        PERFORM pulse_internal.require_flow_options(
            v_item.after, v_item.after_failed, v_item.flow, v_item.name,
            cardinality(v_item.after)
        );
        IF v_item.after <> '{}' THEN
            v_after_failed := coalesce(v_item.after_failed, 'cancel');
        END IF;
    END IF;
    IF octet_length(v_item.group_key) > 1000 THEN
        PERFORM pulse_internal.joins_group(enqueue_slow_path.lane, v_item.group_key);
    END IF;

    v_run_at := coalesce(v_item.run_at, clock_timestamp() + v_item.delay);
    IF v_after_failed IS NOT NULL THEN
        -- expires_in is counted from its release.
        v_start_by := v_item.start_by;
        IF v_item.on_conflict IN ('follow', 'cancel') THEN
            PERFORM pulse_internal.raise_follows_after(v_item.on_conflict);
        END IF;
    ELSIF num_nonnulls(v_item.start_by, v_item.expires_in) > 0 THEN
        v_start_by := pulse_internal.start_by(
            v_item.start_by, v_item.expires_in, v_item.run_at, v_item.delay
        );
    END IF;

    v_job := ROW(coalesce(enqueue_slow_path.taken, enqueue_slow_path.job), true, false);
    IF v_job.job_id IS NULL THEN
        -- Another server drew the last numbers: settings/node.sql.
        IF pg_sequence_last_value('pulse_internal.server_start') IS DISTINCT FROM
            (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint
        THEN
            PERFORM pulse_internal.meet_server();
        END IF;
        IF v_item.unique_key IS NULL THEN
            v_job.job_id := nextval('pulse_internal.job_id');
        ELSE
            v_job := pulse_internal.take_key_in_time(
                enqueue_slow_path.lane, v_item.unique_key, v_item.unique_for,
                v_item.on_conflict, enqueue_slow_path.kind,
                coalesce(enqueue_slow_path.payload, '{}'), -enqueue_slow_path.priority,
                v_run_at, enqueue_slow_path.needs_approval, enqueue_slow_path.owner,
                v_item.headers, v_start_by
            );
            IF v_job.written THEN
                RETURN v_job;
            END IF;
        END IF;
    END IF;

    IF v_item.unique_key IS NOT NULL AND v_item.on_conflict IN ('follow', 'cancel') THEN
        -- Of a list this was asked for at last, by another element than the first.
        v_follows := pulse_internal.replace_blocked(
            v_job.job_id, -enqueue_slow_path.priority, v_run_at,
            enqueue_slow_path.needs_approval
        );
        IF v_follows THEN
            v_after_failed := 'run';
        END IF;
    END IF;

    WITH asked AS (
        INSERT INTO pulse_internal.body (
            job, kind, payload, max_attempts, max_runtime, unique_key, unique_for, group_key,
            tags, needed_approval, owner, headers, start_by, flow, name, after_failed,
            run_at, delay, expires_in
        )
        VALUES (
            v_job.job_id, enqueue_slow_path.kind,
            coalesce(enqueue_slow_path.payload, '{}'), enqueue_slow_path.max_attempts,
            v_item.max_runtime, v_item.unique_key, v_item.unique_for, v_item.group_key,
            v_item.tags, enqueue_slow_path.needs_approval, enqueue_slow_path.owner,
            v_item.headers, v_start_by, v_item.flow, v_item.name, v_after_failed,
            CASE WHEN v_item.after <> '{}' THEN v_item.run_at END,
            CASE WHEN v_item.after <> '{}' THEN v_item.delay END,
            CASE WHEN v_item.after <> '{}' THEN v_item.expires_in END
        )
    )

    INSERT INTO pulse_internal.tally (lane, kind, event)
    VALUES (enqueue_slow_path.lane, enqueue_slow_path.kind, 'enqueued');

    IF v_start_by IS NOT NULL THEN
        PERFORM pulse_internal.note_expiry(v_job.job_id, v_start_by);
    END IF;

    IF v_follows THEN
        NULL;
    ELSIF v_after_failed IS NOT NULL THEN
        PERFORM pulse_internal.put_after(
            ARRAY[v_job.job_id], v_item.after,
            ROW(
                NULL, NULL, NULL, enqueue_slow_path.lane, enqueue_slow_path.kind,
                -enqueue_slow_path.priority, v_item.run_at, v_item.delay,
                v_item.expires_in, 0, 0, v_item.unique_key IS NOT NULL, NULL,
                v_after_failed, enqueue_slow_path.needs_approval
            )::pulse_internal.blocked,
            enqueue_slow_path.owner
        );
    ELSIF enqueue_slow_path.needs_approval THEN
        INSERT INTO pulse_internal.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        SELECT
            v_job.job_id, enqueue_slow_path.lane, enqueue_slow_path.kind,
            -enqueue_slow_path.priority, v_run_at, clock_timestamp() + s.approval_expiry,
            v_item.unique_key IS NOT NULL
        FROM pulse_internal.kind_settings(enqueue_slow_path.kind) AS s;
    ELSIF v_run_at > clock_timestamp() OR octet_length(v_item.group_key) > 1000 THEN
        PERFORM pulse_internal.put_in_line(
            v_job.job_id, enqueue_slow_path.lane, enqueue_slow_path.kind,
            -enqueue_slow_path.priority, v_run_at, 0, 0, v_item.unique_key IS NOT NULL,
            false, NULL, NULL, NULL
        );
    ELSE
        IF NOT pg_try_advisory_xact_lock_shared(
            'pulse_internal.ready_seq'::regclass::oid::integer,
            hashtext(enqueue_slow_path.lane) & 255
        ) THEN
            PERFORM pulse_internal.enter_lane(enqueue_slow_path.lane);
        END IF;
        IF v_item.group_key <> '' THEN
            SELECT l.grouped INTO v_grouped
            FROM pulse_internal.lane AS l
            WHERE l.lane = enqueue_slow_path.lane;
        END IF;
        IF v_grouped THEN
            WITH placed AS (
                INSERT INTO pulse_internal.ready AS r (
                    lane, group_key, rank, kind, job, attempts, failures, keyed
                )
                VALUES (
                    enqueue_slow_path.lane, v_item.group_key, -enqueue_slow_path.priority,
                    enqueue_slow_path.kind, v_job.job_id, 0, 0,
                    v_item.unique_key IS NOT NULL
                )
                RETURNING r.lane, r.group_key, r.rank, r.seq, r.kind
            )

            INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place, kind)
            SELECT p.lane, p.group_key, p.rank, p.seq, p.kind
            FROM placed AS p;
        ELSE
            INSERT INTO pulse_internal.ready (lane, rank, kind, job, attempts, failures, keyed)
            VALUES (
                enqueue_slow_path.lane, -enqueue_slow_path.priority,
                enqueue_slow_path.kind, v_job.job_id, 0, 0, v_item.unique_key IS NOT NULL
            );
        END IF;
        -- The bell, as in take_request.
        IF NOT (
            pg_try_advisory_lock(
                'pulse_internal.ready'::regclass::oid::integer, hashtext(enqueue_slow_path.lane)
            )
            AND pg_advisory_unlock(
                'pulse_internal.ready'::regclass::oid::integer, hashtext(enqueue_slow_path.lane)
            )
        ) THEN
            PERFORM pulse_internal.ring(enqueue_slow_path.lane);
        END IF;
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.enqueue_slow_path(
    text, jsonb, text, integer, integer, boolean, integer, pulse_internal.item, bigint, bigint
) IS
'Take the key, write the job where it belongs: in line, into waiting, before an approver or after other jobs.';
