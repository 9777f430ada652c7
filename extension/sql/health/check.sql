-- One statement, so one snapshot: whatever moves meanwhile is either before its move
-- or after it. Sequences do not obey snapshots; they are read later and so only
-- higher, which hides no problem and makes none up.

CREATE FUNCTION pulse.check()
RETURNS TABLE (problem text, job_id bigint, detail text)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH place AS MATERIALIZED (
        SELECT p.place AS name, p.job, p.lane, p.kind, p.keyed, p.attempts, p.failures
        FROM pulse_internal.place AS p
    ),

    newest_roster AS (
        SELECT DISTINCT ON (r.lane) r.lane, r.leases
        FROM pulse_internal.roster AS r
        ORDER BY r.lane, r.version DESC
    ),

    -- Lowering max_slots stops nothing that runs, so only later claims must obey it.
    limited AS (
        SELECT
            s.lane,
            s.max_slots,
            coalesce(
                (
                    SELECT max(e.at)
                    FROM pulse_internal.audit_entry AS e
                    WHERE e.verb = 'set_lane'
                        AND e.lane = s.lane
                ),
                '-infinity'
            ) AS since
        FROM pulse_internal.lane AS s
        WHERE s.max_slots IS NOT NULL
    ),

    found (problem, job_id, detail) AS (
        SELECT
            'job stands nowhere', b.job,
            format('Enqueued %s as %s; no table has it.', b.enqueued_at, b.kind)
        FROM pulse_internal.body AS b
        WHERE NOT EXISTS (SELECT FROM place AS p WHERE p.job = b.job)
        UNION ALL
        SELECT
            'job stands in several places', p.job,
            string_agg(p.name, ', ' ORDER BY p.name)
        FROM place AS p
        GROUP BY p.job
        HAVING count(*) > 1
        UNION ALL
        SELECT 'job has no body', p.job, format('It stands in %s.', p.name)
        FROM place AS p
        WHERE NOT EXISTS (SELECT FROM pulse_internal.body AS b WHERE b.job = p.job)
        UNION ALL
        SELECT
            'job has two kinds', p.job,
            format('%s in its body, %s in %s.', b.kind, p.kind, p.name)
        FROM place AS p
        INNER JOIN pulse_internal.body AS b ON b.job = p.job
        WHERE b.kind <> p.kind
        UNION ALL
        SELECT
            'job should be dead', p.job,
            format('%s failures of %s, yet in %s.', p.failures, b.max_attempts, p.name)
        FROM place AS p
        INNER JOIN pulse_internal.body AS b ON b.job = p.job
        WHERE p.name <> 'finished'
            AND p.failures >= b.max_attempts
        UNION ALL
        SELECT
            'job has more failures than attempts', p.job,
            format('%s failures, %s attempts.', p.failures, p.attempts)
        FROM place AS p
        WHERE p.failures > p.attempts
        UNION ALL
        SELECT
            'unique key is not held', p.job,
            format('Key %L of lane %s, job in %s.', b.unique_key, p.lane, p.name)
        FROM place AS p
        INNER JOIN pulse_internal.body AS b ON b.job = p.job
        WHERE p.keyed
            AND p.name <> 'finished'
            AND NOT EXISTS (
                SELECT FROM pulse_internal.job_key AS k
                WHERE k.job = p.job
                    AND k.lane = p.lane
                    AND k.unique_key = b.unique_key
                    AND k.expires_at IS NULL
                    AND (NOT k.follows OR p.name = 'blocked')
            )
        UNION ALL
        SELECT
            'unique key is held by a job without one', k.job,
            format('Key %L of lane %s, job in %s.', k.unique_key, k.lane, p.name)
        FROM pulse_internal.job_key AS k
        INNER JOIN place AS p ON p.job = k.job
        WHERE NOT p.keyed
        UNION ALL
        SELECT
            'unique key of a finished job never expires', k.job,
            format('Key %L of lane %s.', k.unique_key, k.lane)
        FROM pulse_internal.job_key AS k
        INNER JOIN pulse_internal.finished AS f ON f.job = k.job
        WHERE k.expires_at IS NULL
        UNION ALL
        SELECT
            'job would never expire', p.job,
            format('It must begin by %s, and nothing looks whether it has.', b.start_by)
        FROM place AS p
        INNER JOIN pulse_internal.body AS b ON b.job = p.job
        WHERE p.attempts = 0
            AND p.name NOT IN ('lease', 'finished')
            AND b.start_by IS NOT NULL
            AND NOT EXISTS (
                SELECT FROM pulse_internal.expiry AS e
                WHERE e.start_by = b.start_by AND e.job = b.job
            )
        UNION ALL
        SELECT
            s.problem, s.job,
            'A row of a side table whose job is gone.'
        FROM (
            SELECT 'unique key has no job' AS problem, k.job
            FROM pulse_internal.job_key AS k
            UNION ALL
            SELECT 'progress has no job', g.job
            FROM pulse_internal.job_progress AS g
            UNION ALL
            SELECT 'checkpoint has no job', c.job
            FROM pulse_internal.job_checkpoint AS c
            UNION ALL
            SELECT DISTINCT 'dependency has no job', d.job
            FROM pulse_internal.dependency AS d
            UNION ALL
            SELECT DISTINCT 'step has no job', s.job
            FROM pulse_internal.job_step AS s
            UNION ALL
            SELECT 'wait for a signal has no job', w.job
            FROM pulse_internal.signal_wait AS w
            UNION ALL
            SELECT DISTINCT 'failure has no job', e.job
            FROM pulse_internal.failure AS e
        ) AS s
        WHERE NOT EXISTS (SELECT FROM pulse_internal.body AS b WHERE b.job = s.job)
        UNION ALL
        SELECT f.problem, f.job_id, f.detail
        FROM pulse_internal.check_flows() AS f
        UNION ALL
        SELECT
            'lease outlives its bounds', l.job,
            format(
                'until %s, deadline %s, cancelled by %s, looked at %s',
                l.lease_until, l.deadline, l.cancel_by, l.reap_at
            )
        FROM pulse_internal.lease AS l
        WHERE l.lease_until > least(l.deadline, l.cancel_by)
            OR l.reap_at > l.lease_until
        UNION ALL
        SELECT
            'lane runs more than its slots', NULL,
            format('Lane %s: %s claimed since max_slots became %s.', s.lane, count(*), s.max_slots)
        FROM limited AS s
        INNER JOIN pulse_internal.lease AS l ON l.lane = s.lane AND l.claimed_at > s.since
        GROUP BY s.lane, s.max_slots
        HAVING count(*) > s.max_slots
        UNION ALL
        SELECT
            'lease is missing from the roster', l.job,
            format('Lane %s has max_slots, but does not count it.', l.lane)
        FROM limited AS s
        INNER JOIN pulse_internal.lease AS l ON l.lane = s.lane
        WHERE s.lane IN (SELECT r.lane FROM newest_roster AS r)
            AND NOT EXISTS (
                SELECT
                FROM newest_roster AS r
                WHERE r.lane = s.lane AND l.lease = ANY (r.leases)
            )
        UNION ALL
        SELECT m.problem, m.job_id, m.detail
        FROM pulse_internal.below_marks(1000) AS m
        UNION ALL
        SELECT g.problem, g.job_id, g.detail
        FROM pulse_internal.group_problems() AS g
        UNION ALL
        SELECT
            'sequence is behind', q.job,
            format('%s stands at %s, but %s was given out.', q.name, q.last_value, q.used)
        FROM (
            SELECT
                'job_id' AS name, s.last_value,
                m.job AS used,
                m.job
            FROM pulse_internal.job_id AS s
            -- The last number of this node: those of other nodes may be higher.
            CROSS JOIN LATERAL (
                SELECT max(b.job) AS job
                FROM pulse_internal.body AS b
                WHERE b.job <= (s.last_value | 8796093022207)
            ) AS m
            UNION ALL
            SELECT
                'ready_seq', s.last_value,
                (SELECT max(r.seq) FROM pulse_internal.in_line AS r),
                NULL
            FROM pulse_internal.ready_seq AS s
            UNION ALL
            SELECT
                'blocked_seq', s.last_value,
                (SELECT max(b.seq) FROM pulse_internal.blocked AS b),
                NULL
            FROM pulse_internal.blocked_seq AS s
            UNION ALL
            SELECT
                'note_seq', s.last_value,
                greatest(
                    (SELECT max(n.seq) FROM pulse_internal.doubt AS n),
                    (SELECT max(w.seq) FROM pulse_internal.wake AS w)
                ),
                NULL
            FROM pulse_internal.note_seq AS s
            UNION ALL
            SELECT
                'lease_seq', s.last_value,
                (
                    SELECT max(u.lease) >> 10
                    FROM (
                        SELECT l.lease FROM pulse_internal.lease AS l
                        UNION ALL
                        SELECT f.lease FROM pulse_internal.finished AS f
                    ) AS u
                    WHERE u.lease >> 10 <= (s.last_value | 8796093022207)
                ),
                NULL
            FROM pulse_internal.lease_seq AS s
        ) AS q
        WHERE q.used > q.last_value
    )

    SELECT f.problem, f.job_id, f.detail
    FROM found AS f
    ORDER BY f.problem, f.job_id, f.detail
$$;

COMMENT ON FUNCTION pulse.check() IS
'A consistency check: a row for every invariant that does not hold, none when all is well. Reads every job, in one snapshot; nothing waits for it. A row here is a bug in pulse, or its tables were changed by hand. Writes nothing.';
