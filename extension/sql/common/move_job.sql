-- The one place that puts a job into ready or waiting and rings. run_at NULL or past
-- means ready: in a grouped lane, into the line of its group, with a notice in the same
-- transaction. The function looks up the group. place is the one that the job had in the line of
-- its group, or NULL. It is kept where the lane runs in order: there its group waits for it. The
-- clock is read inside the INSERT, after the lane is announced: time marks rest on that
-- (common/marks.sql).
CREATE FUNCTION pulse_internal.put_in_line(
    job bigint,
    lane text,
    kind text,
    rank integer,
    run_at timestamptz,
    attempts integer,
    failures integer,
    keyed boolean,
    retrying boolean,
    last_lease bigint,
    last_verb text,
    place bigint
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_in_order boolean;
    -- NULL: the job stands in the line of its lane.
    v_group text;
    v_place bigint;
BEGIN
    SELECT
        l.in_order IS TRUE,
        (
            SELECT nullif(pulse_internal.group_of(b.group_key), '')
            FROM pulse_internal.body AS b
            WHERE b.job = put_in_line.job
        )
    INTO v_in_order, v_group
    FROM pulse_internal.lane AS l
    WHERE l.lane = put_in_line.lane
        AND l.grouped;

    IF v_in_order AND v_group IS NOT NULL THEN
        v_place := put_in_line.place;
    END IF;

    -- As enter_lane, before anything is drawn.
    IF NOT pg_try_advisory_xact_lock_shared(
        'pulse_internal.ready_seq'::regclass::oid::integer, hashtext(put_in_line.lane) & 255
    ) THEN
        PERFORM pulse_internal.enter_lane(put_in_line.lane);
    END IF;

    IF put_in_line.run_at > clock_timestamp() THEN
        INSERT INTO pulse_internal.waiting (
            lane, run_at, job, kind, rank, attempts, failures, keyed, retrying,
            last_lease, last_verb, place, group_key
        )
        VALUES (
            put_in_line.lane,
            CASE
                -- Where no floor can be: it counts up to a minute from now.
                WHEN put_in_line.run_at > clock_timestamp() + interval '1 minute'
                    THEN put_in_line.run_at
                ELSE greatest(put_in_line.run_at, clock_timestamp(), pulse_internal.due_floor())
            END,
            put_in_line.job, put_in_line.kind, put_in_line.rank, put_in_line.attempts,
            put_in_line.failures, put_in_line.keyed, put_in_line.retrying,
            put_in_line.last_lease, put_in_line.last_verb, v_place,
            CASE WHEN v_place IS NOT NULL THEN v_group END
        );
        RETURN false;
    END IF;

    IF v_group IS NOT NULL THEN
        IF v_place IS NOT NULL THEN
            PERFORM pulse_internal.put_back_in_group(ROW(
                put_in_line.lane, put_in_line.rank, v_place, put_in_line.kind,
                put_in_line.job, put_in_line.attempts, put_in_line.failures, put_in_line.keyed,
                clock_timestamp(), put_in_line.last_lease, put_in_line.last_verb,
                v_group
            )::pulse_internal.ready);
            RETURN pulse_internal.ring(put_in_line.lane);
        END IF;

        WITH placed AS (
            INSERT INTO pulse_internal.ready AS r (
                lane, group_key, rank, kind, job, attempts, failures, keyed,
                last_lease, last_verb
            )
            VALUES (
                put_in_line.lane, v_group,
                put_in_line.rank, put_in_line.kind, put_in_line.job,
                put_in_line.attempts, put_in_line.failures, put_in_line.keyed,
                put_in_line.last_lease, put_in_line.last_verb
            )
            RETURNING r.lane, r.group_key, r.rank, r.seq, r.kind
        )

        INSERT INTO pulse_internal.group_notice (lane, group_key, rank, place, kind)
        SELECT p.lane, p.group_key, p.rank, p.seq, p.kind
        FROM placed AS p;
    ELSE
        INSERT INTO pulse_internal.ready (
            lane, rank, kind, job, attempts, failures, keyed, last_lease, last_verb
        )
        VALUES (
            put_in_line.lane, put_in_line.rank, put_in_line.kind, put_in_line.job,
            put_in_line.attempts, put_in_line.failures, put_in_line.keyed,
            put_in_line.last_lease, put_in_line.last_verb
        );
    END IF;
    RETURN pulse_internal.ring(put_in_line.lane);
END;
$$;

COMMENT ON FUNCTION pulse_internal.put_in_line(
    bigint, text, text, integer, timestamptz, integer, integer, boolean, boolean, bigint, text,
    bigint
) IS
'Put a job into ready, or the line of its group, and ring, or into waiting when it is not due yet; returns whether it rang.';

-- Where every verb by job id begins. A job may move while it is looked for: so table by
-- table, and again from the start when it was found nowhere. What RETURNING (or FOR
-- UPDATE) gave is the only evidence of state.

-- A job that stands in line (approval, waiting, ready) is taken out: the
-- caller puts it in somewhere, or raises. A blocked, running or finished one is locked and
-- stays where it is: who watches keeps its number, most verbs refuse a run or an end, and a
-- cancel request changes the lease in place. Each of the six statements waits for whoever
-- holds the row: an open claim, report or verb. When that one commits, the row is gone and
-- the next table has the job. place is of a job for which its group waits.
CREATE FUNCTION pulse_internal.take_out(
    job_id bigint,
    OUT state text,
    OUT lane text,
    OUT kind text,
    OUT rank integer,
    OUT attempts integer,
    OUT failures integer,
    OUT keyed boolean,
    OUT run_at timestamptz,
    OUT expires_at timestamptz,
    OUT asked_at timestamptz,
    OUT ready_at timestamptz,
    OUT claimed_at timestamptz,
    OUT last_lease bigint,
    OUT last_verb text,
    OUT worker text,
    OUT cancel_by timestamptz,
    OUT place bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_line pulse_internal.ready;
BEGIN
    FOR v_round IN 1 .. 10 LOOP
        SELECT
            'blocked', b.lane, b.kind, b.rank, b.attempts, b.failures, b.keyed, b.run_at
        INTO state, lane, kind, rank, attempts, failures, keyed, run_at
        FROM pulse_internal.blocked AS b
        WHERE b.job = take_out.job_id
        FOR UPDATE;

        IF FOUND THEN
            RETURN;
        END IF;

        DELETE FROM pulse_internal.approval AS a
        WHERE a.job = take_out.job_id
        RETURNING
            'awaiting_approval', a.lane, a.kind, a.rank, 0, 0, a.keyed,
            a.run_at, a.expires_at, a.asked_at
        INTO state, lane, kind, rank, attempts, failures, keyed,
            run_at, expires_at, asked_at;

        IF FOUND THEN
            RETURN;
        END IF;

        DELETE FROM pulse_internal.waiting AS w
        WHERE w.job = take_out.job_id
        RETURNING
            CASE WHEN w.retrying THEN 'retrying' ELSE 'scheduled' END,
            w.lane, w.kind, w.rank, w.attempts, w.failures, w.keyed,
            w.run_at, w.last_lease, w.last_verb, w.place
        INTO state, lane, kind, rank, attempts, failures, keyed,
            run_at, last_lease, last_verb, place;

        IF FOUND THEN
            IF place IS NOT NULL THEN
                PERFORM pulse_internal.notice_wait_over(lane, take_out.job_id);
            END IF;
            RETURN;
        END IF;

        DELETE FROM pulse_internal.ready AS r
        WHERE r.job = take_out.job_id
        RETURNING r.* INTO v_line;

        IF FOUND THEN
            IF v_line.group_key IS NOT NULL THEN
                PERFORM pulse_internal.notice_leaving(v_line);
            END IF;
            state := 'ready';
            lane := v_line.lane;
            kind := v_line.kind;
            rank := v_line.rank;
            attempts := v_line.attempts;
            failures := v_line.failures;
            keyed := v_line.keyed;
            ready_at := v_line.ready_at;
            last_lease := v_line.last_lease;
            last_verb := v_line.last_verb;
            place := pulse_internal.kept_place(v_line);
            RETURN;
        END IF;

        SELECT
            'running', l.lane, l.kind, l.rank, l.attempt, l.failures, l.keyed,
            l.claimed_at, l.worker, l.cancel_by
        INTO state, lane, kind, rank, attempts, failures, keyed,
            claimed_at, worker, cancel_by
        FROM pulse_internal.lease AS l
        WHERE l.job = take_out.job_id
        FOR UPDATE;

        IF FOUND THEN
            RETURN;
        END IF;

        SELECT
            f.state::text, f.lane, f.kind, f.rank, f.attempts, f.failures, f.keyed,
            f.claimed_at, f.worker
        INTO state, lane, kind, rank, attempts, failures, keyed,
            claimed_at, worker
        FROM pulse_internal.finished AS f
        WHERE f.job = take_out.job_id
        FOR UPDATE;

        IF FOUND THEN
            RETURN;
        END IF;

        IF NOT EXISTS (SELECT FROM pulse_internal.body AS b WHERE b.job = take_out.job_id) THEN
            PERFORM pulse_internal.raise_no_such_job(take_out.job_id);
        END IF;
    END LOOP;

    PERFORM pulse_internal.raise_kept_moving(take_out.job_id);
END;
$$;

COMMENT ON FUNCTION pulse_internal.take_out(bigint) IS
'Take a job out of the line, or lock it where it is blocked, runs or ended, and say what it was.';
