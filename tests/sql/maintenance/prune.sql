-- Retention: by lane and final state, and never a job that still matters.
BEGIN;

SELECT plan(55);

-- Ends a job in a state, so long ago; returns it.
CREATE FUNCTION pg_temp.ended(
    state text, ago interval, lane text DEFAULT 'l', unique_key text DEFAULT NULL,
    unique_for interval DEFAULT NULL
)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_job bigint;
    v_lease bigint;
BEGIN
    v_job := pulse.enqueue(
        'k', lane => ended.lane, unique_key => ended.unique_key,
        unique_for => ended.unique_for
    );
    SELECT c.lease INTO v_lease
    FROM pulse.claim_batch('w', ended.lane) AS c;
    CASE ended.state
        WHEN 'completed' THEN
            PERFORM pulse.complete(v_lease);
        WHEN 'dead' THEN
            PERFORM pulse.fail(v_lease, fatal => true);
        ELSE
            PERFORM pulse.cancel(v_job, force => true);
    END CASE;
    UPDATE pulse_internal.finished AS f
    SET finished_at = f.finished_at - ended.ago
    WHERE f.job = v_job;
    UPDATE pulse_internal.body AS b
    SET enqueued_at = b.enqueued_at - ended.ago
    WHERE b.job = v_job;
    RETURN v_job;
END;
$$;

CREATE FUNCTION pg_temp.gone(job_id bigint)
RETURNS boolean
LANGUAGE sql
AS $$
    SELECT NOT EXISTS (SELECT FROM pulse_internal.body AS b WHERE b.job = gone.job_id)
        AND NOT EXISTS (SELECT FROM pulse_internal.finished AS f WHERE f.job = gone.job_id)
$$;

-- Defaults

SELECT pg_temp.ended('completed', '47 h') AS c47, pg_temp.ended('completed', '49 h') AS c49 \gset
SELECT pg_temp.ended('cancelled', '47 h') AS x47, pg_temp.ended('cancelled', '49 h') AS x49 \gset
SELECT pg_temp.ended('dead', '6 days') AS d6, pg_temp.ended('dead', '8 days') AS d8 \gset
SELECT is(pulse.prune(dry_run => true), 3::bigint, 'dry_run says how many would go');
SELECT is((SELECT count(*) FROM pulse_internal.finished), 6::bigint, 'and removes none');
SELECT is(pulse.prune(), 3::bigint, 'prune removes them');
SELECT is(pulse.prune(), 0::bigint, 'once');
SELECT ok(pg_temp.gone(:c49), 'completed jobs go after 48 hours');
SELECT ok(NOT pg_temp.gone(:c47), 'not before');
SELECT ok(pg_temp.gone(:x49), 'cancelled ones too');
SELECT ok(NOT pg_temp.gone(:x47), 'not before');
SELECT ok(pg_temp.gone(:d8), 'dead ones after seven days');
SELECT ok(NOT pg_temp.gone(:d6), 'not before');

-- By lane

SELECT pulse.set_lane('short', retain_completed => '1 min', retain_cancelled => '2 min', retain_dead => '3 min');
SELECT pulse.set_lane('long', retain_completed => '1 year');
SELECT pulse.set_lane('none', retain_completed => '0');
SELECT pg_temp.ended(s.state, '150 s', 'short') AS job FROM unnest('{completed,cancelled,dead}'::text []) AS s (state) \g /dev/null
SELECT pg_temp.ended('completed', '300 days', 'long') AS long \gset
SELECT pg_temp.ended('completed', '0', 'none') AS none \gset
SELECT is(pulse.prune(), 3::bigint, 'each lane has its own retention');
SELECT results_eq(
    'SELECT f.state::text FROM pulse_internal.finished AS f WHERE f.lane = ''short''', $$VALUES ('dead')$$,
    'for each state'
);
SELECT ok(NOT pg_temp.gone(:long), 'long');
SELECT ok(pg_temp.gone(:none), 'or none at all');

-- Nothing that is not over

