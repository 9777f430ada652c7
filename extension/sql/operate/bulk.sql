-- What all bulk verbs have in common: check, pick, do, count, audit.

CREATE FUNCTION pulse_internal.do_where(
    who integer,
    verb text,
    filter jsonb,
    to_lane text,
    to_rank integer,
    force boolean,
    max_jobs integer,
    dry_run boolean,
    reason text,
    to_time timestamptz DEFAULT NULL
)
RETURNS TABLE (done bigint, remaining bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_max_jobs integer := coalesce(do_where.max_jobs, 10000);
    v_filter pulse_internal.job_filter;
    v_locked pulse_internal.job_filter;
    v_job bigint;
    v_first bigint;
    v_last bigint;
    v_state text;
    v_lane text;
    v_rekeyed boolean;
    v_keys_in_use boolean := false;
BEGIN
    PERFORM pulse_internal.require_read_committed(do_where.verb || '_where');
    v_filter := pulse_internal.parse_filter(do_where.verb, do_where.filter);
    PERFORM pulse_internal.require_range(do_where.verb || '_where', 'max_jobs', v_max_jobs);
    PERFORM pulse_internal.require_reason(do_where.reason);
    done := 0;

    -- A producer has its own jobs and no others.
    IF do_where.verb = 'cancel' AND NOT pulse_internal.operates(do_where.who) THEN
        IF do_where.force THEN
            PERFORM pulse_internal.raise_force();
        END IF;
        v_filter.owners := array(
            SELECT o.role
            FROM unnest(pulse_internal.numbers_of(do_where.who)) AS o (role)
            WHERE v_filter.owners IS NULL OR o.role = ANY (v_filter.owners)
        );
        v_filter.asks_body := true;
    END IF;

    -- NULL is no order to act.
    IF coalesce(do_where.dry_run, true) THEN
        SELECT least(count(*), v_max_jobs), greatest(count(*) - v_max_jobs, 0)
        INTO done, remaining
        FROM pulse_internal.matching(
            do_where.verb, v_filter, do_where.to_lane, do_where.to_rank,
            do_where.force, v_max_jobs + 100000, do_where.to_time
        );
        RETURN NEXT;
        RETURN;
    END IF;

    v_locked := v_filter;
    v_locked.jobs := array(
        SELECT p.job
        FROM pulse_internal.pick_matching(
            do_where.verb, v_filter, do_where.to_lane, do_where.to_rank,
            do_where.force, v_max_jobs, do_where.to_time
        ) AS p (job)
    );
    -- In a later statement than the locks: another verb may have come before them.
    FOR v_job IN
        SELECT m.job
        FROM pulse_internal.matching(
            do_where.verb, v_locked, do_where.to_lane, do_where.to_rank,
            do_where.force, v_max_jobs, do_where.to_time
        ) AS m
        ORDER BY CASE WHEN do_where.verb <> 'discard' THEN m.job END, m.job DESC
    LOOP
        CASE do_where.verb
            WHEN 'cancel' THEN
                SELECT c.state INTO v_state
                FROM pulse_internal.cancel(v_job, do_where.reason, do_where.force) AS c;

            WHEN 'approve' THEN
                SELECT a.state INTO v_state
                FROM pulse_internal.approve(v_job) AS a;

            WHEN 'reject' THEN
                SELECT r.state INTO v_state
                FROM pulse_internal.reject(v_job, do_where.reason) AS r;

            WHEN 'retry' THEN
                SELECT f.lane INTO v_lane
                FROM pulse_internal.finished AS f
                WHERE f.job = v_job;

                -- Else it came back with a job that it depends on.
                IF FOUND THEN
                    CONTINUE WHEN v_keys_in_use AND pulse_internal.key_of(v_job) IS NOT NULL;
                    v_rekeyed := pulse_internal.try_rekey(v_job, v_lane);
                    v_keys_in_use := v_keys_in_use OR v_rekeyed IS NULL;
                    CONTINUE WHEN v_rekeyed IS NOT TRUE;

                    SELECT r.state INTO v_state
                    FROM pulse_internal.retry(v_job) AS r;
                ELSE
                    v_state := 'blocked';
                END IF;

            WHEN 'run_now' THEN
                SELECT r.state INTO v_state
                FROM pulse_internal.reschedule(v_job, '-infinity') AS r;

            WHEN 'reschedule' THEN
                SELECT r.state INTO v_state
                FROM pulse_internal.reschedule(v_job, do_where.to_time) AS r;

            WHEN 'rerun' THEN
                SELECT r.was INTO v_state
                FROM pulse_internal.rerun(v_job) AS r;

            WHEN 'discard' THEN
                SELECT d.state INTO v_state
                FROM pulse_internal.discard(v_job) AS d;

            WHEN 'reprioritize' THEN
                SELECT s.state INTO v_state
                FROM pulse_internal.shift(v_job, NULL, do_where.to_rank) AS s;

            WHEN 'move' THEN
                -- The key first: a job that cannot move keeps its place in line.
                CONTINUE WHEN v_keys_in_use AND pulse_internal.key_of(v_job) IS NOT NULL;
                v_rekeyed := pulse_internal.try_rekey(v_job, do_where.to_lane);
                v_keys_in_use := v_keys_in_use OR v_rekeyed IS NULL;
                CONTINUE WHEN v_rekeyed IS NOT TRUE;

                SELECT s.state INTO v_state
                FROM pulse_internal.shift(v_job, do_where.to_lane, NULL) AS s;
        END CASE;

        CONTINUE WHEN v_state IS NULL;

        done := done + 1;
        v_first := least(v_first, v_job);
        v_last := greatest(v_last, v_job);
    END LOOP;

    SELECT count(*) INTO remaining
    FROM pulse_internal.matching(
        do_where.verb, v_filter, do_where.to_lane, do_where.to_rank,
        do_where.force, 100000, do_where.to_time
    );

    PERFORM pulse_internal.audit(
        do_where.who, do_where.verb || '_where', NULL,
        CASE WHEN jsonb_typeof(do_where.filter -> 'lane') = 'string' THEN do_where.filter ->> 'lane' END,
        jsonb_build_object(
            'filter',
            do_where.filter || jsonb_strip_nulls(
                jsonb_build_object('job_ids', v_filter.jobs::text [])
            )
        ),
        jsonb_strip_nulls(
            jsonb_build_object(
                'done', done,
                'remaining', remaining,
                'first_job', v_first::text,
                'last_job', v_last::text,
                'lane', do_where.to_lane,
                'priority', - do_where.to_rank,
                'run_at', do_where.to_time,
                'force', nullif(do_where.force, false)
            )
        ),
        do_where.reason
    );
    RETURN NEXT;
END;
$$;

COMMENT ON FUNCTION pulse_internal.do_where(
    integer, text, jsonb, text, integer, boolean, integer, boolean, text, timestamptz
) IS
'What all bulk verbs have in common: check, pick, do, count, audit.';

-- Which jobs a bulk verb acts on: found without locks (matching), then locked without
-- waiting (pick_matching), and looked at again (do_where).

-- What matches the filter and can still be changed by the verb, oldest first; newest first to
-- discard, since a job goes after those that depend on it. Always
-- planned for the values at hand: a condition that is not asked for folds away, and the
-- rest finds its index. Living jobs are read in the order of their ids, from the tables
-- asked for; of the history only the states asked for (finished_for_retention). What
-- stands in body is looked up job by job: scalar subqueries, because EXISTS might be
-- hashed, which reads the whole table; and written out three times
-- (find_jobs has one), because a function called for each job takes 20 times as long.
CREATE FUNCTION pulse_internal.matching(
    verb text,
    filter pulse_internal.job_filter,
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
    v_filter pulse_internal.job_filter := matching.filter;
    v_outcomes pulse_internal.outcome [];
    v_waiting boolean := v_filter.states && '{scheduled,retrying}';
BEGIN
    -- Its jobs are looked up once and then by id.
    IF v_filter.flows IS NOT NULL AND v_filter.jobs IS NULL THEN
        v_filter.jobs := array(
            SELECT b.job FROM pulse_internal.body AS b WHERE b.flow = ANY (v_filter.flows)
        );
    END IF;

    IF matching.verb IN ('retry', 'rerun', 'discard') THEN
        v_outcomes := v_filter.states;
        v_filter.lanes := coalesce(
            v_filter.lanes, ARRAY(SELECT x.lane FROM pulse_internal.finished_lanes() AS x)
        );

        RETURN QUERY
        SELECT f.job, 'finished'
        FROM pulse_internal.finished AS f
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
                    FROM pulse_internal.body AS b
                    WHERE b.job = f.job
                )
            )
            AND (
                matching.verb <> 'retry'
                OR NOT f.keyed
                OR pulse_internal.key_is_free(f.job, f.lane)
            )
            -- A second call must not run them a second time.
            AND (
                matching.verb <> 'rerun'
                OR (
                    SELECT r.job
                    FROM pulse_internal.body AS r
                    WHERE r.rerun_of = f.job
                    LIMIT 1
                ) IS NULL
            )
            -- Jobs that have to stay for others would fill every page; those for jobs that the
            -- filter may have too go after them.
            AND (
                matching.verb <> 'discard'
                -- Mostly nothing depends on it. BETWEEN leaves one index to read.
                OR (
                    SELECT true
                    FROM pulse_internal.dependency AS d
                    WHERE d.after BETWEEN f.job AND f.job
                    ORDER BY d.after
                    LIMIT 1
                ) IS NULL
                OR pulse_internal.needed_by(f.job, v_outcomes) IS NULL
            )
        ORDER BY CASE WHEN matching.verb <> 'discard' THEN f.job END, f.job DESC
        LIMIT matching.max_jobs;
        RETURN;
    END IF;

    RETURN QUERY
    SELECT p.job, p.place
    FROM pulse_internal.place AS p
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
        AND (matching.to_lane IS NULL OR p.lane <> matching.to_lane)
        AND (matching.to_rank IS NULL OR p.rank <> matching.to_rank)
        AND (
            matching.to_time IS NULL
            OR p.run_at IS DISTINCT FROM matching.to_time
            AND (p.place <> 'ready' OR matching.to_time > clock_timestamp())
        )
        -- A run that was asked to stop already can only be forced.
        AND (matching.verb <> 'cancel' OR matching.force OR p.cancel_by IS NULL)
        AND (
            NOT v_filter.asks_error
            OR (
                SELECT
                    (v_filter.error_like IS NULL OR x.error ILIKE v_filter.error_like)
                    AND (
                        v_filter.error_contains IS NULL
                        OR strpos(lower(x.error), v_filter.error_contains) > 0
                    )
                FROM pulse_internal.failure AS x
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
                FROM pulse_internal.body AS b
                WHERE b.job = p.job
            )
        )
        AND (
            matching.verb <> 'move'
            OR NOT p.keyed
            OR pulse_internal.key_is_free(p.job, matching.to_lane)
        )
    ORDER BY p.job
    LIMIT matching.max_jobs;
