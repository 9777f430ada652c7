CREATE VIEW pulse.schedules
WITH (security_barrier)
AS
SELECT
    s.name,
    s.kind,
    s.payload,
    s.cron,
    s.every,
    s.at,
    s.timezone,
    s.options,
    s.catch_up,
    s.catch_up_window,
    s.next_at,
    (
        SELECT r.occurrence
        FROM pulse_internal.schedule_run AS r
        WHERE r.name = s.name
        ORDER BY r.occurrence DESC
        LIMIT 1
    ) AS last_occurrence,
    s.paused_at,
    s.paused_by,
    s.pause_reason,
    s.last_error,
    (
        SELECT n.name
        FROM pulse_internal.role_names AS n
        WHERE n.role = s.owner
    ) AS created_by,
    s.created_at,
    s.paused_at IS NULL
    AND coalesce(s.next_at < clock_timestamp() - interval '1 minute', false) AS late
FROM pulse_internal.schedule AS s;

COMMENT ON VIEW pulse.schedules IS
'Every schedule: what it enqueues, when next, and who paused it. options holds the further arguments of enqueue.';

COMMENT ON COLUMN pulse.schedules.name IS
'Its name.';

COMMENT ON COLUMN pulse.schedules.kind IS
'The kind it enqueues.';

COMMENT ON COLUMN pulse.schedules.payload IS
'The payload it enqueues.';

COMMENT ON COLUMN pulse.schedules.cron IS
'Its cron expression, if that is its recurrence.';

COMMENT ON COLUMN pulse.schedules.every IS
'Its interval, if that is its recurrence.';

COMMENT ON COLUMN pulse.schedules.at IS
'Its one moment, if that is its recurrence.';

COMMENT ON COLUMN pulse.schedules.timezone IS
'The time zone of the cron expression.';

COMMENT ON COLUMN pulse.schedules.options IS
'The further arguments of enqueue.';

COMMENT ON COLUMN pulse.schedules.catch_up IS
'What happens to occurrences that were missed: skip, last or all.';

COMMENT ON COLUMN pulse.schedules.catch_up_window IS
'How far back occurrences are caught up.';

COMMENT ON COLUMN pulse.schedules.next_at IS
'When it is due next; NULL when never again.';

COMMENT ON COLUMN pulse.schedules.last_occurrence IS
'The last occurrence that was handled.';

COMMENT ON COLUMN pulse.schedules.paused_at IS
'When it was paused; NULL when it is not.';

COMMENT ON COLUMN pulse.schedules.paused_by IS
'The role that paused it.';

COMMENT ON COLUMN pulse.schedules.pause_reason IS
'Why it was paused.';

COMMENT ON COLUMN pulse.schedules.last_error IS
'Why the last try to enqueue failed; NULL when it did not.';

COMMENT ON COLUMN pulse.schedules.created_by IS
'The role that made it, and that its jobs belong to.';

COMMENT ON COLUMN pulse.schedules.created_at IS
'When it was made.';

COMMENT ON COLUMN pulse.schedules.late IS
'Whether it should have fired over a minute ago and is not paused.';

CREATE VIEW pulse.schedule_runs
WITH (security_barrier)
AS
SELECT
    r.name,
    r.occurrence,
    r.job AS job_id,
    r.skipped,
    r.handled_at
FROM pulse_internal.schedule_run AS r;

COMMENT ON VIEW pulse.schedule_runs IS
'Every occurrence of every schedule for 90 days: the job it became, or why it was skipped.';

COMMENT ON COLUMN pulse.schedule_runs.name IS
'The schedule.';

COMMENT ON COLUMN pulse.schedule_runs.occurrence IS
'The moment it was due.';

COMMENT ON COLUMN pulse.schedule_runs.job_id IS
'The job it became; NULL when it was skipped.';

COMMENT ON COLUMN pulse.schedule_runs.skipped IS
'Why it was skipped.';

COMMENT ON COLUMN pulse.schedule_runs.handled_at IS
'When tick got to it.';
