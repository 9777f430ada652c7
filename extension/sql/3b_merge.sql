-- What two enqueues of one job make of it, where it waits (3c_replace.sql) and inside a list
-- (34_enqueue_list.sql).

-- What a waiting job shall be, given what it is. Its row is held, so its body stands still.
-- rank and run_at are those that are asked for, and become those that it gets.
CREATE FUNCTION pulse._wish(
    job bigint,
    on_conflict text,
    INOUT payload jsonb,
    INOUT headers jsonb,
    INOUT start_by timestamptz,
    INOUT rank integer,
    INOUT run_at timestamptz,
    old_rank integer,
    old_run_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_body pulse.body;
    v_latest timestamptz;
BEGIN
    SELECT b.* INTO v_body
    FROM pulse.body AS b
    WHERE b.job = _wish.job;

    IF _wish.on_conflict <> 'merge' THEN
        v_latest := v_body.enqueued_at + (
            SELECT k.max_delay FROM pulse.kind AS k WHERE k.kind = v_body.kind
        );
        IF run_at > v_latest THEN
            run_at := least(run_at, greatest(v_latest, _wish.old_run_at));
        END IF;
        RETURN;
    END IF;

    SELECT m.payload, m.headers, m.start_by, m.rank, m.run_at
    INTO payload, headers, start_by, rank, run_at
    FROM pulse._merge(
        payload, headers, start_by, rank, run_at, v_body.payload, v_body.headers,
        v_body.start_by, _wish.old_rank, _wish.old_run_at
    ) AS m;
END;
$$;

COMMENT ON FUNCTION pulse._wish(
    bigint, text, jsonb, jsonb, timestamptz, integer, timestamptz, integer, timestamptz
) IS
'What replace, follow and merge make of a job that waits: the new payload, headers, start_by, rank and run_at, within max_delay of its kind, or those of both merged.';

-- The sooner start, which is at once where one of them says nothing, and no sooner end.
CREATE FUNCTION pulse._merge(
    INOUT payload jsonb,
    INOUT headers jsonb,
    INOUT start_by timestamptz,
    INOUT rank integer,
    INOUT run_at timestamptz,
    old_payload jsonb,
    old_headers jsonb,
    old_start_by timestamptz,
    old_rank integer,
    old_run_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- jsonb || jsonb makes an array of whatever else it is given.
    IF jsonb_typeof(payload) NOT IN ('object', 'array')
        OR jsonb_typeof(payload) <> jsonb_typeof(_merge.old_payload)
    THEN
        PERFORM pulse._raise(
            'PU002',
            'merge needs two objects or two arrays',
            format(
                'The payload of the waiting job is of type %s, the new one of type %s.',
                jsonb_typeof(_merge.old_payload), jsonb_typeof(payload)
            ),
            'Pass a payload of the same type, or use on_conflict => ''replace'' or ''follow''.'
        );
    END IF;
    payload := _merge.old_payload || payload;
    PERFORM pulse._require_payload(payload);
    headers := coalesce(_merge.old_headers || headers, headers, _merge.old_headers);
    IF headers IS NOT NULL THEN
        PERFORM pulse._require_headers(headers);
    END IF;
    rank := least(rank, _merge.old_rank);
    run_at := CASE
        WHEN run_at IS NOT NULL AND _merge.old_run_at IS NOT NULL
            THEN least(run_at, _merge.old_run_at)
    END;
    start_by := CASE
        WHEN start_by IS NOT NULL AND _merge.old_start_by IS NOT NULL
            THEN greatest(start_by, _merge.old_start_by)
    END;
END;
$$;

COMMENT ON FUNCTION pulse._merge(
    jsonb, jsonb, timestamptz, integer, timestamptz, jsonb, jsonb, timestamptz, integer,
    timestamptz
) IS
'What two enqueues of one job ask for together. PU002 unless both payloads are objects or both are arrays, PU003 when they are too large together.';

-- Two elements of one list with the same key: the first, as it shall be.
CREATE FUNCTION pulse._change_element(
    old jsonb, new jsonb, on_conflict text, kind_priority integer
)
RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old pulse._item := jsonb_populate_record(NULL::pulse._item, _change_element.old - 'after');
    v_new pulse._item := jsonb_populate_record(NULL::pulse._item, _change_element.new - 'after');
    v_wish record;
    v_changes jsonb;
BEGIN
    IF _change_element.on_conflict = 'merge' THEN
        v_wish := pulse._merge(
            coalesce(v_new.payload, '{}'), v_new.headers,
            pulse._start_by(v_new.start_by, v_new.expires_in, v_new.run_at, v_new.delay),
            -coalesce(v_new.priority, _change_element.kind_priority),
            coalesce(v_new.run_at, clock_timestamp() + v_new.delay),
            coalesce(v_old.payload, '{}'), v_old.headers,
            pulse._start_by(v_old.start_by, v_old.expires_in, v_old.run_at, v_old.delay),
            -coalesce(v_old.priority, _change_element.kind_priority),
            coalesce(v_old.run_at, clock_timestamp() + v_old.delay)
        );
        v_changes := jsonb_build_object(
            'payload', v_wish.payload, 'headers', v_wish.headers, 'priority', -v_wish.rank,
            'run_at', v_wish.run_at, 'start_by', v_wish.start_by
        );
    ELSE
        SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO v_changes
        FROM jsonb_each(_change_element.new) AS o
        WHERE o.key IN (
                'payload', 'priority', 'run_at', 'delay', 'headers', 'start_by',
                'expires_in'
            );
    END IF;

    IF v_new.requires_approval THEN
        v_changes := v_changes || '{"requires_approval": true}';
    END IF;
    RETURN _change_element.old - '{payload,priority,run_at,delay}'::text []
        - '{headers,start_by,expires_in}'::text [] || v_changes;
END;
$$;

COMMENT ON FUNCTION pulse._change_element(jsonb, jsonb, text, integer) IS
'What an element of a list becomes by a later one that has its unique key.';
