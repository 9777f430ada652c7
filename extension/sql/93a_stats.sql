-- What was counted, by time.

-- What happened between two rows of a series; totals as well.
CREATE VIEW pulse._stats
WITH (security_barrier)
AS
SELECT
    t.total,
    t.lane,
    t.kind,
    t.at,
    p.at AS since,
    t.enqueued - coalesce(p.enqueued, 0) AS enqueued,
    t.started - coalesce(p.started, 0) AS started,
    t.completed - coalesce(p.completed, 0) AS completed,
    t.failed - coalesce(p.failed, 0) AS failed,
    t.dead - coalesce(p.dead, 0) AS dead,
    t.retried - coalesce(p.retried, 0) AS retried,
    t.cancelled - coalesce(p.cancelled, 0) AS cancelled,
    t.reaped - coalesce(p.reaped, 0) AS reaped,
    t.wait_seconds - coalesce(p.wait_seconds, 0) AS wait_seconds,
    array(
        SELECT u.jobs - coalesce(u.before, 0)
        FROM unnest(t.wait_counts, p.wait_counts) WITH ORDINALITY AS u (jobs, before, place)
        ORDER BY u.place
    ) AS wait_counts,
    t.run_seconds - coalesce(p.run_seconds, 0) AS run_seconds,
    array(
        SELECT u.jobs - coalesce(u.before, 0)
        FROM unnest(t.run_counts, p.run_counts) WITH ORDINALITY AS u (jobs, before, place)
        ORDER BY u.place
    ) AS run_counts
FROM pulse.stat AS t
LEFT JOIN LATERAL (
    SELECT o.*
    FROM pulse.stat AS o
    WHERE o.total = t.total
        AND o.lane = t.lane
        AND o.kind = t.kind
        AND o.at < t.at
    ORDER BY o.at DESC
    LIMIT 1
) AS p ON true;

COMMENT ON VIEW pulse._stats IS
'What happened between two moments that were kept, of each lane and kind and in total.';

COMMENT ON COLUMN pulse._stats.total IS
'Whether it is the sum of a lane, a kind or everything.';

COMMENT ON COLUMN pulse._stats.lane IS
'The lane; empty for lanes beyond the limit.';

COMMENT ON COLUMN pulse._stats.kind IS
'The kind; empty for kinds beyond the limit.';

COMMENT ON COLUMN pulse._stats.at IS
'When it was counted: the end of the time that this row is about.';

COMMENT ON COLUMN pulse._stats.since IS
'When something of this lane and kind was counted before; NULL for the first time.';

COMMENT ON COLUMN pulse._stats.enqueued IS
'Jobs that were enqueued.';

COMMENT ON COLUMN pulse._stats.started IS
'Runs that began.';

COMMENT ON COLUMN pulse._stats.completed IS
'Jobs that completed.';

COMMENT ON COLUMN pulse._stats.failed IS
'Runs that failed.';

COMMENT ON COLUMN pulse._stats.dead IS
'Jobs that died.';

COMMENT ON COLUMN pulse._stats.retried IS
'Jobs that were put back to run again.';

COMMENT ON COLUMN pulse._stats.cancelled IS
'Jobs that were cancelled.';

COMMENT ON COLUMN pulse._stats.reaped IS
'Runs whose worker was lost or whose time was over.';

COMMENT ON COLUMN pulse._stats.wait_seconds IS
'The sum of waits of the runs that began.';

COMMENT ON COLUMN pulse._stats.wait_counts IS
'How many of them waited how long, at the places of histogram_bounds().';

COMMENT ON COLUMN pulse._stats.run_seconds IS
'The sum of the time that completed and failed runs took.';

COMMENT ON COLUMN pulse._stats.run_counts IS
'How many of them took how long, at the places of histogram_bounds().';

CREATE VIEW pulse.stats
WITH (security_barrier)
AS
SELECT
    s.lane,
    s.kind,
    s.at,
    s.since,
    s.enqueued,
    s.started,
    s.completed,
    s.failed,
    s.dead,
    s.retried,
    s.cancelled,
    s.reaped,
    s.wait_seconds,
    s.wait_counts,
    s.run_seconds,
    s.run_counts
FROM pulse._stats AS s
WHERE NOT s.total;

COMMENT ON VIEW pulse.stats IS
'What happened to jobs, for each lane and kind and each minute in which something did; for each 10 minutes after 3 hours, each hour after 2 days, each day after 14 days, until 400 days are over. The columns are those of counters, as differences.';

COMMENT ON COLUMN pulse.stats.lane IS
'The lane; empty for lanes beyond the limit.';

COMMENT ON COLUMN pulse.stats.kind IS
'The kind; empty for kinds beyond the limit.';

COMMENT ON COLUMN pulse.stats.at IS
'When it was counted: the end of the time that this row is about.';

COMMENT ON COLUMN pulse.stats.since IS
'When something of this lane and kind was counted before; NULL for the first time.';

COMMENT ON COLUMN pulse.stats.enqueued IS
'Jobs that were enqueued.';

COMMENT ON COLUMN pulse.stats.started IS
'Runs that began.';

COMMENT ON COLUMN pulse.stats.completed IS
'Jobs that completed.';

COMMENT ON COLUMN pulse.stats.failed IS
'Runs that failed.';

COMMENT ON COLUMN pulse.stats.dead IS
'Jobs that died.';

COMMENT ON COLUMN pulse.stats.retried IS
'Jobs that were put back to run again.';

COMMENT ON COLUMN pulse.stats.cancelled IS
'Jobs that were cancelled.';

COMMENT ON COLUMN pulse.stats.reaped IS
'Runs whose worker was lost or whose time was over.';

COMMENT ON COLUMN pulse.stats.wait_seconds IS
'The sum of waits of the runs that began.';

COMMENT ON COLUMN pulse.stats.wait_counts IS
'How many of them waited how long, at the places of histogram_bounds().';

COMMENT ON COLUMN pulse.stats.run_seconds IS
'The sum of the time that completed and failed runs took.';

COMMENT ON COLUMN pulse.stats.run_counts IS
'How many of them took how long, at the places of histogram_bounds().';
