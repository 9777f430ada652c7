-- Looking for jobs, newest first. However rare a match is, a call reads a bounded number
-- of rows and then says how far it came, so a page never scans the whole history. The
-- branches by state stand out in full, one plan each; that is why the file is long.

CREATE FUNCTION pulse.find_jobs(
    filter jsonb DEFAULT '{}', before bigint DEFAULT NULL, max_jobs integer DEFAULT 50
)
RETURNS TABLE (job_id bigint, searched_to bigint)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_function_privilege('pulse_internal.find_all(jsonb,bigint,integer)', 'EXECUTE') THEN
        RETURN QUERY
        SELECT a.job_id, a.searched_to
        FROM pulse_internal.find_all(find_jobs.filter, find_jobs.before, find_jobs.max_jobs) AS a;
        RETURN;
    END IF;

    RETURN QUERY
    SELECT o.job_id, o.searched_to
    FROM pulse_internal.find_own(find_jobs.filter, find_jobs.before, find_jobs.max_jobs) AS o;
END;
$$;

COMMENT ON FUNCTION pulse.find_jobs(jsonb, bigint, integer) IS
'The ids of jobs that match a filter, newest first, at most max_jobs (1000), for a page of pulse.jobs: the next page is before => the last id. The filter is that of cancel_where, with every state; {} is all. A call reads 5000 jobs of a table, or of flows, at most: if that ends it before the page is full, a last row has no job_id and says how far it looked; go on with before => searched_to. Shows what pulse.jobs shows. PU002 bad max_jobs; PU006 bad filter. Writes nothing.';

-- Every job: who may read pulse.lanes may call it.
CREATE FUNCTION pulse_internal.find_all(
    filter jsonb, before bigint, max_jobs integer
)
RETURNS TABLE (job_id bigint, searched_to bigint)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_filter pulse_internal.job_filter;
    v_before bigint := coalesce(find_all.before, 9223372036854775807);
    v_in_blocked boolean;
    v_in_approval boolean;
    v_in_waiting boolean;
    v_in_ready boolean;
    v_in_lease boolean;
    v_completed boolean;
    v_in_finished boolean;
    -- So many rows of each place; ids that were asked for are few and looked up.
    v_budget integer;
    v_found bigint [];
    v_least bigint;
    v_floor bigint;
