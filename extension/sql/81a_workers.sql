-- A worker that never says hello is known by what it runs. A heartbeat moves
-- lease_until to lease_for from now, so the difference is when it was last seen.
-- Hello comes every thirty seconds: a worker that missed four of them is not counted
-- on, unless it runs a job whose lease still has time (and so needs no heartbeat yet).
CREATE VIEW pulse.workers
WITH (security_barrier)
AS
SELECT
    coalesce(w.worker, r.worker) AS worker,
    coalesce(w.lanes, r.lanes) AS lanes,
    w.kinds,
    greatest(w.seen_at, r.seen_at) AS seen_at,
    coalesce(r.running, 0) AS running,
    w.seen_by,
    greatest(w.seen_at + interval '2 minutes', r.seen_at + interval '2 minutes', r.lease_until)
    > clock_timestamp() AS live
FROM pulse.worker AS w
FULL JOIN (
    SELECT
        l.worker,
        array_agg(DISTINCT l.lane ORDER BY l.lane)::text [] AS lanes,
        max(greatest(l.claimed_at, l.lease_until - l.lease_for)) AS seen_at,
        max(l.lease_until) AS lease_until,
        count(*) AS running
    FROM pulse.lease AS l
    GROUP BY l.worker
) AS r ON r.worker = w.worker;

COMMENT ON VIEW pulse.workers IS
'Workers that said hello or run jobs: their lanes, their kinds (NULL is every kind), when they were last seen, how many jobs they run, as which role, whether they are live.';

COMMENT ON COLUMN pulse.workers.worker IS
'The name it gave.';

COMMENT ON COLUMN pulse.workers.lanes IS
'The lanes it said it takes, or those of the jobs it runs.';

COMMENT ON COLUMN pulse.workers.kinds IS
'The kinds it said it takes; NULL is every kind.';

COMMENT ON COLUMN pulse.workers.seen_at IS
'When it last said hello, claimed or sent a heartbeat.';

COMMENT ON COLUMN pulse.workers.running IS
'How many jobs it runs.';

COMMENT ON COLUMN pulse.workers.seen_by IS
'The role it said hello as.';

COMMENT ON COLUMN pulse.workers.live IS
'Whether it was seen in the last two minutes or has a lease that has not lapsed.';