END;
$$;

COMMENT ON FUNCTION pulse_internal.matching(
    text, pulse_internal.job_filter, text, integer, boolean, integer, timestamptz
) IS
'Jobs that match a filter and that the verb can change, at most max_jobs: oldest first, to discard newest first.';

-- Nothing here waits, and locked, a job stays where it is until the verb has dealt with
-- it: two bulk verbs, or one and a batch of reports, cannot deadlock. Planned for the
-- lists at hand: a scan kept since a table was small would read its whole list for each row.
CREATE FUNCTION pulse_internal.pick_matching(
    verb text,
    filter pulse_internal.job_filter,
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
    v_lease bigint [];
    v_finished bigint [];
BEGIN
    SELECT
        array_agg(m.job) FILTER (WHERE m.place = 'blocked'),
        array_agg(m.job) FILTER (WHERE m.place = 'approval'),
        array_agg(m.job) FILTER (WHERE m.place = 'waiting'),
        array_agg(m.job) FILTER (WHERE m.place = 'ready'),
        array_agg(m.job) FILTER (WHERE m.place = 'lease'),
        array_agg(m.job) FILTER (WHERE m.place = 'finished')
    INTO v_blocked, v_approval, v_waiting, v_ready, v_lease, v_finished
    FROM pulse_internal.matching(
        pick_matching.verb, pick_matching.filter, pick_matching.to_lane,
        pick_matching.to_rank, pick_matching.force, pick_matching.max_jobs,
        pick_matching.to_time
    ) AS m;

    RETURN QUERY
    SELECT b.job
    FROM pulse_internal.blocked AS b
    WHERE b.job = ANY (v_blocked)
    FOR UPDATE SKIP LOCKED;

    RETURN QUERY
    SELECT a.job
    FROM pulse_internal.approval AS a
    WHERE a.job = ANY (v_approval)
    FOR UPDATE SKIP LOCKED;

    RETURN QUERY
    SELECT w.job
    FROM pulse_internal.waiting AS w
    WHERE w.job = ANY (v_waiting)
    FOR UPDATE SKIP LOCKED;

    RETURN QUERY
    SELECT r.job
    FROM pulse_internal.ready AS r
    WHERE r.job = ANY (v_ready)
    FOR UPDATE SKIP LOCKED;

    RETURN QUERY
    SELECT l.job
    FROM pulse_internal.lease AS l
    WHERE l.job = ANY (v_lease)
    FOR UPDATE SKIP LOCKED;

    RETURN QUERY
    SELECT f.job
    FROM pulse_internal.finished AS f
    WHERE f.job = ANY (v_finished)
        AND f.state::text = ANY ((pick_matching.filter).states)
    FOR UPDATE SKIP LOCKED;
END;
$$;

COMMENT ON FUNCTION pulse_internal.pick_matching(
    text, pulse_internal.job_filter, text, integer, boolean, integer, timestamptz
) IS
'Lock jobs that match a filter where they stand, and return those that could be locked.';
