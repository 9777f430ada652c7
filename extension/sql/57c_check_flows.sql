-- In one snapshot with the rest of check(). What is on its way is no problem: a
-- note, or a doubt about the upstream, says that it will be looked at.
CREATE FUNCTION pulse._check_flows()
RETURNS TABLE (problem text, job_id bigint, detail text)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT
        'blocked job does not depend on what it waits for', b.job,
        format('It waits for %s.', b.waits_for)
    FROM pulse.blocked AS b
    WHERE b.waits_for > 0
        AND NOT EXISTS (
            SELECT
            FROM pulse.dependency AS d
            WHERE d.job = b.job AND d.after = b.waits_for
        )
    UNION ALL
    SELECT
        'job is parked and its flow is not paused', b.job,
        format('By pause %s, and there is no note of it.', -b.waits_for)
    FROM pulse.blocked AS b
    WHERE b.waits_for < 0
        AND NOT EXISTS (SELECT FROM pulse.flow_hold AS h WHERE h.number = -b.waits_for)
        AND NOT EXISTS (
            SELECT
            FROM pulse.wake AS w
            WHERE w.job = b.waits_for AND b.seq BETWEEN w.from_seq AND w.to_seq
        )
    UNION ALL
    SELECT
        'blocked job waits for one that has ended', b.job,
        format('Job %s is %s, and there is no note of it.', b.waits_for, f.state)
    FROM pulse.blocked AS b
    INNER JOIN pulse.finished AS f ON f.job = b.waits_for
    WHERE (f.state = 'completed' OR b.after_failed = 'run')
        AND NOT EXISTS (SELECT FROM pulse.doubt AS n WHERE n.job = b.waits_for)
        AND NOT EXISTS (
            SELECT
            FROM pulse.wake AS w
            WHERE w.job = b.waits_for AND b.seq BETWEEN w.from_seq AND w.to_seq
        )
    UNION ALL
    SELECT
        'blocked job depends on one that is gone', b.job, format('Job %s.', d.after)
    FROM pulse.blocked AS b
    INNER JOIN pulse.dependency AS d ON d.job = b.job
    WHERE NOT d.met
        AND NOT EXISTS (SELECT FROM pulse.body AS u WHERE u.job = d.after)
        AND NOT EXISTS (SELECT FROM pulse.doubt AS n WHERE n.job = d.after)
    UNION ALL
    SELECT
        'note is below its mark', n.job, format('Number %s, mark %s.', n.seq, n.mark)
    FROM (
        SELECT d.job, d.seq, (pulse._newest_note_mark()).doubt_from AS mark
        FROM pulse.doubt AS d
        UNION ALL
        SELECT w.job, w.seq, (pulse._newest_note_mark()).wake_from
        FROM pulse.wake AS w
    ) AS n
    WHERE n.seq < n.mark
$$;

COMMENT ON FUNCTION pulse._check_flows() IS
'What does not hold of jobs that wait for jobs: none, if pulse is right.';