SELECT pulse.enqueue('k', lane => 'live') AS ready \gset
SELECT pulse.enqueue('k', lane => 'live', delay => '1 h') AS scheduled \gset
SELECT pulse.enqueue('k', lane => 'live', requires_approval => true) AS approval \gset
SELECT pulse.enqueue('k', lane => 'live2') AS running \gset
SELECT count(*) FROM pulse.claim_batch('w', 'live2') \g /dev/null
UPDATE pulse_internal.body SET enqueued_at = enqueued_at - interval '10 years';
SELECT pg_temp.ended('dead', '10 years', 'again') AS again \gset
SELECT pulse.retry(:again) AS r \gset
-- proves: R19
SELECT is(pulse.prune(), 0::bigint, 'rule 19: age of the body alone removes nothing');
SELECT ok(
    NOT pg_temp.gone(:again), 'rule 19: a retried job keeps its body, however old it is'
);
SELECT is(
    (SELECT count(*) FROM pulse_internal.body AS b WHERE b.job IN (:ready, :scheduled, :approval, :running)),
    4::bigint, 'and so does every job that is not over'
);

-- Keys

SELECT pg_temp.ended('completed', '10 days', 'keys', 'dedup', '30 days') AS keyed \gset
SELECT pg_temp.ended('completed', '10 days', 'keys', 'over', '1 day') AS over \gset
UPDATE pulse_internal.job_key SET expires_at = clock_timestamp() - interval '1 s' WHERE job = :over;
SELECT is(pulse.prune(dry_run => true), 1::bigint, 'dry_run counts exactly what would go');
-- proves: R21
SELECT is(pulse.prune(), 1::bigint, 'rule 21: a key that still dedups keeps its job');
SELECT ok(NOT pg_temp.gone(:keyed), 'this one');
SELECT ok(pg_temp.gone(:over), 'one whose unique_for is over does not');
-- proves: G16
SELECT is(
    pulse.enqueue('k', lane => 'keys', unique_key => 'dedup'), :keyed::bigint,
    'guarantee 16: so the repeated enqueue still finds it'
);
SELECT is_empty(
    $$SELECT * FROM pulse_internal.job_key WHERE unique_key = 'over'$$, 'and expired keys are removed'
);
SELECT pg_temp.ended('completed', '1 h', 'keys', 'young', '1 s') AS young \gset
UPDATE pulse_internal.job_key SET expires_at = clock_timestamp() - interval '1 s' WHERE job = :young;
SELECT is(pulse.prune(), 0::bigint, 'a key may go');
SELECT is_empty($$SELECT * FROM pulse_internal.job_key WHERE unique_key = 'young'$$, 'while its job stays');
SELECT is(
    (SELECT count(*) FROM pulse_internal.finished AS f WHERE f.job = :young), 1::bigint, 'where it is'
);

-- Side tables

SELECT pulse.enqueue('k', lane => 'side', unique_key => 's') AS side \gset
SELECT c.lease FROM pulse.claim_batch('w', 'side') AS c \gset
SELECT pulse.progress(:lease, 0.5);
SELECT pulse.checkpoint(:lease, '{}');
SELECT pulse.fail(:lease, 'oops', fatal => true);
UPDATE pulse_internal.finished SET finished_at = finished_at - interval '8 days' WHERE job = :side;
SELECT is(pulse.prune(), 1::bigint, 'a job goes');
SELECT is_empty(
    format(
        'SELECT job FROM pulse_internal.failure WHERE job = %1$s UNION ALL SELECT job FROM pulse_internal.job_progress WHERE job = %1$s UNION ALL SELECT job FROM pulse_internal.job_checkpoint WHERE job = %1$s UNION ALL SELECT job FROM pulse_internal.job_key WHERE job = %1$s',
        :side
    ),
    'with its errors, progress, checkpoint and key'
);
SELECT throws_ok(format('SELECT pulse.cancel(%s)', :side), 'PU004', NULL, 'then it is unknown');
SELECT throws_ok(
    format('SELECT pulse.fail(%s)', :lease), 'PU101', NULL, 'and its last report is lost'
);

-- Bounded, oldest first

SELECT pg_temp.ended('completed', make_interval(days => 10 + n), 'bulk') AS job FROM generate_series(1, 10) AS n \g /dev/null
SELECT is(pulse.prune(max_jobs => 4), 4::bigint, 'prune takes at most so many');
SELECT ok(
    (SELECT max(clock_timestamp() - f.finished_at) < '17 days' FROM pulse_internal.finished AS f WHERE f.lane = 'bulk'),
    'the oldest first'
);
SELECT is(pulse.prune(true, 5), 5::bigint, 'a dry run too');
SELECT is(pulse.prune(), 6::bigint, 'and then the rest');
SELECT throws_ok(
    format('SELECT pulse.prune(max_jobs => %s)', coalesce(n.n, 'NULL')), 'PU002', NULL,
    format('max_jobs %s is refused', coalesce(n.n, 'NULL'))
)
FROM unnest('{NULL,0,-1,1000001}'::text []) AS n (n);

