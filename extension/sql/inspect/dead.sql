-- The jobs that need a person: dead ones, with all their errors.

CREATE VIEW pulse.dead
WITH (security_barrier)
AS
SELECT
    f.job AS job_id,
    f.lane,
    f.kind,
    -f.rank AS priority,
    b.payload,
    f.attempts,
    f.failures,
    b.max_attempts,
    f.error AS last_error,
    (
        SELECT
            jsonb_agg(
                jsonb_build_object(
                    'attempt', e.attempt,
                    'error', e.error,
                    'worker', e.worker,
                    'started_at', e.claimed_at,
                    'failed_at', e.failed_at
                )
                ORDER BY e.attempt
            )
        FROM pulse_internal.failure AS e
        WHERE e.job = f.job
    ) AS errors,
    f.worker,
    f.finished_at,
    b.enqueued_at,
    (
        SELECT n.name
        FROM pulse_internal.role_names AS n
        WHERE n.role = b.owner
    ) AS enqueued_by,
    b.unique_key,
    b.group_key,
    b.tags
FROM pulse_internal.known_lanes AS k
INNER JOIN pulse_internal.finished AS f ON f.lane = k.lane AND f.state = 'dead'
INNER JOIN pulse_internal.body AS b ON b.job = f.job
WHERE
    (SELECT m.sees_all FROM pulse_internal.me AS m)
    OR b.owner = ANY ((SELECT m.roles FROM pulse_internal.me AS m)::integer []);

COMMENT ON VIEW pulse.dead IS
'Jobs that failed for good, with the error of every run. pulse.retry(job_id) puts one back in line. Producers see their own jobs.';

COMMENT ON COLUMN pulse.dead.job_id IS
'The job.';

COMMENT ON COLUMN pulse.dead.lane IS
'Its lane.';

COMMENT ON COLUMN pulse.dead.kind IS
'What code ran it.';

COMMENT ON COLUMN pulse.dead.priority IS
'Higher runs first.';

COMMENT ON COLUMN pulse.dead.payload IS
'What was handed to enqueue.';

COMMENT ON COLUMN pulse.dead.attempts IS
'How many runs have begun.';

COMMENT ON COLUMN pulse.dead.failures IS
'How many of them failed since it was enqueued or retried.';

COMMENT ON COLUMN pulse.dead.max_attempts IS
'How many failures it was allowed.';

COMMENT ON COLUMN pulse.dead.last_error IS
'Why the last run ended.';

COMMENT ON COLUMN pulse.dead.errors IS
'A JSON list, oldest first, of every run that failed: attempt, error, worker, started_at, failed_at.';

COMMENT ON COLUMN pulse.dead.worker IS
'Who ran it last.';

COMMENT ON COLUMN pulse.dead.finished_at IS
'When it was given up.';

COMMENT ON COLUMN pulse.dead.enqueued_at IS
'When it was enqueued.';

COMMENT ON COLUMN pulse.dead.enqueued_by IS
'The role that enqueued it.';

COMMENT ON COLUMN pulse.dead.unique_key IS
'At most one waiting or running job of its lane has this key.';

COMMENT ON COLUMN pulse.dead.group_key IS
'The group of the lane that it belongs to, and a label for filters.';

COMMENT ON COLUMN pulse.dead.tags IS
'Labels for filters.';

-- How many dead letters there are, the same figure for health, counts and gauges: counted,
-- so that it is seen to grow, to 100,000 in all and to a thousand in each lane, off an
-- index alone; beyond that estimated. Lanes come last name first, as finished_lanes has them.

CREATE FUNCTION pulse_internal.dead_counts(most bigint DEFAULT 100000)
RETURNS TABLE (lane text, jobs bigint, estimated boolean)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_left bigint := dead_counts.most;
    v_most bigint;
    v_estimate jsonb;
