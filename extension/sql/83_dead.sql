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
        FROM pulse.failure AS e
        WHERE e.job = f.job
    ) AS errors,
    f.worker,
    f.finished_at,
    b.enqueued_at,
    (
        SELECT n.name
        FROM pulse._role_names AS n
        WHERE n.role = b.owner
    ) AS enqueued_by,
    b.unique_key,
    b.group_key,
    b.tags
FROM pulse._known_lanes AS k
INNER JOIN pulse.finished AS f ON f.lane = k.lane AND f.state = 'dead'
INNER JOIN pulse.body AS b ON b.job = f.job
WHERE
    (SELECT m.sees_all FROM pulse._me AS m)
    OR b.owner = ANY ((SELECT m.roles FROM pulse._me AS m)::integer []);

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
