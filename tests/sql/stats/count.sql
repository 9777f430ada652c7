-- Counters: what happened to jobs, for each lane and kind.
BEGIN;

SELECT plan(46);

CREATE FUNCTION pg_temp.counted(lane text, kind text DEFAULT 'k')
RETURNS text
LANGUAGE sql
AS $$
    SELECT concat_ws(
        ' ', c.enqueued, c.started, c.completed, c.failed, c.dead, c.retried, c.cancelled,
        c.reaped
    )
    FROM pulse.counters AS c
    WHERE c.lane = counted.lane AND c.kind = counted.kind
$$;

-- What each verb counts: enqueued started completed failed dead retried cancelled reaped

SELECT pulse.complete(pg_temp.claim('done'));
SELECT pg_temp.fill(100, 'many');
SELECT count(*) FROM pulse.claim_batch('w', 'many', 60) \g /dev/null
SELECT count(*) FROM pulse.complete_batch(
    array(SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lane = 'many' LIMIT 50)
) \g /dev/null
SELECT pulse.fail(pg_temp.claim('failed'), 'oops');
SELECT pulse.fail(pg_temp.claim('dies', max_attempts => 1), 'oops');
SELECT pulse.fail(pg_temp.claim('fatal'), 'oops', fatal => true);
SELECT pg_temp.claim('lapsed') AS lapsed \gset
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - interval '1 s' WHERE lease = :lapsed;
SELECT pulse.reap() \g /dev/null
SELECT count(*) FROM pulse.release(ARRAY[pg_temp.claim('released')]) \g /dev/null
SELECT pulse.snooze(pg_temp.claim('snoozed'), '1 h') \g /dev/null
SELECT pulse.enqueue('k', lane => 'cancelled') AS job \gset
SELECT pulse.cancel(:job) \g /dev/null
SELECT pulse.retry(:job) \g /dev/null
SELECT pulse.enqueue('k', lane => 'later', delay => '1 h') \g /dev/null
SELECT count(*) FROM pulse.enqueue_many('k', ARRAY['{}', '{}']::jsonb [], 'later', delay => '1 h') \g /dev/null
SELECT pulse.enqueue('k', lane => 'keyed', unique_key => 'u') \g /dev/null
SELECT pulse.enqueue('k', lane => 'keyed', unique_key => 'u') \g /dev/null
SELECT pulse.enqueue('k', lane => 'asks', requires_approval => true, unique_key => 'u') \g /dev/null
SELECT pulse.enqueue('k', lane => 'asks', requires_approval => true, unique_key => 'u', on_conflict => 'replace') \g /dev/null
SELECT count(*) FROM pulse.enqueue_many('[{"kind": "k", "lane": "list"}, {"kind": "l", "lane": "list"}]') \g /dev/null
SELECT count(*) FROM pulse.enqueue_many('k', '{}'::jsonb [], 'none') \g /dev/null
SELECT pg_temp.claim('stops') AS stops \gset
SELECT pulse.cancel(l.job) FROM pulse_internal.lease AS l WHERE l.lease = :stops \g /dev/null
SELECT pulse.ack_cancel(:stops);
SELECT pg_temp.claim('fails-asked') AS stops \gset
SELECT pulse.cancel(l.job) FROM pulse_internal.lease AS l WHERE l.lease = :stops \g /dev/null
SELECT pulse.fail(:stops, 'oops');
SELECT pg_temp.claim('forced') AS stops \gset
SELECT pulse.cancel(l.job, force => true) FROM pulse_internal.lease AS l WHERE l.lease = :stops \g /dev/null

SELECT is_empty('SELECT FROM pulse.counters', 'nothing is counted before a tick');
SELECT ok(pulse_internal.tick_count() > 0, 'a tick counts');
SELECT is_empty('SELECT FROM pulse_internal.tally', 'and takes out what it counted');
SELECT is(pulse_internal.tick_count(), 0::bigint, 'so there is nothing to count again');

