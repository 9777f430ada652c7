-- What people see of flows.

CREATE VIEW pulse.dependencies
WITH (security_barrier)
AS
SELECT
    d.job AS job_id,
    d.after AS after_job_id
FROM pulse_internal.dependency AS d
CROSS JOIN
    LATERAL (
        SELECT b.owner
        FROM pulse_internal.body AS b
        WHERE b.job = d.job
        OFFSET 0
    ) AS b
WHERE
    (SELECT m.sees_all FROM pulse_internal.me AS m)
    OR b.owner = ANY ((SELECT m.roles FROM pulse_internal.me AS m)::integer []);

COMMENT ON VIEW pulse.dependencies IS
'Which job waits, or waited, for which: of all jobs, for producers of their own.';

COMMENT ON COLUMN pulse.dependencies.job_id IS
'The job that waits.';

COMMENT ON COLUMN pulse.dependencies.after_job_id IS
'The job that has to end first.';

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
    last_at timestamptz,
    first_job bigint
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
        FROM pulse_internal.flow_jobs AS j
        WHERE j.flow = flow.flow
        GROUP BY j.name
    ),

    edge AS (
        SELECT e.name, array_agg(DISTINCT e.after ORDER BY e.after) AS after
        FROM pulse_internal.flow_edges AS e
        WHERE e.flow = flow.flow
        GROUP BY e.name
    )

    SELECT
        c.name::text, c.kind::text, c.jobs, c.blocked, c.awaiting_approval, c.scheduled,
        c.ready, c.running, c.retrying, c.completed, c.dead, c.cancelled,
        coalesce(e.after, '{}')::text [], c.first_at, c.last_at, c.first_job
    FROM counted AS c
    LEFT JOIN edge AS e ON e.name = c.name
    ORDER BY c.first_job;
END;
$$;

COMMENT ON FUNCTION pulse.flow(text) IS
'A flow, a row for each name (or kind, where jobs have no name): how many of its jobs are in which state, the names it waits for, when the first was enqueued and the last one ended, and the id of the first. Shows what pulse.jobs shows; no row when there is none. Writes nothing.';

CREATE VIEW pulse_internal.flow_jobs
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
FROM pulse_internal.body AS b
CROSS JOIN
    LATERAL (
        SELECT o.state, o.finished_at
        FROM pulse_internal.place AS o
        WHERE o.job = b.job
        OFFSET 0
    ) AS p
WHERE
    b.flow IS NOT NULL
    AND (
        (SELECT m.sees_all FROM pulse_internal.me AS m)
        OR b.owner = ANY ((SELECT m.roles FROM pulse_internal.me AS m)::integer [])
    );

COMMENT ON VIEW pulse_internal.flow_jobs IS
'The jobs of flows that the reader may see.';

CREATE VIEW pulse_internal.flow_edges
WITH (security_barrier)
AS
SELECT
    b.flow,
    coalesce(b.name, b.kind) AS name,
    u.name AS after
FROM pulse_internal.body AS b
CROSS JOIN
    LATERAL (
        SELECT o.after
        FROM pulse_internal.dependency AS o
        WHERE o.job = b.job
        OFFSET 0
    ) AS d
CROSS JOIN
    LATERAL (
        SELECT coalesce(o.name, o.kind) AS name
        FROM pulse_internal.body AS o
        WHERE o.job = d.after
            AND o.flow = b.flow
        OFFSET 0
    ) AS u
WHERE
    b.flow IS NOT NULL
    AND (
        (SELECT m.sees_all FROM pulse_internal.me AS m)
        OR b.owner = ANY ((SELECT m.roles FROM pulse_internal.me AS m)::integer [])
    );

COMMENT ON VIEW pulse_internal.flow_edges IS
'Which name of a flow waits for which, a row for each dependency that the reader may see.';
