-- A job that waits and has a unique key gets another payload, priority or time.

-- The one UPDATE of a body, made while holding the job's row: nobody claims it between.
-- What was approved stays as it was approved, and what an approver may be looking at right
-- now, to approve it, makes way for a new job.
CREATE FUNCTION pulse._replace(
    who integer,
    job bigint,
    payload jsonb,
    rank integer,
    run_at timestamptz,
    needs_approval boolean,
    headers jsonb,
    start_by timestamptz,
    on_conflict text
)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_approval pulse.approval;
    v_blocked pulse.blocked;
    v_waiting pulse.waiting;
    v_wish record;
    v_ready pulse.ready;
    v_line pulse.group_ready;
    v_approved boolean := _replace.needs_approval OR (
        SELECT b.needed_approval
        FROM pulse.body AS b
        WHERE b.job = _replace.job
    );
BEGIN
    -- Each look waits for a transaction that is just moving the row.
    SELECT r.* INTO v_ready
    FROM pulse.ready AS r
    WHERE r.job = _replace.job
    FOR UPDATE;

    IF NOT FOUND THEN
        SELECT r.* INTO v_line
        FROM pulse.group_ready AS r
        WHERE r.job = _replace.job
        FOR UPDATE;

        v_ready.job := v_line.job;
        v_ready.lane := v_line.lane;
        v_ready.kind := v_line.kind;
        v_ready.rank := v_line.rank;
        v_ready.attempts := v_line.attempts;
        v_ready.failures := v_line.failures;
        v_ready.keyed := v_line.keyed;
        v_ready.last_lease := v_line.last_lease;
        v_ready.last_verb := v_line.last_verb;
    END IF;

    IF v_ready.job IS NOT NULL THEN
        IF v_approved THEN
            PERFORM pulse._raise_approved(_replace.job);
        END IF;
        v_wish := pulse._wish(
            _replace.job, _replace.on_conflict, _replace.payload, _replace.headers,
            _replace.start_by, _replace.rank, _replace.run_at, v_ready.rank, NULL
        );
        -- Else it keeps its place: at the end of the line each time, a job that is
        -- replaced again and again would never run.
        IF v_ready.rank <> v_wish.rank OR v_wish.run_at > clock_timestamp() THEN
            IF v_line.job IS NOT NULL THEN
                DELETE FROM pulse.group_ready AS r
                WHERE r.job = _replace.job;
                PERFORM pulse._notice_leaving(v_line);
            ELSE
                DELETE FROM pulse.ready AS r
                WHERE r.job = _replace.job;
            END IF;
            PERFORM pulse._put_in_line(
                v_ready.job, v_ready.lane, v_ready.kind, v_wish.rank, v_wish.run_at,
                v_ready.attempts, v_ready.failures, v_ready.keyed, false,
                v_ready.last_lease, v_ready.last_verb, pulse._group_key(_replace.job)
            );
        END IF;
    ELSE
        DELETE FROM pulse.waiting AS w
        WHERE w.job = _replace.job
        RETURNING w.* INTO v_waiting;

        IF FOUND THEN
            IF v_approved THEN
                PERFORM pulse._raise_approved(_replace.job);
            END IF;
            v_wish := pulse._wish(
                _replace.job, _replace.on_conflict, _replace.payload, _replace.headers,
                _replace.start_by, _replace.rank, _replace.run_at, v_waiting.rank,
                v_waiting.run_at
            );
            PERFORM pulse._put_in_line(
                v_waiting.job, v_waiting.lane, v_waiting.kind, v_wish.rank, v_wish.run_at,
                v_waiting.attempts, v_waiting.failures, v_waiting.keyed,
                v_waiting.retrying, v_waiting.last_lease, v_waiting.last_verb,
                pulse._group_key(_replace.job),
                CASE WHEN v_waiting.rank = v_wish.rank THEN v_waiting.place END
            );
            IF v_waiting.place IS NOT NULL THEN
                PERFORM pulse._notice_wait_over(v_waiting.lane, v_waiting.job);
            END IF;
        ELSE
            SELECT b.* INTO v_blocked
            FROM pulse.blocked AS b
            WHERE b.job = _replace.job
            FOR UPDATE;
        END IF;

        IF v_blocked.job IS NOT NULL THEN
            -- Parked: it stood in line, and nobody asks for its approval again.
            IF v_approved AND v_blocked.waits_for < 0 THEN
                PERFORM pulse._raise_approved(_replace.job);
            END IF;
            -- A delay counts from its release: nothing is sooner than that but none.
            v_wish := pulse._wish(
                _replace.job, _replace.on_conflict, _replace.payload, _replace.headers,
                _replace.start_by, _replace.rank, _replace.run_at, v_blocked.rank,
                CASE WHEN v_blocked.delay IS NULL THEN v_blocked.run_at END
            );
            PERFORM pulse._replace_blocked(
                _replace.job, v_wish.rank, v_wish.run_at, v_approved
            );
        ELSIF v_waiting.job IS NULL THEN
            DELETE FROM pulse.approval AS a
            WHERE a.job = _replace.job
            RETURNING a.* INTO v_approval;

            IF NOT FOUND THEN
                IF _replace.on_conflict = 'replace'
                    AND EXISTS (SELECT 1 FROM pulse.lease AS l WHERE l.job = _replace.job)
                THEN
                    PERFORM pulse._raise(
                        'PU103',
                        format('job %s is running and cannot be replaced', _replace.job),
                        'It has the unique key until it finishes.',
                        'Use on_conflict => ''follow'' for a job that runs after it, or ''skip''.'
                    );
                END IF;
                RETURN NULL;
            END IF;

            v_wish := pulse._wish(
                _replace.job, _replace.on_conflict, _replace.payload, _replace.headers,
                _replace.start_by, _replace.rank, _replace.run_at, v_approval.rank,
                v_approval.run_at
            );
            RETURN pulse._replace_awaiting(
                _replace.who, v_approval, v_wish.rank, v_wish.run_at, v_wish.payload,
                v_wish.headers, v_wish.start_by
            );
        END IF;
    END IF;

    UPDATE pulse.body AS b
    SET payload = v_wish.payload,
        headers = v_wish.headers,
        start_by = v_wish.start_by,
        needed_approval = v_approved
    WHERE b.job = _replace.job;
    IF v_wish.start_by IS NOT NULL THEN
        PERFORM pulse._note_expiry(_replace.job, v_wish.start_by);
    END IF;

    RETURN _replace.job;
