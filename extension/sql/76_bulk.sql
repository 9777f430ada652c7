-- The bulk verbs: one jsonb filter, at most max_jobs a call, oldest first. They pick
-- without locks, lock what was picked without waiting, and then do to each what the verb
-- by job id does. A job that moved or is held by somebody meanwhile is left alone and is
-- counted in remaining.

CREATE FUNCTION pulse.cancel_where(
    filter jsonb,
    force boolean DEFAULT false,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.done, s.remaining
    FROM pulse.cancel_where(
        pulse._sign(), cancel_where.filter, cancel_where.force, cancel_where.max_jobs,
        cancel_where.dry_run, cancel_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.cancel_where(jsonb, boolean, integer, boolean, text) IS
'Cancel every waiting or running job that the filter matches, oldest first, at most max_jobs; a running one is asked to stop, or ended at once with force => true. The filter is a JSON object of state, lane, kind, tag, group_key, enqueued_by, worker (a string, or an array: any of them), priority, priority_below, priority_above, older_than, newer_than (intervals since enqueue), error_like (the last error), job_ids, all of which must hold; {"all": true} is every job. Returns done, and remaining: how many more it could act on, counted up to 100,000; jobs that somebody else holds right now are left and remain. dry_run => true changes nothing and returns what one call would do. PU006 a key or value is not understood; PU002 max_jobs not within 1 to 100,000.';

CREATE FUNCTION pulse.cancel_where(
    signature pulse._signature,
    filter jsonb,
    force boolean,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        pulse._redeem(signature),
        'cancel', filter, NULL, NULL, coalesce(force, false), max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.cancel_where(
    pulse._signature, jsonb, boolean, integer, boolean, text
) IS
'cancel_where for the role that signed.';

CREATE FUNCTION pulse.retry_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.done, s.remaining
    FROM pulse.retry_where(
        pulse._sign(), retry_where.filter, retry_where.max_jobs, retry_where.dry_run,
        retry_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.retry_where(jsonb, integer, boolean, text) IS
'Retry every dead or cancelled job that the filter matches (name the state to have only one of them), except those whose unique key is taken. Filter, limits and answer as in cancel_where.';

CREATE FUNCTION pulse.retry_where(
    signature pulse._signature,
    filter jsonb,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        pulse._redeem(signature),
        'retry', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.retry_where(
    pulse._signature, jsonb, integer, boolean, text
) IS
'retry_where for the role that signed.';

CREATE FUNCTION pulse.reprioritize_where(
    filter jsonb,
    priority integer,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.done, s.remaining
    FROM pulse.reprioritize_where(
        pulse._sign(), reprioritize_where.filter, reprioritize_where.priority,
        reprioritize_where.max_jobs, reprioritize_where.dry_run,
        reprioritize_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.reprioritize_where(jsonb, integer, integer, boolean, text) IS
'Give every waiting or running job that the filter matches another priority, in the order of their ids; those that have it are left alone. Filter, limits and answer as in cancel_where. PU002 priority out of bounds.';

CREATE FUNCTION pulse.reprioritize_where(
    signature pulse._signature,
    filter jsonb,
    priority integer,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(reprioritize_where.signature);
BEGIN
    PERFORM pulse._require_priority(reprioritize_where.priority);

    RETURN QUERY
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        v_who, 'reprioritize', reprioritize_where.filter, NULL, - reprioritize_where.priority,
        false, reprioritize_where.max_jobs, reprioritize_where.dry_run,
        reprioritize_where.reason
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse.reprioritize_where(
    pulse._signature, jsonb, integer, integer, boolean, text
) IS
'reprioritize_where for the role that signed.';

CREATE FUNCTION pulse.move_where(
    filter jsonb,
    lane text,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.done, s.remaining
    FROM pulse.move_where(
        pulse._sign(), move_where.filter, move_where.lane, move_where.max_jobs,
        move_where.dry_run, move_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.move_where(jsonb, text, integer, boolean, text) IS
'Move every waiting job that the filter matches into another lane, in the order of their ids, except those whose unique key is taken there. Filter, limits and answer as in cancel_where. PU002 not a lane name.';

CREATE FUNCTION pulse.move_where(
    signature pulse._signature,
    filter jsonb,
    lane text,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_who integer := pulse._redeem(move_where.signature);
BEGIN
    PERFORM pulse._require_name('lane', move_where.lane);

    RETURN QUERY
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        v_who, 'move', move_where.filter, move_where.lane, NULL,
        false, move_where.max_jobs, move_where.dry_run, move_where.reason
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse.move_where(
    pulse._signature, jsonb, text, integer, boolean, text
) IS
'move_where for the role that signed.';

CREATE FUNCTION pulse.approve_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.done, s.remaining
    FROM pulse.approve_where(
        pulse._sign(), approve_where.filter, approve_where.max_jobs,
        approve_where.dry_run, approve_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.approve_where(jsonb, integer, boolean, text) IS
'Approve every job that awaits approval and that the filter matches, e.g. {"job_ids": ["1024", "2048"]}. Filter, limits and answer as in cancel_where.';

CREATE FUNCTION pulse.approve_where(
    signature pulse._signature,
    filter jsonb,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        pulse._redeem(signature),
        'approve', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.approve_where(
    pulse._signature, jsonb, integer, boolean, text
) IS
'approve_where for the role that signed.';

CREATE FUNCTION pulse.reject_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.done, s.remaining
    FROM pulse.reject_where(
        pulse._sign(), reject_where.filter, reject_where.max_jobs,
        reject_where.dry_run, reject_where.reason
    ) AS s
$$;

COMMENT ON FUNCTION pulse.reject_where(jsonb, integer, boolean, text) IS
'Reject every job that awaits approval and that the filter matches: they are cancelled, with the reason as their error. Filter, limits and answer as in cancel_where.';

CREATE FUNCTION pulse.reject_where(
    signature pulse._signature,
    filter jsonb,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        pulse._redeem(signature),
        'reject', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.reject_where(
    pulse._signature, jsonb, integer, boolean, text
) IS
'reject_where for the role that signed.';

CREATE FUNCTION pulse._do_where(
    who integer,
    verb text,
    filter jsonb,
    to_lane text,
    to_rank integer,
    force boolean,
    max_jobs integer,
    dry_run boolean,
    reason text
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_max_jobs integer := coalesce(_do_where.max_jobs, 10000);
    v_job bigint;
    v_first bigint;
    v_last bigint;
    v_state text;
    v_rekeyed boolean;
    v_keys_in_use boolean := false;
BEGIN
    PERFORM pulse._require_read_committed(_do_where.verb || '_where');
    PERFORM pulse._require_filter(_do_where.verb, _do_where.filter);
    PERFORM pulse._require_between('max_jobs', v_max_jobs, 1, 100000);
    PERFORM pulse._require_reason(_do_where.reason);
    done := 0;

    -- NULL is no order to act.
    IF coalesce(_do_where.dry_run, true) THEN
        SELECT least(count(*), v_max_jobs), greatest(count(*) - v_max_jobs, 0)
        INTO done, remaining
        FROM pulse._matching(
            _do_where.verb, _do_where.filter, _do_where.to_lane, _do_where.to_rank,
            _do_where.force, v_max_jobs + 100000
        );
        RETURN NEXT;
        RETURN;
    END IF;

    FOR v_job IN
        SELECT p.job
        FROM pulse._pick_matching(
            _do_where.verb, _do_where.filter, _do_where.to_lane, _do_where.to_rank,
            _do_where.force, v_max_jobs
        ) AS p (job)
        ORDER BY p.job
    LOOP
        CASE _do_where.verb
            WHEN 'cancel' THEN
                SELECT c.state INTO v_state
                FROM pulse._cancel(v_job, _do_where.reason, _do_where.force) AS c;

            WHEN 'approve' THEN
                SELECT a.state INTO v_state
                FROM pulse._approve(v_job) AS a;

            WHEN 'reject' THEN
                SELECT r.state INTO v_state
                FROM pulse._reject(v_job, _do_where.reason) AS r;

            WHEN 'retry' THEN
                CONTINUE WHEN v_keys_in_use AND pulse._key_of(v_job) IS NOT NULL;
                v_rekeyed := pulse._try_rekey(
                    v_job, (SELECT f.lane FROM pulse.finished AS f WHERE f.job = v_job)
                );
                v_keys_in_use := v_keys_in_use OR v_rekeyed IS NULL;
                CONTINUE WHEN v_rekeyed IS NOT TRUE;

                SELECT r.state INTO v_state
                FROM pulse._retry(v_job) AS r;

            WHEN 'reprioritize' THEN
                SELECT s.state INTO v_state
                FROM pulse._shift(v_job, NULL, _do_where.to_rank) AS s;

            WHEN 'move' THEN
                -- The key first: a job that cannot move keeps its place in line.
                CONTINUE WHEN v_keys_in_use AND pulse._key_of(v_job) IS NOT NULL;
                v_rekeyed := pulse._try_rekey(v_job, _do_where.to_lane);
                v_keys_in_use := v_keys_in_use OR v_rekeyed IS NULL;
                CONTINUE WHEN v_rekeyed IS NOT TRUE;

                SELECT s.state INTO v_state
                FROM pulse._shift(v_job, _do_where.to_lane, NULL) AS s;
        END CASE;

        CONTINUE WHEN v_state IS NULL;

        done := done + 1;
        v_first := coalesce(v_first, v_job);
        v_last := v_job;
    END LOOP;

    SELECT count(*) INTO remaining
    FROM pulse._matching(
        _do_where.verb, _do_where.filter, _do_where.to_lane, _do_where.to_rank,
        _do_where.force, 100000
    );

    PERFORM pulse._audit(
        _do_where.who, _do_where.verb || '_where', NULL,
        CASE WHEN jsonb_typeof(_do_where.filter -> 'lane') = 'string' THEN _do_where.filter ->> 'lane' END,
        jsonb_build_object(
            'filter',
            _do_where.filter || jsonb_strip_nulls(
                jsonb_build_object('job_ids', pulse._texts(_do_where.filter -> 'job_ids'))
            )
        ),
        jsonb_strip_nulls(
            jsonb_build_object(
                'done', done,
                'remaining', remaining,
                'first_job', v_first::text,
                'last_job', v_last::text,
                'lane', _do_where.to_lane,
                'priority', - _do_where.to_rank,
                'force', nullif(_do_where.force, false)
            )
        ),
        _do_where.reason
    );
    RETURN NEXT;
END;
$$;

COMMENT ON FUNCTION pulse._do_where(
    integer, text, jsonb, text, integer, boolean, integer, boolean, text
) IS
'What all bulk verbs have in common: check, pick, do, count, audit.';

-- Nothing here waits, and locked, a job stays where it is until the verb has dealt with
-- it: two bulk verbs, or one and a batch of reports, cannot deadlock.
CREATE FUNCTION pulse._pick_matching(
    verb text, filter jsonb, to_lane text, to_rank integer, force boolean, max_jobs integer
)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_approval bigint [];
    v_waiting bigint [];
    v_ready bigint [];
    v_lease bigint [];
    v_finished bigint [];
BEGIN
    SELECT
        array_agg(m.job) FILTER (WHERE m.place = 'approval'),
        array_agg(m.job) FILTER (WHERE m.place = 'waiting'),
        array_agg(m.job) FILTER (WHERE m.place = 'ready'),
        array_agg(m.job) FILTER (WHERE m.place = 'lease'),
        array_agg(m.job) FILTER (WHERE m.place = 'finished')
    INTO v_approval, v_waiting, v_ready, v_lease, v_finished
    FROM pulse._matching(
        _pick_matching.verb, _pick_matching.filter, _pick_matching.to_lane,
        _pick_matching.to_rank, _pick_matching.force, _pick_matching.max_jobs
    ) AS m;

    RETURN QUERY
    SELECT a.job
    FROM pulse.approval AS a
    WHERE a.job = ANY (v_approval)
    FOR UPDATE SKIP LOCKED;

    RETURN QUERY
    SELECT w.job
    FROM pulse.waiting AS w
    WHERE w.job = ANY (v_waiting)
    FOR UPDATE SKIP LOCKED;

    RETURN QUERY
    SELECT r.job
    FROM pulse.ready AS r
    WHERE r.job = ANY (v_ready)
    FOR UPDATE SKIP LOCKED;

    RETURN QUERY
    SELECT l.job
    FROM pulse.lease AS l
    WHERE l.job = ANY (v_lease)
    FOR UPDATE SKIP LOCKED;

    RETURN QUERY
    SELECT f.job
    FROM pulse.finished AS f
    WHERE f.job = ANY (v_finished)
        AND f.state <> 'completed'
    FOR UPDATE SKIP LOCKED;
END;
$$;

COMMENT ON FUNCTION pulse._pick_matching(text, jsonb, text, integer, boolean, integer) IS
'Lock jobs that match a filter where they stand, and return those that could be locked.';

CREATE FUNCTION pulse._key_is_free(job_id bigint, lane text)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT NOT EXISTS (
        SELECT
        FROM pulse.job_key AS k
        WHERE k.lane = _key_is_free.lane
            AND k.unique_key = pulse._key_of(_key_is_free.job_id)
            AND k.job <> _key_is_free.job_id
            AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
    )
$$;

COMMENT ON FUNCTION pulse._key_is_free(bigint, text) IS
'Whether a job could have its unique key in a lane; only a look, _rekey decides.';

-- Keys are met in the order of the jobs, not of the keys, so this waits for an open
-- transaction that takes or frees the same key for a moment only. NULL says that it
-- waited in vain; then the caller leaves every job with a key alone, since waiting again
-- and again would amount to a wait that can be part of a deadlock.
CREATE FUNCTION pulse._try_rekey(job_id bigint, lane text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
BEGIN
    IF pulse._key_of(_try_rekey.job_id) IS NULL THEN
        RETURN true;
    END IF;

    BEGIN
        RETURN pulse._rekey(_try_rekey.job_id, _try_rekey.lane) IS NULL;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN NULL;
    END;
END;
$$;

COMMENT ON FUNCTION pulse._try_rekey(bigint, text) IS
'Give a job its unique key in a lane, if it has one and it can be had at once; NULL when an open transaction has it.';
