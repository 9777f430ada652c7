-- Samples: what stood in line and ran, in the rows of stat.
BEGIN;

SELECT plan(13);

CREATE FUNCTION pg_temp.row_of(lane text, kind text DEFAULT '')
RETURNS text
LANGUAGE sql
AS $$
    SELECT row(count(*), max(s.enqueued), max(s.completed), max(s.ready), max(s.running))::text
    FROM pulse_internal.stat AS s
    WHERE s.total AND s.lane = row_of.lane AND s.kind = row_of.kind
$$;
CREATE FUNCTION pg_temp.pass_minutes(minutes integer)
RETURNS void
LANGUAGE sql
AS $$
    UPDATE pulse_internal.stat AS s SET at = s.at - pass_minutes.minutes * interval '1 minute'
$$;

-- One series holds counters and depth

SELECT pulse.complete(pg_temp.claim('mail'));
SELECT pulse.enqueue('k', lane => 'mail') FROM generate_series(1, 3) \g /dev/null
SELECT is(pulse_internal.tick_sample(), 1, 'a lane with ready jobs is sampled');
SELECT is(pg_temp.row_of('mail'), '(1,0,0,3,0)', 'before anything is counted its counters are 0');
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is(pg_temp.row_of('mail'), '(1,4,1,3,0)', 'counting keeps the depth, in the row of the minute');
SELECT pg_temp.claim('mail') \g /dev/null
SELECT pulse_internal.tick_sample() \g /dev/null
SELECT is(pg_temp.row_of('mail'), '(1,4,1,3,1)', 'and a sample keeps the counters');
SELECT is(pg_temp.row_of('', 'k'), '(1,4,1,3,1)', 'of the kind');
SELECT is(pg_temp.row_of('', ''), '(1,4,1,3,1)', 'of everything');
SELECT is_empty($$SELECT FROM pulse.stats AS s WHERE s.kind = ''$$, 'a depth is no pair of lane and kind');

-- A sample is due after a while

SELECT is(pulse_internal.tick_sample(every => '59 s'), 0, 'tick samples once a minute');

-- What is empty is written once

SELECT pg_temp.pass_minutes(1);
DELETE FROM pulse_internal.ready;
DELETE FROM pulse_internal.lease;
SELECT is(pulse_internal.tick_sample(), 1, 'a lane that emptied gets a row that says so');
SELECT pg_temp.pass_minutes(1);
SELECT is(pulse_internal.tick_sample(), 0, 'and then none');
SELECT results_eq(
    $$SELECT h.ready, h.running FROM pulse.history('5 min', '1 min', 'mail') AS h WHERE h.ready IS NOT NULL ORDER BY h.at$$,
    'VALUES (3::bigint, 1::bigint), (0, 0), (0, 0)', 'history: no row means empty, where a sample was taken'
);

-- A lane beyond the first 2,000 has counters of its own once it was sampled

INSERT INTO pulse_internal.stat
SELECT 'l' || n, 'k', clock_timestamp(), 0, 0, 0, 0, 0, 0, 0, 0, 0, '{}', 0, '{}'
FROM generate_series(1, 2000) AS n;
SELECT pulse.enqueue('invented', lane => 'late') \g /dev/null
SELECT pulse_internal.tick_sample() \g /dev/null
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is(pg_temp.row_of('late'), '(1,1,0,1,0)', 'its total is kept');
SELECT is_empty($$SELECT FROM pulse.counters AS c WHERE c.lane = 'late'$$, 'but no pair');

SELECT * FROM finish();
ROLLBACK;
