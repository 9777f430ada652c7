-- What a later enqueue with the same unique key makes of a job: of one that waits
-- (replace), and of an earlier element of the same list (change_element).

-- Repeated enqueues must not put off a job for ever: max_delay of its kind bounds run_at.
-- The caller holds the row of the job, so its body stands still.
CREATE FUNCTION pulse_internal.within_max_delay(
    job bigint, run_at timestamptz, old_run_at timestamptz
)
RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_latest timestamptz;
BEGIN
    -- Not a join, which may read the whole table (docs/decisions/pinned-plans.md).
    SELECT
        b.enqueued_at
        + (SELECT k.max_delay FROM pulse_internal.kind AS k WHERE k.kind = b.kind)
    INTO v_latest
    FROM pulse_internal.body AS b
    WHERE b.job = within_max_delay.job;

    -- It is never put forward: a job that waits for longer than max_delay keeps its time.
    IF within_max_delay.run_at > v_latest THEN
        RETURN least(
            within_max_delay.run_at, greatest(v_latest, within_max_delay.old_run_at)
        );
    END IF;
    RETURN within_max_delay.run_at;
END;
$$;

COMMENT ON FUNCTION pulse_internal.within_max_delay(bigint, timestamptz, timestamptz) IS
'The run_at that replace or follow gives to a job that waits: the one asked for, within max_delay of its kind.';

-- The options that replace changes come from the later element, all others stay.
CREATE FUNCTION pulse_internal.change_element(old jsonb, new jsonb)
RETURNS jsonb
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN change_element.old - '{payload,priority,run_at,delay}'::text []
        - '{headers,start_by,expires_in}'::text []
        || (
            SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}')
            FROM jsonb_each(change_element.new) AS o
            WHERE o.key IN (
                    'payload', 'priority', 'run_at', 'delay', 'headers', 'start_by',
                    'expires_in'
                )
        )
        || CASE
            WHEN (change_element.new ->> 'requires_approval')::boolean
                THEN '{"requires_approval": true}'::jsonb
            ELSE '{}'
        END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.change_element(jsonb, jsonb) IS
'What an element of a list becomes by a later one that has its unique key.';

-- A job that waits and has a unique key gets another payload, priority or time.

