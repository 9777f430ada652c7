-- By the index of each line, below its mark only: nothing is there but dead rows. Mark by mark
-- (OFFSET 0), whatever the statistics say: tick calls it (docs/decisions/pinned-plans.md).
CREATE FUNCTION pulse_internal.below_marks(max_rows integer)
RETURNS TABLE (problem text, job_id bigint, detail text)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
    WITH newest_mark AS (
        SELECT DISTINCT ON (m.lane, m.kind) m.lane, m.kind, m.ranks, m.seqs
        FROM pulse_internal.mark AS m
        ORDER BY m.lane, m.kind, m.version DESC
    ),

    newest_due_mark AS (
        SELECT DISTINCT ON (m.lane) m.lane, m.run_at, m.ranks, m.run_ats
        FROM pulse_internal.due_mark AS m
        ORDER BY m.lane, m.version DESC
    )

    (
        SELECT
            'ready job is below its mark', r.job,
            format('Place %s, mark %s, lane %s, priority %s.', r.seq, v.seq, m.lane, -v.rank)
        FROM newest_mark AS m
        CROSS JOIN LATERAL unnest(m.ranks, m.seqs) AS v (rank, seq)
        CROSS JOIN LATERAL (
            SELECT o.job, o.seq
            FROM pulse_internal.ready AS o
            WHERE o.lane = m.lane
                AND o.rank = v.rank
                AND o.failures >= 0
                AND o.group_key IS NULL
                AND o.seq < v.seq
                AND m.kind IN ('', o.kind)
            ORDER BY o.rank, o.seq
            OFFSET 0
        ) AS r
        LIMIT below_marks.max_rows
    )
    UNION ALL
    (
        SELECT
            'waiting job is below its mark', w.job,
            format('Due %s, mark %s, lane %s.', w.run_at, m.run_at, m.lane)
        FROM newest_due_mark AS m
        CROSS JOIN LATERAL (
            SELECT o.job, o.run_at
            FROM pulse_internal.waiting AS o
            WHERE o.lane = m.lane
                AND o.run_at < m.run_at
                AND o.attempts >= 0
            ORDER BY o.run_at
            OFFSET 0
        ) AS w
        LIMIT below_marks.max_rows
    )
    UNION ALL
    (
        SELECT
            'waiting job is below its mark', w.job,
            format(
                'Due %s, mark %s, lane %s, priority %s.', w.run_at, v.run_at, m.lane, -v.rank
            )
        FROM newest_due_mark AS m
        CROSS JOIN LATERAL unnest(m.ranks, m.run_ats) AS v (rank, run_at)
        CROSS JOIN LATERAL (
            SELECT o.job, o.run_at
            FROM pulse_internal.waiting AS o
            WHERE o.lane = m.lane
                AND o.rank = v.rank
                AND o.run_at < v.run_at
                AND o.run_at >= m.run_at
                AND o.failures >= 0
            ORDER BY o.rank, o.run_at
            OFFSET 0
        ) AS w
        WHERE v.run_at > m.run_at
        LIMIT below_marks.max_rows
    )
    UNION ALL
    (
        SELECT
            'lease is below its mark', l.job,
            format('Lease of worker %s, claimed %s.', l.worker, l.claimed_at)
        FROM pulse_internal.lease AS l
        WHERE l.reap_at IS NULL
            AND l.lease < (
                SELECT (t.state ->> 'from')::bigint
                FROM pulse_internal.upkeep_run AS t
                WHERE t.step = 'watch'
                ORDER BY t.version DESC
                LIMIT 1
            )
        LIMIT below_marks.max_rows
    )
$$;

COMMENT ON FUNCTION pulse_internal.below_marks(integer) IS
'Jobs that no claim or promotion would find because a mark has passed them: none, if pulse is right.';

