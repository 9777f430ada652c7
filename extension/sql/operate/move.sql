-- reprioritize and move take a job out of its place and put it in another. A row in line
-- is never changed: the job gets a new place at the end of its line, so that nothing
-- appears behind a low-water mark.

CREATE FUNCTION pulse.move(
    job_id bigint,
    lane text,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(move.signature);
    v_done record;
BEGIN
    PERFORM pulse_internal.require_read_committed('move');
    PERFORM pulse_internal.require_name('lane', move.lane);
    PERFORM pulse_internal.require_reason(move.reason);

    -- Nothing to do must not cost the job its place in line.
    IF EXISTS (
        SELECT
        FROM pulse_internal.in_line AS r
        WHERE r.job = move.job_id
            AND r.lane = move.lane
    ) THEN
        RETURN 'ready';
    END IF;

    SELECT s.* INTO v_done
    FROM pulse_internal.shift(move.job_id, move.lane, NULL) AS s;

    IF v_done.was <> ALL (pulse_internal.acts_on('move')) THEN
        PERFORM pulse_internal.raise_wrong_state(
            move.job_id, v_done.was, 'move', 'Only a job that waits can change its lane.'
        );
    END IF;

    IF v_done.key_holder IS NOT NULL THEN
        PERFORM pulse_internal.raise_key_taken(
            move.lane, pulse_internal.key_of(move.job_id), v_done.key_holder
        );
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'move', move.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was, 'lane', v_done.lane),
        jsonb_build_object('state', v_done.state, 'lane', move.lane),
        move.reason
    );

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse.move(bigint, text, text, pulse_internal.caller_signature) IS
'Put a waiting job into another lane, at the end of its priority there, with its unique key; returns its state. PU002 not a lane name; PU004 no such job; PU102 the key is taken in that lane; PU105 it is running or has ended; PU107 it kept moving; PU111 its unique key is taken or freed by a transaction that stays open. Writes blocked, approval, waiting or ready, and job_key and audit_entry.';

CREATE FUNCTION pulse.reprioritize(
    job_id bigint,
    priority integer,
    reason text DEFAULT NULL,
    signature pulse_internal.caller_signature DEFAULT pulse_internal.sign()
)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_who integer := pulse_internal.redeem(reprioritize.signature);
    v_done record;
BEGIN
    PERFORM pulse_internal.require_read_committed('reprioritize');
    PERFORM pulse_internal.require_priority(reprioritize.priority);
    PERFORM pulse_internal.require_reason(reprioritize.reason);

    -- Nothing to do must not cost the job its place in line.
    IF EXISTS (
        SELECT
        FROM pulse_internal.in_line AS r
        WHERE r.job = reprioritize.job_id
            AND r.rank = - reprioritize.priority
    ) THEN
        RETURN 'ready';
    END IF;

    SELECT s.* INTO v_done
    FROM pulse_internal.shift(reprioritize.job_id, NULL, - reprioritize.priority) AS s;

    IF v_done.was <> ALL (pulse_internal.acts_on('reprioritize')) THEN
        PERFORM pulse_internal.raise_wrong_state(
            reprioritize.job_id, v_done.was, 'reprioritize',
            'A dead or cancelled job can be put back in line by pulse.retry.'
        );
    END IF;

    PERFORM pulse_internal.audit(
        v_who, 'reprioritize', reprioritize.job_id, v_done.lane,
        jsonb_build_object('state', v_done.was, 'priority', - v_done.rank),
        jsonb_build_object('state', v_done.state, 'priority', reprioritize.priority),
        reprioritize.reason
    );

    RETURN v_done.state;
END;
$$;

COMMENT ON FUNCTION pulse.reprioritize(
    bigint, integer, text, pulse_internal.caller_signature
) IS
'Give a job another priority (higher runs first); returns its state. A job in line goes to the end of its new priority; one that has that priority keeps its place. A running job goes on undisturbed, and the priority counts for its next run. PU002 priority out of bounds; PU004 no such job; PU105 it has ended; PU107 it kept moving. Writes blocked, approval, waiting, ready or lease, and audit_entry.';

-- NULL for to_lane or to_rank means: as it is. was and lane are the job's before, state
-- its state after; key_holder is who has the key in that lane, and then the job may not
-- stay there.
CREATE FUNCTION pulse_internal.shift(
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
    FROM pulse_internal.take_out(shift.job_id) AS t;

    was := v_was.state;
    lane := v_was.lane;
    rank := v_was.rank;
    state := was;
    v_lane := coalesce(shift.to_lane, v_was.lane);
    v_rank := coalesce(shift.to_rank, v_was.rank);

    IF was <> ALL (pulse_internal.acts_on('reprioritize')) THEN
        RETURN;
    END IF;

    IF was = 'running' THEN
        UPDATE pulse_internal.lease AS l
        SET rank = v_rank
        WHERE l.job = shift.job_id
            AND l.rank <> v_rank;
        RETURN;
    END IF;

    IF v_was.keyed AND v_lane <> v_was.lane THEN
        key_holder := pulse_internal.rekey_in_time(shift.job_id, v_lane);
    END IF;

    -- In place: who looks at a watch finds it by its number.
    IF was = 'blocked' THEN
        UPDATE pulse_internal.blocked AS b
        SET lane = v_lane,
            rank = v_rank
        WHERE b.job = shift.job_id;
        RETURN;
    END IF;

    IF was = 'awaiting_approval' THEN
        INSERT INTO pulse_internal.approval (
            job, lane, kind, rank, run_at, expires_at, asked_at, keyed
        )
        VALUES (
            shift.job_id, v_lane, v_was.kind, v_rank,
            v_was.run_at, v_was.expires_at, v_was.asked_at, v_was.keyed
        );
        RETURN;
    END IF;

    -- A job that came due while it waited is put in line at once.
    IF NOT v_was.run_at > clock_timestamp() THEN
        state := 'ready';
    END IF;

    PERFORM pulse_internal.put_in_line(
        shift.job_id, v_lane, v_was.kind, v_rank, v_was.run_at,
        v_was.attempts, v_was.failures, v_was.keyed, was = 'retrying',
        v_was.last_lease, v_was.last_verb,
        CASE WHEN v_lane = v_was.lane AND v_rank = v_was.rank THEN v_was.place END
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.shift(bigint, text, integer) IS
'Put a job at the end of another line; says what it was, what it is, and who has its key there.';
