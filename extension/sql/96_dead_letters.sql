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
    PERFORM pulse._require_between('max_jobs', coalesce(find_dead.max_jobs, 0), 1, 1000);
    RETURN QUERY
    SELECT d.job_id, d.finished_at, d.searched_to
    FROM pulse._find_dead(
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
    PERFORM pulse._require_between('max_groups', coalesce(dead_groups.max_groups, 0), 1, 1000);
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
        FROM pulse._find_dead(
            dead_groups.filter, 'infinity', 9223372036854775807, 5000
        ) AS d
        CROSS JOIN LATERAL (
            SELECT x.job, x.lane, x.kind, x.finished_at, x.error
            FROM pulse.finished AS x
            WHERE x.job = d.job_id
        ) AS f
        CROSS JOIN LATERAL (
            SELECT pulse._gist(f.error) AS gist
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
CREATE FUNCTION pulse._find_dead(
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
    v_filter pulse._job_filter := pulse._parse_filter('find', _find_dead.filter);
    v_all boolean := _find_dead.filter <@ '{"state": "dead"}';
    v_chunk integer := CASE WHEN v_all THEN least(max_jobs, 1000) ELSE 1000 END;
    v_before timestamptz := _find_dead.before;
    v_before_job bigint := _find_dead.before_job;
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
            FROM pulse.finished AS f
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
                    FROM pulse._find_all(
                        _find_dead.filter || jsonb_build_object(
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
            LIMIT _find_dead.max_jobs - v_found
        LOOP
            v_found := v_found + 1;
            RETURN NEXT;
        END LOOP;

        EXIT WHEN v_found >= _find_dead.max_jobs OR cardinality(v_jobs) < v_chunk;
        IF v_round = 5 THEN
            job_id := NULL;
            finished_at := v_before;
            searched_to := v_before_job;
            RETURN NEXT;
        END IF;
    END LOOP;
END;
$$;

COMMENT ON FUNCTION pulse._find_dead(jsonb, timestamptz, bigint, integer) IS
'Dead jobs that match a filter and died before another, at most max_jobs, the last to die first; a row without a job when it stopped looking.';

CREATE FUNCTION pulse._gist(error text)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        left(
            CASE
                WHEN starts_with(_gist.error, 'Traceback')
                    THEN substring(right(rtrim(_gist.error, E' \n\r'), 2000) FROM '[^\n]*$')
                ELSE split_part(left(_gist.error, 2000), E'\n', 1)
            END,
            200
        )
$$;

COMMENT ON FUNCTION pulse._gist(text) IS
'The line of an error that says what happened: the last one of a Python traceback, else the first.';
