-- A job has ended badly: jobs that wait for it are cancelled, released or held, by their own
-- policy (flows/release.sql has the essay).

-- A report looks at about a page of dependents, tick goes on while it has time; a doubt is
-- left of the rest.
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
    -- The newest first: what has one dependent in common with many, such as the parts of a
    -- fan-in, is done with before more of it is cancelled.
    v_new bigint [] := array(
        SELECT u.job FROM unnest(ended_badly.jobs) AS u (job) ORDER BY u.job DESC
    );
    -- Jobs whose dependents are to be looked at, and after which dependent.
    v_jobs bigint [] := v_new;
    v_from bigint [] := array_fill(0::bigint, ARRAY[cardinality(v_jobs)]);
    v_children bigint [];
    v_causes bigint [];
    v_cancelled bigint [];
    v_keyed bigint [];
    v_last integer;
    v_all integer := 0;
BEGIN
    -- Down the graph, by each dependent's own policy.
    LOOP
        IF v_new IS NOT NULL THEN
            PERFORM pulse_internal.unblock_after(v_new, false);
        END IF;

        SELECT array_agg(c.job), array_agg(c.after) INTO v_children, v_causes
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
                    -- Deleted while it was enqueued: no retry will come.
                    OR b.after_failed = 'hold'
                    AND (SELECT true FROM pulse_internal.body AS u WHERE u.job = d.after) IS NULL
                FROM pulse_internal.blocked AS b
                WHERE b.job = d.job
            )
            LIMIT ended_badly.page
        ) AS c;
        EXIT WHEN v_children IS NULL;

        WITH gone AS (
            DELETE FROM pulse_internal.blocked AS b
            WHERE b.job = ANY (array(
                    SELECT o.job
                    FROM pulse_internal.blocked AS o
                    WHERE o.job = ANY (v_children)
                        -- As above: one that was retried meanwhile is held.
                        AND (
                            o.after_failed = 'cancel'
                            OR o.after_failed = 'hold'
                            AND (
                                SELECT true
                                FROM pulse_internal.body AS u
                                WHERE u.job = v_causes[array_position(v_children, o.job)]
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
                pulse_internal.upstream_error(v_causes[array_position(v_children, g.job)])
            FROM gone AS g
            RETURNING job, keyed
        ),

        counted AS (
            INSERT INTO pulse_internal.tally (lane, kind, event, jobs)
            SELECT g.lane, g.kind, 'cancelled', count(*)
            FROM gone AS g
            GROUP BY g.lane, g.kind
        )

        SELECT array_agg(e.job), array_agg(e.job) FILTER (WHERE e.keyed)
        INTO v_cancelled, v_keyed
        FROM ended AS e;

        IF v_keyed IS NOT NULL THEN
            PERFORM pulse_internal.release_keys(v_keyed);
        END IF;

        -- Another session holds one: another look.
        INSERT INTO pulse_internal.doubt (job)
        SELECT DISTINCT c.after
        FROM unnest(v_children, v_causes) AS c (job, after)
        WHERE (c.job = ANY (v_cancelled)) IS NOT TRUE;

        -- A full page: the rest of its last upstream, and all upstreams behind that one.
        IF cardinality(v_children) = ended_badly.page THEN
            v_last := array_position(v_jobs, v_causes[ended_badly.page]);
            v_jobs := v_jobs [v_last:];
            v_from := v_children[ended_badly.page] || v_from [v_last + 1:];
        ELSE
            v_jobs := '{}';
            v_from := '{}';
        END IF;
        v_new := v_cancelled;
        v_jobs := v_new || v_jobs;
        v_from := array_fill(0::bigint, ARRAY[coalesce(cardinality(v_new), 0)]) || v_from;
        v_all := v_all + cardinality(v_children);

        IF v_all >= ended_badly.page
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
'After jobs died or were cancelled: cancel those who depend on them, release those for whom any end counts, and so on down the graph.';

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
'Why a job is cancelled that depends on this one.';
