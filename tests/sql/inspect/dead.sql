-- find_dead and dead_groups: dead letters by time of death, and by what they died of.
BEGIN;

SELECT plan(19);

-- A dead job of this kind and lane that died so long ago.
CREATE FUNCTION pg_temp.died(kind text, error text, ago interval, lane text DEFAULT 'default')
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_job bigint := pulse.enqueue(died.kind, lane => died.lane);
BEGIN
    PERFORM pulse.fail(c.lease, died.error, fatal => true)
    FROM pulse.claim_batch('w', died.lane) AS c;
    UPDATE pulse_internal.finished SET finished_at = clock_timestamp() - died.ago WHERE job = v_job;
    RETURN v_job;
END;
$$;

CREATE FUNCTION pg_temp.kinds(filter jsonb DEFAULT '{}', max_jobs integer DEFAULT 50)
RETURNS text
LANGUAGE sql
AS $$
    SELECT string_agg(coalesce(f.kind, 'more'), ' ' ORDER BY d.place)
    FROM pulse.find_dead(kinds.filter, max_jobs => kinds.max_jobs)
        WITH ORDINALITY AS d (job_id, finished_at, searched_to, place)
    LEFT JOIN pulse_internal.finished AS f ON f.job = d.job_id
$$;

SELECT is(pg_temp.kinds(), NULL, 'where nothing died nothing is found');
SELECT is_empty('SELECT * FROM pulse.dead_groups()', 'nor grouped');

SELECT pg_temp.died('old', 'Timeout after 30 s', '3 hours') AS old \gset
SELECT pg_temp.died('new', 'Timeout after 31 s', '1 minute', 'bank') AS new \gset
SELECT pg_temp.died('middle', E'Traceback (most recent call last):\n  deep\nCardRefused: 100% of card_7', '1 hour') AS middle \gset
SELECT pulse.cancel(pulse.enqueue('cancelled')) \g /dev/null

SELECT is(pg_temp.kinds(), 'new middle old', 'the last to die comes first, whatever its id');
SELECT is(pg_temp.kinds(max_jobs => 2), 'new middle', 'a page is as long as asked');
SELECT is(
    (
        SELECT string_agg(f.kind, ' ' ORDER BY n.finished_at DESC)
        FROM pulse.find_dead(max_jobs => 1) AS d
        CROSS JOIN LATERAL pulse.find_dead(before => d.finished_at, before_job => d.job_id) AS n
        INNER JOIN pulse_internal.finished AS f ON f.job = n.job_id
    ),
    'middle old', 'and goes on where the one before ended'
);
SELECT is(pg_temp.kinds('{"error_contains": "TIMEOUT"}'), 'new old', 'a filter is that of find_jobs');
SELECT is(pg_temp.kinds('{"lane": "bank", "state": "dead"}'), 'new', 'with every key');
SELECT is(pg_temp.kinds(format('{"job_ids": ["%s", "%s"]}', :old, :new)::jsonb), 'new old', 'ids too');
SELECT is(pg_temp.kinds('{"state": "completed"}'), NULL, 'what is not dead is not found');
SELECT throws_ok($$SELECT pulse.find_dead('{"kidn": "x"}')$$, 'PU006', NULL, 'a filter with a typo is refused');
SELECT throws_ok('SELECT pulse.find_dead(max_jobs => 0)', 'PU002', NULL, 'so is a page without a job');
SELECT throws_ok('SELECT pulse.dead_groups(max_groups => 1001)', 'PU002', NULL, 'and too many groups');

SELECT pg_temp.died('new', 'Timeout after 7 s', '2 hours', 'web') AS again \gset
SELECT results_eq(
    $$SELECT g.kind COLLATE "default", g.error, g.jobs, g.lanes::text FROM pulse.dead_groups() AS g$$,
    $$
    VALUES
    ('new', 'Timeout after 31 s', 2::bigint, '{bank,web}'),
    ('middle', 'CardRefused: 100% of card_7', 1, '{default}'),
    ('old', 'Timeout after 30 s', 1, '{default}')
    $$,
    'groups by kind and error without its numbers, the largest first, then the newest'
);
SELECT is(
    (SELECT g.last_job FROM pulse.dead_groups('{"kind": "new"}') AS g), :new::bigint,
    'with the last one that died'
);
SELECT is(
    (
        SELECT array_agg(w.done ORDER BY g.jobs DESC, g.last_at DESC)
        FROM pulse.dead_groups() AS g
        CROSS JOIN LATERAL pulse.retry_where(
            jsonb_build_object('kind', g.kind, 'error_like', g.error_like), dry_run => true
        ) AS w
    ),
    '{2,1,1}'::bigint [], 'its pattern means the jobs of the group to a bulk verb'
);
SELECT is(
    (SELECT count(*) FROM pulse.dead_groups(max_groups => 1)), 1::bigint, 'no more groups than asked'
);

-- 5,500 that died later stand before what is looked for.
INSERT INTO pulse_internal.finished (job, lane, kind, rank, state, ended_by, attempts, failures, keyed, finished_at, error)
SELECT n, 'pile', 'pile', 0, 'dead', 'fail', 1, 1, false, clock_timestamp(), 'x'
FROM generate_series(1000001, 1005500) AS n;
SELECT is(pg_temp.kinds('{"kind": "old"}'), 'more', 'a rare match: the look ends, and says so');
SELECT is(
    (
        SELECT n.job_id
        FROM pulse.find_dead('{"kind": "old"}') AS d
        CROSS JOIN LATERAL pulse.find_dead('{"kind": "old"}', d.finished_at, d.searched_to) AS n
    ),
    :old::bigint, 'and finds it further on'
);
SELECT is(
    (SELECT count(*) FROM pulse.find_dead(max_jobs => 1000) AS d WHERE d.job_id IS NOT NULL), 1000::bigint,
    'a long page without a filter is full'
);

SELECT * FROM finish();

ROLLBACK;
