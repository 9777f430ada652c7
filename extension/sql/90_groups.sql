-- What why says of a job that stands in a group.

CREATE FUNCTION pulse._group_obstacles(lane text, group_key text, rank integer, seq bigint)
RETURNS SETOF text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_lane pulse.lane;
    v_group text COLLATE "C" := pulse._group_of(_group_obstacles.group_key);
    v_named text := CASE v_group
        WHEN '' THEN 'the jobs without a group_key' ELSE format('group %s', v_group)
    END;
    v_state pulse.group_state;
    v_running bigint [];
    v_ahead bigint;
BEGIN
    SELECT l.* INTO v_lane
    FROM pulse.lane AS l
    WHERE l.lane = _group_obstacles.lane;

    IF v_lane.grouped IS NOT TRUE THEN
        RETURN;
    END IF;

    SELECT s.* INTO v_state
    FROM pulse.group_state AS s
    WHERE s.lane = _group_obstacles.lane
        AND s.group_key = v_group
    ORDER BY s.version DESC
    LIMIT 1;

    v_running := array(
        SELECT l.job
        FROM pulse.lease AS l
        WHERE l.lease = ANY (v_state.leases)
        ORDER BY l.lease
    );
    IF cardinality(v_running) >= v_lane.group_slots THEN
        RETURN NEXT format(
            'group %s of lane %s runs %s of %s jobs at once: %s%s',
            v_group, _group_obstacles.lane, cardinality(v_running), v_lane.group_slots,
            array_to_string(v_running[1:5], ', '),
            CASE WHEN cardinality(v_running) > 5 THEN ' and others' ELSE '' END
        );
    END IF;

    SELECT count(*) INTO v_ahead
    FROM (
        SELECT
        FROM pulse.group_ready AS r
        WHERE r.lane = _group_obstacles.lane
            AND r.group_key = v_group
            AND r.failures >= 0
            AND (r.rank, r.seq) < (_group_obstacles.rank, _group_obstacles.seq)
        ORDER BY r.rank, r.seq
        LIMIT 1001
    ) AS ahead;

    IF v_ahead > 0 THEN
        RETURN NEXT format(
            '%s ahead of it in the line of %s',
            CASE
                WHEN v_ahead > 1000 THEN 'more than 1000 jobs are'
                WHEN v_ahead = 1 THEN '1 job is'
                ELSE format('%s jobs are', v_ahead)
            END,
            v_named
        );
    END IF;

    IF v_state.turn IS NULL THEN
        RETURN;
    END IF;

    SELECT count(*) INTO v_ahead
    FROM (
        SELECT
        FROM pulse.group_state AS s
        WHERE s.lane = _group_obstacles.lane
            AND s.turn IS NOT NULL
            AND s.version > 0
            AND (s.rank, s.turn) < (v_state.rank, v_state.turn)
        ORDER BY s.rank, s.turn
        LIMIT 1001
    ) AS ahead;

    IF v_ahead > 0 THEN
        RETURN NEXT format(
            '%s a turn before %s',
            CASE
                WHEN v_ahead > 1000 THEN 'more than 1000 groups have'
                WHEN v_ahead = 1 THEN '1 group has'
                ELSE format('%s groups have', v_ahead)
            END,
            v_named
        );
    END IF;

    -- Claims that name kinds pass over a group whose first job is of another one.
    IF EXISTS (SELECT FROM pulse._live_workers(_group_obstacles.lane))
        AND NOT EXISTS (
            SELECT
            FROM pulse._live_workers(_group_obstacles.lane) AS w
            WHERE w.kinds IS NULL OR v_state.kind = ANY (w.kinds)
        )
    THEN
        RETURN NEXT format(
            'the first job of %s is of kind %s, which no live worker of lane %s takes',
            v_named, v_state.kind, _group_obstacles.lane
        );
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse._group_obstacles(text, text, integer, bigint) IS
'In words: what its group keeps a job of a lane waiting for.';
