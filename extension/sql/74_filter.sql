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
    v_owners integer [] := pulse._roles_named(pulse._texts(v_filter -> 'enqueued_by'));
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
                        AND (v_owners IS NULL OR b.owner = ANY (v_owners))
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
                    AND (v_owners IS NULL OR b.owner = ANY (v_owners))
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