-- In tick: lanes take turns, and what is kept is not read again and again

SELECT pg_temp.ended('completed', '10 days', lane.name) AS job
FROM unnest('{turn-a,turn-b,turn-c}'::text []) AS lane (name), generate_series(1, 3) \g /dev/null
SELECT is(pulse_internal.tick_prune('-infinity'), 3::bigint, 'without time a tick prunes a page of one lane');
SELECT is(pulse_internal.tick_prune('-infinity'), 3::bigint, 'the next tick the next lane');
SELECT pg_temp.ended('completed', '10 days', 'turn-c') AS job \g /dev/null
SELECT is(pulse_internal.tick_prune('-infinity'), 3::bigint, 'though the first has something again');
SELECT is(
    (SELECT array_agg(f.lane COLLATE "default") FROM pulse_internal.finished AS f WHERE f.lane LIKE 'turn-%'),
    '{turn-c}', 'which waits until the others had their turn'
);
SELECT is(pulse_internal.tick_prune('infinity'), 1::bigint, 'and until the round has come to its end');
SELECT is(pulse_internal.tick_prune('infinity'), 0::bigint, 'then nothing is left');
SELECT pg_temp.ended('completed', '10 days', 'page', 'dedup ' || n, '30 days') AS job
FROM generate_series(1, 5) AS n \g /dev/null
SELECT pg_temp.ended('completed', '9 days', 'page') AS job \g /dev/null
SELECT results_eq(
    $$SELECT p.removed, p.next IS NULL FROM pulse_internal.prune_jobs('page', 'completed', now(), '-infinity', 3) AS p$$,
    'VALUES (0, false)', 'a page is what is looked at: keys that still dedup do not make it longer'
);
SELECT is(pulse_internal.tick_prune('infinity'), 1::bigint, 'what stands behind them is found');
SELECT cmp_ok(
    pulse_internal.kept_until('page', 'completed'), '>', (SELECT max(f.finished_at) FROM pulse_internal.finished AS f WHERE f.lane = 'page'),
    'they are not looked at again'
);
UPDATE pulse_internal.job_key SET expires_at = now() - interval '1 s' WHERE lane = 'page' AND unique_key = 'dedup 3';
SELECT is(pulse_internal.tick_prune('infinity'), 1::bigint, 'one goes when its key expires');
DELETE FROM pulse_internal.job_key WHERE lane = 'page' AND unique_key = 'dedup 4';
SELECT is(pulse_internal.tick_prune('infinity'), 0::bigint, 'one whose key somebody took is not seen');
UPDATE pulse_internal.upkeep_run
SET state = state || jsonb_build_object('from_start_at', now() - interval '61 min')
WHERE step = 'kept:completed:page';
SELECT is(pulse_internal.tick_prune('infinity'), 1::bigint, 'until the next look from the start, after an hour');
SELECT pg_temp.ended('completed', '10 days', 'page', 'waits', '5 days') AS job \gset
UPDATE pulse_internal.job_key SET expires_at = now() - interval '1 s' WHERE unique_key = 'waits';
UPDATE pulse_internal.finished SET finished_at = now() WHERE job = :job;
SELECT is(pulse_internal.tick_prune('infinity'), 0::bigint, 'a key that expires takes no job with it that retention keeps');
SELECT is(pg_temp.state(:job), 'completed', 'which stays');
SELECT is_empty($$SELECT FROM pulse_internal.job_key AS k WHERE k.unique_key = 'waits'$$, 'without its key');

-- Workers that were not seen for a day

SELECT pulse.hello('here') \g /dev/null
SELECT pulse.hello('gone') \g /dev/null
UPDATE pulse_internal.worker SET seen_at = seen_at - interval '25 hours' WHERE worker = 'gone';
SELECT pulse.prune() AS n \gset
SELECT results_eq(
    'SELECT w.worker FROM pulse_internal.worker AS w', $$VALUES ('here')$$,
    'workers that said nothing for a day are forgotten'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
