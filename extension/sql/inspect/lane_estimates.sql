-- Long lines are not counted but estimated, from the rows on some 1000 pages; the same
-- pages each time, so that the figure does not flicker.
CREATE VIEW pulse_internal.ready_sample
WITH (security_barrier)
AS
SELECT
    s.lane,
    s.kind,
    100 / p.percent AS jobs,
    s.grouped,
    s.ready_at
FROM (
    SELECT
        least(
            100,
            100000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse_internal.ready'), 1)
        )::double precision AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT r.lane, r.kind, r.group_key IS NOT NULL AS grouped, r.ready_at
        FROM pulse_internal.ready AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
    ) AS s;

COMMENT ON VIEW pulse_internal.ready_sample IS
'Some ready jobs, or all where they are few.';

COMMENT ON COLUMN pulse_internal.ready_sample.lane IS
'The lane.';

COMMENT ON COLUMN pulse_internal.ready_sample.kind IS
'The kind.';

COMMENT ON COLUMN pulse_internal.ready_sample.jobs IS
'For how many jobs this one stands; 1 where all of the table were read.';

COMMENT ON COLUMN pulse_internal.ready_sample.grouped IS
'Whether it stands in the line of a group.';

COMMENT ON COLUMN pulse_internal.ready_sample.ready_at IS
'When it joined the line.';

CREATE VIEW pulse_internal.ready_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    sum(s.jobs)::bigint AS jobs
FROM pulse_internal.ready_sample AS s
GROUP BY s.lane;

COMMENT ON VIEW pulse_internal.ready_estimate IS
'About how many jobs of each lane are ready, from a sample of the table.';

COMMENT ON COLUMN pulse_internal.ready_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse_internal.ready_estimate.jobs IS
'About how many.';

CREATE VIEW pulse_internal.waiting_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            100000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse_internal.waiting'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT r.lane
        FROM pulse_internal.waiting AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse_internal.waiting_estimate IS
'About how many jobs of each lane are waiting, from a sample of the table.';

COMMENT ON COLUMN pulse_internal.waiting_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse_internal.waiting_estimate.jobs IS
'About how many.';

CREATE VIEW pulse_internal.blocked_estimate
WITH (security_barrier)
AS
SELECT
    s.lane,
    (count(*) * 100 / p.percent)::bigint AS jobs
FROM (
    SELECT
        least(
            100,
            100000.0 * current_setting('block_size')::integer
            / greatest(pg_relation_size('pulse_internal.blocked'), 1)
        ) AS percent
) AS p
CROSS JOIN
    LATERAL (
        SELECT r.lane
        FROM pulse_internal.blocked AS r TABLESAMPLE SYSTEM (p.percent) REPEATABLE (0) -- noqa: PRS
    ) AS s
GROUP BY s.lane, p.percent;

COMMENT ON VIEW pulse_internal.blocked_estimate IS
'About how many jobs of each lane are blocked, from a sample of the table.';

COMMENT ON COLUMN pulse_internal.blocked_estimate.lane IS
'The lane.';

COMMENT ON COLUMN pulse_internal.blocked_estimate.jobs IS
'About how many.';
