-- ended_badly: what becomes of the jobs that depend on a job which died or was cancelled.
--
-- Each dependent has a policy of its own, after_failed: with cancel it is cancelled, with run it
-- may become ready (flows/release.sql), with hold it waits for a retry of the ended job. A
-- cancelled dependent is itself a bad end, so the same goes on down the graph, a page of
-- dependents at a time. A report does about one page; tick goes on while it has time. For the
-- rest a doubt is noted (flows/settle.sql).
--
-- It deletes from blocked, inserts into finished, tally and doubt, releases unique keys, and
-- writes what unblock_after writes. Locks: rows of blocked, SKIP LOCKED; a dependent that another
-- session has locked gets a doubt.

CREATE FUNCTION pulse_internal.ended_badly(
    jobs bigint [], page integer DEFAULT 1000, until timestamptz DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- Jobs that have just ended badly. The newest first: jobs with a common dependent, such as the
    -- parts of a fan-in, are finished with before more of their dependents are cancelled.
    v_new bigint [] := array(
        SELECT u.job FROM unnest(ended_badly.jobs) AS u (job) ORDER BY u.job DESC
    );
    -- Jobs whose dependents are still to be visited, and behind which dependent: two arrays in the
    -- same order.
    v_jobs bigint [] := v_new;
    v_from bigint [] := array_fill(0::bigint, ARRAY[cardinality(v_jobs)]);
    -- The page: dependents, and for each the ended job that it depends on.
    v_dependents bigint [];
    v_upstreams bigint [];
    v_cancelled bigint [];
    v_cancelled_with_key bigint [];
    v_unfinished_job integer;
    v_visited integer := 0;
BEGIN
    LOOP
        -- Dependents with after_failed = run.
        IF v_new IS NOT NULL THEN
            PERFORM pulse_internal.unblock_after(v_new, false);
        END IF;

        -- A page of the others that are to be cancelled.
        SELECT array_agg(c.job), array_agg(c.after) INTO v_dependents, v_upstreams
        FROM (
            SELECT d.job, d.after
            FROM unnest(v_jobs, v_from) AS u (job, from_job)
            CROSS JOIN LATERAL (
                SELECT o.job, o.after
                FROM pulse_internal.dependency AS o
                WHERE o.after = u.job
                    AND o.job > u.from_job
                ORDER BY o.after, o.job
                OFFSET 0
            ) AS d
            WHERE (
                SELECT
                    b.after_failed = 'cancel'
                    -- The ended job was deleted: no retry will come.
                    OR b.after_failed = 'hold'
                    AND (SELECT true FROM pulse_internal.body AS u WHERE u.job = d.after) IS NULL
                FROM pulse_internal.blocked AS b
                WHERE b.job = d.job
            )
            LIMIT ended_badly.page
        ) AS c;
        EXIT WHEN v_dependents IS NULL;

        -- Cancel them.
        WITH deleted AS (
            DELETE FROM pulse_internal.blocked AS b
            WHERE b.job = ANY (array(
                    SELECT o.job
                    FROM pulse_internal.blocked AS o
                    WHERE o.job = ANY (v_dependents)
                        -- Again, on the locked row: it may have been retried meanwhile, and then
                        -- waits.
                        AND (
                            o.after_failed = 'cancel'
                            OR o.after_failed = 'hold'
                            AND (
                                SELECT true
                                FROM pulse_internal.body AS u
                                WHERE u.job = v_upstreams[array_position(v_dependents, o.job)]
                            ) IS NULL
                        )
                    FOR UPDATE SKIP LOCKED
                ))
            RETURNING b.*
        ),

        ended AS (
            INSERT INTO pulse_internal.finished (
                job, lane, kind, rank, state, ended_by, attempts, failures, keyed, error
            )
            SELECT
                g.job, g.lane, g.kind, g.rank, 'cancelled', 'upstream', g.attempts,
                g.failures, g.keyed,
                pulse_internal.upstream_error(v_upstreams[array_position(v_dependents, g.job)])
            FROM deleted AS g
            RETURNING job, keyed
        ),

        counted AS (
            INSERT INTO pulse_internal.tally (lane, kind, event, jobs)
            SELECT g.lane, g.kind, 'cancelled', count(*)
            FROM deleted AS g
            GROUP BY g.lane, g.kind
        )

        SELECT array_agg(e.job), array_agg(e.job) FILTER (WHERE e.keyed)
        INTO v_cancelled, v_cancelled_with_key
        FROM ended AS e;

        IF v_cancelled_with_key IS NOT NULL THEN
            PERFORM pulse_internal.release_keys(v_cancelled_with_key);
        END IF;

        -- Those that another session has locked: a doubt.
        INSERT INTO pulse_internal.doubt (job)
        SELECT DISTINCT c.after
        FROM unnest(v_dependents, v_upstreams) AS c (job, after)
        WHERE (c.job = ANY (v_cancelled)) IS NOT TRUE;

        -- After a full page: the other dependents of its last upstream, and the jobs behind that.
        IF cardinality(v_dependents) = ended_badly.page THEN
            v_unfinished_job := array_position(v_jobs, v_upstreams[ended_badly.page]);
            v_jobs := v_jobs [v_unfinished_job:];
            v_from := v_dependents[ended_badly.page] || v_from [v_unfinished_job + 1:];
        ELSE
            v_jobs := '{}';
            v_from := '{}';
        END IF;
        v_new := v_cancelled;
        v_jobs := v_new || v_jobs;
        v_from := array_fill(0::bigint, ARRAY[coalesce(cardinality(v_new), 0)]) || v_from;
        v_visited := v_visited + cardinality(v_dependents);

        IF v_visited >= ended_badly.page
            AND pulse_internal.time_is_over(ended_badly.until) IS NOT false
        THEN
            INSERT INTO pulse_internal.doubt (job)
            SELECT u.job
            FROM unnest(v_jobs, v_from) AS u (job, from_job)
            WHERE (
                SELECT true
                FROM pulse_internal.dependency AS d
                WHERE d.after = u.job
                    AND d.job > u.from_job
                    AND (SELECT true FROM pulse_internal.blocked AS b WHERE b.job = d.job)
                ORDER BY d.after, d.job
                LIMIT 1
            );
            RETURN;
        END IF;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.ended_badly(bigint [], integer, timestamptz) IS
'After jobs died or were cancelled: cancel the jobs that depend on them, or unblock those for which any end counts, and so on down the graph. A page of dependents, and more until the time is over; NULL: one page.';

CREATE FUNCTION pulse_internal.upstream_error(job bigint)
RETURNS text
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format(
        'job %s, which it depends on, is %s',
        upstream_error.job,
        coalesce(
            (
                SELECT f.state::text
                FROM pulse_internal.finished AS f
                WHERE f.job = upstream_error.job
            ),
            'gone'
        )
    )
$$;

COMMENT ON FUNCTION pulse_internal.upstream_error(bigint) IS
'The error of a job that is cancelled because it depends on this one.';
