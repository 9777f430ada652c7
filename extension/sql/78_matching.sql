-- Which jobs a bulk verb acts on: found without locks (_matching), then locked without
-- waiting (_pick_matching), and looked at again (_do_where).

-- What matches the filter and can still be changed by the verb, oldest first; newest first to
-- discard, since a job goes after those that depend on it. Always
-- planned for the values at hand: a condition that is not asked for folds away, and the
-- rest finds its index. Living jobs are read in the order of their ids, from the tables
-- asked for; of the history only the states asked for (finished_for_retention). What
-- stands in body is looked up job by job: scalar subqueries, because EXISTS might be
-- hashed, which reads the whole table; and written out three times
-- (find_jobs has one), because a function called for each job takes 20 times as long.
CREATE FUNCTION pulse._matching(
    verb text,
    filter pulse._job_filter,
    to_lane text,
    to_rank integer,
    force boolean,
    max_jobs integer,
    to_time timestamptz DEFAULT NULL
)
RETURNS TABLE (job bigint, place text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_filter pulse._job_filter := _matching.filter;
    v_outcomes pulse.outcome [];
    v_waiting boolean := v_filter.states && '{scheduled,retrying}';
BEGIN
    -- Its jobs are looked up once and then by id.
    IF v_filter.flows IS NOT NULL AND v_filter.jobs IS NULL THEN
        v_filter.jobs := array(
            SELECT b.job FROM pulse.body AS b WHERE b.flow = ANY (v_filter.flows)
        );
    END IF;

    IF _matching.verb IN ('retry', 'rerun', 'discard') THEN
        v_outcomes := v_filter.states;
        v_filter.lanes := coalesce(
            v_filter.lanes, ARRAY(SELECT x.lane FROM pulse._finished_lanes() AS x)
        );

        RETURN QUERY
        SELECT f.job, 'finished'
        FROM pulse.finished AS f
        WHERE f.state = ANY (v_outcomes)
            AND f.lane = ANY (v_filter.lanes)
            AND (v_filter.jobs IS NULL OR f.job = ANY (v_filter.jobs))
            AND (v_filter.kinds IS NULL OR f.kind = ANY (v_filter.kinds))
            AND (v_filter.workers IS NULL OR f.worker = ANY (v_filter.workers))
            AND (v_filter.rank IS NULL OR f.rank = v_filter.rank)
            AND (v_filter.rank_above IS NULL OR f.rank > v_filter.rank_above)
            AND (v_filter.rank_below IS NULL OR f.rank < v_filter.rank_below)
            AND (v_filter.error_like IS NULL OR f.error ILIKE v_filter.error_like)
            AND (
                v_filter.error_contains IS NULL
                OR strpos(lower(f.error), v_filter.error_contains) > 0
            )
            AND (
                NOT v_filter.asks_body
                OR (
                    SELECT
                        (v_filter.tags IS NULL OR b.tags && v_filter.tags)
                        AND (
                            v_filter.group_keys IS NULL
                            OR b.group_key = ANY (v_filter.group_keys)
                        )
                        AND (
                            v_filter.flows IS NULL
                            OR b.flow = ANY (v_filter.flows)
                        )
                        AND (
                            v_filter.owners IS NULL
                            OR b.owner = ANY (v_filter.owners)
                        )
                        AND (
                            v_filter.enqueued_before IS NULL
                            OR b.enqueued_at < v_filter.enqueued_before
                        )
                        AND (
                            v_filter.enqueued_after IS NULL
                            OR b.enqueued_at > v_filter.enqueued_after
                        )
                        AND (
                            v_filter.payload IS NULL
                            OR pg_column_size(b.payload) <= 65536
                            AND b.payload @> v_filter.payload
                        )
                        AND (
                            v_filter.payload_contains IS NULL
                            OR pg_column_size(b.payload) <= 65536
                            AND strpos(lower(b.payload::text), v_filter.payload_contains) > 0
                        )
                    FROM pulse.body AS b
                    WHERE b.job = f.job
                )
            )
            AND (
                _matching.verb <> 'retry'
                OR NOT f.keyed
                OR pulse._key_is_free(f.job, f.lane)
            )
            -- A second call must not run them a second time.
            AND (
                _matching.verb <> 'rerun'
                OR (
                    SELECT r.job
                    FROM pulse.body AS r
                    WHERE r.rerun_of = f.job
                    LIMIT 1
                ) IS NULL
            )
            -- Jobs that have to stay for others would fill every page; those for jobs that the
            -- filter may have too go after them.
            AND (
                _matching.verb <> 'discard'
                -- Mostly nothing depends on it. BETWEEN leaves one index to read.
                OR (
                    SELECT true
                    FROM pulse.dependency AS d
                    WHERE d.after BETWEEN f.job AND f.job
                    ORDER BY d.after
                    LIMIT 1
                ) IS NULL
                OR pulse._needed_by(f.job, v_outcomes) IS NULL
            )
        ORDER BY CASE WHEN _matching.verb <> 'discard' THEN f.job END, f.job DESC
        LIMIT _matching.max_jobs;
        RETURN;
    END IF;

    RETURN QUERY
    SELECT p.job, p.place
    FROM pulse._place AS p
    WHERE p.place <> 'finished'
        AND p.state = ANY (v_filter.states)
        AND (p.place <> 'waiting' OR v_waiting)
        AND (v_filter.jobs IS NULL OR p.job = ANY (v_filter.jobs))
        AND (v_filter.lanes IS NULL OR p.lane = ANY (v_filter.lanes))
        AND (v_filter.kinds IS NULL OR p.kind = ANY (v_filter.kinds))
        AND (v_filter.workers IS NULL OR p.worker = ANY (v_filter.workers))
        AND (v_filter.rank IS NULL OR p.rank = v_filter.rank)
        AND (v_filter.rank_above IS NULL OR p.rank > v_filter.rank_above)
        AND (v_filter.rank_below IS NULL OR p.rank < v_filter.rank_below)
        AND (_matching.to_lane IS NULL OR p.lane <> _matching.to_lane)
        AND (_matching.to_rank IS NULL OR p.rank <> _matching.to_rank)
        AND (
            _matching.to_time IS NULL
            OR p.run_at IS DISTINCT FROM _matching.to_time
            AND (p.place <> 'ready' OR _matching.to_time > clock_timestamp())
        )
        -- A run that was asked to stop already can only be forced.
        AND (_matching.verb <> 'cancel' OR _matching.force OR p.cancel_by IS NULL)
        AND (
            NOT v_filter.asks_error
            OR (
                SELECT
                    (v_filter.error_like IS NULL OR x.error ILIKE v_filter.error_like)
                    AND (
                        v_filter.error_contains IS NULL
                        OR strpos(lower(x.error), v_filter.error_contains) > 0
                    )
                FROM pulse.failure AS x
                WHERE x.job = p.job
                ORDER BY x.attempt DESC
                LIMIT 1
            )
        )
        AND (
            NOT v_filter.asks_body
            OR (
                SELECT
                    (v_filter.tags IS NULL OR b.tags && v_filter.tags)
                    AND (
                        v_filter.group_keys IS NULL
                        OR b.group_key = ANY (v_filter.group_keys)
                    )
                    AND (
                        v_filter.flows IS NULL
                        OR b.flow = ANY (v_filter.flows)
                    )
                    AND (
                        v_filter.owners IS NULL
                        OR b.owner = ANY (v_filter.owners)
                    )
                    AND (
                        v_filter.enqueued_before IS NULL
                        OR b.enqueued_at < v_filter.enqueued_before
                    )
                    AND (
                        v_filter.enqueued_after IS NULL
                        OR b.enqueued_at > v_filter.enqueued_after
                    )
                    AND (
                        v_filter.payload IS NULL
                        OR pg_column_size(b.payload) <= 65536
                        AND b.payload @> v_filter.payload
                    )
                    AND (
                        v_filter.payload_contains IS NULL
                        OR pg_column_size(b.payload) <= 65536
                        AND strpos(lower(b.payload::text), v_filter.payload_contains) > 0
                    )
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

COMMENT ON FUNCTION pulse._matching(
    text, pulse._job_filter, text, integer, boolean, integer, timestamptz
) IS
'Jobs that match a filter and that the verb can change, at most max_jobs: oldest first, to discard newest first.';

-- Nothing here waits, and locked, a job stays where it is until the verb has dealt with
-- it: two bulk verbs, or one and a batch of reports, cannot deadlock. Planned for the
-- lists at hand: a scan kept since a table was small would read its whole list for each row.
CREATE FUNCTION pulse._pick_matching(
    verb text,
    filter pulse._job_filter,
    to_lane text,
    to_rank integer,
    force boolean,
    max_jobs integer,
    to_time timestamptz DEFAULT NULL
)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_blocked bigint [];
    v_approval bigint [];
    v_waiting bigint [];
    v_ready bigint [];
    v_grouped bigint [];
    v_lease bigint [];
    v_finished bigint [];
BEGIN
    SELECT
        array_agg(m.job) FILTER (WHERE m.place = 'blocked'),
        array_agg(m.job) FILTER (WHERE m.place = 'approval'),
        array_agg(m.job) FILTER (WHERE m.place = 'waiting'),
        array_agg(m.job) FILTER (WHERE m.place = 'ready'),
        array_agg(m.job) FILTER (WHERE m.place = 'group_ready'),
        array_agg(m.job) FILTER (WHERE m.place = 'lease'),
        array_agg(m.job) FILTER (WHERE m.place = 'finished')
    INTO v_blocked, v_approval, v_waiting, v_ready, v_grouped, v_lease, v_finished
    FROM pulse._matching(
        _pick_matching.verb, _pick_matching.filter, _pick_matching.to_lane,
        _pick_matching.to_rank, _pick_matching.force, _pick_matching.max_jobs,
        _pick_matching.to_time
    ) AS m;

    RETURN QUERY
    SELECT b.job
    FROM pulse.blocked AS b
    WHERE b.job = ANY (v_blocked)
    FOR UPDATE SKIP LOCKED;

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
    SELECT r.job
    FROM pulse.group_ready AS r
    WHERE r.job = ANY (v_grouped)
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
        AND f.state::text = ANY ((_pick_matching.filter).states)
    FOR UPDATE SKIP LOCKED;
END;
$$;

COMMENT ON FUNCTION pulse._pick_matching(
    text, pulse._job_filter, text, integer, boolean, integer, timestamptz
) IS
'Lock jobs that match a filter where they stand, and return those that could be locked.';