-- What has to hold of groups. A job is reached by the first place of its level, or by a
-- notice that is still to be read; a group counts all that it runs.
CREATE FUNCTION pulse_internal.group_problems()
RETURNS TABLE (lane text, problem text, job_id bigint, detail text)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    WITH newest_mark AS MATERIALIZED (
        SELECT DISTINCT ON (m.lane)
            m.lane, m.notice_from, m.ranks, m.turns, m.roll_from, m.woken_until
        FROM pulse_internal.group_mark AS m
        ORDER BY m.lane, m.version DESC
    ),

    rolled AS MATERIALIZED (
        SELECT
            l.lane, l.group_slots, l.in_order, m.notice_from, m.ranks, m.turns, m.woken_until
        FROM pulse_internal.lane AS l
        INNER JOIN newest_mark AS m ON m.lane = l.lane
        WHERE l.grouped
            AND m.roll_from IS NULL
    ),

    newest_state AS MATERIALIZED (
        SELECT DISTINCT ON (s.lane, s.group_key) s.*
        FROM pulse_internal.group_state AS s
        ORDER BY s.lane, s.group_key, s.version DESC
    ),

    -- From where on a claim finds the jobs of a group, now or when it has read the notice.
    reach AS MATERIALIZED (
        SELECT s.lane, s.group_key, s.rank, s.place
        FROM newest_state AS s
        WHERE s.rank IS NOT NULL
        UNION ALL
        SELECT n.lane, n.group_key, n.rank, n.place
        FROM pulse_internal.group_notice AS n
        INNER JOIN rolled AS d ON d.lane = n.lane AND n.seq >= d.notice_from
        WHERE n.rank IS NOT NULL
    ),

    -- What a group may run at once, since the last change of its lane or of a group of it.
    limited AS MATERIALIZED (
        SELECT
            l.*,
            CASE
                WHEN d.in_order THEN 1
                ELSE coalesce(q.max_slots, d.group_slots)
            END AS slots,
            coalesce(c.at, '-infinity') AS since
        FROM rolled AS d
        INNER JOIN pulse_internal.lease AS l ON l.lane = d.lane AND l.group_key IS NOT NULL
        LEFT JOIN pulse_internal.group_rule AS q ON q.lane = l.lane AND q.group_key = l.group_key
        LEFT JOIN (
            SELECT e.lane, max(e.at) AS at
            FROM pulse_internal.audit_entry AS e
            WHERE e.verb IN ('set_lane', 'set_group')
            GROUP BY e.lane
        ) AS c ON c.lane = d.lane
    )

    SELECT
        r.lane, 'job is reached by no group', r.job,
        format('Place %s, group %L of lane %s, priority %s.', r.seq, r.group_key, r.lane, -r.rank)
    FROM pulse_internal.ready AS r
    INNER JOIN rolled AS d ON d.lane = r.lane
    WHERE r.group_key IS NOT NULL
        AND NOT EXISTS (
            SELECT
            FROM reach AS e
            WHERE e.lane = r.lane
                AND e.group_key = r.group_key
                AND (e.rank, e.place) <= (r.rank, r.seq)
        )
    UNION ALL
    SELECT
        l.lane, 'group runs more than its slots', NULL,
        format(
            'Group %L of lane %s: %s claimed since its slots became %s.',
            l.group_key, l.lane, count(*), l.slots
        )
    FROM limited AS l
    WHERE l.claimed_at > l.since
    GROUP BY l.lane, l.group_key, l.slots
    HAVING count(*) > l.slots
    UNION ALL
    SELECT
        l.lane, 'lease is missing from its group', l.job,
        format('Group %L of lane %s does not count it.', l.group_key, l.lane)
    FROM limited AS l
    WHERE l.slots IS NOT NULL
        AND NOT EXISTS (
            SELECT
            FROM newest_state AS s
            WHERE s.lane = l.lane
                AND s.group_key = l.group_key
                AND l.job = ANY (s.jobs)
        )
    UNION ALL
    SELECT
        w.lane, 'group does not wait for its job', w.job,
        format('Place %s in a group of lane %s, which keeps its order.', w.place, w.lane)
    FROM rolled AS d
    INNER JOIN pulse_internal.waiting AS w ON w.lane = d.lane AND w.group_key IS NOT NULL
    WHERE d.in_order
        AND EXISTS (
            SELECT
            FROM newest_state AS s
            WHERE s.lane = w.lane
                AND s.group_key = w.group_key
                AND s.place > w.place
                AND s.turn IS NOT NULL
        )
        AND NOT EXISTS (
            SELECT
            FROM pulse_internal.group_notice AS n
            WHERE n.lane = w.lane
                AND (n.group_key = w.group_key OR w.group_key = ANY (n.ended))
        )
    UNION ALL
    SELECT
        s.lane, 'group waits for nothing', NULL,
        format('Group %L of lane %s has jobs, a free slot and no turn.', s.group_key, s.lane)
    FROM newest_state AS s
    INNER JOIN rolled AS d ON d.lane = s.lane
    LEFT JOIN pulse_internal.group_rule AS q ON q.lane = s.lane AND q.group_key = s.group_key
    WHERE s.rank IS NOT NULL
        AND s.turn IS NULL
        AND q.enabled IS NOT FALSE
        AND s.wake_at IS NULL
        AND NOT EXISTS (
            SELECT
            FROM pulse_internal.group_notice AS n
            WHERE n.lane = s.lane
                AND (n.group_key = s.group_key OR s.group_key = ANY (n.ended))
        )
        AND (
            SELECT count(*)
            FROM pulse_internal.lease AS l
            WHERE l.job = ANY (s.jobs)
                AND l.lane = s.lane
        ) + (
            SELECT count(*)
            FROM pulse_internal.waiting AS w
            WHERE d.in_order
                AND w.lane = s.lane
                AND w.group_key = s.group_key
                AND w.place < s.place
        ) < coalesce(CASE WHEN d.in_order THEN 1 END, q.max_slots, d.group_slots, 2147483647)
    UNION ALL
    SELECT
        s.lane, 'group runs though it was stopped', NULL,
        format('Group %L of lane %s has a turn and is not enabled.', s.group_key, s.lane)
    FROM newest_state AS s
    INNER JOIN pulse_internal.group_rule AS q ON q.lane = s.lane AND q.group_key = s.group_key
    WHERE s.turn IS NOT NULL
        AND NOT q.enabled
    UNION ALL
    SELECT
        s.lane, 'group is to wake below its mark', NULL,
        format(
            'At %s, mark %s, group %L of lane %s.', s.wake_at, d.woken_until, s.group_key, s.lane
        )
    FROM newest_state AS s
    INNER JOIN rolled AS d ON d.lane = s.lane
    WHERE s.wake_at < d.woken_until
        AND s.rank IS NOT NULL
        AND d.woken_until <= clock_timestamp()
    UNION ALL
    SELECT
        n.lane, 'notice is below its mark', NULL,
        format('Place %s, mark %s, group %L of lane %s.', n.seq, d.notice_from, n.group_key, n.lane)
    FROM rolled AS d
    INNER JOIN pulse_internal.group_notice AS n ON n.lane = d.lane AND n.seq < d.notice_from
    UNION ALL
    SELECT
        s.lane, 'turn is below its mark', NULL,
        format('Turn %s, mark %s, group %L of lane %s.', s.turn, u.turn, s.group_key, s.lane)
    FROM rolled AS d
    CROSS JOIN LATERAL unnest(d.ranks, d.turns) AS u (rank, turn)
    INNER JOIN newest_state AS s ON s.lane = d.lane AND s.rank = u.rank AND s.turn < u.turn