END;
$$;

COMMENT ON FUNCTION pulse._replace(
    integer, bigint, jsonb, integer, timestamptz, boolean, jsonb, timestamptz, text
) IS
'Give a job that does not run yet a new payload, headers, priority, run_at and start_by, or with merge what both ask for, and leave it where it stands if these are the same; returns the job that has the key then, NULL when it is just moving, or runs and this is no replace.';

-- What it depends on stays as it is, and approval is asked for when it is released.
CREATE FUNCTION pulse._replace_blocked(
    job bigint, rank integer, run_at timestamptz, needs_approval boolean
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    UPDATE pulse.blocked AS b
    SET rank = _replace_blocked.rank,
        run_at = _replace_blocked.run_at,
        delay = NULL,
        expires_in = NULL,
        needs_approval = coalesce(_replace_blocked.needs_approval, false)
    WHERE b.job = _replace_blocked.job;

    RETURN FOUND;
END;
$$;

COMMENT ON FUNCTION pulse._replace_blocked(bigint, integer, timestamptz, boolean) IS
'Give a blocked job another priority and run_at; false when it is not blocked.';

-- approval is the row that was taken out; the rest is what the new one shall have.
CREATE FUNCTION pulse._replace_awaiting(
    who integer,
    approval pulse.approval,
    rank integer,
    run_at timestamptz,
    payload jsonb,
    headers jsonb,
    start_by timestamptz
)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_new pulse.approval := _replace_awaiting.approval;
BEGIN
    INSERT INTO pulse.body (
        kind, payload, max_attempts, max_runtime, unique_key, unique_for,
        group_key, tags, needed_approval, owner, headers, start_by, flow, name,
        after_failed
    )
    SELECT
        b.kind, _replace_awaiting.payload, b.max_attempts, b.max_runtime, b.unique_key,
        b.unique_for, b.group_key, b.tags, true, b.owner, _replace_awaiting.headers,
        _replace_awaiting.start_by, b.flow, b.name, b.after_failed
    FROM pulse.body AS b
    WHERE b.job = (_replace_awaiting.approval).job
    RETURNING job INTO v_new.job;
    IF _replace_awaiting.start_by IS NOT NULL THEN
        PERFORM pulse._note_expiry(v_new.job, _replace_awaiting.start_by);
    END IF;

    INSERT INTO pulse.dependency (job, after, met)
    SELECT v_new.job, d.after, d.met
    FROM pulse.dependency AS d
    WHERE d.job = (_replace_awaiting.approval).job;

    v_new.rank := _replace_awaiting.rank;
    v_new.run_at := _replace_awaiting.run_at;
    INSERT INTO pulse.approval
    SELECT (v_new).*;

    INSERT INTO pulse.tally (lane, kind, event)
    VALUES (v_new.lane, v_new.kind, 'enqueued');

    UPDATE pulse.job_key AS k
    SET job = v_new.job
    WHERE k.job = (_replace_awaiting.approval).job;

    PERFORM pulse._finish_cancelled(
        (_replace_awaiting.approval).job, v_new.lane, v_new.kind,
        (_replace_awaiting.approval).rank, 'replace', 0, 0, v_new.keyed, format('replaced by job %s', v_new.job), NULL, NULL, NULL
    );

    PERFORM pulse._audit(
        _replace_awaiting.who, 'replace', (_replace_awaiting.approval).job, v_new.lane,
        jsonb_build_object('state', 'awaiting_approval'),
        jsonb_build_object('state', 'cancelled', 'replaced_by', v_new.job::text), NULL
    );
    RETURN v_new.job;
END;
$$;

COMMENT ON FUNCTION pulse._replace_awaiting(
    integer, pulse.approval, integer, timestamptz, jsonb, jsonb, timestamptz
) IS
'Put a new job before the approver in place of one that awaits approval; returns its id.';

-- A producer changes its own jobs and nobody else's; and a payload that was checked as
-- one kind is never run as another.
CREATE FUNCTION pulse._may_replace(who integer, job bigint, kind text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (
        SELECT
        FROM pulse.body AS b
        WHERE b.job = _may_replace.job
            AND b.kind = _may_replace.kind
    ) AND (
        pulse._owns(_may_replace.who, _may_replace.job)
        OR pulse._operates(_may_replace.who)
    );
END;
$$;

COMMENT ON FUNCTION pulse._may_replace(integer, bigint, text) IS
'Whether a job is of this kind, and the role enqueued it or may act on the jobs of others.';

-- What was approved is run as it was approved.
CREATE FUNCTION pulse._raise_approved(job bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._raise_wrong_state(
        job, 'approved already', 'replace',
        'Cancel it and enqueue again, so that the new payload is approved as well.'
    );
END;
$$;

COMMENT ON FUNCTION pulse._raise_approved(bigint) IS
'Raise PU105 for a replace that would slip past an approval.';