BEGIN
    FOR lane IN SELECT p.lane FROM pulse_internal.finished_lanes() AS p WHERE p.state = 'dead' LOOP
        v_most := greatest(v_left, 1000);
        SELECT count(*) INTO jobs
        FROM (
            SELECT
            FROM pulse_internal.finished AS f
            WHERE f.lane = dead_counts.lane
                AND f.state = 'dead'
            ORDER BY f.finished_at DESC
            LIMIT v_most + 1
        ) AS capped;
        v_left := v_left - jobs;

        estimated := jobs > v_most;
        IF estimated THEN
            v_estimate := coalesce(
                v_estimate,
                (SELECT jsonb_object_agg(e.lane, e.jobs) FROM pulse_internal.dead_estimate AS e),
                '{}'
            );
            jobs := greatest(jobs, (v_estimate ->> lane)::bigint);
        END IF;
        RETURN NEXT;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.dead_counts(bigint) IS
'How many dead letters each lane has, counted up to 1,000 in each lane and so many in all; estimated says that they are more.';

-- Of some 1000 pages, as inspect/lane_estimates.sql has it for jobs that wait.
CREATE VIEW pulse_internal.dead_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            100000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse_internal.finished'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT f.lane
        FROM pulse_internal.finished AS f TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
        WHERE f.state = 'dead'
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse_internal.dead_estimate IS
'About how many dead letters each lane has, from a sample of the table.';

COMMENT ON COLUMN pulse_internal.dead_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse_internal.dead_estimate.jobs IS
'About how many.';

-- Dead letters by the time of their death, and by what they died of. A call reads at most
-- the last 5000, however many there are; what a filter means is left to find_jobs.

CREATE FUNCTION pulse.find_dead(
    filter jsonb DEFAULT '{}',
    before timestamptz DEFAULT NULL,
    before_job bigint DEFAULT NULL,
    max_jobs integer DEFAULT 50
)
RETURNS TABLE (job_id bigint, finished_at timestamptz, searched_to bigint)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pulse_internal.require_range(
        'find_dead', 'max_jobs', coalesce(find_dead.max_jobs, 0)
    );
    RETURN QUERY
    SELECT d.job_id, d.finished_at, d.searched_to
    FROM pulse_internal.find_dead(
        find_dead.filter, coalesce(find_dead.before, 'infinity'),
        coalesce(find_dead.before_job, 9223372036854775807), find_dead.max_jobs
    ) AS d;
END;
$$;

COMMENT ON FUNCTION pulse.find_dead(jsonb, timestamptz, bigint, integer) IS
'The ids of dead jobs that match a filter, the last to die first, at most max_jobs (1000): the next page is before => the last finished_at, before_job => the last id. The filter is that of find_jobs. A call reads 5000 dead jobs at most: if that ends it before the page is full, a last row has no job_id; go on with its finished_at and searched_to. PU002 bad max_jobs; PU006 bad filter. Writes nothing.';

CREATE FUNCTION pulse.dead_groups(filter jsonb DEFAULT '{}', max_groups integer DEFAULT 20)
RETURNS TABLE (
    kind text,
    error text,
    error_like text,
    jobs bigint,
    lanes text [],
    first_at timestamptz,
    last_at timestamptz,
    last_job bigint
)
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    PERFORM pulse_internal.require_range(
        'dead_groups', 'max_groups', coalesce(dead_groups.max_groups, 0)
    );
    RETURN QUERY
    SELECT
        g.kind,
        (array_agg(g.gist ORDER BY g.finished_at DESC, g.job DESC)) [1],
        g.pattern,
        count(*),
        (array_agg(DISTINCT g.lane)) [1:10],
        min(g.finished_at),
        max(g.finished_at),
        (array_agg(g.job ORDER BY g.finished_at DESC, g.job DESC)) [1]
    FROM (
        SELECT
            f.job,
            f.lane,
            f.kind,
            f.finished_at,
            e.gist,
            -- Numbers and ids differ from job to job and say nothing else; nor does case.
            '%' || regexp_replace(
                regexp_replace(lower(e.gist), '([\\%_])', '\\\1', 'g'),
                '[0-9a-f]*[0-9][0-9a-f]*', '%', 'g'
            ) || '%' AS pattern
        FROM pulse_internal.find_dead(
            dead_groups.filter, 'infinity', 9223372036854775807, 5000
        ) AS d
        CROSS JOIN LATERAL (
            SELECT x.job, x.lane, x.kind, x.finished_at, x.error
            FROM pulse_internal.finished AS x
            WHERE x.job = d.job_id
        ) AS f
        CROSS JOIN LATERAL (
            SELECT pulse_internal.gist(f.error) AS gist
        ) AS e
    ) AS g
    GROUP BY g.kind, g.pattern
    ORDER BY count(*) DESC, max(g.finished_at) DESC
    LIMIT dead_groups.max_groups;
