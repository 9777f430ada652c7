-- counts, kinds and lane_defaults: what a page shows beside its lists.
BEGIN;

SELECT plan(36);

CREATE FUNCTION pg_temp.counts()
RETURNS text
LANGUAGE sql
AS $$
    SELECT string_agg(c.state || ' ' || c.jobs || CASE WHEN c.more THEN '+' ELSE '' END, ', ' ORDER BY c.state)
    FROM pulse.counts() AS c
    WHERE c.jobs > 0
$$;

SELECT is(
    (SELECT array_agg(c.state ORDER BY c.state) FROM pulse.counts() AS c),
    (SELECT array_agg(s ORDER BY s) FROM unnest(pulse_internal.acts_on('find')) AS s),
    'every state has its row, also on an empty queue'
);

SELECT pulse.enqueue('done') \g /dev/null
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w') AS c \g /dev/null
SELECT pulse.enqueue('broken') FROM generate_series(1, 2) \g /dev/null
SELECT pulse.fail(c.lease, 'no', fatal => true) FROM pulse.claim_batch('w', max_jobs => 2) AS c \g /dev/null
SELECT pulse.enqueue('again') \g /dev/null
SELECT pulse.fail(c.lease, 'not yet', retry_in => '1 hour') FROM pulse.claim_batch('w') AS c \g /dev/null
SELECT pulse.cancel(pulse.enqueue('unwanted')) \g /dev/null
SELECT pulse.enqueue('later', delay => '1 hour') \g /dev/null
SELECT pulse.enqueue('asked', requires_approval => true) \g /dev/null
SELECT pulse.enqueue('busy', lane => 'a') \g /dev/null
SELECT c.lease FROM pulse.claim_batch('w', 'a') AS c \g /dev/null
SELECT pulse.enqueue('waits', lane => l) FROM unnest('{a,b,b}'::text []) AS l \g /dev/null
SELECT is(
    pg_temp.counts(),
    'awaiting_approval 1, cancelled 1, completed 1, dead 2, ready 3, retrying 1, running 1, scheduled 1',
    'each job is counted in its state'
);
SELECT pulse.enqueue_many('pile', array_fill('{}'::jsonb, ARRAY[10001])) \g /dev/null
SELECT matches(pg_temp.counts(), 'ready 10000\+, ', 'what is more than it looks at is said to be more');

SELECT pulse.set_kind('set', max_attempts => 7) \g /dev/null
SELECT pulse.schedule('nightly', 'swept', cron => '@daily') \g /dev/null
SELECT pulse.hello('w1', '{a}', '{waits,taken}') \g /dev/null
SELECT results_eq(
    $$SELECT k.name COLLATE "default", k.running, k.oldest_ready_at IS NOT NULL, k.ready_in::text COLLATE "default", k.workers, k.schedules
    FROM pulse.kinds AS k ORDER BY 1$$,
    $$
    VALUES
    ('busy', 1::bigint, false, '{}', 1::bigint, 0::bigint),
    ('pile', 0, true, '{default}', 1, 0),
    ('set', 0, false, '{}', 1, 0),
    ('swept', 0, false, '{}', 1, 1),
    ('taken', 0, false, '{}', 2, 0),
    ('waits', 0, true, '{a,b}', 2, 0)
    $$,
    'kinds that are set, run, wait, are scheduled or taken: w runs a job and said nothing of kinds, so it takes all'
);
SELECT is((SELECT k.settings FROM pulse.kinds AS k WHERE k.name = 'set'), '{"max_attempts": 7}', 'with their settings');

CREATE FUNCTION pg_temp.ready(kind text) RETURNS text LANGUAGE sql AS $$
    SELECT k.ready || CASE WHEN k.ready_estimated THEN ' about' ELSE '' END FROM pulse.kinds AS k WHERE k.name = $1