SELECT is(pg_temp.counted(w.lane), w.counts, format('%s: %s', w.lane, w.counts))
FROM (
    VALUES
    ('done', '1 1 1 0 0 0 0 0'),
    ('many', '100 60 50 0 0 0 0 0'),
    ('failed', '1 1 0 1 0 1 0 0'),
    ('dies', '1 1 0 1 1 0 0 0'),
    ('fatal', '1 1 0 1 1 0 0 0'),
    ('lapsed', '1 1 0 1 0 1 0 1'),
    ('released', '1 1 0 0 0 0 0 0'),
    ('snoozed', '1 1 0 0 0 0 0 0'),
    ('cancelled', '1 0 0 0 0 1 1 0'),
    ('later', '3 0 0 0 0 0 0 0'),
    ('keyed', '1 0 0 0 0 0 0 0'),
    ('asks', '2 0 0 0 0 0 1 0'),
    ('list', '1 0 0 0 0 0 0 0'),
    ('none', NULL),
    ('stops', '1 1 0 0 0 0 1 0'),
    ('fails-asked', '1 1 0 1 0 0 1 0'),
    ('forced', '1 1 0 0 0 0 1 0')
) AS w (lane, counts);

-- A start counts once: by the sweep that sees the run, or by its end

SELECT is(
    (SELECT count(l.ready_at) FROM pulse_internal.lease AS l WHERE l.lane = 'many'), 0::bigint,
    'the sweep has counted the starts of those that still ran'
);
SELECT pg_temp.claim('seen') AS seen \gset
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is(pg_temp.counted('seen'), '1 0 0 0 0 0 0 0', 'a run that no sweep has seen is not counted yet');
SELECT pulse.reap() \g /dev/null
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is(pg_temp.counted('seen'), '1 1 0 0 0 0 0 0', 'the sweep counts its start');
SELECT pulse.complete(:seen);
SELECT count(*) FROM pulse.complete_batch(array(SELECT l.lease FROM pulse_internal.lease AS l WHERE l.lane = 'many')) \g /dev/null
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is(pg_temp.counted('seen'), '1 1 1 0 0 0 0 0', 'and its end does not count it again');
SELECT is(pg_temp.counted('many'), '100 60 60 0 0 0 0 0', 'nor do the ends of many');

-- Histograms

SELECT is(
    (SELECT row((SELECT sum(n) FROM unnest(c.wait_counts) AS n), (SELECT sum(n) FROM unnest(c.run_counts) AS n))::text
    FROM pulse.counters AS c WHERE c.lane = 'many'),
    '(60,60)', 'every start is in the histogram of waits, every end in that of runs'
);
SELECT pulse.enqueue('slow', lane => 'slow') \g /dev/null
UPDATE pulse_internal.ready SET ready_at = ready_at - interval '20 s' WHERE lane = 'slow';
SELECT c.lease FROM pulse.claim_batch('w', 'slow') AS c \gset
UPDATE pulse_internal.lease SET ready_at = ready_at - interval '2 min', claimed_at = claimed_at - interval '2 min' WHERE lane = 'slow';
SELECT pulse.complete(:lease);
SELECT pulse_internal.tick_count() \g /dev/null
SELECT ok(
    (SELECT c.wait_seconds BETWEEN 20 AND 30 AND c.run_seconds BETWEEN 120 AND 130
        AND c.wait_counts[10] = 1 AND c.run_counts[12] = 1
    FROM pulse.counters AS c WHERE c.lane = 'slow'),
    'a wait of 20 s is below 30, a run of two minutes below 300'
);
SELECT is(
    pulse.histogram_quantile('{0,0,0,0,10,10}', 0.75), 0.75::double precision,
    'a quantile lies inside its place'
);
SELECT is(
    pulse.histogram_quantile('{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7}', 0.5), 21600::double precision,
    'what is beyond the last bound is at it'
);
SELECT is(pulse.histogram_quantile('{0,0}', 0.5), NULL, 'of nothing there is none');

-- One row a minute, and what happened between

