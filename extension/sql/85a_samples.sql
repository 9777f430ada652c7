CREATE VIEW pulse.samples
WITH (security_barrier)
AS
SELECT
    t.lane,
    t.at,
    t.took,
    t.completed,
    t.dead,
    t.cancelled,
    t.ready,
    t.running
FROM pulse.sample AS t;

COMMENT ON VIEW pulse.samples IS
'A sample of each lane about once a minute, kept 48 hours, then one or two of each hour until 8 days are over: what finished since the sample before and in which time, what was ready (counted up to 100000) and running then.';

COMMENT ON COLUMN pulse.samples.lane IS
'The lane.';

COMMENT ON COLUMN pulse.samples.at IS
'When the sample was taken.';

COMMENT ON COLUMN pulse.samples.took IS
'The time since the sample before.';

COMMENT ON COLUMN pulse.samples.completed IS
'How many jobs completed in that time.';

COMMENT ON COLUMN pulse.samples.dead IS
'How many died.';

COMMENT ON COLUMN pulse.samples.cancelled IS
'How many were cancelled.';

COMMENT ON COLUMN pulse.samples.ready IS
'How many stood in line, counted up to 100000.';

COMMENT ON COLUMN pulse.samples.running IS
'How many ran.';
