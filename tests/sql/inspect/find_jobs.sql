-- find_jobs: ids newest first, by filter, a bounded look at a time.
BEGIN;

SELECT plan(34);

CREATE FUNCTION pg_temp.kinds(filter jsonb DEFAULT '{}', before bigint DEFAULT NULL, max_jobs integer DEFAULT 50)
RETURNS text
LANGUAGE sql
AS $$
    SELECT string_agg(coalesce(b.kind, 'more'), ' ' ORDER BY f.place)
    FROM pulse.find_jobs(kinds.filter, kinds.before, kinds.max_jobs)
        WITH ORDINALITY AS f (job_id, searched_to, place)
    LEFT JOIN pulse.jobs AS b ON b.job_id = f.job_id
$$;

-- One job in each state, named after it, in the order of their ids.
SELECT pulse.enqueue('completed', lane => 'a') \g /dev/null
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w1', 'a') AS c \g /dev/null
SELECT pulse.enqueue('dead', lane => 'a') \g /dev/null
SELECT pulse.fail(c.lease, 'no such page', fatal => true) FROM pulse.claim_batch('w1', 'a') AS c \g /dev/null
SELECT pulse.cancel(pulse.enqueue('cancelled', lane => 'a')) \g /dev/null
SELECT pulse.enqueue('retrying', lane => 'a') \g /dev/null
SELECT pulse.fail(c.lease, 'try later') FROM pulse.claim_batch('w1', 'a') AS c \g /dev/null
SELECT pulse.enqueue('running', lane => 'a') \g /dev/null
SELECT c.lease FROM pulse.claim_batch('w2', 'a') AS c \g /dev/null
SELECT pulse.enqueue('scheduled', lane => 'b', delay => '1 hour', tags => '{x,y}') \g /dev/null
SELECT pulse.enqueue('ready', '{"order": {"id": 7, "Town": "Bonn"}}', lane => 'b', priority => 5, group_key => 'g') \g /dev/null
SELECT pulse.enqueue('awaiting_approval', lane => 'b', requires_approval => true) \g /dev/null
SELECT pulse.enqueue('blocked', lane => 'c', after => (SELECT array_agg(job) FROM pulse_internal.ready), flow => 'f') \g /dev/null

SELECT is(
    pg_temp.kinds(), 'blocked awaiting_approval ready scheduled running retrying cancelled dead completed',
    'without a filter it finds every job, newest first'
);
SELECT is(pg_temp.kinds(jsonb_build_object('state', s.state)), s.state, format('it finds what is %s', s.state))
FROM unnest(pulse_internal.acts_on('find')) AS s (state);
SELECT is(
    pg_temp.kinds('{"state": ["dead", "completed", "ready"]}'), 'ready dead completed',
    'several states at once'
);
SELECT is(
    pg_temp.kinds('{"state": ["dead", "cancelled"]}'), 'cancelled dead', 'what ended badly, without the rest'
);
SELECT is(pg_temp.kinds('{"lane": "b"}'), 'awaiting_approval ready scheduled', 'by lane');
SELECT is(pg_temp.kinds('{"kind": ["ready", "dead"]}'), 'ready dead', 'by kind');
SELECT is(pg_temp.kinds('{"worker": "w2"}'), 'running', 'by worker');
SELECT is(pg_temp.kinds('{"tag": "y"}'), 'scheduled', 'by tag');
SELECT is(pg_temp.kinds('{"group_key": "g", "priority_above": 4}'), 'ready', 'by group and priority');
SELECT is(pg_temp.kinds('{"flow": ["f", "g"]}'), 'blocked', 'by flow');
SELECT is(
    pg_temp.kinds('{"error_like": "%PAGE%"}') || ', ' || pg_temp.kinds('{"error_like": "try%"}'),
    'dead, retrying', 'by the last error'
);
SELECT is(
    pg_temp.kinds('{"error_contains": "SUCH Page"}') || ', ' || pg_temp.kinds('{"error_contains": "LATER"}'),
    'dead, retrying', 'by a text within it, in any case'
);
SELECT is(pg_temp.kinds('{"error_contains": "%"}'), NULL, 'which is no pattern');
SELECT is(pg_temp.kinds('{"payload": {"order": {"id": 7}}}'), 'ready', 'by what the payload contains');
SELECT is(pg_temp.kinds('{"payload": {"order": {"id": "7"}}}'), NULL, 'and nothing like it');
SELECT is(pg_temp.kinds('{"payload_contains": "town\": \"BONN"}'), 'ready', 'by a text within the payload, in any case');
SELECT is(
    pg_temp.kinds(max_jobs => 3) || ', '
    || pg_temp.kinds(
        before => (SELECT min(f.job_id) FROM pulse.find_jobs(max_jobs => 3) AS f), max_jobs => 2
    ),
    'blocked awaiting_approval ready, scheduled running', 'a page goes on after the last id of the one before'
);
SELECT is(
    pg_temp.kinds(jsonb_build_object('job_ids', (SELECT jsonb_agg(j.job_id::text) FROM pulse.jobs AS j WHERE j.lane = 'b'))),
    'awaiting_approval ready scheduled', 'by id'
);
SELECT throws_ok(
    $$SELECT pulse.find_jobs('{"state": "asleep"}')$$, 'PU006', 'there is no state "asleep"',
    'a state that does not exist is refused'
);
SELECT throws_ok(
    format('SELECT pulse.find_jobs(max_jobs => %L)', n.n), 'PU002', NULL, format('max_jobs of %s is refused', coalesce(n.n::text, 'NULL'))
)
FROM unnest('{0,1001,NULL}'::integer []) AS n (n);
SELECT throws_ok(
    $$SELECT pulse.find_jobs(NULL)$$, 'PU006', 'filter must be a JSON object', 'so is no filter at all'
);

