-- What people see. The views belong to the installer, so they read tables that nobody
-- else may read; current_user inside them is the reader (access/caller.sql).
-- A barrier keeps a reader's own functions from looking at rows before the filter.

-- A page of jobs by id reads as many rows as it shows: every place has an index on
-- job, the six are merged in its order, and OFFSET 0 keeps the look into body a look
-- by key for each row (a join by merging would start at the first body). The order
-- is part of the view since nothing outside a barrier reaches into it. The second
-- condition tells the planner which states each place can hold, so that
-- state = 'ready' does not read finished; place is a literal in each branch.
CREATE VIEW pulse.jobs
WITH (security_barrier)
AS
SELECT
    p.job AS job_id,
    p.state,
    p.lane,
    p.kind,
    -p.rank AS priority,
    b.payload,
    p.attempts,
    p.failures,
    b.max_attempts,
    p.run_at,
    b.enqueued_at,
    (
        SELECT n.name
        FROM pulse_internal.role_names AS n
        WHERE n.role = b.owner
    ) AS enqueued_by,
    p.ready_at,
    CASE
        WHEN p.state IN ('awaiting_approval', 'ready') OR p.run_at <= clock_timestamp()
            THEN clock_timestamp() - coalesce(p.ready_at, p.asked_at, p.run_at)
    END AS waiting_for,
    p.approval_until,
    p.worker,
    p.started_at,
    p.lease_until,
    p.deadline,
    p.cancel_by,
    (
        SELECT g.fraction
        FROM pulse_internal.job_progress AS g
        WHERE g.job = p.job
    ) AS progress,
    (
        SELECT g.note
        FROM pulse_internal.job_progress AS g
        WHERE g.job = p.job
    ) AS progress_note,
    coalesce(
        p.error,
        (
            SELECT f.error
            FROM pulse_internal.failure AS f
            WHERE f.job = p.job
            ORDER BY f.attempt DESC
            LIMIT 1
        )
    ) AS last_error,
    (
        SELECT
            jsonb_agg(
                jsonb_build_object(
                    'attempt', f.attempt,
                    'error', f.error,
                    'worker', f.worker,
                    'started_at', f.claimed_at,
                    'failed_at', f.failed_at
                )
                ORDER BY f.attempt
            )
        FROM pulse_internal.failure AS f
        WHERE f.job = p.job
    ) AS errors,
    p.result,
    p.finished_at,
    p.ended_by,
    b.max_runtime,
    b.unique_key,
    b.group_key,
    b.tags,
    b.headers,
    b.start_by,
    b.rerun_of,
    b.flow,
    b.name,
    b.after_failed,
    p.waits_for
FROM pulse_internal.place AS p
CROSS JOIN
    LATERAL (
        SELECT b.*
        FROM pulse_internal.body AS b
        WHERE b.job = p.job
        OFFSET 0
    ) AS b
WHERE (
    (SELECT m.sees_all FROM pulse_internal.me AS m)
    OR b.owner = ANY ((SELECT m.roles FROM pulse_internal.me AS m)::integer [])
    OR p.state = 'awaiting_approval' AND (SELECT m.approves FROM pulse_internal.me AS m)
)
AND (p.place <> 'waiting' OR p.state IN ('scheduled', 'retrying'))
AND (p.place <> 'finished' OR p.state IN ('completed', 'dead', 'cancelled'))
ORDER BY p.job;

COMMENT ON VIEW pulse.jobs IS
'Every job you may see, one row each, in the order of job_id. Page with WHERE job_id > the last one ORDER BY job_id LIMIT n. Viewers and operators see all jobs, producers their own, approvers also those that await approval.';

COMMENT ON COLUMN pulse.jobs.job_id IS
'The id that enqueue returned. As a string in every JSON.';

COMMENT ON COLUMN pulse.jobs.state IS
'blocked, awaiting_approval, scheduled, ready, running, retrying, completed, dead or cancelled.';

COMMENT ON COLUMN pulse.jobs.lane IS
'The lane it is in.';