SELECT is((SELECT count(*) FROM pulse_internal.stat AS s WHERE s.lane = 'done' AND NOT s.total), 1::bigint, 'one row for a minute');
UPDATE pulse_internal.stat SET at = at - interval '2 minutes' WHERE lane = 'done';
SELECT pulse.complete(pg_temp.claim('done'));
SELECT pulse_internal.tick_count() \g /dev/null
SELECT pulse.complete(pg_temp.claim('done'));
SELECT pulse_internal.tick_count() \g /dev/null
SELECT results_eq(
    $$SELECT s.completed, (SELECT sum(n)::bigint FROM unnest(s.wait_counts) AS n) FROM pulse.stats AS s WHERE s.lane = 'done' ORDER BY s.at$$,
    'VALUES (1::bigint, 1::bigint), (2, 2)', 'stats has the differences'
);
SELECT is(pg_temp.counted('done'), '3 3 3 0 0 0 0 0', 'counters the sum');
SELECT results_eq(
    $$SELECT count(*), sum(h.completed)::bigint FROM pulse.history('10 min', '1 min', 'done') AS h$$,
    'VALUES (11::bigint, 3::bigint)', 'history has every minute, and what happened in it'
);
SELECT is(
    (SELECT sum(h.completed)::bigint FROM pulse.history() AS h),
    (SELECT sum(c.completed)::bigint FROM pulse.counters AS c), 'of everything'
);
SELECT is(
    (SELECT sum(h.enqueued)::bigint FROM pulse.history(kind => 'slow') AS h), 1::bigint, 'of a kind'
);
SELECT is_empty(
    $$
    SELECT t.lane, t.kind, t.enqueued
    FROM (SELECT DISTINCT ON (s.lane, s.kind) s.* FROM pulse_internal.stat AS s WHERE s.total ORDER BY s.lane, s.kind, s.at DESC) AS t
    WHERE (t.enqueued, t.started, t.completed, t.failed) <> (
        SELECT sum(c.enqueued), sum(c.started), sum(c.completed), sum(c.failed)
        FROM pulse.counters AS c
        WHERE t.lane IN ('', c.lane) AND t.kind IN ('', c.kind)
    )
    $$, 'each total is the sum of its counters'
);
SELECT throws_ok($$SELECT pulse.history('1 year', '1 min')$$, 'PU002', NULL, 'at most a thousand steps');

-- A clock that was set back

UPDATE pulse_internal.stat SET at = at + interval '1 hour' WHERE lane = 'failed';
SELECT pulse.enqueue('k', lane => 'failed') \g /dev/null
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is(pg_temp.counted('failed'), '2 1 0 1 0 1 0 0', 'the newest row is the newest whatever the clock says');

-- Names that a producer invents

INSERT INTO pulse_internal.tally (lane, kind, event)
SELECT CASE WHEN n % 2 = 0 THEN 'done' ELSE 'invented-' || n END, 'invented-' || n, 'enqueued'
FROM generate_series(1, 6000) AS n;
SELECT pulse_internal.tick_count() \g /dev/null
SELECT is(
    (SELECT count(*) FROM pulse.counters AS c WHERE c.kind <> ''), 2000::bigint,
    'at most 2,000 lanes and kinds have counters of their own'
);
INSERT INTO pulse_internal.worker (worker, lanes, kinds, seen_by, seen_at) VALUES ('w', '{default}', '{handled}', current_user, clock_timestamp());
SELECT pulse.set_kind('named', lane => 'named') \gset
INSERT INTO pulse_internal.tally (lane, kind, event) VALUES ('default', 'handled', 'dead'), ('named', 'named', 'dead'), ('default', 'late', 'dead');
SELECT pulse_internal.tick_count('infinity') \gset
SELECT pulse_internal.tick_count('infinity') \gset
SELECT is(
    (SELECT string_agg(c.kind || ' ' || c.dead, ', ' ORDER BY c.kind) FROM pulse.counters AS c WHERE c.kind IN ('handled', 'named', 'late')),
    'handled 1, named 1',
    'kinds that workers or settings name are counted beyond 2,000 invented ones'
);
SELECT cmp_ok((SELECT count(*) FROM pulse.counters AS c WHERE c.kind <> ''), '<=', 4000::bigint, 'at most 4,000 in all');
SELECT ok((SELECT c.enqueued > 0 FROM pulse.counters AS c WHERE c.lane = 'done' AND c.kind = ''), 'the rest of a lane is counted together');
SELECT ok((SELECT c.enqueued > 0 FROM pulse.counters AS c WHERE c.lane = '' AND c.kind = ''), 'and the rest of all lanes');
SELECT is(
    (SELECT sum(c.enqueued)::bigint FROM pulse.counters AS c), 6000::bigint + (SELECT count(*) FROM pulse_internal.body),
    'and nothing is lost'
);

SELECT * FROM finish();

ROLLBACK;
