-- What people see of flows, and what must hold of them.

CREATE VIEW pulse.dependencies
WITH (security_barrier)
AS
SELECT
    d.job AS job_id,
    d.after AS after_job_id
FROM pulse.dependency AS d
CROSS JOIN
    LATERAL (
        SELECT b.owner
        FROM pulse.body AS b
        WHERE b.job = d.job
        OFFSET 0
    ) AS b
WHERE
    (SELECT m.sees_all FROM pulse._me AS m)
    OR b.owner = ANY ((SELECT m.roles FROM pulse._me AS m)::integer []);

COMMENT ON VIEW pulse.dependencies IS
'Which job waits, or waited, for which: of all jobs, for producers of their own.';

COMMENT ON COLUMN pulse.dependencies.job_id IS
'The job that waits.';

COMMENT ON COLUMN pulse.dependencies.after_job_id IS
'The job that has to end first.';

-- In one snapshot with the rest of check(). What is being told right now is no problem: a
-- note, or a doubt about the upstream, says that somebody will look.
CREATE FUNCTION pulse._check_flows()
RETURNS TABLE (problem text, job_id bigint, detail text)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        'blocked job does not depend on what it waits for', b.job,
        format('It waits for %s.', b.waits_for)
    FROM pulse.blocked AS b
    WHERE NOT EXISTS (
        SELECT
        FROM pulse.dependency AS d
        WHERE d.job = b.job AND d.after = b.waits_for
    )
    UNION ALL
    SELECT
        'blocked job waits for one that has ended', b.job,
        format('Job %s is %s, and there is no note of it.', b.waits_for, f.state)
    FROM pulse.blocked AS b
    INNER JOIN pulse.finished AS f ON f.job = b.waits_for
    WHERE (f.state = 'completed' OR b.after_failed = 'run')
        AND NOT EXISTS (SELECT FROM pulse.doubt AS n WHERE n.job = b.waits_for)
        AND NOT EXISTS (
            SELECT
            FROM pulse.wake AS w
            WHERE w.job = b.waits_for AND b.seq BETWEEN w.from_seq AND w.to_seq
        )
    UNION ALL
    SELECT
        'blocked job depends on one that is gone', b.job, format('Job %s.', d.after)
    FROM pulse.blocked AS b
    INNER JOIN pulse.dependency AS d ON d.job = b.job
    WHERE NOT d.met
        AND NOT EXISTS (SELECT FROM pulse.body AS u WHERE u.job = d.after)
        AND NOT EXISTS (SELECT FROM pulse.doubt AS n WHERE n.job = d.after)
    UNION ALL
    SELECT
        'note is below its mark', n.job, format('Number %s, mark %s.', n.seq, n.mark)
    FROM (
        SELECT d.job, d.seq, (pulse._newest_note_mark()).doubt_from AS mark
        FROM pulse.doubt AS d
        UNION ALL
        SELECT w.job, w.seq, (pulse._newest_note_mark()).wake_from
        FROM pulse.wake AS w
    ) AS n
    WHERE n.seq < n.mark
$$;

COMMENT ON FUNCTION pulse._check_flows() IS
'What does not hold of jobs that wait for jobs: none, if pulse is right.';

CREATE VIEW pulse._flow_jobs
WITH (security_barrier)
AS
SELECT
    b.flow,
    b.job,
    coalesce(b.name, b.kind) AS name,
    b.kind,
    p.state,
    b.enqueued_at,
    p.finished_at
FROM pulse.body AS b
CROSS JOIN
    LATERAL (
        SELECT o.state, o.finished_at
        FROM pulse._place AS o
        WHERE o.job = b.job
        OFFSET 0
    ) AS p
WHERE
    b.flow IS NOT NULL
    AND (
        (SELECT m.sees_all FROM pulse._me AS m)
        OR b.owner = ANY ((SELECT m.roles FROM pulse._me AS m)::integer [])
    );

COMMENT ON VIEW pulse._flow_jobs IS
'The jobs of flows that the reader may see.';

CREATE VIEW pulse._flow_edges
WITH (security_barrier)
AS
SELECT
    b.flow,
    coalesce(b.name, b.kind) AS name,
    u.name AS after
FROM pulse.body AS b
CROSS JOIN
    LATERAL (
        SELECT o.after
        FROM pulse.dependency AS o
        WHERE o.job = b.job
        OFFSET 0
    ) AS d
CROSS JOIN
    LATERAL (
        SELECT coalesce(o.name, o.kind) AS name
        FROM pulse.body AS o
        WHERE o.job = d.after
            AND o.flow = b.flow
        OFFSET 0
    ) AS u
WHERE
    b.flow IS NOT NULL
    AND (
        (SELECT m.sees_all FROM pulse._me AS m)
        OR b.owner = ANY ((SELECT m.roles FROM pulse._me AS m)::integer [])
    );

COMMENT ON VIEW pulse._flow_edges IS
'Which name of a flow waits for which, a row for each dependency that the reader may see.';

CREATE FUNCTION pulse.flow(flow text)
RETURNS TABLE (
    name text,
    kind text,
    jobs bigint,
    blocked bigint,
    awaiting_approval bigint,
    scheduled bigint,
    ready bigint,
    running bigint,
    retrying bigint,
    completed bigint,
    dead bigint,
    cancelled bigint,
    after text [],
    first_at timestamptz,
    last_at timestamptz
)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    WITH counted AS (
        SELECT
            j.name,
            min(j.kind) AS kind,
            min(j.job) AS first_job,
            count(*) AS jobs,
            count(*) FILTER (WHERE j.state = 'blocked') AS blocked,
            count(*) FILTER (WHERE j.state = 'awaiting_approval') AS awaiting_approval,
            count(*) FILTER (WHERE j.state = 'scheduled') AS scheduled,
            count(*) FILTER (WHERE j.state = 'ready') AS ready,
            count(*) FILTER (WHERE j.state = 'running') AS running,
            count(*) FILTER (WHERE j.state = 'retrying') AS retrying,
            count(*) FILTER (WHERE j.state = 'completed') AS completed,
            count(*) FILTER (WHERE j.state = 'dead') AS dead,
            count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled,
            min(j.enqueued_at) AS first_at,
            max(j.finished_at) AS last_at
        FROM pulse._flow_jobs AS j
        WHERE j.flow = flow.flow
        GROUP BY j.name
    ),

    edge AS (
        SELECT e.name, array_agg(DISTINCT e.after ORDER BY e.after) AS after
        FROM pulse._flow_edges AS e
        WHERE e.flow = flow.flow
        GROUP BY e.name
    )

    SELECT
        c.name::text, c.kind::text, c.jobs, c.blocked, c.awaiting_approval, c.scheduled,
        c.ready, c.running, c.retrying, c.completed, c.dead, c.cancelled,
        coalesce(e.after, '{}')::text [], c.first_at, c.last_at
    FROM counted AS c
    LEFT JOIN edge AS e ON e.name = c.name
    ORDER BY c.first_job;
END;
$$;

COMMENT ON FUNCTION pulse.flow(text) IS
'A flow, a row for each name (or kind, where jobs have no name): how many of its jobs are in which state, the names it waits for, when the first was enqueued and the last one ended. Shows what pulse.jobs shows; no row when there is none. Writes nothing.';