BEGIN
    PERFORM pulse_internal.require_range(
        'find_jobs', 'max_jobs', coalesce(find_all.max_jobs, 0)
    );
    v_filter := pulse_internal.parse_filter('find', find_all.filter);
    IF v_filter.flows IS NOT NULL AND v_filter.jobs IS NULL THEN
        v_filter.jobs := array(
            SELECT DISTINCT o.job
            FROM unnest(v_filter.flows) AS u (flow)
            CROSS JOIN LATERAL pulse_internal.newest_of_flow(u.flow, v_before) AS o (job)
            ORDER BY o.job DESC
            LIMIT 5000
        );
        v_floor := v_filter.jobs[5000];
    END IF;
    v_budget := CASE WHEN v_filter.jobs IS NULL THEN 5000 END;

    v_in_blocked := 'blocked' = ANY (v_filter.states);
    v_in_approval := 'awaiting_approval' = ANY (v_filter.states);
    v_in_waiting := v_filter.states && '{scheduled,retrying}';
    v_in_ready := 'ready' = ANY (v_filter.states);
    v_in_lease := 'running' = ANY (v_filter.states);
    v_completed := 'completed' = ANY (v_filter.states);
    v_in_finished := NOT v_completed AND v_filter.states && '{dead,cancelled}';

    -- Not through place: each place is read down from the newest id, as far as the page
    -- needs and no further than the budget; places that are not asked for fold away. Dead and
    -- cancelled jobs alone have an index of their own (finished_badly).
    v_found := ARRAY(
        SELECT p.job
        FROM (
            (
                SELECT
                    a.job, 'awaiting_approval' AS state, a.lane, a.kind, a.rank,
                    NULL AS worker, NULL AS error
                FROM pulse_internal.approval AS a
                WHERE v_in_approval
                    AND a.job < v_before
                    AND (v_filter.jobs IS NULL OR a.job = ANY (v_filter.jobs))
                ORDER BY a.job DESC
                LIMIT v_budget
            )
            UNION ALL
            (
                SELECT b.job, 'blocked', b.lane, b.kind, b.rank, NULL, NULL
                FROM pulse_internal.blocked AS b
                WHERE v_in_blocked
                    AND b.job < v_before
                    AND (v_filter.jobs IS NULL OR b.job = ANY (v_filter.jobs))
                ORDER BY b.job DESC
                LIMIT v_budget
            )
            UNION ALL
            (
                SELECT
                    w.job, CASE WHEN w.retrying THEN 'retrying' ELSE 'scheduled' END,
                    w.lane, w.kind, w.rank, NULL, NULL
                FROM pulse_internal.waiting AS w
                WHERE v_in_waiting
                    AND w.job < v_before
                    AND (v_filter.jobs IS NULL OR w.job = ANY (v_filter.jobs))
                ORDER BY w.job DESC
                LIMIT v_budget
            )
            UNION ALL
            (
                SELECT r.job, 'ready', r.lane, r.kind, r.rank, NULL, NULL
                FROM pulse_internal.ready AS r
                WHERE v_in_ready
                    AND r.job < v_before
                    AND (v_filter.jobs IS NULL OR r.job = ANY (v_filter.jobs))
                ORDER BY r.job DESC
                LIMIT v_budget
            )
            UNION ALL
            (
                SELECT l.job, 'running', l.lane, l.kind, l.rank, l.worker, NULL
                FROM pulse_internal.lease AS l
                WHERE v_in_lease
                    AND l.job < v_before
                    AND (v_filter.jobs IS NULL OR l.job = ANY (v_filter.jobs))
                ORDER BY l.job DESC
                LIMIT v_budget
            )
            UNION ALL
            (
                SELECT f.job, f.state::text, f.lane, f.kind, f.rank, f.worker, f.error
                FROM pulse_internal.finished AS f
                WHERE v_completed
                    AND f.job < v_before
                    AND (v_filter.jobs IS NULL OR f.job = ANY (v_filter.jobs))
                ORDER BY f.job DESC
                LIMIT v_budget
            )
            UNION ALL
            (
                SELECT f.job, f.state::text, f.lane, f.kind, f.rank, f.worker, f.error
                FROM pulse_internal.finished AS f
                WHERE v_in_finished
                    AND f.state <> 'completed'
                    AND f.job < v_before
                    AND (v_filter.jobs IS NULL OR f.job = ANY (v_filter.jobs))
                ORDER BY f.job DESC
                LIMIT v_budget
            )
        ) AS p
        WHERE p.state = ANY (v_filter.states)
            AND (v_filter.lanes IS NULL OR p.lane = ANY (v_filter.lanes))
            AND (v_filter.kinds IS NULL OR p.kind = ANY (v_filter.kinds))
            AND (v_filter.workers IS NULL OR p.worker = ANY (v_filter.workers))
            AND (v_filter.rank IS NULL OR p.rank = v_filter.rank)
            AND (v_filter.rank_above IS NULL OR p.rank > v_filter.rank_above)
            AND (v_filter.rank_below IS NULL OR p.rank < v_filter.rank_below)
            AND (
                NOT v_filter.asks_error
                OR (
                    SELECT
                        (v_filter.error_like IS NULL OR e.error ILIKE v_filter.error_like)
                        AND (
                            v_filter.error_contains IS NULL
                            OR strpos(lower(e.error), v_filter.error_contains) > 0
                        )
                    FROM (
                        SELECT
                            coalesce(
                                p.error,
                                (
                                    SELECT x.error
                                    FROM pulse_internal.failure AS x
                                    WHERE x.job = p.job
                                    ORDER BY x.attempt DESC
                                    LIMIT 1
                                )
                            ) AS error
                    ) AS e
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
                    FROM pulse_internal.body AS b
                    WHERE b.job = p.job
                )
            )
        ORDER BY p.job DESC
        LIMIT find_all.max_jobs
    );

    -- Every place was read down to here. A full page can go below it where one place has
    -- what was looked for and another spent its budget: such a page is cut.
    v_least := CASE
        WHEN cardinality(v_found) = find_all.max_jobs
            THEN v_found[find_all.max_jobs]
        ELSE -1
    END;
    IF v_budget IS NOT NULL THEN
        v_floor := greatest(
            (
                SELECT a.job
                FROM pulse_internal.approval AS a
                WHERE v_in_approval
                    AND a.job < v_before
                    AND a.job > v_least
                ORDER BY a.job DESC
                OFFSET v_budget - 1
                LIMIT 1
            ),
            (
                SELECT b.job
                FROM pulse_internal.blocked AS b
                WHERE v_in_blocked
                    AND b.job < v_before
                    AND b.job > v_least
                ORDER BY b.job DESC
                OFFSET v_budget - 1
                LIMIT 1
            ),
            (
                SELECT w.job
                FROM pulse_internal.waiting AS w
                WHERE v_in_waiting
                    AND w.job < v_before
                    AND w.job > v_least
                ORDER BY w.job DESC
                OFFSET v_budget - 1
                LIMIT 1
            ),
            (
                SELECT r.job
                FROM pulse_internal.ready AS r
                WHERE v_in_ready
                    AND r.job < v_before
                    AND r.job > v_least
                ORDER BY r.job DESC
                OFFSET v_budget - 1
                LIMIT 1
            ),
            (
                SELECT l.job
                FROM pulse_internal.lease AS l
                WHERE v_in_lease
                    AND l.job < v_before
                    AND l.job > v_least
                ORDER BY l.job DESC
                OFFSET v_budget - 1
                LIMIT 1
            ),
            (
                SELECT f.job
                FROM pulse_internal.finished AS f
                WHERE v_completed
                    AND f.job < v_before
                    AND f.job > v_least
                ORDER BY f.job DESC
                OFFSET v_budget - 1
                LIMIT 1
            ),
            (
                SELECT f.job
                FROM pulse_internal.finished AS f
                WHERE v_in_finished
                    AND f.job < v_before
                    AND f.job > v_least
                    AND f.state <> 'completed'
                ORDER BY f.job DESC
                OFFSET v_budget - 1
                LIMIT 1
            )
        );
    ELSIF v_least >= 0 THEN
        v_floor := NULL;
    END IF;

    RETURN QUERY
    SELECT f.job, NULL::bigint
    FROM unnest(v_found) WITH ORDINALITY AS f (job, place)
    WHERE v_floor IS NULL OR f.job >= v_floor
    ORDER BY f.place;

    IF v_floor IS NOT NULL THEN
        job_id := NULL;
        searched_to := v_floor;
        RETURN NEXT;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.find_all(jsonb, bigint, integer) IS
