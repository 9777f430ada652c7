-- NULL for to_lane or to_rank means: as it is. was and lane are the job's before, state
-- its state after; key_holder is who has the key in that lane, and then the job may not
-- stay there.
CREATE FUNCTION pulse._shift(
    job_id bigint,
    to_lane text,
    to_rank integer,
    OUT was text,
    OUT lane text,
    OUT rank integer,
    OUT state text,
    OUT key_holder bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_was record;
    v_lane text;
    v_rank integer;
BEGIN
    SELECT t.* INTO v_was
    FROM pulse._take_out(_shift.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;
    rank := v_was.rank;
    state := was;
    v_lane := coalesce(_shift.to_lane, v_was.lane);
    v_rank := coalesce(_shift.to_rank, v_was.rank);

    IF was IN ('completed', 'dead', 'cancelled') THEN
        RETURN;
    END IF;

    IF was = 'running' THEN
        UPDATE pulse.lease AS l
        SET rank = v_rank
        WHERE l.job = _shift.job_id
            AND l.rank <> v_rank;
        RETURN;
    END IF;

    IF v_was.keyed AND v_lane <> v_was.lane THEN
        key_holder := pulse._rekey(_shift.job_id, v_lane);
    END IF;

    -- In place: who looks at a watch finds it by its number.
    IF was = 'blocked' THEN
        UPDATE pulse.blocked AS b
        SET lane = v_lane,
            rank = v_rank
        WHERE b.job = _shift.job_id;
        RETURN;
    END IF;

    IF was = 'awaiting_approval' THEN
        INSERT INTO pulse.approval (
            job, lane, kind, rank, run_at, expires_at, asked_at, keyed
        )
        VALUES (
            _shift.job_id, v_lane, v_was.kind, v_rank,
            v_was.run_at, v_was.expires_at, v_was.asked_at, v_was.keyed
        );
        RETURN;
    END IF;

    -- A job that came due while it waited is put in line at once.
    IF NOT v_was.run_at > clock_timestamp() THEN
        state := 'ready';
    END IF;

    PERFORM pulse._put_in_line(
        _shift.job_id, v_lane, v_was.kind, v_rank, v_was.run_at,
        v_was.attempts, v_was.failures, v_was.keyed, was = 'retrying',
        v_was.last_lease, v_was.last_verb, pulse._group_key(_shift.job_id),
        CASE WHEN v_lane = v_was.lane AND v_rank = v_was.rank THEN v_was.place END
    );
END;
$$;

COMMENT ON FUNCTION pulse._shift(bigint, text, integer) IS
'Put a job at the end of another line; says what it was, what it is, and who has its key there.';
