-- A job that has a group and nothing else out of the ordinary: what _take_request does for
-- one without options. NULL, and nothing is written, where there is more to it.
CREATE FUNCTION pulse._enqueue_with_group(
    kind text,
    payload jsonb,
    lane text,
    priority integer,
    max_attempts integer,
    owner integer,
    options pulse._item
)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_item pulse._item := _enqueue_with_group.options;
    v_group text := v_item.group_key;
    v_grouped boolean;
    v_job bigint;
BEGIN
    SELECT nextval('pulse.job_id'), l.grouped INTO v_job, v_grouped
    FROM pulse._lane_default AS d
    LEFT JOIN pulse.lane AS l ON l.lane = _enqueue_with_group.lane
    WHERE pg_sequence_last_value('pulse.server_start')
        = (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint
        AND length(_enqueue_with_group.kind) BETWEEN 1 AND 200
        AND length(_enqueue_with_group.lane) BETWEEN 1 AND 200
        AND octet_length(v_group) <= 1000
        AND current_setting('pulse.max_payload', true) IS NULL
        AND pg_column_compression(_enqueue_with_group.payload) IS NULL
        AND pg_column_size(_enqueue_with_group.payload) <= 1000
        AND v_item.on_conflict = 'skip'
        AND num_nonnulls(
            v_item.run_at, v_item.delay, v_item.max_attempts, v_item.unique_key,
            v_item.unique_for, v_item.requires_approval, v_item.tags, v_item.max_runtime,
            v_item.headers, v_item.start_by, v_item.expires_in, v_item.after,
            v_item.after_failed, v_item.flow, v_item.name
        ) = 0;
    IF v_job IS NULL THEN
        RETURN NULL;
    END IF;

    IF v_grouped THEN
        WITH placed AS (
            INSERT INTO pulse.group_ready AS r (
                lane, group_key, rank, kind, job, attempts, failures, keyed
            )
            VALUES (
                _enqueue_with_group.lane, v_group, -_enqueue_with_group.priority,
                _enqueue_with_group.kind, v_job, 0, 0, false
            )
            RETURNING r.rank, r.seq
        )

        INSERT INTO pulse.group_notice (lane, group_key, rank, place, kind)
        SELECT _enqueue_with_group.lane, v_group, p.rank, p.seq, _enqueue_with_group.kind
        FROM placed AS p;
    ELSE
        INSERT INTO pulse.ready (lane, rank, kind, job, attempts, failures, keyed)
        VALUES (
            _enqueue_with_group.lane, -_enqueue_with_group.priority, _enqueue_with_group.kind,
            v_job, 0, 0, false
        );
    END IF;

    WITH asked AS (
        INSERT INTO pulse.body (job, kind, payload, max_attempts, group_key, owner)
        VALUES (
            v_job, _enqueue_with_group.kind, _enqueue_with_group.payload,
            _enqueue_with_group.max_attempts, v_group, _enqueue_with_group.owner
        )
    )

    INSERT INTO pulse.tally (lane, kind, event)
    VALUES (_enqueue_with_group.lane, _enqueue_with_group.kind, 'enqueued');

    PERFORM pulse._ring(_enqueue_with_group.lane);
    RETURN v_job;
END;
$$;

COMMENT ON FUNCTION pulse._enqueue_with_group(
    text, jsonb, text, integer, integer, integer, pulse._item
) IS
'Put a job in line, of its group or of its lane, if that is all there is to do; returns its id, or NULL.';