'find_jobs for those who see all jobs.';

-- A function, for settings of its own: one flow may be a thousand times as large as most. No
-- equality: with one, the planner may read down all jobs by id and leave out those of others.
CREATE FUNCTION pulse_internal.newest_of_flow(flow text, before bigint)
RETURNS SETOF bigint
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT b.job
    FROM pulse_internal.body AS b
    WHERE b.flow >= newest_of_flow.flow
        AND (b.flow, b.job) < (newest_of_flow.flow, newest_of_flow.before)
    ORDER BY b.flow DESC, b.job DESC
    LIMIT 5000;
END;
$$;

COMMENT ON FUNCTION pulse_internal.newest_of_flow(text, bigint) IS
'The newest 5000 jobs of a flow below an id, newest first.';

-- With the caller's rights, over what pulse.jobs shows it. Jobs of others are stepped over,
-- so the budget is of ids: those down to where one table has spent it.
CREATE FUNCTION pulse_internal.find_own(filter jsonb, before bigint, max_jobs integer)
RETURNS TABLE (job_id bigint, searched_to bigint)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
SET jit = off
AS $$
DECLARE
    v_filter pulse_internal.job_filter;
    v_before bigint := coalesce(find_own.before, 9223372036854775807);
    v_floor bigint;
    v_owners text [];
    v_found bigint [];
