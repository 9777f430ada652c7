-- The bulk verbs: one jsonb filter, at most max_jobs a call, oldest first. They pick
-- without locks, lock what was picked without waiting, and then do to each what the verb
-- by job id does. A job that moved or is held by somebody meanwhile is left alone and is
-- counted in remaining.

CREATE FUNCTION pulse._raise_bad_filter(message text, detail text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._raise(
        'PU006',
        _raise_bad_filter.message,
        _raise_bad_filter.detail,
        'Keys: state, lane, kind, tag, group_key, enqueued_by, worker (a string or an array of them); '
        'priority, priority_below, priority_above (an integer); older_than, newer_than (an interval); '
        'error_like (a LIKE pattern); job_ids (an array of ids); or {"all": true}.'
    );
END;
$$;

COMMENT ON FUNCTION pulse._raise_bad_filter(text, text) IS
'Raise PU006 with the list of keys.';

CREATE FUNCTION pulse._texts(value jsonb)
RETURNS text []
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE jsonb_typeof(value)
            WHEN 'string' THEN ARRAY[value #>> '{}']
            WHEN 'array' THEN ARRAY(SELECT e.item FROM jsonb_array_elements_text(value) AS e (item))
        END
$$;

COMMENT ON FUNCTION pulse._texts(jsonb) IS
'A JSON string, or an array of them, as an array; NULL for anything else.';

-- Whether a value fits its key; NULL for a key that is not known.
CREATE FUNCTION pulse._fits_filter(key text, value jsonb)
RETURNS boolean
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_type text := jsonb_typeof(_fits_filter.value);
    v_text text := _fits_filter.value #>> '{}';
BEGIN
    CASE
        WHEN _fits_filter.key = ANY (
            '{state,lane,kind,tag,group_key,enqueued_by,worker}'::text []
        ) THEN
            RETURN v_type = 'string' OR v_type = 'array' AND NOT EXISTS (
                SELECT
                FROM jsonb_array_elements(_fits_filter.value) AS e (item)
                WHERE jsonb_typeof(e.item) <> 'string'
            );

        WHEN _fits_filter.key = ANY ('{priority,priority_below,priority_above}'::text []) THEN
            RETURN v_type = 'number' AND v_text ~ '^-?[0-9]{1,10}$'
                AND abs(v_text::bigint) <= 2147483647;

        WHEN _fits_filter.key = ANY ('{older_than,newer_than}'::text []) THEN
            IF v_type <> 'string' THEN
                RETURN false;
            END IF;

            BEGIN
                RETURN clock_timestamp() - v_text::interval IS NOT NULL;
            EXCEPTION
                WHEN invalid_datetime_format
                    OR datetime_field_overflow
                    OR interval_field_overflow THEN
                    RETURN false;
            END;

        WHEN _fits_filter.key = 'error_like' THEN
            -- A pattern that ends within an escape is refused by LIKE, but only late.
            RETURN v_type = 'string' AND v_text !~ '(^|[^\\])(\\\\)*\\$';

        WHEN _fits_filter.key = 'job_ids' THEN
            RETURN v_type = 'array' AND NOT EXISTS (
                SELECT
                FROM jsonb_array_elements(_fits_filter.value) AS e (item)
                WHERE jsonb_typeof(e.item) NOT IN ('string', 'number')
                    OR (e.item #>> '{}') !~ '^[0-9]{1,18}$'
            );

        WHEN _fits_filter.key = 'all' THEN
            RETURN _fits_filter.value = 'true';

        ELSE
            RETURN NULL;
    END CASE;
END;
$$;

COMMENT ON FUNCTION pulse._fits_filter(text, jsonb) IS
'Whether a value may stand at this key of a filter; NULL when there is no such key.';

-- Which states a bulk verb acts on.
CREATE FUNCTION pulse._acts_on(verb text)
RETURNS text []
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        CASE verb
            WHEN 'cancel' THEN '{awaiting_approval,scheduled,retrying,ready,running}'
            WHEN 'reprioritize' THEN '{awaiting_approval,scheduled,retrying,ready,running}'
            WHEN 'move' THEN '{awaiting_approval,scheduled,retrying,ready}'
            WHEN 'retry' THEN '{dead,cancelled}'
            WHEN 'approve' THEN '{awaiting_approval}'
            WHEN 'reject' THEN '{awaiting_approval}'
            ELSE '{awaiting_approval,scheduled,ready,running,retrying,completed,dead,cancelled}'
        END::text []
$$;

COMMENT ON FUNCTION pulse._acts_on(text) IS
'The states that a bulk verb can change; for find, every state.';

CREATE FUNCTION pulse._require_filter(verb text, filter jsonb)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_acts_on text [] := pulse._acts_on(_require_filter.verb);
    v_key text;
    v_value jsonb;
    v_state text;
    v_fits boolean;
BEGIN
    IF jsonb_typeof(_require_filter.filter) IS DISTINCT FROM 'object' THEN
        PERFORM pulse._raise_bad_filter(
            'filter must be a JSON object',
            format('It is %s.', coalesce(left(_require_filter.filter::text, 100), 'NULL'))
        );
    END IF;

    IF _require_filter.filter = '{}' AND _require_filter.verb <> 'find' THEN
        PERFORM pulse._raise_bad_filter(
            'filter is empty', 'To act on every job, say so: {"all": true}.'
        );
    END IF;

    FOR v_key, v_value IN
        SELECT e.key, e.value
        FROM jsonb_each(_require_filter.filter) AS e
        ORDER BY e.key
    LOOP
        v_fits := pulse._fits_filter(v_key, v_value);

        IF v_fits IS NULL THEN
            PERFORM pulse._raise_bad_filter(
                format('filter key %s is unknown', to_jsonb(left(v_key, 100))),
                'Ignored, it would let the verb act on more jobs than were meant.'
            );
        END IF;

        IF NOT v_fits THEN
            PERFORM pulse._raise_bad_filter(
                format('filter key %s has a bad value', to_jsonb(v_key)),
                format('It is %s.', left(v_value::text, 100))
            );
        END IF;
    END LOOP;

    FOREACH v_state IN ARRAY coalesce(pulse._texts(_require_filter.filter -> 'state'), '{}') LOOP
        IF v_state <> ALL (v_acts_on) THEN
            PERFORM pulse._raise_bad_filter(
                format(
                    CASE _require_filter.verb
                        WHEN 'find' THEN 'there is no state %2$s'
                        ELSE '%1$s_where cannot act on the state %2$s'
                    END,
                    _require_filter.verb, to_jsonb(left(v_state, 100))
                ),
                format('States: %s.', array_to_string(v_acts_on, ', '))
            );
        END IF;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._require_filter(text, jsonb) IS
'Raise PU006 unless the filter is one that this bulk verb understands.';

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

-- What matches the filter and can still be changed by the verb, oldest first. Always
-- planned for the values at hand: a condition that is not asked for folds away, and the
-- rest finds its index. Living jobs are read in the order of their ids, from the tables
-- asked for; of the history only the states asked for (finished_for_retention). What
-- stands in body is looked up job by job: scalar subqueries, because EXISTS might be
-- hashed, which reads the whole table.
CREATE FUNCTION pulse._matching(
    verb text, filter jsonb, to_lane text, to_rank integer, force boolean, max_jobs integer
)
RETURNS TABLE (job bigint, place text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_filter jsonb := _matching.filter;
    v_states text [] := coalesce(
        pulse._texts(v_filter -> 'state'), pulse._acts_on(_matching.verb)
    );
    v_outcomes pulse.outcome [];
    v_waiting boolean := v_states && '{scheduled,retrying}';
    v_jobs bigint [] := pulse._texts(v_filter -> 'job_ids')::bigint [];
    v_lanes text [] := pulse._texts(v_filter -> 'lane');
    v_kinds text [] := pulse._texts(v_filter -> 'kind');
    v_workers text [] := pulse._texts(v_filter -> 'worker');
    v_rank integer := - (v_filter ->> 'priority')::integer;
    v_rank_above integer := - (v_filter ->> 'priority_below')::integer;
    v_rank_below integer := - (v_filter ->> 'priority_above')::integer;
    v_error_like text := v_filter ->> 'error_like';
    v_tags text [] := pulse._texts(v_filter -> 'tag');
    v_group_keys text [] := pulse._texts(v_filter -> 'group_key');
    v_owners name [] := pulse._texts(v_filter -> 'enqueued_by')::name [];
    v_before timestamptz := v_now - (v_filter ->> 'older_than')::interval;
    v_after timestamptz := v_now - (v_filter ->> 'newer_than')::interval;
    v_asks_body boolean := v_filter ?| '{tag,group_key,enqueued_by,older_than,newer_than}';
BEGIN
    IF _matching.verb = 'retry' THEN
        v_outcomes := v_states;
        v_lanes := coalesce(v_lanes, ARRAY(SELECT x.lane FROM pulse._finished_lanes() AS x));

        RETURN QUERY
        SELECT f.job, 'finished'
        FROM pulse.finished AS f
        WHERE f.state = ANY (v_outcomes)
            AND f.lane = ANY (v_lanes)
            AND (v_jobs IS NULL OR f.job = ANY (v_jobs))
            AND (v_kinds IS NULL OR f.kind = ANY (v_kinds))
            AND (v_workers IS NULL OR f.worker = ANY (v_workers))
            AND (v_rank IS NULL OR f.rank = v_rank)
            AND (v_rank_above IS NULL OR f.rank > v_rank_above)
            AND (v_rank_below IS NULL OR f.rank < v_rank_below)
            AND (v_error_like IS NULL OR f.error LIKE v_error_like)
            AND (
                NOT v_asks_body
                OR (
                    SELECT
                        (v_tags IS NULL OR b.tags && v_tags)
                        AND (v_group_keys IS NULL OR b.group_key = ANY (v_group_keys))
                        AND (v_owners IS NULL OR b.enqueued_by = ANY (v_owners))
                        AND (v_before IS NULL OR b.enqueued_at < v_before)
                        AND (v_after IS NULL OR b.enqueued_at > v_after)
                    FROM pulse.body AS b
                    WHERE b.job = f.job
                )
            )
            AND (NOT f.keyed OR pulse._key_is_free(f.job, f.lane))
        ORDER BY f.job
        LIMIT _matching.max_jobs;
        RETURN;
    END IF;

    RETURN QUERY
    SELECT p.job, p.place
    FROM (
        SELECT
            a.job, 'approval' AS place, 'awaiting_approval' AS state, a.lane, a.kind,
            a.rank, a.keyed, NULL AS worker, false AS asked
        FROM pulse.approval AS a
        UNION ALL
        SELECT
            w.job, 'waiting', CASE WHEN w.retrying THEN 'retrying' ELSE 'scheduled' END,
            w.lane, w.kind, w.rank, w.keyed, NULL, false
        FROM pulse.waiting AS w
        UNION ALL
        SELECT
            r.job, 'ready', 'ready', r.lane, r.kind, r.rank, r.keyed, NULL, false
        FROM pulse.ready AS r
        UNION ALL
        SELECT
            l.job, 'lease', 'running', l.lane, l.kind, l.rank, l.keyed, l.worker,
            l.cancel_by IS NOT NULL
        FROM pulse.lease AS l
    ) AS p
    WHERE p.state = ANY (v_states)
        AND (p.place <> 'waiting' OR v_waiting)
        AND (v_jobs IS NULL OR p.job = ANY (v_jobs))
        AND (v_lanes IS NULL OR p.lane = ANY (v_lanes))
        AND (v_kinds IS NULL OR p.kind = ANY (v_kinds))
        AND (v_workers IS NULL OR p.worker = ANY (v_workers))
        AND (v_rank IS NULL OR p.rank = v_rank)
        AND (v_rank_above IS NULL OR p.rank > v_rank_above)
        AND (v_rank_below IS NULL OR p.rank < v_rank_below)
        AND (_matching.to_lane IS NULL OR p.lane <> _matching.to_lane)
        AND (_matching.to_rank IS NULL OR p.rank <> _matching.to_rank)
        -- A run that was asked to stop already can only be forced.
        AND (_matching.verb <> 'cancel' OR _matching.force OR NOT p.asked)
        AND (
            v_error_like IS NULL
            OR (
                SELECT x.error
                FROM pulse.failure AS x
                WHERE x.job = p.job
                ORDER BY x.attempt DESC
                LIMIT 1
            ) LIKE v_error_like
        )
        AND (
            NOT v_asks_body
            OR (
                SELECT
                    (v_tags IS NULL OR b.tags && v_tags)
                    AND (v_group_keys IS NULL OR b.group_key = ANY (v_group_keys))
                    AND (v_owners IS NULL OR b.enqueued_by = ANY (v_owners))
                    AND (v_before IS NULL OR b.enqueued_at < v_before)
                    AND (v_after IS NULL OR b.enqueued_at > v_after)
                FROM pulse.body AS b
                WHERE b.job = p.job
            )
        )
        AND (
            _matching.verb <> 'move'
            OR NOT p.keyed
            OR pulse._key_is_free(p.job, _matching.to_lane)
        )
    ORDER BY p.job
    LIMIT _matching.max_jobs;
END;
$$;

COMMENT ON FUNCTION pulse._matching(text, jsonb, text, integer, boolean, integer) IS
'Jobs that match a filter and that the verb can change, oldest first, at most max_jobs.';

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

CREATE FUNCTION pulse._do_where(
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
        _do_where.verb || '_where', NULL,
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
    text, jsonb, text, integer, boolean, integer, boolean, text
) IS
'What all bulk verbs have in common: check, pick, do, count, audit.';

CREATE FUNCTION pulse.cancel_where(
    filter jsonb,
    force boolean DEFAULT false,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        'cancel', filter, NULL, NULL, coalesce(force, false), max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.cancel_where(jsonb, boolean, integer, boolean, text) IS
'Cancel every waiting or running job that the filter matches, oldest first, at most max_jobs; a running one is asked to stop, or ended at once with force => true. The filter is a JSON object of state, lane, kind, tag, group_key, enqueued_by, worker (a string, or an array: any of them), priority, priority_below, priority_above, older_than, newer_than (intervals since enqueue), error_like (the last error), job_ids, all of which must hold; {"all": true} is every job. Returns done, and remaining: how many more it could act on, counted up to 100,000; jobs that somebody else holds right now are left and remain. dry_run => true changes nothing and returns what one call would do. PU006 a key or value is not understood; PU002 max_jobs not within 1 to 100,000.';

CREATE FUNCTION pulse.retry_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        'retry', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.retry_where(jsonb, integer, boolean, text) IS
'Retry every dead or cancelled job that the filter matches (name the state to have only one of them), except those whose unique key is taken. Filter, limits and answer as in cancel_where.';

CREATE FUNCTION pulse.reprioritize_where(
    filter jsonb,
    priority integer,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_priority(reprioritize_where.priority);

    RETURN QUERY
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        'reprioritize', reprioritize_where.filter, NULL, - reprioritize_where.priority,
        false, reprioritize_where.max_jobs, reprioritize_where.dry_run,
        reprioritize_where.reason
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse.reprioritize_where(jsonb, integer, integer, boolean, text) IS
'Give every waiting or running job that the filter matches another priority, in the order of their ids; those that have it are left alone. Filter, limits and answer as in cancel_where. PU002 priority out of bounds.';

CREATE FUNCTION pulse.move_where(
    filter jsonb,
    lane text,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse._require_name('lane', move_where.lane);

    RETURN QUERY
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        'move', move_where.filter, move_where.lane, NULL,
        false, move_where.max_jobs, move_where.dry_run, move_where.reason
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse.move_where(jsonb, text, integer, boolean, text) IS
'Move every waiting job that the filter matches into another lane, in the order of their ids, except those whose unique key is taken there. Filter, limits and answer as in cancel_where. PU002 not a lane name.';

CREATE FUNCTION pulse.approve_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        'approve', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.approve_where(jsonb, integer, boolean, text) IS
'Approve every job that awaits approval and that the filter matches, e.g. {"job_ids": ["1024", "2048"]}. Filter, limits and answer as in cancel_where.';

CREATE FUNCTION pulse.reject_where(
    filter jsonb,
    max_jobs integer DEFAULT 10000,
    dry_run boolean DEFAULT false,
    reason text DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE sql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT d.done, d.remaining
    FROM pulse._do_where(
        'reject', filter, NULL, NULL, false, max_jobs, dry_run, reason
    ) AS d
$$;

COMMENT ON FUNCTION pulse.reject_where(jsonb, integer, boolean, text) IS
'Reject every job that awaits approval and that the filter matches: they are cancelled, with the reason as their error. Filter, limits and answer as in cancel_where.';
