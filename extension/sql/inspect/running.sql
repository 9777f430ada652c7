-- What runs.

CREATE VIEW pulse.running
WITH (security_barrier)
AS
SELECT
    l.job AS job_id,
    l.lane,
    l.kind,
    -l.rank AS priority,
    l.worker,
    l.attempt,
    l.failures,
    l.claimed_at AS started_at,
    clock_timestamp() - l.claimed_at AS running_for,
    l.lease_until,
    l.deadline,
    l.cancel_by,
    l.cancel_reason,
    (
        SELECT g.fraction
        FROM pulse_internal.job_progress AS g
        WHERE g.job = l.job
    ) AS progress,
    (
        SELECT g.note
        FROM pulse_internal.job_progress AS g
        WHERE g.job = l.job
    ) AS progress_note,
    b.payload,
    (
        SELECT n.name
        FROM pulse_internal.role_names AS n
        WHERE n.role = b.owner
    ) AS enqueued_by
FROM pulse_internal.lease AS l
INNER JOIN pulse_internal.body AS b ON b.job = l.job
WHERE
    (SELECT m.sees_all FROM pulse_internal.me AS m)
    OR b.owner = ANY ((SELECT m.roles FROM pulse_internal.me AS m)::integer []);

COMMENT ON VIEW pulse.running IS
'Every running job: which worker runs it, since when, until when its lease holds, and whether it was asked to stop. Producers see their own jobs.';

COMMENT ON COLUMN pulse.running.job_id IS
'The job.';

COMMENT ON COLUMN pulse.running.lane IS
'Its lane.';

COMMENT ON COLUMN pulse.running.kind IS
'What code runs it.';

COMMENT ON COLUMN pulse.running.priority IS
'Higher runs first.';

COMMENT ON COLUMN pulse.running.worker IS
'Who runs it.';

COMMENT ON COLUMN pulse.running.attempt IS
'The number of this run.';

COMMENT ON COLUMN pulse.running.failures IS
'How many runs before it failed.';

COMMENT ON COLUMN pulse.running.started_at IS
'When it was claimed.';

COMMENT ON COLUMN pulse.running.running_for IS
'How long ago that was.';

COMMENT ON COLUMN pulse.running.lease_until IS
'Until when its worker may go without a heartbeat.';

COMMENT ON COLUMN pulse.running.deadline IS
'When max_runtime ends the run, heartbeats or not.';

COMMENT ON COLUMN pulse.running.cancel_by IS
'When the run is ended by force; NULL when nobody asked to cancel it.';

COMMENT ON COLUMN pulse.running.cancel_reason IS
'Why it was asked to stop.';

COMMENT ON COLUMN pulse.running.progress IS
'How far it said it has come, from 0 to 1.';

COMMENT ON COLUMN pulse.running.progress_note IS
'What it said with that.';

COMMENT ON COLUMN pulse.running.payload IS
'What was handed to enqueue.';

COMMENT ON COLUMN pulse.running.enqueued_by IS
'The role that enqueued it.';