$$;
SELECT is(pg_temp.ready('waits'), '3', 'how many of a kind are ready is counted over all lanes');
SELECT is(pg_temp.ready('busy'), '0', 'one that runs is not in line');
SELECT is(pg_temp.ready('pile'), '10001 about', 'a long line is estimated: here every page of it was read');
SELECT pulse.set_lane('fair', fair => true) \g /dev/null
SELECT pulse.enqueue('waits', lane => 'fair', group_key => 'g' || n % 2) FROM generate_series(1, 4) AS n \g /dev/null
SELECT is(pg_temp.ready('waits'), '7', 'those of groups with them');
SELECT pulse.enqueue('spread', lane => 's' || n % 25) FROM generate_series(1, 50) AS n \g /dev/null
SELECT is(pg_temp.ready('spread'), '50', 'and those of many lanes');

CREATE FUNCTION pg_temp.deepest(kind text, lane text) RETURNS text LANGUAGE sql AS $$
    SELECT max(h.ready) || ' ' || max(h.running) FROM pulse.history(kind => $1, lane => $2) AS h
$$;
SELECT pulse_internal.tick_sample() \g /dev/null
SELECT is(pg_temp.deepest('waits', NULL), '7 0', 'history knows what was ready of a kind');
SELECT is(pg_temp.deepest('busy', NULL), '0 1', 'and what ran');
SELECT is(pg_temp.deepest('set', NULL), '0 0', 'a kind that has nothing had nothing');
SELECT is(pg_temp.deepest(NULL, NULL), '10058 1', 'everything is the sum');
SELECT is(pg_temp.deepest(NULL, 'a'), '1 1', 'a lane has its own');
SELECT is(pg_temp.deepest('waits', 'a'), NULL, 'of a kind in a lane nothing is kept');
UPDATE pulse_internal.worker SET seen_at = clock_timestamp() - interval '1 hour';
SELECT is_empty($$SELECT FROM pulse.kinds AS k WHERE k.name = 'taken'$$, 'a worker that is gone names no kind');

SELECT is(pulse.lane_defaults() ->> 'retain_dead', '7 days', 'the defaults of a lane are public');
SELECT is(
    (
        SELECT array_agg(d.key ORDER BY d.key)
        FROM jsonb_object_keys(pulse.lane_defaults()) AS d (key)
        WHERE d.key NOT IN (
            SELECT a.attname FROM pg_attribute AS a WHERE a.attrelid = 'pulse_internal.lane'::regclass
        )
    ),
    NULL, 'and have the names of the settings'
);
UPDATE pulse_internal.ready SET ready_at = clock_timestamp() - interval '10 minutes';
SELECT set_eq(
    'SELECT h.check_name FROM pulse.health() AS h WHERE h.jobs IS NOT NULL',
    '{oldest_ready_job,stuck_lanes,unhandled_kinds,dead_jobs}'::text [],
    'health names the jobs that its checks are about'
);
SELECT is_empty(
    $$
    SELECT h.check_name, j.filter
    FROM pulse.health() AS h
    CROSS JOIN LATERAL jsonb_array_elements(h.jobs) AS j (filter)
    WHERE NOT EXISTS (SELECT FROM pulse.find_jobs(j.filter))
    $$,
    'what health names by filter is found by it'
);

