CREATE VIEW pulse.schedule_runs
WITH (security_barrier)
AS
SELECT
    r.name,
    r.occurrence,
    r.job AS job_id,
    r.skipped,
    r.handled_at
FROM pulse.schedule_run AS r;

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