END;
$$;

COMMENT ON FUNCTION pulse.dead_groups(jsonb, integer) IS
'The last 5000 dead jobs, those that match a filter, grouped by kind and by their error without its numbers, the largest group first, at most max_groups (1000): the newest error in one line, a pattern that the errors of the group are like (error_like of a filter), how many, in which lanes (ten at most), when the first and the last died, and the last of them. PU002 bad max_groups; PU006 bad filter. Writes nothing.';

-- A thousand at a time, the newest first.
CREATE FUNCTION pulse_internal.find_dead(
    filter jsonb, before timestamptz, before_job bigint, max_jobs integer
)
RETURNS TABLE (job_id bigint, finished_at timestamptz, searched_to bigint)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    v_filter pulse_internal.job_filter := pulse_internal.parse_filter('find', find_dead.filter);
    v_all boolean := find_dead.filter <@ '{"state": "dead"}';
    v_chunk integer := CASE WHEN v_all THEN least(max_jobs, 1000) ELSE 1000 END;
    v_before timestamptz := find_dead.before;
    v_before_job bigint := find_dead.before_job;
    v_jobs bigint [];
    v_times timestamptz [];
    v_found integer := 0;
BEGIN
    IF 'dead' <> ALL (v_filter.states) THEN
        RETURN;
    END IF;

    FOR v_round IN 1..5 LOOP
        SELECT array_agg(c.job), array_agg(c.finished_at)
        INTO v_jobs, v_times
        FROM (
            SELECT f.job, f.finished_at
            FROM pulse_internal.finished AS f
            WHERE f.state = 'dead'
                AND f.failures >= 0
                AND (f.finished_at, f.job) < (v_before, v_before_job)
            ORDER BY f.finished_at DESC, f.job DESC
            LIMIT v_chunk
        ) AS c;
        EXIT WHEN v_jobs IS NULL;

        v_before_job := v_jobs[cardinality(v_jobs)];
        v_before := v_times[cardinality(v_times)];
        FOR job_id, finished_at IN
            SELECT u.job, u.died_at
            FROM unnest(v_jobs, v_times) WITH ORDINALITY AS u (job, died_at, place)
            WHERE v_all
                OR u.job IN (
                    SELECT a.job_id
                    FROM pulse_internal.find_all(
                        find_dead.filter || jsonb_build_object(
                            'state', 'dead',
                            'job_ids',
                            ARRAY(
                                SELECT j.job
                                FROM unnest(v_jobs) AS j (job)
                                WHERE v_filter.jobs IS NULL OR j.job = ANY (v_filter.jobs)
                            )
                        ),
                        NULL, 1000
                    ) AS a
                )
            ORDER BY u.place
            LIMIT find_dead.max_jobs - v_found
        LOOP
            v_found := v_found + 1;
            RETURN NEXT;
        END LOOP;

        EXIT WHEN v_found >= find_dead.max_jobs OR cardinality(v_jobs) < v_chunk;
        IF v_round = 5 THEN
            job_id := NULL;
            finished_at := v_before;
            searched_to := v_before_job;
            RETURN NEXT;
        END IF;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse_internal.find_dead(jsonb, timestamptz, bigint, integer) IS
'Dead jobs that match a filter and died before another, at most max_jobs, the last to die first; a row without a job when it stopped looking.';

CREATE FUNCTION pulse_internal.gist(error text)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        left(
            CASE
                WHEN starts_with(gist.error, 'Traceback')
                    THEN substring(right(rtrim(gist.error, E' \n\r'), 2000) FROM '[^\n]*$')
                ELSE split_part(left(gist.error, 2000), E'\n', 1)
            END,
            200
        )
$$;

COMMENT ON FUNCTION pulse_internal.gist(text) IS
'The line of an error that says what happened: the last one of a Python traceback, else the first.';
