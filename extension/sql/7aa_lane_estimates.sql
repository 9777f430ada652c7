-- Long lines are not counted but estimated, from the rows on some 400 pages; the same
-- pages each time, so that the figure does not flicker.
CREATE VIEW pulse._ready_estimate
WITH (security_barrier)
AS
SELECT
    e.lane,
    sum(e.jobs)::bigint AS jobs
FROM (
    SELECT
        s.lane,
        (count(*) * 100 / p.percent)::bigint AS jobs
    FROM (
        SELECT
            least(
                100,
                40000.0 * current_setting('block_size')::integer
                / greatest(pg_relation_size('pulse.ready'), 1)
            ) AS percent
    ) AS p
    CROSS JOIN
        LATERAL (
            SELECT r.lane
            FROM pulse.ready AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
        ) AS s
    GROUP BY s.lane, p.percent
    UNION ALL
    SELECT
        s.lane,
        (count(*) * 100 / p.percent)::bigint AS jobs
    FROM (
        SELECT
            least(
                100,
                40000.0 * current_setting('block_size')::integer
                / greatest(pg_relation_size('pulse.group_ready'), 1)
            ) AS percent
    ) AS p
    CROSS JOIN
        LATERAL (
            SELECT r.lane
            FROM pulse.group_ready AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
        ) AS s
    GROUP BY s.lane, p.percent
) AS e
GROUP BY e.lane;

COMMENT ON VIEW pulse._ready_estimate IS
'About how many jobs of each lane are ready, from a sample of the table.';

COMMENT ON COLUMN pulse._ready_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse._ready_estimate.jobs IS
'About how many.';

CREATE VIEW pulse._waiting_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            40000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse.waiting'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT r.lane
        FROM pulse.waiting AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse._waiting_estimate IS
'About how many jobs of each lane are waiting, from a sample of the table.';

COMMENT ON COLUMN pulse._waiting_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse._waiting_estimate.jobs IS
'About how many.';

CREATE VIEW pulse._blocked_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            40000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse.blocked'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT r.lane
        FROM pulse.blocked AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse._blocked_estimate IS
'About how many jobs of each lane are blocked, from a sample of the table.';

COMMENT ON COLUMN pulse._blocked_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse._blocked_estimate.jobs IS
'About how many.';