-- The one UPDATE of a body, made while holding the job's row: nobody claims it between.
-- What was approved stays as it was approved, and what an approver may be looking at right
-- now, to approve it, makes way for a new job.
CREATE FUNCTION pulse_internal.replace(
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
    v_approval pulse_internal.approval;
    v_blocked pulse_internal.blocked;
    v_waiting pulse_internal.waiting;
    v_run_at timestamptz;
    v_ready pulse_internal.ready;
    v_approved boolean := replace.needs_approval OR (
        SELECT b.needed_approval
        FROM pulse_internal.body AS b
        WHERE b.job = replace.job
    );
BEGIN
    -- Each look waits for a transaction that is just moving the row.
    SELECT r.* INTO v_ready
    FROM pulse_internal.ready AS r
    WHERE r.job = replace.job
    FOR UPDATE;

    IF v_ready.job IS NOT NULL THEN
        IF v_approved THEN
            PERFORM pulse_internal.raise_approved(replace.job);
        END IF;
        v_run_at := pulse_internal.within_max_delay(replace.job, replace.run_at, NULL);
        -- Else it keeps its place: at the end of the line each time, a job that is
        -- replaced again and again would never run.
        IF v_ready.rank <> replace.rank OR v_run_at > clock_timestamp() THEN
            DELETE FROM pulse_internal.ready AS r
            WHERE r.job = replace.job;
            IF v_ready.group_key IS NOT NULL THEN
                PERFORM pulse_internal.notice_leaving(v_ready);
            END IF;
            PERFORM pulse_internal.put_in_line(
                v_ready.job, v_ready.lane, v_ready.kind, replace.rank, v_run_at,
                v_ready.attempts, v_ready.failures, v_ready.keyed, false,
                v_ready.last_lease, v_ready.last_verb,
                CASE
                    WHEN v_ready.rank = replace.rank THEN pulse_internal.kept_place(v_ready)
                END
            );
        END IF;
    ELSE
        DELETE FROM pulse_internal.waiting AS w
        WHERE w.job = replace.job
        RETURNING w.* INTO v_waiting;

        IF FOUND THEN
            IF v_approved THEN
                PERFORM pulse_internal.raise_approved(replace.job);
            END IF;
            v_run_at := pulse_internal.within_max_delay(
                replace.job, replace.run_at, v_waiting.run_at
            );
            PERFORM pulse_internal.put_in_line(
                v_waiting.job, v_waiting.lane, v_waiting.kind, replace.rank, v_run_at,
                v_waiting.attempts, v_waiting.failures, v_waiting.keyed,
                v_waiting.retrying, v_waiting.last_lease, v_waiting.last_verb,
                CASE WHEN v_waiting.rank = replace.rank THEN v_waiting.place END
            );
            IF v_waiting.place IS NOT NULL THEN
                PERFORM pulse_internal.notice_wait_over(v_waiting.lane, v_waiting.job);
            END IF;
        ELSE
            SELECT b.* INTO v_blocked
            FROM pulse_internal.blocked AS b
            WHERE b.job = replace.job
            FOR UPDATE;
        END IF;

        IF v_blocked.job IS NOT NULL THEN
            -- A delay counts from the release, so it is no time yet.
            v_run_at := pulse_internal.within_max_delay(
                replace.job, replace.run_at,
                CASE WHEN v_blocked.delay IS NULL THEN v_blocked.run_at END
            );
            PERFORM pulse_internal.replace_blocked(
                replace.job, replace.rank, v_run_at, v_approved
            );
        ELSIF v_waiting.job IS NULL THEN
            DELETE FROM pulse_internal.approval AS a
            WHERE a.job = replace.job
            RETURNING a.* INTO v_approval;

            IF NOT FOUND THEN
                IF replace.on_conflict = 'replace'
                    AND EXISTS (SELECT 1 FROM pulse_internal.lease AS l WHERE l.job = replace.job)
                THEN
                    PERFORM pulse_internal.raise(
                        'PU103',
                        format('job %s is running and cannot be replaced', replace.job),
                        'It has the unique key until it finishes.',
                        'Use on_conflict => ''follow'' for a job that runs after it, or ''skip''.'
                    );
                END IF;
                RETURN NULL;
            END IF;

            v_run_at := pulse_internal.within_max_delay(
                replace.job, replace.run_at, v_approval.run_at
            );
            RETURN pulse_internal.replace_awaiting(
                replace.who, v_approval, replace.rank, v_run_at, replace.payload,
                replace.headers, replace.start_by
            );
        END IF;
    END IF;

    UPDATE pulse_internal.body AS b
    SET payload = replace.payload,
        headers = replace.headers,
        start_by = replace.start_by,
        needed_approval = v_approved
    WHERE b.job = replace.job;
    IF replace.start_by IS NOT NULL THEN
        PERFORM pulse_internal.note_expiry(replace.job, replace.start_by);
    END IF;

    RETURN replace.job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.replace(
    integer, bigint, jsonb, integer, timestamptz, boolean, jsonb, timestamptz, text
) IS
'Give a job that does not run yet a new payload, headers, priority, run_at and start_by, and leave it where it stands if these are the same; returns the job that has the key then, NULL when it is just moving, or runs and this is no replace.';

-- What it depends on stays as it is, and approval is asked for when it is released.
CREATE FUNCTION pulse_internal.replace_blocked(
    job bigint, rank integer, run_at timestamptz, needs_approval boolean
)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    UPDATE pulse_internal.blocked AS b
    SET rank = replace_blocked.rank,
        run_at = replace_blocked.run_at,
        delay = NULL,
        expires_in = NULL,
        needs_approval = coalesce(replace_blocked.needs_approval, false)
    WHERE b.job = replace_blocked.job;

    IF NOT FOUND THEN
        RETURN false;
    END IF;

    UPDATE pulse_internal.body AS b
    SET run_at = replace_blocked.run_at,
        delay = NULL,
        expires_in = NULL
    WHERE b.job = replace_blocked.job;
    RETURN true;
END;
$$;

COMMENT ON FUNCTION pulse_internal.replace_blocked(bigint, integer, timestamptz, boolean) IS
'Give a blocked job another priority and run_at; false when it is not blocked.';

-- approval is the row that was taken out; the rest is what the new one shall have.
CREATE FUNCTION pulse_internal.replace_awaiting(
    who integer,
    approval pulse_internal.approval,
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
    v_new pulse_internal.approval := replace_awaiting.approval;
BEGIN
    INSERT INTO pulse_internal.body (
        kind, payload, max_attempts, max_runtime, unique_key, unique_for,
        group_key, tags, needed_approval, owner, headers, start_by, flow, name,
        after_failed
    )
    SELECT
        b.kind, replace_awaiting.payload, b.max_attempts, b.max_runtime, b.unique_key,
        b.unique_for, b.group_key, b.tags, true, b.owner, replace_awaiting.headers,
        replace_awaiting.start_by, b.flow, b.name, b.after_failed
    FROM pulse_internal.body AS b
    WHERE b.job = (replace_awaiting.approval).job
    RETURNING job INTO v_new.job;
    IF replace_awaiting.start_by IS NOT NULL THEN
        PERFORM pulse_internal.note_expiry(v_new.job, replace_awaiting.start_by);
    END IF;

    INSERT INTO pulse_internal.dependency (job, after, met)
    SELECT v_new.job, d.after, d.met
    FROM pulse_internal.dependency AS d
    WHERE d.job = (replace_awaiting.approval).job;

    v_new.rank := replace_awaiting.rank;
    v_new.run_at := replace_awaiting.run_at;
    INSERT INTO pulse_internal.approval
    SELECT (v_new).*;

    INSERT INTO pulse_internal.tally (lane, kind, event)
    VALUES (v_new.lane, v_new.kind, 'enqueued');

    UPDATE pulse_internal.job_key AS k
    SET job = v_new.job
    WHERE k.job = (replace_awaiting.approval).job;

    PERFORM pulse_internal.finish_cancelled(
        (replace_awaiting.approval).job, v_new.lane, v_new.kind,
        (replace_awaiting.approval).rank, 'replace', 0, 0, v_new.keyed, format('replaced by job %s', v_new.job), NULL, NULL, NULL
    );

    PERFORM pulse_internal.audit(
        replace_awaiting.who, 'replace', (replace_awaiting.approval).job, v_new.lane,
        jsonb_build_object('state', 'awaiting_approval'),
        jsonb_build_object('state', 'cancelled', 'replaced_by', v_new.job::text), NULL
    );
    RETURN v_new.job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.replace_awaiting(
    integer, pulse_internal.approval, integer, timestamptz, jsonb, jsonb, timestamptz
) IS
'Put a new job before the approver in place of one that awaits approval; returns its id.';

-- A producer changes its own jobs and nobody else's; and a payload that was checked as
-- one kind is never run as another.
CREATE FUNCTION pulse_internal.may_replace(who integer, job bigint, kind text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (
        SELECT
        FROM pulse_internal.body AS b
        WHERE b.job = may_replace.job
            AND b.kind = may_replace.kind
    ) AND (
        pulse_internal.owns(may_replace.who, may_replace.job)
        OR pulse_internal.operates(may_replace.who)
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.may_replace(integer, bigint, text) IS
'Whether a job is of this kind, and the role enqueued it or may act on the jobs of others.';

-- What was approved is run as it was approved.
CREATE FUNCTION pulse_internal.raise_approved(job bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.raise_wrong_state(
        job, 'approved already', 'replace',
        'Cancel it and enqueue again, so that the new payload is approved as well.'
    );
END;
$$;

COMMENT ON FUNCTION pulse_internal.raise_approved(bigint) IS
'Raise PU105 for a replace that would slip past an approval.';