BEGIN
    v_filter := pulse_internal.find_filter(find_own.filter, find_own.max_jobs);
    v_floor := CASE WHEN v_filter.jobs IS NULL THEN pulse_internal.find_floor(v_before) END;
    v_owners := pulse_internal.texts(find_own.filter -> 'enqueued_by');

    v_found := ARRAY(
        SELECT j.job_id
        FROM pulse.jobs AS j
        WHERE j.job_id < v_before
            AND (v_floor IS NULL OR j.job_id >= v_floor)
            AND (v_filter.jobs IS NULL OR j.job_id = ANY (v_filter.jobs))
            AND j.state = ANY (v_filter.states)
            AND (v_filter.lanes IS NULL OR j.lane = ANY (v_filter.lanes))
            AND (v_filter.kinds IS NULL OR j.kind = ANY (v_filter.kinds))
            AND (v_filter.workers IS NULL OR j.worker = ANY (v_filter.workers))
            AND (v_filter.rank IS NULL OR -j.priority = v_filter.rank)
            AND (v_filter.rank_above IS NULL OR -j.priority > v_filter.rank_above)
            AND (v_filter.rank_below IS NULL OR -j.priority < v_filter.rank_below)
            AND (v_filter.error_like IS NULL OR j.last_error ILIKE v_filter.error_like)
            AND (
                v_filter.error_contains IS NULL
                OR strpos(lower(j.last_error), v_filter.error_contains) > 0
            )
            AND (v_filter.tags IS NULL OR j.tags && v_filter.tags)
            AND (v_filter.group_keys IS NULL OR j.group_key = ANY (v_filter.group_keys))
            AND (v_filter.flows IS NULL OR j.flow = ANY (v_filter.flows))
            AND (v_owners IS NULL OR j.enqueued_by = ANY (v_owners))
            AND (
                v_filter.enqueued_before IS NULL
                OR j.enqueued_at < v_filter.enqueued_before
            )
            AND (
                v_filter.enqueued_after IS NULL
                OR j.enqueued_at > v_filter.enqueued_after
            )
            AND (
                v_filter.payload IS NULL
                OR pg_column_size(j.payload) <= 65536
                AND j.payload @> v_filter.payload
            )
            AND (
                v_filter.payload_contains IS NULL
                OR pg_column_size(j.payload) <= 65536
                AND strpos(lower(j.payload::text), v_filter.payload_contains) > 0
            )
        ORDER BY j.job_id DESC
        LIMIT find_own.max_jobs
    );

    RETURN QUERY
    SELECT f.job, NULL::bigint
    FROM unnest(v_found) WITH ORDINALITY AS f (job, place)
    ORDER BY f.place;

    IF v_floor IS NOT NULL AND cardinality(v_found) < find_own.max_jobs THEN
        job_id := NULL;
        searched_to := v_floor;
        RETURN NEXT;
    END IF;
END;
$$;

COMMENT ON FUNCTION pulse_internal.find_own(jsonb, bigint, integer) IS
'find_jobs for those who see their own jobs, or those that await approval.';

CREATE FUNCTION pulse_internal.find_filter(filter jsonb, max_jobs integer)
RETURNS pulse_internal.job_filter
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_range(
        'find_jobs', 'max_jobs', coalesce(find_filter.max_jobs, 0)
    );
    RETURN pulse_internal.parse_filter('find', find_filter.filter);
END;
$$;

COMMENT ON FUNCTION pulse_internal.find_filter(jsonb, integer) IS
'The filter of find_jobs, parsed; PU002 bad max_jobs, PU006 bad filter.';

CREATE FUNCTION pulse_internal.find_floor(before bigint)
RETURNS bigint
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT greatest(
        (
            SELECT a.job
            FROM pulse_internal.approval AS a
            WHERE a.job < find_floor.before
            ORDER BY a.job DESC
            OFFSET 4999
            LIMIT 1
        ),
        (
            SELECT b.job
            FROM pulse_internal.blocked AS b
            WHERE b.job < find_floor.before
            ORDER BY b.job DESC
            OFFSET 4999
            LIMIT 1
        ),
        (
            SELECT w.job
            FROM pulse_internal.waiting AS w
            WHERE w.job < find_floor.before
            ORDER BY w.job DESC
            OFFSET 4999
            LIMIT 1
        ),
        (
            SELECT r.job
            FROM pulse_internal.ready AS r
            WHERE r.job < find_floor.before
            ORDER BY r.job DESC
            OFFSET 4999
            LIMIT 1
        ),
        (
            SELECT l.job
            FROM pulse_internal.lease AS l
            WHERE l.job < find_floor.before
            ORDER BY l.job DESC
            OFFSET 4999
            LIMIT 1
        ),
        (
            SELECT f.job
            FROM pulse_internal.finished AS f
            WHERE f.job < find_floor.before
            ORDER BY f.job DESC
            OFFSET 4999
            LIMIT 1
        )
    )
$$;

COMMENT ON FUNCTION pulse_internal.find_floor(bigint) IS
'Down to which id one call of find_jobs looks below another; NULL is all.';
