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
-- note, or a doubt about the upstream, says that it will be looked at.
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
    WHERE b.waits_for > 0
        AND NOT EXISTS (
            SELECT
            FROM pulse.dependency AS d
            WHERE d.job = b.job AND d.after = b.waits_for
        )
    UNION ALL
    SELECT
        'job is parked and its flow is not paused', b.job,
        format('By pause %s, and there is no note of it.', -b.waits_for)
    FROM pulse.blocked AS b
    WHERE b.waits_for < 0
        AND NOT EXISTS (SELECT FROM pulse.flow_hold AS h WHERE h.number = -b.waits_for)
        AND NOT EXISTS (
            SELECT
            FROM pulse.wake AS w
            WHERE w.job = b.waits_for AND b.seq BETWEEN w.from_seq AND w.to_seq
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
        coalesce(e.after, '{}')::text [], c.first_at, c.last_at, c.first_job
    FROM counted AS c
    LEFT JOIN edge AS e ON e.name = c.name
    ORDER BY c.first_job;
END;
$$;

COMMENT ON FUNCTION pulse.flow(text) IS
'A flow, a row for each name (or kind, where jobs have no name): how many of its jobs are in which state, the names it waits for, when the first was enqueued and the last one ended, and the id of the first. Shows what pulse.jobs shows; no row when there is none. Writes nothing.';

CREATE FUNCTION pulse._health_flows()
RETURNS TABLE (check_name text, status text, figure text, advice text)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_held bigint;
    v_by bigint;
BEGIN
    SELECT count(*), min(h.waits_for) INTO v_held, v_by
    FROM (
        SELECT b.waits_for
        FROM pulse.blocked AS b
        WHERE (
            SELECT f.state <> 'completed'
            FROM pulse.finished AS f
            WHERE f.job = b.waits_for
        )
        LIMIT 1001
    ) AS h;

    RETURN QUERY
    SELECT
        'held_jobs',
        CASE WHEN v_held = 0 THEN 'ok' ELSE 'warn' END,
        CASE
            WHEN v_held = 0 THEN 'none waits for a job that has failed'
            WHEN v_held > 1000 THEN format('more than 1000 wait for jobs that have failed, such as %s', v_by)
            ELSE format('%s wait for jobs that have failed, such as %s', v_held, v_by)
        END,
        format('Fix the cause and retry it (SELECT pulse.retry(%s)), or cancel the jobs that wait: SELECT * FROM pulse.why(…) names them.', coalesce(v_by::text, '…'));

    RETURN QUERY
    SELECT
        'paused_flows',
        CASE WHEN h.since < clock_timestamp() - interval '1 day' THEN 'warn' ELSE 'ok' END,
        CASE
            WHEN h.flows = 0 THEN 'none'
            ELSE format(
                '%s, the longest since %s: %s', h.flows,
                pulse._duration(clock_timestamp() - h.since), h.flow
            )
        END,
        'Jobs of these flows are not claimed; see SELECT * FROM pulse.pause_status() and take back what is over: SELECT pulse.resume(holder, flow => …).'
    FROM (
        SELECT
            count(DISTINCT o.flow) AS flows,
            min(o.held_at) AS since,
            (array_agg(o.flow ORDER BY o.held_at))[1] AS flow
        FROM pulse.flow_hold AS o
    ) AS h;

    RETURN QUERY
    SELECT
        'flow_notes',
        CASE WHEN n.since < clock_timestamp() - interval '1 minute' THEN 'warn' ELSE 'ok' END,
        coalesce(
            'the oldest is of ' || pulse._duration(clock_timestamp() - n.since) || ' ago', 'all are settled'
        ),
        'Ends of jobs that nobody has looked at yet: a transaction stays open that enqueued or ended jobs of flows, or no tick runs; see last_tick and tick_budget.'
    FROM (
        SELECT least(
            (SELECT d.noted_at FROM pulse.doubt AS d ORDER BY d.seq LIMIT 1),
            (SELECT w.noted_at FROM pulse.wake AS w ORDER BY w.seq LIMIT 1)
        ) AS since
    ) AS n;

    RETURN QUERY
    SELECT
        'unreleased_jobs',
        CASE WHEN coalesce(n.found, 0) = 0 THEN 'ok' ELSE 'fail' END,
        coalesce(
            n.found || ' found by the sweep ' || pulse._duration(clock_timestamp() - n.taken_at) || ' ago',
            'not swept yet'
        ),
        'Jobs waited for others that had ended; they were released. This is a bug in pulse: please report it with SELECT * FROM pulse.check().'
    FROM (VALUES (true)) AS one (row)
    LEFT JOIN LATERAL (
        SELECT u.taken_at, (u.state ->> 'unreleased')::bigint AS found
        FROM pulse.upkeep_run AS u
        WHERE u.step = 'backstop'
        ORDER BY u.version DESC
        LIMIT 1
    ) AS n ON true;
END;
$$;

COMMENT ON FUNCTION pulse._health_flows() IS
'Checks of jobs that wait for jobs.';