COMMENT ON COLUMN pulse.jobs.kind IS
'What code runs it.';

COMMENT ON COLUMN pulse.jobs.priority IS
'Higher runs first.';

COMMENT ON COLUMN pulse.jobs.payload IS
'What was handed to enqueue.';

COMMENT ON COLUMN pulse.jobs.attempts IS
'How many runs have begun, the one now running included.';

COMMENT ON COLUMN pulse.jobs.failures IS
'How many runs failed since it was enqueued or retried by an operator.';

COMMENT ON COLUMN pulse.jobs.max_attempts IS
'It is dead when failures reach this.';

COMMENT ON COLUMN pulse.jobs.run_at IS
'When it is due; NULL once it is in line.';

COMMENT ON COLUMN pulse.jobs.enqueued_at IS
'When it was enqueued.';

COMMENT ON COLUMN pulse.jobs.enqueued_by IS
'The role that enqueued it.';

COMMENT ON COLUMN pulse.jobs.ready_at IS
'When a ready job joined the line.';

COMMENT ON COLUMN pulse.jobs.waiting_for IS
'How long it has been waiting for a worker, or for approval; NULL when it waits for neither.';

COMMENT ON COLUMN pulse.jobs.approval_until IS
'When a job is cancelled that was not approved by then.';

COMMENT ON COLUMN pulse.jobs.worker IS
'Who runs it, or ran it last.';

COMMENT ON COLUMN pulse.jobs.started_at IS
'When the run now running, or the last one, was claimed.';

COMMENT ON COLUMN pulse.jobs.lease_until IS
'Until when the worker of a running job may go without a heartbeat.';

COMMENT ON COLUMN pulse.jobs.deadline IS
'When max_runtime ends the run, heartbeats or not.';

COMMENT ON COLUMN pulse.jobs.cancel_by IS
'When the run is ended by force, after a cancel was requested.';

COMMENT ON COLUMN pulse.jobs.progress IS
'How far the job said it has come, from 0 to 1.';

COMMENT ON COLUMN pulse.jobs.progress_note IS
'What it said with that.';

COMMENT ON COLUMN pulse.jobs.last_error IS
'Why the last run that failed did, or why the job was cancelled.';

COMMENT ON COLUMN pulse.jobs.errors IS
'A JSON list, oldest first, of every run that failed: attempt, error, worker, started_at, failed_at. Read only when selected.';

COMMENT ON COLUMN pulse.jobs.result IS
'What complete stored.';

COMMENT ON COLUMN pulse.jobs.finished_at IS
'When it was completed, dead or cancelled.';

COMMENT ON COLUMN pulse.jobs.ended_by IS
'The verb that finished it.';

COMMENT ON COLUMN pulse.jobs.max_runtime IS
'The longest a run may take, where enqueue said so.';

COMMENT ON COLUMN pulse.jobs.unique_key IS
'At most one waiting or running job of its lane has this key.';

COMMENT ON COLUMN pulse.jobs.group_key IS
'The group of the lane that it belongs to, and a label for filters.';

COMMENT ON COLUMN pulse.jobs.tags IS
'Labels for filters.';

COMMENT ON COLUMN pulse.jobs.headers IS
'What was handed to the worker beside the payload.';

COMMENT ON COLUMN pulse.jobs.start_by IS
'It is cancelled unless it has begun by then.';

COMMENT ON COLUMN pulse.jobs.rerun_of IS
'The job that this one repeats: see rerun.';

COMMENT ON COLUMN pulse.jobs.flow IS
'The label of all jobs that belong together.';

COMMENT ON COLUMN pulse.jobs.name IS
'What it is called among them.';

COMMENT ON COLUMN pulse.jobs.after_failed IS
'What happens when a job that it depends on is dead or cancelled: cancel, hold or run; NULL when it depends on none.';

COMMENT ON COLUMN pulse.jobs.waits_for IS
'One of the jobs that a blocked one waits for; pulse.dependencies has all.';
