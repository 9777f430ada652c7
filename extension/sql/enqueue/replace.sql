-- What two enqueues of one job make of it, where it waits (enqueue/replace.sql) and inside a list
-- (enqueue/enqueue_list.sql).

-- What a waiting job shall be, given what it is. Its row is held, so its body stands still.
-- rank and run_at are those that are asked for, and become those that it gets.
CREATE FUNCTION pulse_internal.wish(
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
    v_body pulse_internal.body;
    v_latest timestamptz;
BEGIN
    SELECT b.* INTO v_body
    FROM pulse_internal.body AS b
    WHERE b.job = wish.job;

    IF wish.on_conflict <> 'merge' THEN
        v_latest := v_body.enqueued_at + (
            SELECT k.max_delay FROM pulse_internal.kind AS k WHERE k.kind = v_body.kind
        );
        IF run_at > v_latest THEN
            run_at := least(run_at, greatest(v_latest, wish.old_run_at));
        END IF;
        RETURN;
    END IF;

    SELECT m.payload, m.headers, m.start_by, m.rank, m.run_at
    INTO payload, headers, start_by, rank, run_at
    FROM pulse_internal.merge(
        payload, headers, start_by, rank, run_at, v_body.payload, v_body.headers,
        v_body.start_by, wish.old_rank, wish.old_run_at
    ) AS m;
END;
$$;

COMMENT ON FUNCTION pulse_internal.wish(
    bigint, text, jsonb, jsonb, timestamptz, integer, timestamptz, integer, timestamptz
) IS
'What replace, follow and merge make of a job that waits: the new payload, headers, start_by, rank and run_at, within max_delay of its kind, or those of both merged.';

-- The sooner start, which is at once where one of them says nothing, and no sooner end.
CREATE FUNCTION pulse_internal.merge(
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
        OR jsonb_typeof(payload) <> jsonb_typeof(merge.old_payload)
    THEN
        PERFORM pulse_internal.raise(
            'PU002',
            'merge needs two objects or two arrays',
            format(
                'The payload of the waiting job is of type %s, the new one of type %s.',
                jsonb_typeof(merge.old_payload), jsonb_typeof(payload)
            ),
            'Pass a payload of the same type, or use on_conflict => ''replace'' or ''follow''.'
        );
    END IF;
    payload := merge.old_payload || payload;
    PERFORM pulse_internal.require_payload(payload);
    headers := coalesce(merge.old_headers || headers, headers, merge.old_headers);
    IF headers IS NOT NULL THEN
        PERFORM pulse_internal.require_headers(headers);
    END IF;
    rank := least(rank, merge.old_rank);
    run_at := CASE
        WHEN run_at IS NOT NULL AND merge.old_run_at IS NOT NULL
            THEN least(run_at, merge.old_run_at)
    END;
    start_by := CASE
        WHEN start_by IS NOT NULL AND merge.old_start_by IS NOT NULL
            THEN greatest(start_by, merge.old_start_by)
    END;
END;
$$;

COMMENT ON FUNCTION pulse_internal.merge(
    jsonb, jsonb, timestamptz, integer, timestamptz, jsonb, jsonb, timestamptz, integer,
    timestamptz
) IS
'What two enqueues of one job ask for together. PU002 unless both payloads are objects or both are arrays, PU003 when they are too large together.';

-- Two elements of one list with the same key: the first, as it shall be.
CREATE FUNCTION pulse_internal.change_element(
    old jsonb, new jsonb, on_conflict text, kind_priority integer
)
RETURNS jsonb
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old pulse_internal.item := jsonb_populate_record(NULL::pulse_internal.item, change_element.old - 'after');
    v_new pulse_internal.item := jsonb_populate_record(NULL::pulse_internal.item, change_element.new - 'after');
    v_wish record;
    v_changes jsonb;
BEGIN
    IF change_element.on_conflict = 'merge' THEN
        v_wish := pulse_internal.merge(
            coalesce(v_new.payload, '{}'), v_new.headers,
            pulse_internal.start_by(v_new.start_by, v_new.expires_in, v_new.run_at, v_new.delay),
            -coalesce(v_new.priority, change_element.kind_priority),
            coalesce(v_new.run_at, clock_timestamp() + v_new.delay),
            coalesce(v_old.payload, '{}'), v_old.headers,
            pulse_internal.start_by(v_old.start_by, v_old.expires_in, v_old.run_at, v_old.delay),
            -coalesce(v_old.priority, change_element.kind_priority),
            coalesce(v_old.run_at, clock_timestamp() + v_old.delay)
        );
        v_changes := jsonb_build_object(
            'payload', v_wish.payload, 'headers', v_wish.headers, 'priority', -v_wish.rank,
            'run_at', v_wish.run_at, 'start_by', v_wish.start_by
        );
    ELSE
        SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO v_changes
        FROM jsonb_each(change_element.new) AS o
        WHERE o.key IN (
                'payload', 'priority', 'run_at', 'delay', 'headers', 'start_by',
                'expires_in'
            );
    END IF;

    IF v_new.requires_approval THEN
        v_changes := v_changes || '{"requires_approval": true}';
    END IF;
    RETURN change_element.old - '{payload,priority,run_at,delay}'::text []
        - '{headers,start_by,expires_in}'::text [] || v_changes;
END;
$$;

COMMENT ON FUNCTION pulse_internal.change_element(jsonb, jsonb, text, integer) IS
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
    v_wish record;
    v_ready pulse_internal.ready;
    v_line pulse_internal.group_ready;
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

    IF NOT FOUND THEN
        SELECT r.* INTO v_line
        FROM pulse_internal.group_ready AS r
        WHERE r.job = replace.job
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
            PERFORM pulse_internal.raise_approved(replace.job);
        END IF;
        v_wish := pulse_internal.wish(
            replace.job, replace.on_conflict, replace.payload, replace.headers,
            replace.start_by, replace.rank, replace.run_at, v_ready.rank, NULL
        );
        -- Else it keeps its place: at the end of the line each time, a job that is
        -- replaced again and again would never run.
        IF v_ready.rank <> v_wish.rank OR v_wish.run_at > clock_timestamp() THEN
            IF v_line.job IS NOT NULL THEN
                DELETE FROM pulse_internal.group_ready AS r
                WHERE r.job = replace.job;
                PERFORM pulse_internal.notice_leaving(v_line);
            ELSE
                DELETE FROM pulse_internal.ready AS r
                WHERE r.job = replace.job;
            END IF;
            PERFORM pulse_internal.put_in_line(
                v_ready.job, v_ready.lane, v_ready.kind, v_wish.rank, v_wish.run_at,
                v_ready.attempts, v_ready.failures, v_ready.keyed, false,
                v_ready.last_lease, v_ready.last_verb, pulse_internal.group_key(replace.job)
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
            v_wish := pulse_internal.wish(
                replace.job, replace.on_conflict, replace.payload, replace.headers,
                replace.start_by, replace.rank, replace.run_at, v_waiting.rank,
                v_waiting.run_at
            );
            PERFORM pulse_internal.put_in_line(
                v_waiting.job, v_waiting.lane, v_waiting.kind, v_wish.rank, v_wish.run_at,
                v_waiting.attempts, v_waiting.failures, v_waiting.keyed,
                v_waiting.retrying, v_waiting.last_lease, v_waiting.last_verb,
                pulse_internal.group_key(replace.job),
                CASE WHEN v_waiting.rank = v_wish.rank THEN v_waiting.place END
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
            -- Parked: it stood in line, and nobody asks for its approval again.
            IF v_approved AND v_blocked.waits_for < 0 THEN
                PERFORM pulse_internal.raise_approved(replace.job);
            END IF;
            -- A delay counts from its release: nothing is sooner than that but none.
            v_wish := pulse_internal.wish(
                replace.job, replace.on_conflict, replace.payload, replace.headers,
                replace.start_by, replace.rank, replace.run_at, v_blocked.rank,
                CASE WHEN v_blocked.delay IS NULL THEN v_blocked.run_at END
            );
            PERFORM pulse_internal.replace_blocked(
                replace.job, v_wish.rank, v_wish.run_at, v_approved
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

            v_wish := pulse_internal.wish(
                replace.job, replace.on_conflict, replace.payload, replace.headers,
                replace.start_by, replace.rank, replace.run_at, v_approval.rank,
                v_approval.run_at
            );
            RETURN pulse_internal.replace_awaiting(
                replace.who, v_approval, v_wish.rank, v_wish.run_at, v_wish.payload,
                v_wish.headers, v_wish.start_by
            );
        END IF;
    END IF;

    UPDATE pulse_internal.body AS b
    SET payload = v_wish.payload,
        headers = v_wish.headers,
        start_by = v_wish.start_by,
        needed_approval = v_approved
    WHERE b.job = replace.job;
    IF v_wish.start_by IS NOT NULL THEN
        PERFORM pulse_internal.note_expiry(replace.job, v_wish.start_by);
    END IF;

    RETURN replace.job;
END;
$$;

COMMENT ON FUNCTION pulse_internal.replace(
    integer, bigint, jsonb, integer, timestamptz, boolean, jsonb, timestamptz, text
) IS
'Give a job that does not run yet a new payload, headers, priority, run_at and start_by, or with merge what both ask for, and leave it where it stands if these are the same; returns the job that has the key then, NULL when it is just moving, or runs and this is no replace.';

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