-- What fails lately
SELECT is_empty('SELECT * FROM pulse.failing_kinds()', 'runs that were not counted yet do not show');
SELECT pulse.enqueue('flaky', lane => 'f', max_attempts => 9) FROM generate_series(1, 4) \g /dev/null
SELECT pulse.fail(c.lease, 'no', fatal => c.job_id % 2 = 0) FROM pulse.claim_batch('w', 'f', 4) AS c \g /dev/null
SELECT pulse_internal.tick_count() \g /dev/null
SELECT results_eq(
    'SELECT * FROM pulse.failing_kinds()',
    $$VALUES ('flaky', 4::bigint, 4::bigint, 2::bigint)$$,
    'a kind of which three runs failed is failing; one with two is not'
);
SELECT is(
    (SELECT array_agg(h.figure || ' ' || h.jobs) FROM pulse.health() AS h WHERE h.check_name = 'failing_kinds'),
    ARRAY['flaky: 4 of 4 runs [{"kind": "flaky", "state": ["retrying", "dead"]}]'],
    'and health says so'
);
UPDATE pulse_internal.stat SET at = at - interval '16 minutes';
SELECT is_empty('SELECT * FROM pulse.failing_kinds()', 'it is over after 15 minutes');
SELECT is((SELECT f.failed FROM pulse.failing_kinds('1 hour') AS f), 4::bigint, 'unless one asks for more');
SELECT pulse.enqueue('flaky', lane => 'f') FROM generate_series(1, 60) \g /dev/null
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', 'f', 57) AS c \g /dev/null
SELECT pulse.fail(c.lease, 'no', fatal => true) FROM pulse.claim_batch('w', 'f', 3) AS c \g /dev/null
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is((SELECT f.failed || ' of ' || f.started FROM pulse.failing_kinds() AS f), '3 of 60', 'one in twenty is enough, what was before does not count');
SELECT pulse.enqueue('flaky', lane => 'f') \g /dev/null
SELECT pulse.complete(c.lease) FROM pulse.claim_batch('w', 'f') AS c \g /dev/null
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is_empty('SELECT * FROM pulse.failing_kinds()', 'less is not');

UPDATE pulse_internal.schedule SET next_at = clock_timestamp() - interval '2 minutes';
SELECT ok((SELECT s.late FROM pulse.schedules AS s), 'a schedule that did not fire for a minute is late');
UPDATE pulse_internal.schedule SET paused_at = clock_timestamp(), paused_by = current_user;
SELECT ok((SELECT NOT s.late FROM pulse.schedules AS s), 'one that is paused is not');

-- Dead letters are one figure wherever they are counted.
DELETE FROM pulse_internal.finished WHERE state = 'dead';
SELECT pulse.set_lane(l, max_batch => 1000) FROM unnest('{many,more}'::text []) AS l \g /dev/null
SELECT pulse.enqueue_many('dies', array_fill('{}'::jsonb, ARRAY[1500]), lane => l) FROM unnest('{many,more}'::text []) AS l \g /dev/null
SELECT pulse.fail(c.lease, 'no', fatal => true)
FROM unnest('{many,more}'::text []) AS l
CROSS JOIN generate_series(1, 2) AS n
CROSS JOIN LATERAL pulse.claim_batch('w', l, 500 * n) AS c \g /dev/null
SELECT pulse.enqueue('dies', lane => 'few') FROM generate_series(1, 2) \g /dev/null
SELECT pulse.fail(c.lease, 'no', fatal => true) FROM pulse.claim_batch('w', 'few', 2) AS c \g /dev/null
SELECT matches(pg_temp.counts(), 'dead 3002, ', 'thousands of dead letters are counted');
SELECT is(
    (SELECT sum(g.value) FROM pulse.gauges() AS g WHERE g.gauge = 'dead'), 3002::double precision, 'the gauges of all lanes come to the same'
);
SELECT is((SELECT g.value FROM pulse.gauges() AS g WHERE g.gauge = 'dead' AND g.label = 'more'), 1500::double precision, 'of a lane too');
SELECT is(
    (SELECT h.figure FROM pulse.health() AS h WHERE h.check_name = 'dead_jobs'), '3002, 3002 of them in the last hour', 'and health says it'
);
SELECT results_eq(
    'SELECT * FROM pulse_internal.dead_counts(1000)',
    $$VALUES ('more', 1500::bigint, true), ('many', 1500, true), ('few', 2, false)$$,
    'more than it counts in all are estimated: here every page was read; a few in another lane are still counted'
);
SELECT results_eq(
    'SELECT * FROM pulse_internal.dead_counts(2000)',
    $$VALUES ('more', 1500::bigint, false), ('many', 1500, true), ('few', 2, false)$$,
    'what is left of the count goes to the next lane'
);

SELECT * FROM finish();

ROLLBACK;
