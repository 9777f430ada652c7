-- Where a job stands. The place is a literal in each branch, so that a condition on it
-- takes the branches that cannot match out of the plan. Who needs an order or a limit
-- for each place (find_jobs) reads the tables.
CREATE VIEW pulse_internal.place
WITH (security_barrier)
AS
SELECT
    'approval'::text AS place,
    'awaiting_approval'::text AS state,
    a.job,
    a.lane,
    a.kind,
    a.rank,
    0 AS attempts,
    0 AS failures,
    a.keyed,
    a.run_at,
    a.asked_at,
    NULL::timestamptz AS ready_at,
    a.expires_at AS approval_until,
    NULL::text AS worker,
    NULL::timestamptz AS started_at,
    NULL::timestamptz AS lease_until,
    NULL::timestamptz AS deadline,
    NULL::timestamptz AS cancel_by,
    NULL::text AS error,
    NULL::jsonb AS result,
    NULL::timestamptz AS finished_at,
    NULL::text AS ended_by,
    NULL::bigint AS waits_for
FROM pulse_internal.approval AS a
UNION ALL
SELECT
    'blocked'::text,
    'blocked'::text,
    b.job,
    b.lane,
    b.kind,
    b.rank,
    b.attempts,
    b.failures,
    b.keyed,
    b.run_at,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::text,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::text,
    NULL::jsonb,
    NULL::timestamptz,
    NULL::text,
    b.waits_for
FROM pulse_internal.blocked AS b
UNION ALL
SELECT
    'waiting'::text,
    CASE WHEN w.retrying THEN 'retrying'::text ELSE 'scheduled'::text END,
    w.job,
    w.lane,
    w.kind,
    w.rank,
    w.attempts,
    w.failures,
    w.keyed,
    w.run_at,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::text,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::text,
    NULL::jsonb,
    NULL::timestamptz,
    NULL::text,
    NULL::bigint
FROM pulse_internal.waiting AS w
UNION ALL
SELECT
    'ready'::text,
    'ready'::text,
    r.job,
    r.lane,
    r.kind,
    r.rank,
    r.attempts,
    r.failures,
    r.keyed,
    NULL::timestamptz,
    NULL::timestamptz,
    r.ready_at,
    NULL::timestamptz,
    NULL::text,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::text,
    NULL::jsonb,
    NULL::timestamptz,
    NULL::text,
    NULL::bigint
FROM pulse_internal.ready AS r
UNION ALL
SELECT
    'lease'::text,
    'running'::text,
    l.job,
    l.lane,
    l.kind,
    l.rank,
    l.attempt,
    l.failures,
    l.keyed,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    l.worker,
    l.claimed_at,
    l.lease_until,
    l.deadline,
    l.cancel_by,
    NULL::text,
    NULL::jsonb,
    NULL::timestamptz,
    NULL::text,
    NULL::bigint
FROM pulse_internal.lease AS l
UNION ALL
SELECT
    'finished'::text,
    CASE f.state
        WHEN 'completed' THEN 'completed'::text
        WHEN 'dead' THEN 'dead'::text
        ELSE 'cancelled'::text
    END,
    f.job,
    f.lane,
    f.kind,
    f.rank,
    f.attempts,
    f.failures,
    f.keyed,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    f.worker,
    f.claimed_at,
    NULL::timestamptz,
    NULL::timestamptz,
    NULL::timestamptz,
    f.error,
    f.result,
    f.finished_at,
    f.ended_by,
    NULL::bigint
FROM pulse_internal.finished AS f;

COMMENT ON VIEW pulse_internal.place IS
'The seven tables a job can be in, one row for each job, with what each of them knows.';

-- Ready jobs, in grouped lanes with the group in whose line they stand.
CREATE VIEW pulse_internal.in_line
WITH (security_barrier)
AS
SELECT
    r.job,
    r.lane,
    r.group_key,
    r.rank,
    r.seq,
    r.kind,
    r.failures,
    r.ready_at,
    r.last_lease,
    r.last_verb
FROM pulse_internal.ready AS r;

COMMENT ON VIEW pulse_internal.in_line IS
'Jobs that are ready, whichever line they stand in; group_key is the line of a group.';