$$;

COMMENT ON FUNCTION pulse_internal.group_problems() IS
'Jobs that no claim of a grouped lane would find, and groups that count wrong: none, if pulse is right.';

-- In one snapshot with the rest of check(). What is on its way is no problem: a
-- note, or a doubt about the upstream, says that it will be looked at.
CREATE FUNCTION pulse_internal.check_flows()
RETURNS TABLE (problem text, job_id bigint, detail text)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        'blocked job does not depend on what it waits for', b.job,
        format('It waits for %s.', b.waits_for)
    FROM pulse_internal.blocked AS b
    WHERE NOT EXISTS (
            SELECT
            FROM pulse_internal.dependency AS d
            WHERE d.job = b.job AND d.after = b.waits_for
        )
    UNION ALL
    SELECT
        'blocked job waits for one that has ended', b.job,
        format('Job %s is %s, and there is no note of it.', b.waits_for, f.state)
    FROM pulse_internal.blocked AS b
    INNER JOIN pulse_internal.finished AS f ON f.job = b.waits_for
    WHERE (f.state = 'completed' OR b.after_failed = 'run')
        AND NOT EXISTS (SELECT FROM pulse_internal.doubt AS n WHERE n.job = b.waits_for)
        AND NOT EXISTS (
            SELECT
            FROM pulse_internal.wake AS w
            WHERE w.job = b.waits_for AND b.seq BETWEEN w.from_seq AND w.to_seq
        )
    UNION ALL
    SELECT
        'blocked job depends on one that is gone', b.job, format('Job %s.', d.after)
    FROM pulse_internal.blocked AS b
    INNER JOIN pulse_internal.dependency AS d ON d.job = b.job
    WHERE NOT d.met
        AND NOT EXISTS (SELECT FROM pulse_internal.body AS u WHERE u.job = d.after)
        AND NOT EXISTS (SELECT FROM pulse_internal.doubt AS n WHERE n.job = d.after)
    UNION ALL
    SELECT
        'note is below its mark', n.job, format('Number %s, mark %s.', n.seq, n.mark)
    FROM (
        SELECT d.job, d.seq, (pulse_internal.newest_note_mark()).doubt_from AS mark
        FROM pulse_internal.doubt AS d
        UNION ALL
        SELECT w.job, w.seq, (pulse_internal.newest_note_mark()).wake_from
        FROM pulse_internal.wake AS w
    ) AS n
    WHERE n.seq < n.mark
$$;

COMMENT ON FUNCTION pulse_internal.check_flows() IS
'What does not hold of jobs that wait for jobs: none, if pulse is right.';
