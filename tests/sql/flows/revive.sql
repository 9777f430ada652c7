-- Jobs that are blocked again when an upstream is retried keep what the enqueue asked for.
BEGIN;

SELECT plan(16);

\o /dev/null
-- End the next job of lane f as a failure for good.
CREATE FUNCTION pg_temp.kill_next() RETURNS void LANGUAGE sql AS $$
    SELECT pulse.fail(c.lease, 'no', fatal => true) FROM pulse.claim_batch('w', 'f') AS c
$$;
CREATE FUNCTION pg_temp.complete_next(result jsonb DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
    SELECT pulse.complete(c.lease, complete_next.result) FROM pulse.claim_batch('w', 'f') AS c
$$;
\o

-- A revived child keeps its delay.
SELECT pulse.enqueue('k', lane => 'f') AS u \gset
SELECT pulse.enqueue('k', lane => 'f', after => ARRAY[:u], delay => '1 hour') AS child \gset
SELECT pg_temp.kill_next() \g /dev/null
SELECT is(pg_temp.state(:child), 'cancelled', 'the child is cancelled with its upstream');
SELECT pulse.retry(:u) \g /dev/null
SELECT is(pg_temp.state(:child), 'blocked', 'a retry of the upstream blocks the child again');
SELECT pg_temp.complete_next() \g /dev/null
SELECT is(pg_temp.state(:child), 'scheduled', 'the revived child waits for its delay');
SELECT ok(
    (SELECT run_at FROM pulse.jobs WHERE job_id = :child)
    BETWEEN now() + interval '50 minutes' AND clock_timestamp() + interval '70 minutes',
    'the delay counts from the end of the upstream'
);

-- A revived child keeps its run_at and its expires_in.
SELECT pulse.enqueue('k', lane => 'f') AS u \gset
SELECT pulse.enqueue(
    'k', lane => 'f', after => ARRAY[:u], run_at => 'tomorrow', expires_in => '10 minutes'
) AS child \gset
SELECT pg_temp.kill_next() \g /dev/null
SELECT pulse.retry(:u) \g /dev/null
SELECT pg_temp.complete_next() \g /dev/null
SELECT is(
    (SELECT run_at FROM pulse.jobs WHERE job_id = :child), 'tomorrow'::timestamptz,
    'the revived child keeps its run_at'
);
SELECT is(
    (SELECT start_by FROM pulse_internal.body WHERE job = :child),
    'tomorrow'::timestamptz + interval '10 minutes',
    'the revived child expires as long after its run_at'
);

-- The same for jobs of enqueue_many.
SELECT pulse.enqueue('k', lane => 'f') AS u \gset
SELECT j AS child FROM pulse.enqueue_many(
    'k', ARRAY['{}']::jsonb [], lane => 'f', after => ARRAY[:u], delay => '1 hour'
) AS j \gset
SELECT pg_temp.kill_next() \g /dev/null
SELECT pulse.retry(:u) \g /dev/null
SELECT pg_temp.complete_next() \g /dev/null
SELECT is(pg_temp.state(:child), 'scheduled', 'a job of enqueue_many keeps its delay');

-- The same after a retry of the child itself.
SELECT pulse.enqueue('k', lane => 'f') AS u \gset
SELECT pulse.enqueue('k', lane => 'f', after => ARRAY[:u], delay => '1 hour') AS child \gset
SELECT pg_temp.kill_next() \g /dev/null
SELECT is(pulse.retry(:child), 'blocked', 'a retried child waits for its failed upstream');
SELECT pulse.retry(:u) \g /dev/null
SELECT pg_temp.complete_next() \g /dev/null
SELECT is(pg_temp.state(:child), 'scheduled', 'the retried child waits for its delay');
SELECT pulse.cancel(:child) \g /dev/null
SELECT is(
    pulse.retry(:child), 'ready',
    'a retry after the upstreams have completed runs the job at once'
);
SELECT pg_temp.complete_next() \g /dev/null

-- replace of a blocked job changes what it keeps.
SELECT pulse.enqueue('k', lane => 'f') AS u \gset
SELECT pulse.enqueue(
    'k', lane => 'f', after => ARRAY[:u], delay => '1 hour', unique_key => 'one'
) AS child \gset
SELECT pulse.enqueue(
    'k', lane => 'f', unique_key => 'one', on_conflict => 'replace'
) \g /dev/null
SELECT pg_temp.kill_next() \g /dev/null
SELECT pulse.retry(:u) \g /dev/null
SELECT pg_temp.complete_next() \g /dev/null
SELECT is(pg_temp.state(:child), 'ready', 'a replace without a delay takes the delay away');
SELECT pg_temp.complete_next() \g /dev/null

-- A revived child expires if its start_by has passed meanwhile.
SELECT pulse.enqueue('k', lane => 'f') AS u \gset
SELECT pulse.enqueue(
    'k', lane => 'f', after => ARRAY[:u], start_by => clock_timestamp() + interval '1 hour'
) AS child \gset
SELECT pg_temp.kill_next() \g /dev/null
\o /dev/null
UPDATE pulse_internal.body SET start_by = start_by - interval '2 hours' WHERE job = :child;
UPDATE pulse_internal.expiry SET start_by = start_by - interval '2 hours' WHERE job = :child;
SELECT pulse_internal.tick_expiry(clock_timestamp() + interval '1 minute');
\o
SELECT is_empty(
    format('SELECT FROM pulse_internal.expiry WHERE job = %s', :child),
    'tick() forgets the expiry of a job that has ended'
);
SELECT pulse.retry(:u) \g /dev/null
SELECT pulse_internal.tick_expiry(clock_timestamp() + interval '1 minute') \g /dev/null
SELECT is(pg_temp.state(:child), 'cancelled', 'the revived child expires');
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing');

-- Results of upstreams stay as long as a dead job may be retried.
SELECT pulse.enqueue('k', lane => 'g') AS u \gset
SELECT pulse.enqueue('k', lane => 'g', after => ARRAY[:u]) AS child \gset
SELECT pulse.complete(c.lease, '"found"') FROM pulse.claim_batch('w', 'g') AS c \g /dev/null
SELECT pulse.fail(c.lease, 'no', fatal => true) FROM pulse.claim_batch('w', 'g') AS c \g /dev/null
\o /dev/null
UPDATE pulse_internal.finished SET finished_at = finished_at - interval '3 days' WHERE job = :u;
SELECT pulse.prune();
SELECT pulse.retry(:child);
\o
SELECT results_eq(
    $$SELECT u.result FROM pulse.claim_batch('w', 'g') AS c, pulse.upstream(c.lease) AS u$$,
    $$VALUES ('"found"'::jsonb)$$,
    'retention keeps the result that a dead job reads after a retry'
);
SELECT throws_ok(
    format('SELECT pulse.delete_job(%s)', :u), 'PU105', NULL,
    'delete_job refuses to delete that result'
);

SELECT * FROM finish();
ROLLBACK;
