-- Any job that has an option, or about which something is out of the ordinary. job is its
-- number where it needs no key, and then kind, lane, priority and payload are in order;
-- taken is the number that it has from a list. Here too each function that is entered
-- and each statement counts (docs/decisions/speed.md).
CREATE FUNCTION pulse._enqueue_slow_path(
    kind text,
    payload jsonb,
    lane text,
    priority integer,
    max_attempts integer,
    needs_approval boolean,
    owner integer,
    options pulse._item,
    job bigint,
    taken bigint
)
RETURNS pulse._enqueued
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_item pulse._item := _enqueue_slow_path.options;
    v_run_at timestamptz;
    v_start_by timestamptz;
    v_after_failed text;
    v_grouped boolean;
    v_follows boolean;
    v_job pulse._enqueued;
BEGIN
    -- What has its key already was checked before it took it.
    IF num_nonnulls(_enqueue_slow_path.taken, v_item.unique_key) < 2
        AND (
            _enqueue_slow_path.job IS NULL
            OR v_item.on_conflict <> 'skip'
            OR octet_length(v_item.group_key) > 1000
            OR num_nonnulls(
                v_item.run_at, v_item.delay, v_item.max_attempts, v_item.unique_for,
                v_item.tags, v_item.max_runtime, v_item.headers, v_item.start_by,
                v_item.expires_in
            ) > 0
        )
    THEN
        PERFORM pulse._require_job_options(
            _enqueue_slow_path.kind, _enqueue_slow_path.payload, _enqueue_slow_path.lane,
            _enqueue_slow_path.priority, v_item.run_at, v_item.delay, v_item.max_attempts,
            v_item.unique_key, v_item.unique_for, v_item.on_conflict, v_item.group_key,
            v_item.tags, v_item.max_runtime, v_item.headers, v_item.start_by,
            v_item.expires_in
        );
    END IF;
    IF num_nonnulls(v_item.after, v_item.after_failed, v_item.flow, v_item.name) > 0 THEN
        PERFORM pulse._require_flow_options(
            v_item.after, v_item.after_failed, v_item.flow, v_item.name,
            cardinality(v_item.after)
        );
        IF v_item.after <> '{}' THEN
            v_after_failed := coalesce(v_item.after_failed, 'cancel');
        END IF;
    END IF;
    IF octet_length(v_item.group_key) > 1000 THEN
        PERFORM pulse._joins_group(_enqueue_slow_path.lane, v_item.group_key);
    END IF;

    v_run_at := coalesce(v_item.run_at, clock_timestamp() + v_item.delay);
    IF v_after_failed IS NOT NULL THEN
        -- expires_in is counted from its release.
        v_start_by := v_item.start_by;
        IF v_item.on_conflict IN ('follow', 'merge', 'cancel') THEN
            PERFORM pulse._raise_follows_after(v_item.on_conflict);
        END IF;
    ELSIF num_nonnulls(v_item.start_by, v_item.expires_in) > 0 THEN
        v_start_by := pulse._start_by(
            v_item.start_by, v_item.expires_in, v_item.run_at, v_item.delay
        );
    END IF;

    v_job := ROW(coalesce(_enqueue_slow_path.taken, _enqueue_slow_path.job), true);
    IF v_job.job_id IS NULL THEN
        -- Another server drew the last numbers: settings/node.sql.
        IF pg_sequence_last_value('pulse.server_start') IS DISTINCT FROM
            (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint
        THEN
            PERFORM pulse._meet_server();
        END IF;
        IF v_item.unique_key IS NULL THEN
            v_job.job_id := nextval('pulse.job_id');
        ELSE
            v_job := pulse._take_key(
                _enqueue_slow_path.lane, v_item.unique_key, v_item.unique_for,
                v_item.on_conflict, _enqueue_slow_path.kind,
                coalesce(_enqueue_slow_path.payload, '{}'), -_enqueue_slow_path.priority,
                v_run_at, _enqueue_slow_path.needs_approval, _enqueue_slow_path.owner,
                v_item.headers, v_start_by
            );
            IF NOT v_job.created THEN
                RETURN v_job;
            END IF;
        END IF;
    END IF;

    IF v_item.unique_key IS NOT NULL AND v_item.on_conflict IN ('follow', 'merge', 'cancel') THEN
        -- Of a list this was asked for at last, by another element than the first.
        v_follows := pulse._replace_blocked(
            v_job.job_id, -_enqueue_slow_path.priority, v_run_at,
            _enqueue_slow_path.needs_approval
        );
        IF v_follows THEN
            v_after_failed := 'run';
        END IF;
    END IF;

    WITH asked AS (
        INSERT INTO pulse.body (
            job, kind, payload, max_attempts, max_runtime, unique_key, unique_for, group_key,
            tags, needed_approval, owner, headers, start_by, flow, name, after_failed
        )
        VALUES (
            v_job.job_id, _enqueue_slow_path.kind,
            coalesce(_enqueue_slow_path.payload, '{}'), _enqueue_slow_path.max_attempts,
            v_item.max_runtime, v_item.unique_key, v_item.unique_for, v_item.group_key,
            v_item.tags, _enqueue_slow_path.needs_approval, _enqueue_slow_path.owner,
            v_item.headers, v_start_by, v_item.flow, v_item.name, v_after_failed
        )
    )

    INSERT INTO pulse.tally (lane, kind, event)
    VALUES (_enqueue_slow_path.lane, _enqueue_slow_path.kind, 'enqueued');

    IF v_start_by IS NOT NULL THEN
        PERFORM pulse._note_expiry(v_job.job_id, v_start_by);
    END IF;

    IF v_follows THEN
        NULL;
    ELSIF v_after_failed IS NOT NULL THEN
        PERFORM pulse._put_after(
            ARRAY[v_job.job_id], v_item.after,
            ROW(
                NULL, NULL, NULL, _enqueue_slow_path.lane, _enqueue_slow_path.kind,
                -_enqueue_slow_path.priority, v_item.run_at, v_item.delay,
                v_item.expires_in, 0, 0, v_item.unique_key IS NOT NULL, NULL,
                v_after_failed, _enqueue_slow_path.needs_approval
            )::pulse.blocked,
            _enqueue_slow_path.owner
        );
    ELSIF _enqueue_slow_path.needs_approval THEN
        INSERT INTO pulse.approval (job, lane, kind, rank, run_at, expires_at, keyed)
        SELECT
            v_job.job_id, _enqueue_slow_path.lane, _enqueue_slow_path.kind,
            -_enqueue_slow_path.priority, v_run_at, clock_timestamp() + s.approval_expiry,
            v_item.unique_key IS NOT NULL
        FROM pulse._kind_settings(_enqueue_slow_path.kind) AS s;
    ELSIF v_run_at > clock_timestamp() OR octet_length(v_item.group_key) > 1000 THEN
        PERFORM pulse._put_in_line(
            v_job.job_id, _enqueue_slow_path.lane, _enqueue_slow_path.kind,
            -_enqueue_slow_path.priority, v_run_at, 0, 0, v_item.unique_key IS NOT NULL,
            false, group_key => v_item.group_key
        );
    ELSE
        IF v_item.group_key <> '' THEN
            SELECT l.grouped INTO v_grouped
            FROM pulse.lane AS l
            WHERE l.lane = _enqueue_slow_path.lane;
        END IF;
        IF v_grouped THEN
            WITH placed AS (
                INSERT INTO pulse.group_ready AS r (
                    lane, group_key, rank, kind, job, attempts, failures, keyed
                )
                VALUES (
                    _enqueue_slow_path.lane, v_item.group_key, -_enqueue_slow_path.priority,
                    _enqueue_slow_path.kind, v_job.job_id, 0, 0,
                    v_item.unique_key IS NOT NULL
                )
                RETURNING r.lane, r.group_key, r.rank, r.seq, r.kind
            )

            INSERT INTO pulse.group_notice (lane, group_key, rank, place, kind)
            SELECT p.lane, p.group_key, p.rank, p.seq, p.kind
            FROM placed AS p;
        ELSE
            INSERT INTO pulse.ready (lane, rank, kind, job, attempts, failures, keyed)
            VALUES (
                _enqueue_slow_path.lane, -_enqueue_slow_path.priority,
                _enqueue_slow_path.kind, v_job.job_id, 0, 0, v_item.unique_key IS NOT NULL
            );
        END IF;
        -- The bell, as in _take_request.
        IF NOT (
            pg_try_advisory_lock(
                'pulse.ready'::regclass::oid::integer, hashtext(_enqueue_slow_path.lane)
            )
            AND pg_advisory_unlock(
                'pulse.ready'::regclass::oid::integer, hashtext(_enqueue_slow_path.lane)
            )
        ) THEN
            PERFORM pulse._ring(_enqueue_slow_path.lane);
        END IF;
    END IF;
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse._enqueue_slow_path(
    text, jsonb, text, integer, integer, boolean, integer, pulse._item, bigint, bigint
) IS
'Take the key, write the job where it belongs: in line, into waiting, before an approver or after other jobs.';