-- 12000 newer jobs stand between the reader and what it looks for.
SELECT count(*) FROM pulse.enqueue_many('pile', array_fill('{}'::jsonb, ARRAY[12000]), lane => 'pile') \g /dev/null
SELECT is(
    (
        WITH RECURSIVE look (round, job_id, searched_to) AS (
            SELECT 1, f.job_id, f.searched_to
            FROM pulse.find_jobs('{"lane": "b", "state": ["ready", "scheduled"]}') AS f
            UNION ALL
            SELECT l.round + 1, f.job_id, f.searched_to
            FROM look AS l
            CROSS JOIN LATERAL pulse.find_jobs('{"lane": "b", "state": ["ready", "scheduled"]}', l.searched_to) AS f
            WHERE l.searched_to IS NOT NULL
        )

        SELECT string_agg(format('%s:%s', l.round, coalesce(j.kind, 'more')), ' ' ORDER BY l.round, j.job_id DESC NULLS LAST)
        FROM look AS l
        LEFT JOIN pulse.jobs AS j ON j.job_id = l.job_id
    ),
    '1:more 2:more 3:ready 3:scheduled',
    'a look that reads its budget says how far it came, and goes on from there'
);

-- A full page whose end lies deeper than one of the places was read.
SELECT pulse.enqueue('k', lane => CASE WHEN i.i % 2 = 0 THEN 'x' ELSE 'y' END)
FROM generate_series(1, 120) AS i (i) \g /dev/null
SELECT pulse.set_lane('noise', max_batch => 10000) \g /dev/null
SELECT count(*) FROM pulse.enqueue_many('noise', array_fill('{}'::jsonb, ARRAY[6000]), lane => 'noise') \g /dev/null
SELECT count(*)
FROM unnest('{y,noise}'::text []) AS l (lane)
CROSS JOIN LATERAL pulse.claim_batch('w', l.lane, 10000) AS c
CROSS JOIN LATERAL pulse.complete_batch(ARRAY[c.lease]) AS v \g /dev/null
SELECT is(
    (
        WITH RECURSIVE page (jobs, onward) AS (
            SELECT p.*
            FROM (SELECT 1) AS one
            CROSS JOIN LATERAL (
                SELECT array_agg(f.job_id), coalesce(min(f.searched_to), min(f.job_id))
                FROM pulse.find_jobs('{"kind": "k"}', max_jobs => 50) AS f
            ) AS p
            UNION ALL
            SELECT n.*
            FROM page AS p
            CROSS JOIN LATERAL (
                SELECT array_agg(f.job_id), coalesce(min(f.searched_to), min(f.job_id))
                FROM pulse.find_jobs('{"kind": "k"}', p.onward, 50) AS f
            ) AS n
            WHERE p.onward IS NOT NULL
        )

        SELECT count(DISTINCT j.job)
        FROM page AS p
        CROSS JOIN LATERAL unnest(p.jobs) AS j (job)
    ),
    120::bigint, 'paging finds every job, wherever it stands'
);
SELECT is(
    (
        SELECT count(f.job_id)
        FROM pulse.find_jobs(
            (
                SELECT jsonb_build_object('kind', 'k', 'job_ids', jsonb_agg(j.job_id))
                FROM pulse.jobs AS j
            ),
            max_jobs => 1000
        ) AS f
    ),
    120::bigint, 'so does a look by thousands of ids'
);

SELECT * FROM finish();

ROLLBACK;
